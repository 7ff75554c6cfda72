"""What watchers and queries cost the driver: `python -m benchmarks.status_speed`.

A driver's parts without a run around them: hosts and workers exist in the core's records only, everything else (the
chronicle, StatusService over a unix socket, the client in a process of its own) is real. Prints one JSON object:

- query_ms: a GetRun of a run of 1,000 hosts with 8 workers each, as a client sees it; the median of 50.
- watched_core: the part of a core that the driver's process needs at 64 workers, each of which reports once a second,
  for 50 watchers and 100 queries a second; the median of 3 turns.
- bare_core: the same of a grpc.aio server without logic: one constant answer to all queries, and one constant event a
  second to each watcher. In turns with the other.
- busy_core: watched_core on a machine that trains: as many processes as it has cores compute beside the driver, at the
  same priority. A process that is woken has to wait for its turn there, and then finds more to do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import uvloop

from edriver.client import Address, AsyncClient
from edriver.driver.core.membership import Membership
from edriver.driver.core.round import Round
from edriver.driver.core.selection import plan_round
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.progress import ProgressTracker
from edriver.driver.services.status import StatusServer
from edriver.model import actions, events
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import NO_VERSION, RoundId
from edriver.model.plan import Candidate
from edriver.model.records import Worker, WorkerState
from edriver.model.settings import Settings
from edriver.model.store_address import StoreAddress
from edriver.v1 import agent_pb2, notification_pb2, rounds_pb2, status_pb2, status_pb2_grpc
from edriver.wire.conversion import duration, timestamp
from edriver.wire.grpc_streams import SERVER_OPTIONS

QUERIES = 50
WATCHERS = 50
QUERIES_A_SECOND = 100
SECONDS = 8.0
TURNS = 3

COMPUTE = """
import os
parent = os.getppid()
while os.getppid() == parent:
    sum(range(10000))
