"""The agents that a run knows: which is expected on which host, what each is sent, and how long it may be silent."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from edriver.common.lease import Lease
from edriver.driver.agents.agent_identity import AgentIdentity
from edriver.driver.agents.imported_modules import ImportedModules
from edriver.driver.agents.periods import heartbeat_of, silence_within
from edriver.driver.feeds.inbound import Inbound
from edriver.driver.feeds.mailbox import Mailbox
from edriver.model import events
from edriver.model.cause import AgentFault, AgentFaultKind
from edriver.model.ids import RoundId
from edriver.v1 import agent_pb2, rounds_pb2
from edriver.wire.conversion import duration, round_id_of, span_seconds
from edriver.wire.link import Link, LinkOverflowError, LinkState

HEARTBEAT_INTERVAL: Final = 1.0
"""Seconds between heartbeats, in both directions; for a large run see periods.py."""

AGENT_LEASE: Final = 5.0
"""Seconds without a message after which an agent is given up."""

BOOT_LEASE: Final = 30.0
"""Seconds that an agent may take from its start to its first word: Python has to start, and the machine may be busy."""

OVERLOADED_DELAY: Final = 0.25
"""Seconds by which the driver wakes up late when it cannot keep up: what agents have sent may lie unread."""

OVERLOADED_SHARE: Final = 0.25
"""The part of that time that counts as silence of theirs."""

UNKNOWN_PID: Final = 1
"""Stands for the process of an agent that has not said which it is, which an agent's never is."""

STREAM_LIMIT: Final = 20_000
"""Messages that may wait for one connection; more than the link keeps, so that a new connection can take them all."""


