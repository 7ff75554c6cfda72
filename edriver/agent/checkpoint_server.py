"""The agent's side of this host's checkpoint server: started once a worker needs it, held until the agent ends.

The server is a separate process, because it moves gigabytes while the agent must answer within milliseconds. It lives
as long as the agent, so that checkpoints outlive workers and rounds. If it dies, what it held is lost here; another one
is started, for the workers continue to save.

The driver decides from which checkpoint the next round starts when it learns that workers have exited. So the agent
reports what the server holds before each exit (`catch_up`): what a worker has saved counts, however soon it dies.
Without a driver, each of these reports takes the place of the one before: they are a state, and not events.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from signal import Signals
from typing import Final, Protocol

import grpc.aio

from edriver.agent.workers.processes import SpawnError
from edriver.common.checkpoint_server import SERVER_SOCKET, ServerConfig
from edriver.v1 import checkpoints_pb2, checkpoints_pb2_grpc
from edriver.wire.grpc_streams import CHANNEL_OPTIONS, SERVER_OPTIONS, StreamBrokenError, stream_errors

logger = logging.getLogger("edriver.agent")

RESTART_PAUSES: Final = (0.0, 1.0, 5.0, 30.0)
"""Seconds before a server that has died is started again, the first time, the second, ...; the last one repeats."""

READ_BYTES: Final = 65536

CATCH_UP_TIMEOUT: Final = 0.5
"""Seconds for which the exit of a worker is held back at most until the server has said what it holds."""


class Starter(Protocol):
    """The part of Processes that starts and ends the server."""

    def start(
        self, command: list[str], environment: Mapping[str, str], *, stdin: int | None = None
    ) -> tuple[int, int, int]:
        """Start a process; returns its ID, and the ends to read of its stdout and stderr.

        Raises:
            SpawnError: it cannot be started.
        """

    def signal_group(self, group: int, number: Signals) -> None:
        """Send a signal to a process group, if it is still there."""


class CheckpointServerSupervisor:
    """This host's checkpoint server.

    Args:
        processes: start it.
        settings: what it is started with, once the driver has let the agent in.
        environment: of the process.
        report: sends the driver what the server holds.
        driver_is_there: whether messages reach the driver now.
    """

    def __init__(
        self,
        processes: Starter,
        settings: Callable[[], ServerConfig],
        environment: Mapping[str, str],
        report: Callable[[checkpoints_pb2.HostCheckpoints], None],
        driver_is_there: Callable[[], bool],
    ) -> None:
        self._processes = processes
        self._settings = settings
        self._environment = environment
        self._report = report
        self._driver_is_there = driver_is_there
        self._held = checkpoints_pb2.HostCheckpoints()
        self._unsent: checkpoints_pb2.HostCheckpoints | None = None
        self._loop = asyncio.get_running_loop()
        self._pid = 0
        self._deaths = 0
        self._order: checkpoints_pb2.KeepCheckpoints | None = None
        self._asked = self._answered = 0
        self._to_write = asyncio.Event()
        self._heard = asyncio.Condition()
        self._holding: asyncio.Task[None] | None = None
        self._restart: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def holds_any(self) -> bool:
        """Whether it holds any checkpoint."""
        return bool(self._pid and self._held.shards)

    def need(self) -> None:
        """A worker of this host keeps checkpoints in memory: have a server."""
        if not self._pid and self._restart is None and not self._closed:
            self._start()

    def keep(self, order: checkpoints_pb2.KeepCheckpoints) -> None:
        """Pass on what it is to keep; another one that takes its place gets the same."""
        self._order = order
        self._to_write.set()

    async def catch_up(self) -> None:
        """Report all that workers have committed until now; gives up after CATCH_UP_TIMEOUT."""
        if self._holding is not None and not self._holding.done():
            self._asked += 1
            number = self._asked
            self._to_write.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(CATCH_UP_TIMEOUT), self._heard:
                    await self._heard.wait_for(lambda: self._answered >= number)
        self.report_unsent()

    async def write_last(self, deadline: float) -> None:
        """The run has no driver any more, and its workers have ended: write to disk what is whole on this host alone.

        Args:
            deadline: when that is given up, on the event loop's clock.
        """
        if (order := last_write(self._held, self._order)) is None:
            return
        number, step = order.disk.number, order.disk.checkpoint.step
        trouble = "it has taken too long"
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline), self._heard:
                self.keep(order)
                await self._heard.wait_for(lambda: self._is_written(number))
                sealing = checkpoints_pb2.KeepCheckpoints()
                sealing.CopyFrom(order)
                sealing.disk.seal = True
                self.keep(sealing)
                await self._heard.wait_for(lambda: self._is_written(number, sealed=True))
                trouble = self._held.disk.trouble or ("" if self._held.disk.sealed else "the server has ended")
        if trouble:
            logger.error("the checkpoint of step %d in memory is lost with this run: %s", step, trouble)

    def _is_written(self, number: int, *, sealed: bool = False) -> bool:
        """Whether nothing more is to be waited for."""
        report = self._held.disk
        done = report.sealed if sealed else report.written
        return self._held.ended or (report.number == number and (done or bool(report.trouble)))

    def report_unsent(self) -> None:
        """Send what is held now, if that has waited for a driver."""
        if self._unsent is not None:
            held, self._unsent = self._unsent, None
            self._report(held)

    def exited(self, pid: int) -> bool:
        """Take note of a process that has ended; returns whether it was the server."""
        if pid != self._pid:
            return False
        self._pid = 0
        if self._holding:
            self._holding.cancel()
        if not self._closed:
            self._tell(checkpoints_pb2.HostCheckpoints(ended=True))
            logger.warning("the checkpoint server has ended: the checkpoints in this host's memory are lost")
            pause = RESTART_PAUSES[min(self._deaths, len(RESTART_PAUSES) - 1)]
            self._deaths += 1
            self._restart = self._loop.call_later(pause, self._start)
        return True

    async def close(self) -> None:
        """End the stream, with which the server ends. What is left of it, the agent kills with all other processes."""
        self._closed = True
        if self._restart:
            self._restart.cancel()
        if self._holding:
            self._holding.cancel()
            await asyncio.wait({self._holding})

    def _start(self) -> None:
        self._restart = None
        settings = self._settings()
        reads, writes = os.pipe()
        try:
            os.write(writes, settings.to_json())
            os.close(writes)
            command = [sys.executable, "-m", "edriver.checkpoint_server"]
            self._pid, stdout, stderr = self._processes.start(command, self._environment, stdin=reads)
        except (SpawnError, OSError) as error:
            logger.warning("no checkpoint server can be started: %s", error)
            return
        finally:
            os.close(reads)
        for descriptor in (stdout, stderr):
            self._loop.add_reader(descriptor, self._read, descriptor)
        self._holding = self._loop.create_task(self._hold(Path(settings.folder, SERVER_SOCKET)), name="checkpoints")

    def _read(self, descriptor: int) -> None:
        """Pass on what the server prints, which is little."""
        data = os.read(descriptor, READ_BYTES)
        if not data:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        for line in data.decode(errors="replace").splitlines():
            logger.warning("checkpoint server: %s", line)

    async def _hold(self, path: Path) -> None:
        """Exchange orders and what is held with the server, until either ends."""
        pid = self._pid
        # Thousands of shards may be copied at once, as in what a driver sends.
        async with grpc.aio.insecure_channel(
            f"unix:{path}", options=(*CHANNEL_OPTIONS, *SERVER_OPTIONS[:2])
        ) as channel:
            call = checkpoints_pb2_grpc.CheckpointServiceStub(channel).Hold(wait_for_ready=True)
            writing = self._loop.create_task(self._write(call))
            try:
                with stream_errors():
                    while isinstance(response := await call.read(), checkpoints_pb2.HoldResponse):
                        self._tell(response.held)
                        await self._has_answered(response.answered)
            except StreamBrokenError as error:
                logger.debug("the stream to the checkpoint server has ended: %s", error)
            finally:
                writing.cancel()
                await asyncio.wait({writing})
                call.cancel()
                await self._has_answered(self._asked)  # nothing more will come
        if self._pid == pid:
            self._processes.signal_group(pid, Signals.SIGKILL)  # it would take memory that nobody asks for

    def _tell(self, held: checkpoints_pb2.HostCheckpoints) -> None:
        """Report what is held. While there is no driver, each report takes the place of the one before: workers may
        save ten times a second, and the number of messages that are kept for the next driver is limited.
        """
        self._held = self._unsent = held
        if self._driver_is_there():
            self.report_unsent()

    async def _has_answered(self, question: int) -> None:
        async with self._heard:
            self._answered = question
            self._heard.notify_all()

    async def _write(self, call: grpc.aio.StreamStreamCall) -> None:  # type: ignore[type-arg]
        sent = None
        try:
            with stream_errors():
                while True:
                    request = checkpoints_pb2.HoldRequest(question=self._asked)
                    if self._order is not None and self._order is not sent:
                        request.keep.CopyFrom(self._order)
                        sent = self._order
                    self._to_write.clear()
                    await call.write(request)
                    await self._to_write.wait()
        except StreamBrokenError:
            pass  # the reader gets the reason


def last_write(
    held: checkpoints_pb2.HostCheckpoints, order: checkpoints_pb2.KeepCheckpoints | None
) -> checkpoints_pb2.KeepCheckpoints | None:
    """Have a host write the newest checkpoint of which it holds all, where no driver can have all hosts write; pure.

    Args:
        held: what it holds.
        order: the last order that it got.

    Returns:
        the order; None: it holds none that belongs on disk.
    """
    found: dict[tuple[int, int, int, int, bytes], dict[int, checkpoints_pb2.Shard]] = {}
    for shard in held.shards:
        name = shard.checkpoint
        key = (name.round_id.incarnation, name.round_id.n, name.step, name.size, shard.layout)
        found.setdefault(key, {})[shard.rank] = shard
    whole = [
        (key, ranks) for key, ranks in found.items() if ranks.keys() == {*range(key[3])} and ranks[0].HasField("disk")
    ]
    if not whole:
        return None
    _, ranks = max(whole, key=lambda each: each[0])
    number = 1 + max(held.disk.number, order.disk.number if order is not None else 0)
    first = ranks[0]
    write = checkpoints_pb2.DiskWrite(
        number=number,
        checkpoint=first.checkpoint,
        layout=first.layout,
        ranks=sorted(ranks),
        target=first.disk,
        urgent=True,
    )
    return checkpoints_pb2.KeepCheckpoints(newest=first.checkpoint, keep=[first.checkpoint], disk=write)
