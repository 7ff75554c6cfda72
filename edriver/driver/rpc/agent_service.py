"""The driver's gRPC service for agents: it turns streams into events and orders into streams, and decides nothing."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from edriver.common import message_limits
from edriver.common.lease import Lease
from edriver.common.limits import OutOfBoundsError
from edriver.common.link import LinkOverflowError
from edriver.common.release import VERSION
from edriver.driver.core import events
from edriver.driver.rpc.agent_identity import AgentIdentity
from edriver.driver.rpc.agent_peer import AgentPeer
from edriver.driver.rpc.dial_in_hosts import Arrivals
from edriver.driver.rpc.mailbox import Mailbox
from edriver.driver.rpc.translate import event_of_report
from edriver.v1 import agent_pb2, agent_pb2_grpc

if TYPE_CHECKING:
    from edriver.v1.agent_pb2_grpc import _MaybeAsyncIterator, _ServicerContext

_log = logging.getLogger("edriver.driver")

BEAT: Final = 1.0
"""Seconds between heartbeats, in both directions."""

AGENT_LEASE: Final = 5.0
"""Seconds without a word from an agent after which it is given up."""

BOOT_LEASE: Final = 30.0
"""Seconds that an agent may take from its start to its first word: Python has to start, and the machine may be busy."""

ARRIVAL_BOUND: Final = 30.0
"""Seconds that a host which has dialled in by itself waits to be given a place; then it dials again."""

MOST_SAID: Final = 1000
"""Faults of agents that are logged; a run has a handful, and a broken agent could think of ever new ones."""

MESSAGE_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of the largest message either side takes: an assignment of thousands of ranks, with room to spare."""

SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.bdp_probe", 0),  # see edriver.common.grpc_streams.QUIET
)


_OF_A_WORKER: Final = frozenset(
    {"worker_report", "worker_ending", "worker_exited", "lease_expired", "worker_heard", "exit_overdue"}
)
"""What an agent says of one of its workers."""


