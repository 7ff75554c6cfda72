"""The driver's side of an agent's streams, scripted by a test; and the agent's process beside it."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from edriver.common.join_config import GRACE, JoinConfig
from edriver.v1 import agent_pb2, agent_pb2_grpc, notification_pb2, rounds_pb2
from edriver.wire.conversion import duration
from edriver.wire.link import Link

RUN_ID = "run-1"
AGENT_ID = 7
AMPLE = 300.0
"""A lease or grace that no test is to reach."""

FAKE_WORKER = [sys.executable, str(Path(__file__).with_name("fake_worker.py"))]

FORKS_A_SLEEPER = """
import os, time
child = os.fork()
if child == 0:
    time.sleep(600)
print(os.getpid(), flush=True)
print(child, flush=True)
time.sleep(600)
"""

ConnectRequest = agent_pb2.ConnectRequest
ConnectResponse = agent_pb2.ConnectResponse


class FakeDriver(agent_pb2_grpc.AgentServiceServicer):
    """Attributes:
    welcome: what each stream is answered with.
    hellos: what each stream was opened with.
    messages: all messages of the agent's but heartbeats.
    lines: all lines of output.
    dropped: lines that the agent reports as dropped.
    quiet: whether heartbeats are held back.
    refuses: whether streams are refused.
    away: whether streams break at once, as if no driver were there.
    reads_output: cleared to let output wait.
    """

    def __init__(self, welcome: agent_pb2.Welcome) -> None:
        self.welcome = welcome
        self.hellos: list[agent_pb2.Hello] = []
        self.messages: list[ConnectRequest] = []
        self.lines: list[agent_pb2.OutputLine] = []
        self.dropped = 0
        self.quiet = False
        self.heartbeat = agent_pb2.Heartbeat()
        self.heartbeats = 0
        self.refuses = False
        self.away = False
        self.reads_output = asyncio.Event()
        self.reads_output.set()
        self._link: Link[Any] = Link()
        self._changed = asyncio.Condition()
        self._outgoing: asyncio.Queue[ConnectResponse] = asyncio.Queue()
        self._cut = asyncio.Event()

    # What a test does.

    def send(self, **kind: Any) -> None:
        message = self._link.send(ConnectResponse(**kind))
        self._outgoing.put_nowait(message)

    def start_worker(self, worker_id: int, slot: int = 0) -> None:
        self.send(start_worker=agent_pb2.StartWorker(worker_id=worker_id, slot=slot))

    def stop_worker(self, worker_id: int, grace: float) -> None:
        self.send(stop_worker=agent_pb2.StopWorker(worker_id=worker_id, grace=duration(grace)))

    def notify(self, worker_id: int, notice: notification_pb2.Notice) -> None:
        self.send(deliver_notice=agent_pb2.DeliverNotice(worker_ids=[worker_id], notice=notice))

    def shut_down(self, grace: float) -> None:
        self.send(shutdown=agent_pb2.Shutdown(grace=duration(grace)))

    def cut(self) -> None:
        """Break the control stream, in the middle of whatever passes."""
        self._cut.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that arrives makes this true."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def exit_of(self, worker_id: int) -> agent_pb2.WorkerExited:
        def exits() -> list[agent_pb2.WorkerExited]:
            return [
                message.worker_exited
                for message in self.messages
                if message.WhichOneof("kind") == "worker_exited" and message.worker_exited.worker_id == worker_id
            ]

        await self.until(lambda: bool(exits()))
        (exit_,) = exits()
        return exit_

    def reports(self, kind: str) -> list[notification_pb2.Report]:
        return [
            message.worker_report.report
            for message in self.messages
            if message.WhichOneof("kind") == "worker_report" and message.worker_report.report.WhichOneof("kind") == kind
        ]

    def kinds_about(self, worker_id: int) -> list[str]:
        """The kinds of the messages about a worker, in order."""
        kinds = [(message, message.WhichOneof("kind")) for message in self.messages]
        return [kind for message, kind in kinds if kind and getattr(message, kind).worker_id == worker_id]

    async def waiting(self, count: int = 1) -> None:
        """Wait until this many workers have reported WorkerWaiting."""
        await self.until(lambda: len(self.reports("worker_waiting")) >= count)

    def texts(self, *, stderr: bool = False) -> list[bytes]:
        return [line.text for line in self.lines if line.stderr == stderr]

    async def numbers(self, count: int = 1) -> list[int]:
        """The numbers that the workers have printed on lines of their own, once there are this many."""

        def numbers() -> list[int]:
            return [int(text) for text in self.texts() if text.isdigit()]

        await self.until(lambda: len(numbers()) >= count)
        return numbers()

    # The service.

    async def Connect(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        if self.refuses:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "given up")
        hello = await context.read()
        if self.away:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        async with self._changed:
            self.hellos.append(hello.hello)
            self._changed.notify_all()
        again = self._link.again()  # before Hello says what has arrived: the agent must stand repetitions
        self._link.receive(hello)
        self._outgoing = asyncio.Queue()
        self._cut.clear()
        await context.write(self._link.stamp(ConnectResponse(welcome=self.welcome)))
        for message in again:
            self._outgoing.put_nowait(message)
        reading = asyncio.create_task(self._read(context))
        others = {asyncio.create_task(part) for part in (self._write(context), self._beat(), self._cut.wait())}
        await asyncio.wait({reading, *others}, return_when=asyncio.FIRST_COMPLETED)
        for task in (reading, *others):
            task.cancel()
        await asyncio.wait({reading, *others})
        if self._cut.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")

    async def ForwardOutput(self, request_iterator: Any, context: Any) -> agent_pb2.ForwardOutputResponse:
        await self.reads_output.wait()
        async for batch in request_iterator:
            assert batch.agent_id == AGENT_ID
            async with self._changed:
                self.lines += batch.lines
                self.dropped += batch.dropped
                self._changed.notify_all()
        return agent_pb2.ForwardOutputResponse()

    async def _read(self, context: Any) -> None:
        while isinstance(message := await context.read(), ConnectRequest):
            if self._link.receive(message):
                async with self._changed:
                    if message.WhichOneof("kind") == "heartbeat":
                        self.heartbeats += 1
                    else:
                        self.messages.append(message)
                    self._changed.notify_all()

    async def _write(self, context: Any) -> None:
        while True:
            await context.write(await self._outgoing.get())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            if not self.quiet:
                self._outgoing.put_nowait(self._link.stamp(ConnectResponse(heartbeat=self.heartbeat)))


class AgentProcess:
    """An agent, started."""

    def __init__(self, driver: Path, folder: Path, address: str = "127.0.0.1", grace: float = GRACE) -> None:
        join_config = JoinConfig(
            RUN_ID, "a", AGENT_ID, (f"unix:{driver}",), address=address, folder=str(folder), grace=grace
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "edriver.agent.main", "--host", "a"],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(join_config.to_json())
        self._process.stdin.close()
        self.pid = self._process.pid

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def descriptors(self) -> int:
        """How many file descriptors it has open."""
        return len(list(Path("/proc", str(self.pid), "fd").iterdir()))

    async def exit_code(self) -> int:
        await end_of(pidfd_of(self.pid))
        return self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Host:
    """A scripted driver and the agent that dials it."""

    def __init__(self, driver: FakeDriver, server: grpc.aio.Server, agent: AgentProcess, folder: Path) -> None:
        self.driver = driver
        self.server = server
        self.agent = agent
        self.folder = folder


@asynccontextmanager
async def host(
    command: Sequence[str],
    *,
    driver_lease: float = AMPLE,
    worker_lease: float = AMPLE,
    output_folder: str = "",
    exit_timeout: float = AMPLE,
    copy_environment: str = "",
    address: str = "127.0.0.1",
    grace: float = GRACE,
    credentials: agent_pb2.WorkerCredentials | None = None,
) -> AsyncIterator[Host]:
    # A short path: those of unix sockets are limited.
    folder = Path(tempfile.mkdtemp(prefix="ed"))
    (folder / "agent").mkdir(mode=0o700)
    driver = FakeDriver(
        agent_pb2.Welcome(
            command=command,
            driver_lease=duration(driver_lease),
            worker_lease=duration(worker_lease),
            output_folder=output_folder,
            exit_timeout=duration(exit_timeout),
            copy_environment=copy_environment,
            credentials=credentials,
        )
    )
    server = grpc.aio.server()
    agent_pb2_grpc.add_AgentServiceServicer_to_server(driver, server)
    server.add_insecure_port(f"unix:{folder / 'driver.sock'}")
    await server.start()
    agent = AgentProcess(folder / "driver.sock", folder / "agent", address, grace)
    try:
        yield Host(driver, server, agent, folder / "agent")
    finally:
        agent.kill()
        await server.stop(None)
        shutil.rmtree(folder)


def pidfd_of(pid: int) -> int:
    return os.pidfd_open(pid)


async def end_of(pidfd: int) -> None:
    """Wait until a process has ended (be it a zombie); takes the descriptor over."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in a loop of its own, bounded."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), AMPLE))

    return run


def script(source: str) -> Sequence[str]:
    return [sys.executable, "-I", "-c", source]


def round_of(*seats: rounds_pb2.Seat) -> agent_pb2.AssignRound:
    shared = rounds_pb2.RoundAssignment(round_id=rounds_pb2.RoundId(incarnation=1, n=1), size=8)
    return agent_pb2.AssignRound(round=shared, seats=seats)


async def finish(on: Host) -> None:
    """Shut the agent down in order."""
    on.driver.shut_down(AMPLE)
    assert await on.agent.exit_code() == 0
