"""The driver's gRPC service for agents: it turns streams into events and orders into streams, and decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from edriver.driver.agents.admission import Admission, RefusedError
from edriver.driver.agents.agent_messages import AgentMessages
from edriver.driver.agents.dial_in_hosts import DialInHosts
from edriver.driver.agents.fault_log import FaultLog
from edriver.driver.agents.registry import AGENT_LEASE, AgentPeer, AgentRegistry
from edriver.driver.feeds.inbound import Inbound, InboundMessage
from edriver.driver.feeds.mailbox import Mailbox
from edriver.model.limits import OutOfBoundsError
from edriver.v1 import agent_pb2, agent_pb2_grpc
from edriver.wire import message_limits
from edriver.wire.batches import MAX_BATCH, batched, parts_of
from edriver.wire.conversion import timestamp
from edriver.wire.grpc_streams import address_of

if TYPE_CHECKING:
    from edriver.v1.agent_pb2_grpc import _MaybeAsyncIterator, _ServicerContext


class AgentServer(agent_pb2_grpc.AgentServiceServicer):
    """AgentService (proto/edriver/v1/agent.proto).

    Args:
        run_id: this run; a Hello of another is refused.
        welcome: the first message to every agent.
        registry: the agents that are expected.
        inbox: takes the events.
        forward: takes the workers' output, with the name of their host.
        on_agent_ended: called with the id of each agent that has sent its last message.
        credentials: what workers authenticate one another by; None: nothing.
        dial_in_hosts: admits hosts that dial in; None if there are none.
        on_progress: called with the progress of each worker,
        on_stacks: and with each answer where one stands.
        on_usage: called with each host and its heartbeat that says what is used there.
        on_memory_kill: called with each kill of a process that a worker had started.
        on_output_unwritten: called with the host of each file of a worker's output that cannot be written.
        on_environment_copy: called with each host and how far its copy of the Python environment is.
        clock: the run's, in seconds since the epoch; None: agents keep their own.
    """

    def __init__(
        self,
        run_id: str,
        welcome: agent_pb2.Welcome,
        registry: AgentRegistry,
        inbox: Mailbox[Inbound],
        forward: Callable[[str, agent_pb2.ForwardOutputRequest], None],
        on_agent_ended: Callable[[int], None] = lambda _: None,
        credentials: Callable[[], agent_pb2.WorkerCredentials | None] = lambda: None,
        dial_in_hosts: DialInHosts | None = None,
        on_progress: Callable[[agent_pb2.WorkerHeartbeat], None] = lambda _: None,
        on_stacks: Callable[[agent_pb2.WorkerStacksTaken], None] = lambda _: None,
        on_usage: Callable[[str, agent_pb2.Heartbeat], None] = lambda _host, _heartbeat: None,
        on_memory_kill: Callable[[agent_pb2.MemoryKill], None] = lambda _: None,
        on_output_unwritten: Callable[[str, agent_pb2.OutputUnwritten], None] = lambda _host, _file: None,
        on_environment_copy: Callable[[str, agent_pb2.EnvironmentCopy], None] = lambda _host, _copy: None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._clock = clock
        self._registry = registry
        self._inbox = inbox
        self._forward = forward
        self._faults = FaultLog()
        self._admission = Admission(run_id, welcome, registry, dial_in_hosts, credentials, self._faults)
        self._messages = AgentMessages(
            welcome,
            on_progress,
            on_agent_ended,
            self._faults,
            on_stacks,
            on_usage,
            on_memory_kill,
            on_output_unwritten,
            registry.imported.note,
            on_environment_copy,
        )

    async def Connect(  # noqa: N802
        self, request_iterator: _MaybeAsyncIterator[agent_pb2.ConnectRequest], context: _ServicerContext
    ) -> AsyncIterator[agent_pb2.ConnectResponse]:
        """One connection of an agent's control stream."""
        try:
            hello = await self._first_message(request_iterator)
            peer, welcome = await self._admission.admit(hello, address_of(context.peer()))
        except RefusedError as refusal:
            await context.abort(refusal.code, str(refusal))
            return
        assert hello is not None, "a stream without a first message is refused"
        try:
            if self._clock is not None:
                welcome.now.CopyFrom(timestamp(self._clock()))
            stream = self._registry.connect(peer, hello, welcome)
        except ValueError as error:
            self._faults.complain(peer.host, str(error))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            return
        reading = asyncio.create_task(self._read(peer, stream, request_iterator))
        try:
            while (message := await stream.get()) is not None:
                alone = not peer.reads_more or message.HasField("welcome")
                yield message if alone else batched(message, stream.take(MAX_BATCH - 1))
            if reading.done() and not reading.cancelled() and (fault := reading.result()):
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, fault)
        finally:
            peer.disconnect(stream)
            reading.cancel()

    async def ForwardOutput(  # noqa: N802
        self, request_iterator: _MaybeAsyncIterator[agent_pb2.ForwardOutputRequest], context: _ServicerContext
    ) -> agent_pb2.ForwardOutputResponse:
        """The output of an agent's workers."""
        try:
            async for batch in request_iterator:
                message_limits.check(batch)
                identity = self._registry.identity(batch.agent_id)
                if identity is None:
                    await context.abort(
                        grpc.StatusCode.FAILED_PRECONDITION, f"agent {batch.agent_id} does not belong to this run"
                    )
                    break
                if not identity.is_proven_by(batch.secret):
                    await context.abort(
                        grpc.StatusCode.PERMISSION_DENIED,
                        f"agent {identity.agent_id} of host {identity.host} must show its secret",
                    )
                self._forward(identity.host, self._messages.own_lines(identity, batch))
        except (DecodeError, OutOfBoundsError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return agent_pb2.ForwardOutputResponse()

    async def _first_message(
        self, messages: _MaybeAsyncIterator[agent_pb2.ConnectRequest]
    ) -> agent_pb2.ConnectRequest | None:
        """The message that opens a connection; None if there is none, or bytes that are not a message.

        Raises:
            RefusedError: it does not come within a lease. The agent may dial again: perhaps this process was stopped.
        """
        try:
            async with asyncio.timeout(AGENT_LEASE):
                return await anext(aiter(messages), None)
        except TimeoutError:
            silence = f"no message came within {AGENT_LEASE:g} s"
            raise RefusedError(grpc.StatusCode.DEADLINE_EXCEEDED, silence) from None
        except DecodeError:
            return None

    async def _read(
        self,
        peer: AgentPeer,
        stream: Mailbox[agent_pb2.ConnectResponse],
        messages: _MaybeAsyncIterator[agent_pb2.ConnectRequest],
    ) -> str:
        """Read the agent's messages until the connection ends. A fault ends the connection, nothing else.

        Returns:
            what is out of bounds in a message; empty: nothing.
        """
        try:
            async for message in messages:
                if self._registry.peer(peer.agent_id) is not peer:
                    break
                await self._registry.renew(peer)
                if _is_bare(message):  # nearly all, in a large run that nothing happens to
                    peer.receive(message)
                    continue
                message_limits.check(message)
                if self._inbox.full:
                    await self._room_for(peer)
                for part in parts_of(message):
                    self._take(peer, part)
        except OutOfBoundsError as error:
            self._faults.complain(peer.host, str(error))
            return str(error)
        except ValueError as error:
            self._faults.complain(peer.host, str(error))
        except grpc.RpcError:
            pass  # the connection broke: the agent dials again
        except Exception as error:  # noqa: BLE001  what a socket brings must not end the run
            self._faults.complain(peer.host, f"a message could not be read: {error!r}")
        finally:
            stream.close()
        return ""

    def _take(self, peer: AgentPeer, message: agent_pb2.ConnectRequest) -> None:
        """Hand a message on, unless it was before a reconnect."""
        if not peer.receive(message):
            return
        event, progress = self._messages.taken(peer, message)
        if message.seq:
            self._inbox.put(InboundMessage(event, peer.agent_id, message.seq, message.ack, progress))
        elif event is not None:
            self._inbox.put(event)

    async def _room_for(self, peer: AgentPeer) -> None:
        """Wait until the core has taken in enough. Until then what the agent has sent stays unread, and unnumbered: if
        the connection ends meanwhile, the agent sends it again.
        """
        peer.unread = True
        try:
            await self._inbox.room()
        finally:
            peer.unread = False
            peer.lease.renew()


def _is_bare(message: agent_pb2.ConnectRequest) -> bool:
    """Whether it is a heartbeat that says nothing but that its agent lives, and up to where it has read."""
    return (
        message.WhichOneof("kind") == "heartbeat"
        and not message.heartbeat.ByteSize()
        and not message.seq
        and not message.more
    )