class AgentRegistry:
    """The agents of a run. The session has them expected and sends them orders; the service connects them.

    Attributes:
        imported: what workers have imported, which the first StartWorker of each agent passes on.
        standbys: returns how many standbys hosts may have, by name; None: as many as they have.

    Args:
        inbox: takes the events: an agent is connected, silent, lost.
        clock: seconds, monotonic: what leases are measured by.
        departed: called with each agent that is to end and is silent: it may be dead.
        draw_secret: makes a secret that was never there before.
        count_workers: how many workers there are, on all hosts.
    """

    def __init__(
        self,
        inbox: Mailbox[Inbound],
        clock: Callable[[], float],
        departed: Callable[[int], None] = lambda _: None,
        draw_secret: Callable[[], bytes] = secrets.token_bytes,
        count_workers: Callable[[], int] = lambda: 0,
    ) -> None:
        self._inbox = inbox
        self._clock = clock
        self._departed = departed
        self._draw_secret = draw_secret
        self._count_workers = count_workers
        self._heartbeat = agent_pb2.Heartbeat()
        self._peers: dict[int, AgentPeer] = {}
        self._agent_on: dict[str, int] = {}
        self._identities: dict[int, AgentIdentity] = {}  # of all agents there ever were: output arrives late
        self._over = False
        self.imported = ImportedModules()
        self.standbys: Callable[[], Mapping[str, int] | None] = lambda: None

    # ---- for the session -------------------------------------------------------------------------------------

    def expect(self, host: str, agent_id: int) -> None:
        """An agent is about to be started. An earlier agent of the host gets no further orders."""
        identity = self._identities[agent_id] = AgentIdentity(host, agent_id, self._draw_secret())
        peer = self._peers[agent_id] = AgentPeer(identity, Lease(math.inf, self._clock, HEARTBEAT_INTERVAL))
        if self._over:
            peer.mark_all_durable()
        self._agent_on[host] = agent_id

    def secret_of(self, agent_id: int) -> bytes:
        """What an expected agent has to show; for its join config."""
        return self._identities[agent_id].secret

    def started(self, agent_id: int) -> None:
        """An agent has been started: it connects soon, or is lost."""
        if (peer := self._peers.get(agent_id)) and not peer.connected:
            peer.lease = Lease(BOOT_LEASE, self._clock, HEARTBEAT_INTERVAL)

    def send(self, host: str, message: agent_pb2.ConnectResponse) -> None:
        """Send an order to a host's agent. A host without one gets nothing: the core hears that it is lost."""
        peer = self._peers.get(self._agent_on.get(host, 0))
        if peer is not None:
            # What the first workers of a host import, those after them find in a file there.
            if message.HasField("start_worker") and not peer.identity.workers:
                self.imported.add_to(message.start_worker)
            self._send(peer, message)

    def ask(self, host: str, question: agent_pb2.ConnectResponse) -> bool:
        """Ask a host's agent something that it may be too late to answer on another connection.

        Returns:
            whether there is a connection to it.
        """
        peer = self._peers.get(self._agent_on.get(host, 0))
        return peer is not None and peer.ask(question)

    def shut_down(self, agent_id: int, grace: float, *, run_continues: bool = False) -> bool:
        """Order an agent to end; returns whether it can have received that, which is whether it has ever connected."""
        peer = self._peers.get(agent_id)
        if peer is None or not peer.connected:
            return False
        order = agent_pb2.Shutdown(grace=duration(grace), run_continues=run_continues)
        self._send(peer, agent_pb2.ConnectResponse(shutdown=order))
        peer.ending = True
        if peer.silent:
            self._departed(agent_id)
        return True

    def mark_durable(self, agent_id: int, seq: int) -> None:
        """An agent's messages up to this one will be acted upon, whatever happens: it may forget them."""
        if peer := self._peers.get(agent_id):
            peer.mark_durable(seq)

    def close(self) -> None:
        """The run is over: agents need not keep what they send."""
        self._over = True
        for peer in self._peers.values():
            peer.mark_all_durable()

    def give_up(self, agent_id: int) -> None:
        """The agent is lost, or not needed any more: it is refused from now on."""
        peer = self._peers.pop(agent_id, None)
        if peer is None:
            return
        peer.close()
        if self._agent_on.get(peer.host) == agent_id:
            del self._agent_on[peer.host]

    async def send_heartbeats(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Send heartbeats and watch the leases, until cancelled."""
        next_beat, count = self._clock() + HEARTBEAT_INTERVAL, 0
        soonest = math.inf  # seconds after which the next lease can expire: a message only puts that off
        while True:
            due = self._clock() + min(max(0.0, next_beat - self._clock()), soonest, HEARTBEAT_INTERVAL)
            await sleep(due - self._clock())
            now = self._clock()
            share = OVERLOADED_SHARE if now - due >= OVERLOADED_DELAY else 1.0
            for peer in [peer for peer in self._peers.values() if peer.lease.tick(share, now) and not peer.unread]:
                self._note_silence(peer)
            awaited = [peer.lease.left for peer in self._peers.values() if not (peer.silent or peer.unread)]
            soonest = min(awaited, default=math.inf)
            if self._clock() >= next_beat:
                next_beat, count = self._clock() + HEARTBEAT_INTERVAL, count + 1
                self._beat(count)

    # ---- for a run that is taken over ------------------------------------------------------------------------

    def note_connected(self, agent_id: int) -> None:
        """An expected agent has connected, to this driver or to the one before."""
        if peer := self._peers.get(agent_id):
            peer.pid = peer.pid or UNKNOWN_PID

    @property
    def agents(self) -> KnownAgents:
        """The agents that are known, for a snapshot."""
        rounds: dict[RoundId, rounds_pb2.RoundAssignment] = {}
        peers = tuple(_shortened(peer.state, rounds) for peer in self._peers.values())
        return KnownAgents(peers, dict(self._agent_on), tuple(self._identities.values()), tuple(rounds.values()))

    def restore(self, agents: KnownAgents) -> None:
        """Know the agents of a snapshot."""
        self._identities = {identity.agent_id: identity for identity in agents.identities}
        self._agent_on = dict(agents.agent_on)
        rounds = {round_id_of(each.round_id): each for each in agents.rounds}
        for state in agents.peers:
            identity = self._identities[state.agent_id]
            peer = AgentPeer(identity, Lease(math.inf, self._clock, HEARTBEAT_INTERVAL))
            for message in state.link.unacknowledged:
                if message.HasField("assign_round"):
                    assigned = message.assign_round.round
                    assigned.CopyFrom(rounds[round_id_of(assigned.round_id)])
            peer.restore(state)
            self._peers[state.agent_id] = peer

    def resume(self, agent_id: int, received: int, acknowledged: int) -> None:
        """Go on with an agent where the driver before has stopped; see Link."""
        if peer := self._peers.get(agent_id):
            peer.resume(received, acknowledged)

    def await_agents(self) -> list[tuple[str, int, bool]]:
        """From now on the agents that are expected have a lease to come back in.

        Returns:
            of each its host, its id, and whether it had connected before: one that had not may never have started.
        """
        for peer in self._peers.values():
            peer.lease = Lease(AGENT_LEASE, self._clock, HEARTBEAT_INTERVAL)
        return [(peer.host, peer.agent_id, peer.connected) for peer in self._peers.values()]

    # ---- for the service -------------------------------------------------------------------------------------

    def peer(self, agent_id: int) -> AgentPeer | None:
        """An agent that is expected or there; None: it was given up, or never was of this run."""
        return self._peers.get(agent_id)

    def identity(self, agent_id: int) -> AgentIdentity | None:
        """Who an agent is or was; None: it never was of this run."""
        return self._identities.get(agent_id)

    def connect(
        self, peer: AgentPeer, hello: agent_pb2.ConnectRequest, welcome: agent_pb2.Welcome
    ) -> Mailbox[agent_pb2.ConnectResponse]:
        """Begin a connection of an agent's.

        Returns:
            what is to be sent on it, until it is closed.

        Raises:
            ValueError: the Hello carries a number that it must not have.
        """
        first = not peer.connected
        stream = peer.connect(hello, agent_pb2.ConnectResponse(welcome=welcome))
        peer.lease = Lease(AGENT_LEASE, self._clock, HEARTBEAT_INTERVAL)
        if first or peer.silent:
            peer.silent = False
            self._inbox.put(events.AgentConnected(peer.host, peer.agent_id, hello.hello.processors))
        return stream

    async def renew(self, peer: AgentPeer) -> None:
        """Renew an agent's lease: a message of it has arrived."""
        peer.lease.renew()
        if peer.silent:
            peer.silent = False
            await self._inbox.put_when_room(events.AgentConnected(peer.host, peer.agent_id))

    def lose(self, peer: AgentPeer, fault: AgentFault) -> None:
        """Give an agent up, and report that to the core."""
        self.give_up(peer.agent_id)
        self._inbox.put(events.AgentLost(peer.host, peer.agent_id, fault))

    # ---- within ----------------------------------------------------------------------------------------------

    def _beat(self, count: int) -> None:
        """Send each agent a heartbeat, where one is due."""
        heartbeat = heartbeat_of(len(self._peers), self._count_workers())
        if heartbeat != self._heartbeat:
            self._heartbeat = heartbeat
        standbys = self.standbys()
        for peer in self._peers.values():
            peer.beat(self._heartbeat, None if standbys is None else standbys.get(peer.host, 0), self.imported, count)

    def _send(self, peer: AgentPeer, message: agent_pb2.ConnectResponse) -> None:
        try:
            peer.send(message)
        except LinkOverflowError as error:
            self.lose(peer, AgentFault(AgentFaultKind.OVERLOADED, str(error)))

    def _note_silence(self, peer: AgentPeer) -> None:
        """An agent's lease has expired. If it has connected before, the core decides what to do."""
        if not peer.connected:
            self.lose(peer, AgentFault(AgentFaultKind.NEVER_ANSWERED, seconds=BOOT_LEASE))
        elif not peer.silent:
            peer.silent = True
            fault = AgentFault(AgentFaultKind.SILENT, seconds=AGENT_LEASE)
            self._inbox.put(events.AgentSilent(peer.host, peer.agent_id, fault))
            if peer.ending:
                self._departed(peer.agent_id)


class PeerState(NamedTuple):
    """An agent that is expected or there: see AgentPeer. A connection and a lease are of one process alone."""

    agent_id: int
    pid: int
    silent: bool
    ending: bool
    link: LinkState


class KnownAgents(NamedTuple):
    """The agents that a run knows: see AgentRegistry.

    Attributes:
        peers: those that are expected or there.
        agent_on: the agent_id by host.
        identities: of all there ever were.
        rounds: those of unacknowledged assignments, which themselves have only the round's ID: what is the same for all
            hosts names all workers.
    """

    peers: tuple[PeerState, ...]
    agent_on: dict[str, int]
    identities: tuple[AgentIdentity, ...]
    rounds: tuple[rounds_pb2.RoundAssignment, ...]


def _shortened(state: PeerState, rounds: dict[RoundId, rounds_pb2.RoundAssignment]) -> PeerState:
    """See KnownAgents.rounds, to which the rounds are added. What a worker could import early is left out, too."""
    messages = []
    for message in state.link.unacknowledged:
        if message.HasField("assign_round"):
            assigned = message.assign_round
            rounds.setdefault(round_id_of(assigned.round.round_id), assigned.round)
            only_id = rounds_pb2.RoundAssignment(round_id=assigned.round.round_id)
            short = agent_pb2.AssignRound(round=only_id, seats=assigned.seats)
            message = agent_pb2.ConnectResponse(seq=message.seq, ack=message.ack, assign_round=short)
        elif message.start_worker.HasField("modules_imported"):
            start = agent_pb2.StartWorker()
            start.CopyFrom(message.start_worker)
            start.ClearField("modules_imported")
            message = agent_pb2.ConnectResponse(seq=message.seq, ack=message.ack, start_worker=start)
        messages.append(message)
    return state._replace(link=state.link._replace(unacknowledged=tuple(messages)))


class AgentPeer:
    """The agent with this id; its connections come and go, the numbering of messages stays.

    Attributes:
        identity: its identity.
        host: the host it is for.
        agent_id: its id, never used for another.
        lease: counts its silence.
        pid: its process, or 0 before it first dialled in.
        silent: whether its lease has expired and it has sent nothing since.
        ending: whether it is to end.
        reads_more: whether it reads several messages that are sent as one.
        unread: whether this driver has no room for what it sends, so that it may seem silent.
    """

    def __init__(self, identity: AgentIdentity, lease: Lease) -> None:
        self.identity = identity
        self.host = identity.host
        self.agent_id = identity.agent_id
        self.lease = lease
        self.pid = 0
        self.silent = False
        self.ending = False
        self.reads_more = False
        self.unread = False
        self._link: Link[Any] = Link(
            acknowledge_at_once=False
        )  # numbers ConnectResponse, reads those of ConnectRequest
        self._stream: Mailbox[agent_pb2.ConnectResponse] | None = None
        self._modules_sent = 0
        self._told: tuple[agent_pb2.Heartbeat, int | None] | None = None  # on this connection
        self._silence = 1  # most seconds between two heartbeats of a large run

    @property
    def state(self) -> PeerState:
        """For a snapshot."""
        return PeerState(self.agent_id, self.pid, self.silent, self.ending, self._link.state)

    def restore(self, state: PeerState) -> None:
        """Be the agent of a snapshot."""
        self.pid, self.silent, self.ending = state.pid, state.silent, state.ending
        self._link.restore(state.link)

    @property
    def connected(self) -> bool:
        """Whether it has ever dialled in."""
        return self.pid > 0

    def connect(
        self, hello: agent_pb2.ConnectRequest, welcome: agent_pb2.ConnectResponse
    ) -> Mailbox[agent_pb2.ConnectResponse]:
        """Begin a connection: the welcome, then all that its Hello does not acknowledge. An older one is over.

        Returns:
            what is to be sent on this connection, until it is closed.

        Raises:
            ValueError: the Hello carries a number that it must not have.
        """
        self.receive(hello)
        self.pid = hello.hello.pid or UNKNOWN_PID
        self.reads_more = hello.hello.reads_more
        if self._stream is not None:
            self._stream.close()
        stream = self._stream = Mailbox[agent_pb2.ConnectResponse](STREAM_LIMIT)
        self._modules_sent = 0  # a heartbeat may have been lost with the last one
        self._told, self._silence = None, silence_within(span_seconds(welcome.welcome.driver_lease))
        stream.put(self._link.stamp(welcome))
        for message in self._link.again():
            stream.put(message)
        return stream

    def disconnect(self, stream: Mailbox[agent_pb2.ConnectResponse]) -> None:
        """The connection is over; the next one sends again what is unacknowledged."""
        stream.close()
        if self._stream is stream:
            self._stream = None

    def send(self, message: agent_pb2.ConnectResponse) -> None:
        """Send a message, now or on the next connection.

        Raises:
            LinkOverflowError: too much is unacknowledged.
        """
        self.identity.note(message)
        self._put(self._link.send(message))

    def ask(self, question: agent_pb2.ConnectResponse) -> bool:
        """Send what is not sent again if the connection breaks; returns whether there is one."""
        self._put(self._link.stamp(question))
        return self._stream is not None

    def beat(self, heartbeat: agent_pb2.Heartbeat, standbys: int | None, imported: ImportedModules, count: int) -> None:
        """Send a heartbeat, if one is due and there is a connection.

        In a large run most are left out: those that would neither acknowledge anything nor say anything new. The agent
        gives up a driver that is silent for its lease, which is long.

        Args:
            heartbeat: what to say to all agents; the same object as before, unless it is new.
            standbys: how many standbys the host may have; None: as many as it has.
            imported: what they may import where no worker was that has written it down.
            count: counts the times at which one may be due.
        """
        if self._stream is None:
            return
        for_first = bool(standbys) and not self.identity.workers and imported.count > self._modules_sent
        said = heartbeat, standbys
        known = self._told is not None and self._told[0] is heartbeat and self._told[1] == standbys
        every = self._silence if heartbeat.HasField("heartbeat_period") else 1
        if known and not for_first and not self._link.owes_acknowledgement and (count + self.agent_id) % every:
            return
        self._told = said
        message = agent_pb2.ConnectResponse(heartbeat=heartbeat)
        if standbys is not None:
            message.heartbeat.standbys = standbys
        if for_first:
            imported.add_to(message.heartbeat)
            self._modules_sent = imported.count
        self._put(self._link.stamp(message))

    def receive(self, message: agent_pb2.ConnectRequest) -> bool:
        """Take in the numbers of a message of the agent's; returns whether it is to be acted upon.

        Raises:
            ValueError: a message is missing.
        """
        return self._link.receive(message)

    def mark_durable(self, seq: int) -> None:
        """The journal has what came of messages up to this number: acknowledge them."""
        self._link.mark_durable(seq)

    def mark_all_durable(self) -> None:
        """Acknowledge each message as soon as it arrives."""
        self._link.acknowledge_at_once()

    def resume(self, received: int, acknowledged: int) -> None:
        """Continue the numbers of messages where the driver before left off."""
        self._link.resume(received, acknowledged)

    def close(self) -> None:
        """Nothing more is sent."""
        if self._stream is not None:
            self.disconnect(self._stream)

    def _put(self, message: agent_pb2.ConnectResponse) -> None:
        if self._stream is None:
            return
        if self._stream.full:  # connected, but it takes nothing: a new connection begins where this one stopped
            self.disconnect(self._stream)
        else:
            self._stream.put(message)
