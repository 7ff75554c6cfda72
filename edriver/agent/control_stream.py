"""The agent's control stream to the driver: opened again when it breaks, given up when the driver's lease expires.

A driver that is only stopped still has its connections, and the kernel takes new ones for it. Where the stream has
broken and nothing listens at the driver's address for DRIVER_GONE_TIMEOUT (3 s), it is gone; if its run has no journal,
the agent ends its workers and itself. A host that was given up while its cable was cut continues to train for
`--driver-timeout` at most, completes no collective of a round of the others, and is refused when it dials again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio
import tenacity

from edriver.agent.heartbeat_times import until_next
from edriver.common.lease import Lease
from edriver.v1 import agent_pb2, agent_pb2_grpc
from edriver.wire.batches import MAX_BATCH, batched, parts_of
from edriver.wire.conversion import span_seconds
from edriver.wire.grpc_streams import StreamBrokenError, stream_errors
from edriver.wire.link import Link, LinkOverflowError

logger = logging.getLogger("edriver.agent")

HEARTBEAT_PERIOD = 1.0
"""Seconds between two heartbeats, unless the driver asks for fewer."""

GATHER_SECONDS = 0.01
"""Seconds for which a message waits for others in a large run: when a round ends, the workers of a host say so within
milliseconds of one another, and one message with all of it takes the driver a fraction of the work."""

FIRST_LEASE = 10.0
"""Seconds that the driver may take to answer the first Hello: only its Welcome has the length of its lease."""

DRIVER_GONE_TIMEOUT = 3.0
"""Seconds for which no stream can be opened, for nothing listens there: then the driver is gone. One that is only
stopped still has its connections, and new ones are accepted by the kernel. One that a host has dialled by itself may be
yet to come, and so may another driver of a run with a journal: that is awaited for the driver's lease."""

