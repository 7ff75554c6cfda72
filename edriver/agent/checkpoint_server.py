"""The agent's side of this host's checkpoint server: started once a worker needs it, held until the agent ends.

The server is a separate process, because it moves gigabytes while the agent must answer within milliseconds. It lives
as long as the agent, so that checkpoints outlive workers and rounds. If it dies, what it held is lost here; another one
is started, for the workers continue to save.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping
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


class Starter(Protocol):
    """The part of Processes that starts and ends the server."""

    def start(
        self, command: list[str], environment: Mapping[str, str], *, stdin: int | None = None
    ) -> tuple[int, int, int]:
        """See Processes."""

    def signal_group(self, group: int, number: Signals) -> None:
        """See Processes."""


class CheckpointServer:
    """This host's checkpoint server.

    Args:
        processes: start it.
        settings: what it is started with, once the driver has let the agent in.
        environment: of the process.
        report: sends the driver what the server holds.
    """

    def __init__(
        self,
        processes: Starter,
        settings: Callable[[], ServerConfig],
        environment: Mapping[str, str],
        report: Callable[[checkpoints_pb2.HostCheckpoints], None],
    ) -> None:
        self._processes = processes
        self._settings = settings
        self._environment = environment
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._pid = 0
        self._deaths = 0
        self._order: checkpoints_pb2.KeepCheckpoints | None = None
        self._ordered = asyncio.Event()
        self._holding: asyncio.Task[None] | None = None
        self._restart: asyncio.TimerHandle | None = None
        self._closed = False

    def need(self) -> None:
        """A worker of this host keeps checkpoints in memory: have a server."""
        if not self._pid and self._restart is None and not self._closed:
            self._start()

    def keep(self, order: checkpoints_pb2.KeepCheckpoints) -> None:
        """Pass on what it is to keep; another one that takes its place gets the same."""
        self._order = order
        self._ordered.set()

    def exited(self, pid: int) -> bool:
        """Take note of a process that has ended; returns whether it was the server."""
        if pid != self._pid:
            return False
        self._pid = 0
        if self._holding:
            self._holding.cancel()
        if not self._closed:
            self._report(checkpoints_pb2.HostCheckpoints())
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
                        self._report(response.held)
            except StreamBrokenError as error:
                logger.debug("the stream to the checkpoint server has ended: %s", error)
            finally:
                writing.cancel()
                await asyncio.wait({writing})
                call.cancel()
        if self._pid == pid:
            self._processes.signal_group(pid, Signals.SIGKILL)  # it would take memory that nobody asks for

    async def _write(self, call: grpc.aio.StreamStreamCall) -> None:  # type: ignore[type-arg]
        try:
            with stream_errors():
                await call.write(checkpoints_pb2.HoldRequest())
                self._ordered.set()
                while True:
                    await self._ordered.wait()
                    self._ordered.clear()
                    if self._order is not None:
                        await call.write(checkpoints_pb2.HoldRequest(keep=self._order))
        except StreamBrokenError:
            pass  # the reader gets the reason
