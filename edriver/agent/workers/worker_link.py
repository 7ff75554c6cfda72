"""The agent's stream to one worker: notices down, reports up, and a lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import grpc.aio

from edriver.common.lease import Lease
from edriver.common.release import PROTOCOL
from edriver.v1 import notification_pb2, notification_pb2_grpc
from edriver.wire.grpc_streams import CHANNEL_OPTIONS, StreamBrokenError, stream_errors

logger = logging.getLogger("edriver.agent")

MAX_QUEUED_NOTICES = 10_000
"""Most notices that may wait for a worker."""

PINGS_PER_LEASE = 4
"""The number of signs of life requested per lease. Each request interrupts a step of the worker, and so would
gRPC's own pings, which are off; see also MAX_PING_INTERVAL."""

MAX_PING_INTERVAL = 3.0
"""Most seconds between messages to a worker, which ends itself when its agent is silent."""

Call: TypeAlias = "grpc.aio.StreamStreamCall[notification_pb2.AttachRequest, notification_pb2.AttachResponse]"


class WorkerLink:
    """Carries what passes between the agent and one worker, in order.

    Notices wait until the worker listens (`attach`). If the stream breaks while the process lives, it
    is not opened again: a worker's service is never restarted. Its exit or the end of its lease follows.

    Attributes:
        progress: the progress that the worker reported last; None once that was passed on.
        parted: whether its script has ended without an exception.

    Args:
        run_id: the run,
        worker_id: and the worker: a service that belongs to another refuses the stream.
        socket_path: where the worker's service listens.
        lease: how long it may be silent, once attached.
        on_report: called with each report but Pong.
        on_expired: called when a worker that does not live has been silent for the lease, once per silence, or when
            more than MAX_QUEUED_NOTICES notices wait.
        on_overdue: called once, when the worker's service has ended and its process, without a sign of life for the
            exit_timeout, has not.
        exit_timeout: seconds.
        on_quiet: called when it has been silent for half of the lease, once per silence.
        on_answered: called when a worker that was quiet, or whose lease had expired, answers again or is found alive.
        lives: called repeatedly once the lease is over, with the seconds of silence; returns whether the process is
            alive according to the kernel.
    """

    def __init__(
        self,
        run_id: str,
        worker_id: int,
        socket_path: Path,
        lease: Lease,
        on_report: Callable[[notification_pb2.Report], None],
        on_expired: Callable[[], None],
        on_overdue: Callable[[], None],
        exit_timeout: float,
        on_quiet: Callable[[], None] = lambda: None,
        on_answered: Callable[[], None] = lambda: None,
        lives: Callable[[float], bool] = lambda _seconds: False,
    ) -> None:
        self.socket_path = socket_path
        self._worker_id = worker_id
        self._lease = lease
        self._on_report = on_report
        self._on_expired = on_expired
        self._on_overdue = on_overdue
        self._exit_timeout = exit_timeout
        self._on_quiet = on_quiet
        self._on_answered = on_answered
        self._lives = lives
        self._overflowed = False
        self._quiet = False
        self._expired = False
        self._parting = False
        self._pings = 0
        self._answered = asyncio.Event()
        self.parted = False
        self.progress: notification_pb2.WorkerProgress | None = None
        self._notices: asyncio.Queue[notification_pb2.Notice] = asyncio.Queue(MAX_QUEUED_NOTICES)
        self._stream: asyncio.Task[None] | None = None
        attached = notification_pb2.Attached(run_id=run_id, worker_id=worker_id, protocol=PROTOCOL)
        self._first = notification_pb2.Notice(attached=attached)

    def attach(self) -> None:
        """The worker's service listens: open the stream, count the lease. Only the first call does anything."""
        if self._stream is None:
            self._lease.renew()
            self._stream = asyncio.create_task(self._converse(), name=f"worker {self._worker_id}")

    def deliver(self, notice: notification_pb2.Notice) -> None:
        """Pass a notice on, after those before it."""
        try:
            self._notices.put_nowait(notice)
        except asyncio.QueueFull:
            self._overflowed = True  # a notice that was dropped cannot be made up for
            self._expire()

    @property
    def ending(self) -> bool:
        """Whether the worker's service has ended, and its process has not."""
        return self._parting

    @property
    def next_tick(self) -> float:
        """Seconds until the next `tick` is due."""
        over = self._lease.silence >= self._lease.duration
        return self._lease.period if self._stream is None or self._expired or over else self._lease.next_tick

    def tick(self) -> None:
        """After `next_tick`: ask a silent worker for a sign of life; give one up whose lease is over."""
        if self._stream is None:
            return
        if self._stream.done() and not self._parting:
            self._parting, self._expired = True, False
            self._lease.lengthen(self._exit_timeout)
        if self._lease.tick():
            if not self._parting and self._lives(self._lease.silence):
                self._note_life()
            else:
                self._expire()
            return  # it gets no further pings: it will answer those before once it can
        if not (self._parting or self._quiet) and self._lease.silence >= self._lease.duration / 2:
            self._quiet = True
            self._on_quiet()
        if not self._stream.done() and self._lease.silence >= min(
            self._lease.duration / PINGS_PER_LEASE, MAX_PING_INTERVAL
        ):
            self._ping()

    async def ask(self) -> None:
        """Ask the worker for its progress, and wait for the answer; returns at once without a connected worker."""
        if self._stream is None or self._stream.done():
            return
        self._answered.clear()
        self._ping()
        answered = asyncio.create_task(self._answered.wait())
        try:
            await asyncio.wait({answered, self._stream}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            answered.cancel()

    def show_life(self) -> None:
        """The worker's process has shown that it lives, otherwise than by its service, which has ended."""
        if self._parting:
            self._lease.renew()

    async def ended(self, bound: float) -> None:
        """Wait for the end of the stream, after which all reports have been received; at most this long."""
        if self._stream:
            await asyncio.wait({self._stream}, timeout=bound)

    async def close(self) -> None:
        """End the stream."""
        if self._stream:
            self._stream.cancel()
            await asyncio.wait({self._stream})
        self.socket_path.unlink(missing_ok=True)

    def _ping(self) -> None:
        self._pings += 1
        self.deliver(notification_pb2.Notice(ping=notification_pb2.Ping(number=self._pings)))

    def _note_life(self) -> None:
        if (self._expired or self._quiet) and not self._overflowed:
            self._expired = self._quiet = False
            self._on_answered()

    def _expire(self) -> None:
        if not self._expired:
            self._expired = True
            (self._on_overdue if self._parting else self._on_expired)()

    async def _converse(self) -> None:
        async with grpc.aio.insecure_channel(f"unix:{self.socket_path}", options=CHANNEL_OPTIONS) as channel:
            stub = notification_pb2_grpc.NotificationServiceStub(channel)
            call: Call = stub.Attach(wait_for_ready=True)
            writer = asyncio.create_task(self._write(call))
            try:
                await self._read(call)
            except StreamBrokenError as error:
                logger.debug("the stream to worker %d has ended: %s", self._worker_id, error)
            finally:
                writer.cancel()
                await asyncio.wait({writer})
                call.cancel()

    async def _write(self, call: Call) -> None:
        try:
            with stream_errors():
                await call.write(notification_pb2.AttachRequest(notice=self._first))
                while True:
                    await call.write(notification_pb2.AttachRequest(notice=await self._notices.get()))
        except StreamBrokenError:
            pass  # the reader gets the reason

    async def _read(self, call: Call) -> None:
        while True:
            with stream_errors():
                answer = await call.read()
            if not isinstance(answer, notification_pb2.AttachResponse):
                return
            report = answer.report
            self._lease.renew()
            self._note_life()
            match report.WhichOneof("kind"):
                case "pong":
                    self.progress = report.pong.progress
                    self._answered.set()
                case "script_ended":
                    self.parted = True
                case _:
                    if report.HasField("progress"):
                        self.progress = report.progress
                    self._on_report(report)
