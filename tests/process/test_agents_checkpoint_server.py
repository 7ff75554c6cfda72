"""The agent's side of a real checkpoint server: what the driver learns of it, and when."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from edriver.agent import checkpoint_server
from edriver.agent.checkpoint_server import CheckpointServerSupervisor
from edriver.common.checkpoint_server import SERVER_SOCKET, ServerConfig
from edriver.v1 import checkpoints_pb2 as pb
from edriver.v1 import checkpoints_pb2_grpc
from tests.checkpoint_servers import PAGE, checkpoint, shard
from tests.waiting import BOUND


class Started:
    """Starts processes as the agent does, and ends them."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(
        self, command: list[str], environment: Mapping[str, str], *, stdin: int | None = None
    ) -> tuple[int, int, int]:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stderr is not None
        return process.pid, os.dup(process.stdout.fileno()), os.dup(process.stderr.fileno())

    def signal_group(self, group: int, number: signal.Signals) -> None:
        os.killpg(group, number)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                stream.close()


class Host:
    """A server with its agent, and a driver that may be away."""

    def __init__(self, folder: Path) -> None:
        self.started = Started()
        self.reports: list[pb.HostCheckpoints] = []
        self.driver_is_there = True
        self.server = CheckpointServerSupervisor(
            self.started,
            lambda: ServerConfig(str(folder), memory_limit=64 * PAGE),
            dict(os.environ),
            self.reports.append,
            lambda: self.driver_is_there,
        )
        self.stub: Any = None

    async def save(self, step: int) -> None:
        """What a worker does."""
        request = pb.ReserveRequest(checkpoint=checkpoint(step), rank=0, bytes=100, pid=os.getpid())
        await self.stub.Reserve(request, timeout=BOUND, wait_for_ready=True)
        await self.stub.Commit(pb.CommitRequest(shard=shard(step, 0, 100)), timeout=BOUND)

    def steps(self) -> list[int]:
        """Those of the last report."""
        return [each.checkpoint.step for each in self.reports[-1].shards]


@asynccontextmanager
async def host(folder: Path) -> AsyncIterator[Host]:
    made = Host(folder)
    made.server.need()
    try:
        async with grpc.aio.insecure_channel(f"unix:{folder / SERVER_SOCKET}") as channel:
            made.stub = checkpoints_pb2_grpc.CheckpointServiceStub(channel)
            yield made
    finally:
        await made.server.close()
        made.started.end()


def test_what_a_worker_has_saved_is_reported_before_its_exit(tmp_path: Path) -> None:
    async def story() -> None:
        async with host(tmp_path) as here:
            for step in range(1, 30):
                await here.save(step)
                await here.server.catch_up()
                assert here.steps()[-1] == step

    asyncio.run(story())


def test_without_a_driver_reports_take_the_place_of_each_other(tmp_path: Path) -> None:
    async def story() -> None:
        async with host(tmp_path) as here:
            await here.save(1)
            await here.server.catch_up()
            here.driver_is_there = False
            before = len(here.reports)
            for step in range(2, 20):
                await here.save(step)
            assert len(here.reports) == before
            await here.server.catch_up()
            assert here.steps() == list(range(1, 20))
            assert len(here.reports) == before + 1
            here.driver_is_there = True
            await here.save(20)
            await here.server.catch_up()
            assert here.steps()[-1] == 20

    asyncio.run(story())


def test_a_server_that_does_not_answer_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_server, "CATCH_UP_TIMEOUT", 0.05)

    async def story() -> None:
        async with host(tmp_path) as here:
            await here.save(1)
            here.started.processes[0].send_signal(signal.SIGSTOP)
            await asyncio.wait_for(here.server.catch_up(), BOUND)
            here.started.processes[0].send_signal(signal.SIGCONT)
            monkeypatch.setattr(checkpoint_server, "CATCH_UP_TIMEOUT", BOUND)
            await here.server.catch_up()
            assert here.steps() == [1]

    asyncio.run(story())


def test_a_server_that_dies_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_server, "CATCH_UP_TIMEOUT", 10 * BOUND)

    async def story() -> None:
        async with host(tmp_path) as here:
            await here.save(1)
            process = here.started.processes[0]
            process.send_signal(signal.SIGSTOP)
            waiting = asyncio.create_task(here.server.catch_up())
            await asyncio.sleep(0)
            process.kill()
            await asyncio.wait_for(waiting, BOUND)

    asyncio.run(story())