REDIAL_DELAYS = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds before the first, second, ... attempt in a row to open the stream; the last one repeats."""

REFUSAL_CODES = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
"""Status codes with which a driver refuses an agent for good."""

Call: TypeAlias = "grpc.aio.StreamStreamCall[agent_pb2.ConnectRequest, agent_pb2.ConnectResponse]"


class DriverConnectionError(ConnectionError):
    """The driver is gone, or refuses this agent."""


class DriverUnavailableError(DriverConnectionError):
    """The driver is gone, and no other has taken over in time."""


class ControlStream:
    """Carries messages between the agent and the driver, in order and without loss across broken connections.

    Args:
        stub: the driver's service.
        hello: what opens each stream.
        clock: the event loop's time.
        on_welcome: called with each Welcome.
        on_order: called with each order that concerns workers, once.
        on_shutdown: called with the order to end.
        heartbeat: makes the next heartbeat.
        first_lease: seconds that the driver may take to answer the first Hello.
        nothing_listens: looks whether the driver's address refuses connections.
        on_heartbeat: called with each of the driver's.
        run_clock: the run's time, in seconds since the epoch.

    Attributes:
        resumable: whether another driver may take the run over.
        heartbeat_period: seconds between two heartbeats, as the driver asks for them.
        progress_period: seconds between two reports of one worker in them; 0: each has all that is new.
    """

    def __init__(
        self,
        stub: agent_pb2_grpc.AgentServiceAsyncStub,
        hello: agent_pb2.Hello,
        clock: Callable[[], float],
        on_welcome: Callable[[agent_pb2.Welcome], None],
        on_order: Callable[[agent_pb2.ConnectResponse], None],
        on_shutdown: Callable[[agent_pb2.Shutdown], None],
        heartbeat: Callable[[], agent_pb2.Heartbeat] = agent_pb2.Heartbeat,
        first_lease: float = FIRST_LEASE,
        nothing_listens: Callable[[], Awaitable[bool]] | None = None,
        on_heartbeat: Callable[[agent_pb2.Heartbeat], None] = lambda _: None,
        run_clock: Callable[[], float] = time.time,
    ) -> None:
        self.resumable = False
        self.heartbeat_period = HEARTBEAT_PERIOD
        self.progress_period = 0.0
        self._stub = stub
        self._hello = hello
        hello.reads_more = True
        self._batches = False
        self._clock = clock
        self._on_welcome = on_welcome
        self._on_order = on_order
        self._on_shutdown = on_shutdown
        self._heartbeat = heartbeat
        self._on_heartbeat = on_heartbeat
        self._run_clock = run_clock
        self._in_step = False  # with other agents: the driver asks for fewer heartbeats than usual
        self._link: Link[Any] = Link()  # numbers ConnectRequest, and reads the numbers of ConnectResponse
        self._lease = Lease(first_lease, clock)
        self._nothing_listens = nothing_listens
        self._failed_attempts = 0
        self._gone_timeout = DRIVER_GONE_TIMEOUT
        self._incarnation = 0
        self._turned_away = False  # because its host is connected already: stop waiting for the driver
        self._outgoing: asyncio.Queue[agent_pb2.ConnectRequest | None] | None = None
        self._disconnected = asyncio.Event()
        self._disconnected.set()
        self._closing = False
        self._overflowed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether there is a stream."""
        return self._outgoing is not None

    def send(self, message: agent_pb2.ConnectRequest) -> None:
        """Send a message, now or as soon as there is a stream again."""
        try:
            self._link.send(message)
        except LinkOverflowError:
            self._overflowed.set()
            return
        if self._outgoing:
            self._outgoing.put_nowait(message)

    def close(self) -> None:
        """Nothing more will be sent: `run` returns when the driver has all that was."""
        self._closing = True
        if self._outgoing:
            self._outgoing.put_nowait(None)

    async def run(self) -> None:
        """Keep the stream open until `close`.

        Raises:
            DriverUnavailableError: the driver was silent for its lease.
            DriverConnectionError: it refuses this agent, takes no messages, or breaks the protocol.
        """
        watches = (self._watch_lease(), self._watch_overflow(), self._watch_address())
        parts = {asyncio.create_task(part) for part in (self._dial(), *watches)}
        heartbeats = asyncio.create_task(self._send_heartbeats())
        try:
            ended, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in ended:
                part.result()
        finally:
            for task in (*parts, heartbeats):
                task.cancel()
            await asyncio.wait({*parts, heartbeats})

    async def _watch_lease(self) -> None:
        while True:
            await asyncio.sleep(self._lease.next_tick)
            if self._lease.tick():
                raise DriverUnavailableError(f"no message from the driver for {self._lease.duration:g} s")

    async def _watch_address(self) -> None:
        """While the agent has no stream, check whether the driver exists."""
        gone = Lease(self._gone_timeout, self._clock)
        while True:
            if self._outgoing:
                await self._disconnected.wait()
                gone.renew()
            await asyncio.sleep(gone.next_tick)
            if gone.duration != self._gone_timeout:
                gone.lengthen(self._gone_timeout)
            awaits_it = not self._hello.agent_id and not self._turned_away  # the first Welcome brings the id
            if self._outgoing or awaits_it or not (self._nothing_listens and await self._nothing_listens()):
                gone.renew()
            elif gone.tick():
                raise DriverUnavailableError("the driver is gone: nothing listens at its address")

    async def _watch_overflow(self) -> None:
        await self._overflowed.wait()
        raise DriverConnectionError("the driver does not acknowledge any messages")

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self.until_heartbeat)
            if self._outgoing and self._outgoing.empty():  # any other message acknowledges as well
                self._outgoing.put_nowait(self._link.stamp(agent_pb2.ConnectRequest(heartbeat=self._heartbeat())))

    @property
    def until_heartbeat(self) -> float:
        """Seconds from now, or from a heartbeat that is sent now, to the next one."""
        if not self._in_step:
            return self.heartbeat_period
        return until_next(self._run_clock(), self.heartbeat_period, self._hello.agent_id)

    async def _dial(self) -> None:
        """Exchange messages until all are sent, on one stream after the other; the lease limits how long that is
        tried.
        """
        dialling = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(StreamBrokenError), wait=self._redial_delay, reraise=True
        )
        await dialling(self._converse_to_the_end)

    def _redial_delay(self, _attempt: tenacity.RetryCallState) -> float:
        delay = REDIAL_DELAYS[min(self._failed_attempts, len(REDIAL_DELAYS) - 1)]
        self._failed_attempts += 1
        return delay

    async def _converse_to_the_end(self) -> None:
        """One stream.

        Raises:
            StreamBrokenError: there is more to send, on another stream.
            DriverConnectionError: the driver refuses this agent.
        """
        try:
            await self._converse()
        except StreamBrokenError as error:
            self._turned_away |= error.code is grpc.StatusCode.ALREADY_EXISTS
            if error.code in REFUSAL_CODES:
                raise DriverConnectionError(f"the driver refuses this agent: {error}") from None
            if self._closing and not self._link.again():
                return
            logger.info("the stream to the driver is broken (%s); opening it again", error)
            raise
        if not self._closing:
            logger.info("the driver has ended the stream; opening it again")
            raise StreamBrokenError(grpc.StatusCode.OK, "the driver has ended the stream")

    async def _converse(self) -> None:
        """Open the stream, and read it to its end. While gRPC cannot connect, this waits."""
        call: Call = self._stub.Connect(wait_for_ready=True)
        writer: asyncio.Task[None] | None = None
        try:
            with stream_errors():
                await call.write(self._link.stamp(agent_pb2.ConnectRequest(hello=self._hello)))
                first = await call.read()
            self._take_welcome(first)
            writer = asyncio.create_task(self._write(call, self._open_outgoing()))
            await self._read(call)
        finally:
            self._outgoing = None
            self._disconnected.set()
            if writer is not None:
                writer.cancel()
                await asyncio.wait({writer})
            call.cancel()

    def _take_welcome(self, message: object) -> None:
        if not isinstance(message, agent_pb2.ConnectResponse) or message.WhichOneof("kind") != "welcome":
            raise StreamBrokenError(grpc.StatusCode.INTERNAL, "the driver's first message is not Welcome")
        welcome = message.welcome
        if welcome.incarnation < self._incarnation:
            number = (
                f"it is driver number {welcome.incarnation} of this run, and number {self._incarnation} has taken over"
            )
            raise StreamBrokenError(grpc.StatusCode.ABORTED, f"ignored an older driver: {number}")
        self._incarnation = welcome.incarnation
        self._receive(message)
        self.resumable = welcome.resumable
        self._batches = welcome.reads_more
        if welcome.resumable:
            self._gone_timeout = span_seconds(welcome.driver_lease)
        self._lease = Lease(span_seconds(welcome.driver_lease), self._clock)
        self._failed_attempts = 0
        self._take_periods(agent_pb2.Heartbeat())  # a driver of an older release asks for nothing
        self._on_welcome(welcome)

    def _open_outgoing(self) -> asyncio.Queue[agent_pb2.ConnectRequest | None]:
        # Unbounded: all but one heartbeat in it are also in the link, which is bounded.
        self._outgoing = asyncio.Queue()
        self._disconnected.clear()
        for message in self._link.again():
            self._outgoing.put_nowait(message)
        if self._closing:
            self._outgoing.put_nowait(None)
        return self._outgoing

    async def _write(self, call: Call, outgoing: asyncio.Queue[agent_pb2.ConnectRequest | None]) -> None:
        try:
            with stream_errors():
                while (message := await outgoing.get()) is not None:
                    others: list[agent_pb2.ConnectRequest] = []
                    if self._gathers(message, outgoing.qsize()):
                        await asyncio.sleep(GATHER_SECONDS)
                    while self._batches and len(others) < MAX_BATCH - 1 and not outgoing.empty():
                        if (other := outgoing.get_nowait()) is None:
                            outgoing.put_nowait(None)  # the last one
                            break
                        others.append(other)
                    await call.write(batched(message, others))
                await call.done_writing()
        except StreamBrokenError:
            pass  # the reader gets the reason

    def _gathers(self, message: agent_pb2.ConnectRequest, more: int) -> bool:
        """Whether a message waits for others; not if as many as go in one are there."""
        return self._in_step and self._batches and more < MAX_BATCH - 1 and not message.HasField("heartbeat")

    async def _read(self, call: Call) -> None:
        while True:
            with stream_errors():
                message = await call.read()
            if not isinstance(message, agent_pb2.ConnectResponse):
                return
            self._lease.renew()
            for part in parts_of(message):
                if self._receive(part):
                    self._pass_on(part)

    def _pass_on(self, message: agent_pb2.ConnectResponse) -> None:
        match message.WhichOneof("kind"):
            case "heartbeat":
                self._take_periods(message.heartbeat)
                self._on_heartbeat(message.heartbeat)
            case "shutdown":
                self._on_shutdown(message.shutdown)
            case _:
                self._on_order(message)

    def _take_periods(self, heartbeat: agent_pb2.Heartbeat) -> None:
        """The driver says how often it is to hear of this host."""
        self._in_step = heartbeat.HasField("heartbeat_period")
        self.heartbeat_period = max(HEARTBEAT_PERIOD, span_seconds(heartbeat.heartbeat_period))
        self.progress_period = span_seconds(heartbeat.progress_period)

    def _receive(self, message: agent_pb2.ConnectResponse) -> bool:
        try:
            return self._link.receive(message)
        except ValueError as error:
            raise DriverConnectionError(f"the driver breaks the protocol: {error}") from None