"""
"""Computes until its parent process ends, however that happens."""


class Simulated:
    """A run in its first round, all hosts of which exist in name only."""

    def __init__(self, hosts: int, slots: int) -> None:
        size = hosts * slots
        self.membership = Membership(Settings(np=size, min_np=1, max_np=size), now=0.0)
        self.tracker = ProgressTracker(time.monotonic)
        self.event_history = EventHistory(self.membership, self.tracker, time.time)
        self.status = StatusServer("simulated", self.membership, self.event_history, time.time)
        self.size = size
        self.step = 0
        self._began = time.time()
        names = [f"host{number}" for number in range(hosts)]
        roster = self.membership.roster
        roster.observe(HostSet(tuple(Host(name, slots) for name in names)))
        places = [(name, slot) for name in names for slot in range(slots)]
        for worker_id, (name, slot) in enumerate(places, start=1):
            roster.workers[worker_id] = Worker(worker_id, name, slot, WorkerState.TRAINING, rank=worker_id - 1)
        for record in roster.hosts.values():
            record.connected = True
        candidates = [
            Candidate(w.worker_id, w.host, w.slot, NO_VERSION, StoreAddress("a", 4000)) for w in roster.workers.values()
        ]
        plan = plan_round(RoundId(1, 1), 1, candidates, first=True)
        self.membership.rounds.current = Round(plan, set(plan.workers), 0.0)
        started = [actions.StartWorker(worker_id, "", 0, background=False) for worker_id in roster.workers]
        self.event_history.take(events.Ticked(), [*started, plan], None, [])
        for worker_id in plan.workers:
            self.event_history.take(events.FirstBoundaryPassed(worker_id, plan.round_id, {}), [], None, [])

    def beat(self) -> None:
        """Each worker reports its progress."""
        self.step += 20
        now = time.time()
        message = notification_pb2.WorkerProgress(
            round_id=rounds_pb2.RoundId(incarnation=1, n=1),
            boundaries=self.step,
            boundary_time=timestamp(now),
            training_duration=duration(now - self._began),
            stalled_duration=duration(0.0),
            declared_duration=duration(0.0),
            usual_step=duration(0.05),
        )
        for worker_id in range(1, self.size + 1):
            self.event_history.record_progress(
                agent_pb2.WorkerHeartbeat(worker_id=worker_id, pid=worker_id, progress=message)
            )


class Bare(StatusServer):
    """What gRPC itself costs: answers that never change, and cost nothing to find."""

    def __init__(self, run: Simulated) -> None:
        super().__init__("bare", run.membership, run.event_history, time.time)
        self._same = run.status.answer()

    def answer(self) -> status_pb2.GetRunResponse:
        """What it was at the beginning."""
        return self._same

    async def Watch(self, _request: Any, _context: Any) -> AsyncIterator[status_pb2.WatchResponse]:  # noqa: N802
        """A word a second."""
        loop = asyncio.get_running_loop()
        while True:
            yield status_pb2.WatchResponse(progress=status_pb2.Progress(steps=1))
            await asyncio.sleep(1.0 - loop.time() % 1.0)


async def serve(status: status_pb2_grpc.StatusServiceServicer, folder: str) -> tuple[grpc.aio.Server, str]:
    """Serve it over a unix socket; returns the server, and where it is."""
    target = f"unix:{Path(folder, 's')}"
    server = grpc.aio.server(options=SERVER_OPTIONS)
    status_pb2_grpc.add_StatusServiceServicer_to_server(status, server)
    server.add_insecure_port(target)
    await server.start()
    return server, target


async def _measure() -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="ed-") as folder:
        large = Simulated(1000, 8)
        large.beat()
        server, target = await serve(large.status, folder)
        (query,) = await _asked("query", target)
        await server.stop(None)
    run = Simulated(8, 8)
    run.beat()
    nothing_known = Bare(run)
    beating = asyncio.create_task(_beat(run))
    watched, bare = [], []
    for _ in range(TURNS):
        watched.append(await _core(run.status))
        bare.append(await _core(nothing_known))
    with computing():
        busy = [await _core(run.status) for _ in range(TURNS)]
    beating.cancel()
    return {
        "query_ms": query,
        "watched_core": round(statistics.median(watched), 3),
        "bare_core": round(statistics.median(bare), 3),
        "busy_core": round(statistics.median(busy), 3),
    }


@contextmanager
def computing() -> Iterator[None]:
    """Let every core of the machine compute."""
    command = [sys.executable, "-c", COMPUTE]
    processes = [subprocess.Popen(command, start_new_session=True) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def _core(status: status_pb2_grpc.StatusServiceServicer) -> float:
    """The part of a core that this service takes under the load."""
    with tempfile.TemporaryDirectory(prefix="ed-") as folder:
        server, target = await serve(status, folder)
        asking = asyncio.create_task(_asked("load", target))
        await asyncio.sleep(2.0)  # until all watch
        before, began = _processor_seconds(), time.monotonic()
        await asyncio.sleep(SECONDS)
        used = (_processor_seconds() - before) / (time.monotonic() - began)
        (answered,) = await asking
        assert answered > 0.95 * QUERIES_A_SECOND, f"only {answered} queries a second were asked"
        await server.stop(None)
    return used


async def _beat(run: Simulated) -> None:
    while True:
        run.beat()
        await asyncio.sleep(1.0)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _asked(part: str, target: str) -> list[float]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.status_speed", "--as-client", part, target, stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, f"the client has ended with {process.returncode}"
    found: list[float] = json.loads(output)
    return found


async def _query(target: str) -> list[float]:
    async with AsyncClient(Address("simulated", target)) as client:
        times = []
        for _ in range(QUERIES):
            began = time.perf_counter()
            run = await client.status()
            times.append((time.perf_counter() - began) * 1000)
            assert len(run.workers) == 8000
        return [round(statistics.median(times), 1)]


async def _load(target: str) -> list[float]:
    async with AsyncClient(Address("simulated", target)) as client:

        async def watch() -> None:
            async for _ in client.watch_progress():
                pass

        watching = [asyncio.create_task(watch()) for _ in range(WATCHERS)]
        answered, began = 0, time.monotonic()
        while (passed := time.monotonic() - began) < SECONDS + 4:
            await client.status()
            answered += 1
            await asyncio.sleep(max(0.0, answered / QUERIES_A_SECOND - passed))
        for task in watching:
            task.cancel()
        return [round(answered / passed, 1)]


def main() -> None:
    """Measure, or be the client of who does."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.status_speed")
    parser.add_argument("--as-client", nargs=2, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.as_client:
        part, target = flags.as_client
        print(json.dumps(asyncio.run(_query(target) if part == "query" else _load(target))))
    else:
        print(json.dumps(uvloop.run(_measure()), indent=1))


if __name__ == "__main__":
    main()