class AgentServer(agent_pb2_grpc.AgentServiceServicer):
    """AgentService (proto/edriver/v1/agent.proto).

    Args:
        run_id: this run; a Hello of another is refused.
        welcome: what every agent is told first.
        inbox: takes the events.
        forward: takes the workers' output, with the name of their host.
        clock: seconds, monotonic: what leases are measured by.
        departed: told of each agent that has said its last word.
        papers: what workers show one another; None: nothing.
        arrivals: takes hosts that dial in by themselves; None: there are none.
        heard: told how far workers have come.
        draw_secret: makes a secret that was never there before.
    """

    def __init__(
        self,
        run_id: str,
        welcome: agent_pb2.Welcome,
        inbox: Mailbox[events.Event],
        forward: Callable[[str, agent_pb2.OutputBatch], None],
        clock: Callable[[], float],
        departed: Callable[[int], None] = lambda _: None,
        papers: Callable[[], agent_pb2.Papers | None] = lambda: None,
        arrivals: Arrivals | None = None,
        heard: Callable[[agent_pb2.WorkerStanding], None] = lambda _: None,
        draw_secret: Callable[[], bytes] = secrets.token_bytes,
    ) -> None:
        self._run_id = run_id
        self._welcome = welcome
        self._inbox = inbox
        self._forward = forward
        self._clock = clock
        self._departed = departed
        self._papers = papers
        self._arrivals = arrivals
        self._heard = heard
        self._draw_secret = draw_secret
        self._peers: dict[int, AgentPeer] = {}
        self._agent_on: dict[str, int] = {}
        self._identities: dict[int, AgentIdentity] = {}  # of all agents there ever were: output arrives late
        self._liars: set[int] = set()
        self._said: set[str] = set()

    # ---- for the session -------------------------------------------------------------------------------------

    def expect(self, host: str, agent_id: int) -> None:
        """An agent is about to be started. An earlier one of the host gets no more orders."""
        identity = self._identities[agent_id] = AgentIdentity(host, agent_id, self._draw_secret())
        self._peers[agent_id] = AgentPeer(identity, Lease(math.inf, self._clock, BEAT))
        self._agent_on[host] = agent_id

    def secret_of(self, agent_id: int) -> bytes:
        """What an expected agent has to show; for its invitation."""
        return self._identities[agent_id].secret

    def started(self, agent_id: int) -> None:
        """An agent is on its way: it dials in soon, or is lost."""
        if (peer := self._peers.get(agent_id)) and not peer.met:
            peer.lease = Lease(BOOT_LEASE, self._clock, BEAT)

    def send(self, host: str, message: agent_pb2.FromDriver) -> None:
        """Send an order to a host's agent. A host without one gets nothing: the core hears that it is lost."""
        peer = self._peers.get(self._agent_on.get(host, 0))
        if peer is not None:
            self._send(peer, message)

    def shut_down(self, agent_id: int, grace: float) -> bool:
        """Tell an agent to end; returns whether it can have heard of it: whether it has ever dialled in."""
        peer = self._peers.get(agent_id)
        if peer is None or not peer.met:
            return False
        self._send(peer, agent_pb2.FromDriver(shutdown=agent_pb2.Shutdown(grace=grace)))
        return True

    def give_up(self, agent_id: int) -> None:
        """The agent is lost, or not needed any more: it is refused from now on."""
        peer = self._peers.pop(agent_id, None)
        if peer is None:
            return
        peer.close()
        if self._agent_on.get(peer.host) == agent_id:
            del self._agent_on[peer.host]

    async def beat(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Send heartbeats and watch the leases, until cancelled."""
        next_beat = self._clock() + BEAT
        while True:
            leases = (peer.lease.next_tick for peer in self._peers.values() if not peer.silent)
            await sleep(min(max(0.0, next_beat - self._clock()), *leases, BEAT))
            for peer in [peer for peer in self._peers.values() if peer.lease.tick()]:
                self._note_silence(peer)
            if self._clock() >= next_beat:
                next_beat = self._clock() + BEAT
                for peer in self._peers.values():
                    peer.beat()

    # ---- for agents ------------------------------------------------------------------------------------------

    async def Connect(  # noqa: N802
        self, request_iterator: _MaybeAsyncIterator[agent_pb2.FromAgent], context: _ServicerContext
    ) -> AsyncIterator[agent_pb2.FromDriver]:
        """One connection of an agent's control stream."""
        hello = await self._first_message(request_iterator)
        try:
            message_limits.check(hello or agent_pb2.FromAgent())
        except OutOfBoundsError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        arriving = hello is not None and bool(hello.hello.host) and not hello.hello.agent_id
        if hello is not None and arriving:
            await self._let_in(hello.hello, context)
        peer, obstacle = self._peer_of(hello)
        if peer is None or hello is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, obstacle)
            return
        if not peer.identity.is_proven_by(hello.hello.secret):
            text = f"refused a connection from {address_of(context.peer()) or 'this machine'}: it claimed"
            self._warn_once(f"{text} to be the agent of host {peer.host} and did not know its secret")
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, f"agent {peer.agent_id} of host {peer.host} is known by its secret"
            )
        first = not peer.met
        try:
            stream = peer.connect(hello, agent_pb2.FromDriver(welcome=self._welcome_to(context, peer, arriving)))
        except ValueError as error:
            self._complain(peer, str(error))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            return
        peer.lease = Lease(AGENT_LEASE, self._clock, BEAT)
        if first or peer.silent:
            peer.silent = False
            self._inbox.put(events.AgentConnected(peer.host, peer.agent_id))
        reading = asyncio.create_task(self._read(peer, stream, request_iterator))
        try:
            while (message := await stream.get()) is not None:
                yield message
            if reading.done() and not reading.cancelled() and (fault := reading.result()):
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, fault)
        finally:
            peer.disconnect(stream)
            reading.cancel()

    async def ForwardOutput(  # noqa: N802
        self, request_iterator: _MaybeAsyncIterator[agent_pb2.OutputBatch], context: _ServicerContext
    ) -> agent_pb2.OutputSummary:
        """The output of an agent's workers."""
        try:
            async for batch in request_iterator:
                message_limits.check(batch)
                identity = self._identities.get(batch.agent_id)
                if identity is None:
                    await context.abort(
                        grpc.StatusCode.FAILED_PRECONDITION, f"agent {batch.agent_id} is not of this run"
                    )
                    break
                if not identity.is_proven_by(batch.secret):
                    await context.abort(
                        grpc.StatusCode.PERMISSION_DENIED,
                        f"agent {identity.agent_id} of host {identity.host} is known by its secret",
                    )
                self._forward(identity.host, self._without_strangers(identity, batch))
        except (DecodeError, OutOfBoundsError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return agent_pb2.OutputSummary()

    # ---- within ----------------------------------------------------------------------------------------------

    async def _first_message(self, messages: _MaybeAsyncIterator[agent_pb2.FromAgent]) -> agent_pb2.FromAgent | None:
        """The message that opens a connection; None if there is none within a lease, or bytes that are no message."""
        try:
            async with asyncio.timeout(AGENT_LEASE):
                return await anext(aiter(messages), None)
        except (TimeoutError, DecodeError):
            return None

    async def _let_in(self, hello: agent_pb2.Hello, context: _ServicerContext) -> None:
        """Wait until the run has a place for a host that has dialled in by itself, and give its agent an id."""
        if self._arrivals is None:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "this run takes no hosts that dial in by themselves"
            )
        assert self._arrivals is not None
        if hello.run_id == self._run_id and hello.version == VERSION:  # else it is refused anyway
            place: asyncio.Future[int] = asyncio.Future()
            try:
                place = self._arrivals.arrive(hello.host, hello.slots)
            except ValueError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except KeyError:  # it dials again: the one that is there may be itself, before its connection broke
                self._warn_once(f"a second agent has dialled in as host {hello.host}: give it another name (--host)")
                await context.abort(grpc.StatusCode.ALREADY_EXISTS, f"there is a host {hello.host} already")
            try:
                async with asyncio.timeout(ARRIVAL_BOUND):
                    hello.agent_id = await place
                hello.secret = self.secret_of(hello.agent_id)
            except TimeoutError:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the run has no place for this host now")
            finally:
                if not hello.agent_id:
                    self._arrivals.leave(hello.host)

    def _peer_of(self, first: agent_pb2.FromAgent | None) -> tuple[AgentPeer | None, str]:
        """Who speaks; or nobody, and why this connection is refused."""
        if first is None or first.WhichOneof("kind") != "hello":
            return None, "a control stream begins with Hello"
        hello = first.hello
        if hello.run_id != self._run_id:
            return None, f"this is the driver of run {self._run_id}, not of {hello.run_id!r}"
        peer = self._peers.get(hello.agent_id)
        if peer is None:
            return (
                None,
                f"agent {hello.agent_id} was given up, or never was of this run: it ends its workers and itself",
            )
        if peer.host != hello.host:
            return None, f"agent {hello.agent_id} is the one of host {peer.host}, not of {hello.host!r}"
        if hello.version != VERSION:
            theirs = (
                f"edriver there is {hello.version or 'an older one'}, here it is {VERSION}: install the same on both"
            )
            if not peer.met and peer.identity.is_proven_by(hello.secret):  # else it is another who speaks
                self._lose(peer, theirs)
            return None, theirs
        return peer, ""

    def _welcome_to(self, context: _ServicerContext, peer: AgentPeer, arriving: bool) -> agent_pb2.Welcome:
        welcome = agent_pb2.Welcome()
        welcome.CopyFrom(self._welcome)
        welcome.agent_id = peer.agent_id
        if arriving:
            welcome.secret = peer.identity.secret
        welcome.seen_from = address_of(context.peer())
        if papers := self._papers():
            welcome.papers.CopyFrom(papers)
        return welcome

    async def _read(
        self,
        peer: AgentPeer,
        stream: Mailbox[agent_pb2.FromDriver],
        messages: _MaybeAsyncIterator[agent_pb2.FromAgent],
    ) -> str:
        """Take in what the agent says, until the connection ends. A fault ends the connection, nothing else.

        Returns:
            what is out of bounds in a message; empty: nothing.
        """
        try:
            async for message in messages:
                if self._peers.get(peer.agent_id) is not peer:
                    break
                peer.lease.renew()
                if peer.silent:
                    peer.silent = False
                    await self._inbox.put_when_room(events.AgentConnected(peer.host, peer.agent_id))
                message_limits.check(message)
                if peer.receive(message) and (event := self._event_of(peer, message)) is not None:
                    await self._inbox.put_when_room(event)
        except OutOfBoundsError as error:
            self._complain(peer, str(error))
            return str(error)
        except ValueError as error:
            self._complain(peer, str(error))
        except grpc.RpcError:
            pass  # the connection broke: the agent dials again
        except Exception as error:  # noqa: BLE001  what a socket brings must not end the run
            self._complain(peer, f"a message could not be read: {error!r}")
        finally:
            stream.close()
        return ""

    def _event_of(self, peer: AgentPeer, message: agent_pb2.FromAgent) -> events.Event | None:
        """What a message means to the core; None if nothing.

        Raises:
            ValueError: it is of a kind that does not belong here.
        """
        kind = message.WhichOneof("kind")
        if kind in _OF_A_WORKER and not self._is_its_own(peer.identity, getattr(message, kind).worker_id):
            return None
        match kind:
            case "heartbeat":
                for standing in message.heartbeat.standings:
                    if self._is_its_own(peer.identity, standing.worker_id):
                        self._heard(standing)
                return None
            case "worker_report":
                said = message.worker_report
                return event_of_report(said.worker_id, said.report)
            case "worker_ending":
                return events.WorkerEnding(message.worker_ending.worker_id, message.worker_ending.seen)
            case "worker_exited":
                exited = message.worker_exited
                return events.WorkerExited(exited.worker_id, exited.code, exited.tail, exited.reaped, exited.reason)
            case "lease_expired":
                return events.LeaseExpired(message.lease_expired.worker_id, self._welcome.worker_lease)
            case "worker_heard":
                return events.WorkerHeard(message.worker_heard.worker_id)
            case "exit_overdue":
                return events.ExitOverdue(message.exit_overdue.worker_id, self._welcome.exit_timeout)
            case "host_leaving":
                return events.DrainRequested(peer.host, None, message.host_leaving.reason)
            case "agent_ending":
                self._departed(peer.agent_id)
                return None
            case _:
                raise ValueError(f"a message of kind {kind} does not belong on an open control stream")

    def _is_its_own(self, identity: AgentIdentity, worker_id: int) -> bool:
        """Whether an agent speaks of a worker that it was told to start. What it says of others is left out."""
        if worker_id in identity.workers:
            return True
        text = f"the agent of host {identity.host} speaks of worker {worker_id}, which is none of its own"
        self._leave_out(identity, text)
        return False

    def _leave_out(self, identity: AgentIdentity, text: str) -> None:
        """Log what an agent has no right to say: the first time."""
        if identity.agent_id not in self._liars:
            self._liars.add(identity.agent_id)
            self._warn_once(f"{text}: that is left out")

    def _without_strangers(self, identity: AgentIdentity, batch: agent_pb2.OutputBatch) -> agent_pb2.OutputBatch:
        """A batch with none but the lines of the agent's own workers, in their slots and under their ranks."""
        own = [line for line in batch.lines if identity.may_have_written(line)]
        if len(own) == len(batch.lines):
            return batch
        self._leave_out(identity, f"the agent of host {identity.host} passes off lines as another worker's")
        return agent_pb2.OutputBatch(lines=own, dropped=batch.dropped)

    def _send(self, peer: AgentPeer, message: agent_pb2.FromDriver) -> None:
        try:
            peer.send(message)
        except LinkOverflowError as error:
            self._lose(peer, f"its agent takes no orders: {error}")

    def _note_silence(self, peer: AgentPeer) -> None:
        """An agent's lease has expired. What becomes of one that has dialled in before, the core decides."""
        if not peer.met:
            self._lose(peer, f"no word from its agent for {BOOT_LEASE:g} s since its start")
        elif not peer.silent:
            peer.silent = True
            reason = f"no word from its agent for {AGENT_LEASE:g} s"
            self._inbox.put(events.AgentSilent(peer.host, peer.agent_id, reason))

    def _lose(self, peer: AgentPeer, reason: str) -> None:
        self.give_up(peer.agent_id)
        self._inbox.put(events.AgentLost(peer.host, peer.agent_id, reason))

    def _complain(self, peer: AgentPeer, text: str) -> None:
        """Log a fault of an agent's, once."""
        self._warn_once(f"closed a connection of host {peer.host}: {text}")

    def _warn_once(self, text: str) -> None:
        if text not in self._said and len(self._said) < MOST_SAID:
            self._said.add(text)
            _log.warning("%s", text)


def address_of(peer: str) -> str:
    """The network address in what gRPC calls a peer (ipv4:10.0.0.1:50, ipv6:%5B::1%5D:50); empty for a unix socket."""
    family, _, where = peer.partition(":")
    return urllib.parse.unquote(where).rpartition(":")[0].strip("[]") if family in ("ipv4", "ipv6") else ""
