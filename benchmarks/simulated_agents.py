"""Many agents in one process: the real control stream over real gRPC and TLS, and workers that only answer.

    python -m benchmarks.simulated_agents CREDENTIALS SLOTS

Takes orders on standard input, a JSON list each: ["join", "host-0", ...]; ["end", ...] (these hosts' agents end, and
their workers with them). When this process's hosts have received assignments of a round and then, for QUIET, no more,
it prints a JSON line: when the first and the last one came, the numbers of hosts and workers, and by how many seconds
this process was late at most since the line before: then it is the bound, and not the driver. Times are of the
monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import grpc.aio

from edriver.agent.control_stream import ControlStream, DriverConnectionError
from edriver.agent.progress_reports import ProgressReports, RoundReports
from edriver.agent.resources.changes import UsageReports
from edriver.agent.resources.sample import Sample
from edriver.agent.resources.sampling import SAMPLE_PERIOD
from edriver.common.join_config import JoinConfig
from edriver.common.release import PROTOCOL, VERSION
from edriver.system.descriptors import raise_limit
from edriver.v1 import agent_pb2, agent_pb2_grpc, notification_pb2, resources_pb2, rounds_pb2
from edriver.wire.conversion import duration, timestamp
from edriver.wire.driver_channel import open_channel, target_of
from edriver.wire.grpc_streams import CHANNEL_OPTIONS

QUIET: Final = 0.5
"""Seconds."""

OWN_CONNECTION: Final = (("grpc.use_local_subchannel_pool", 1),)
"""Else all agents of a process would share one connection."""

FIRST_LEASE: Final = 300.0
STOPPED_CODE: Final = -15

STEP: Final = 0.2
"""Seconds of a step."""


class Worker:
    """A worker that makes a step every STEP seconds while its round goes on.

    Args:
        worker_id: its ID.
        slot: its slot.
    """

    def __init__(self, worker_id: int, slot: int) -> None:
        self.worker_id = worker_id
        self.slot = slot
        self.round_id = rounds_pb2.RoundId()
        self.boundaries = 0
        self.reports = ProgressReports()
        self._begun: float | None = None  # when it would have begun if it had never waited; None: it waits

    @property
    def version(self) -> rounds_pb2.Version:
        """What it offers."""
        return rounds_pb2.Version(round_id=self.round_id, boundaries=self.boundaries)

    def begin(self, round_id: rounds_pb2.RoundId, rank: int) -> None:
        """Make the first step of a round."""
        self.round_id, self.boundaries, self.reports.leads = round_id, 1, rank == 0
        self.go_on()

    def go_on(self) -> None:
        """Make further steps."""
        self._begun = time.time() - self.boundaries * STEP

    def wait(self) -> None:
        """Make no further step."""
        self.look()
        self._begun = None

    @property
    def waits(self) -> bool:
        """Whether it is not making steps."""
        return self._begun is None

    def look(self) -> None:
        """Be as far as it is by now."""
        if self._begun is not None:
            self.boundaries = max(self.boundaries, int((time.time() - self._begun) / STEP))

    def progress(self) -> notification_pb2.WorkerProgress:
        """What a worker that trains says of itself."""
        spent = self.boundaries * STEP
        progress = notification_pb2.WorkerProgress(
            round_id=self.round_id,
            boundaries=self.boundaries,
            epoch=0,
            samples_done=64 * self.boundaries,
            samples=1 << 40,
            commits=self.boundaries // 10,
            commit_bytes=self.boundaries << 20,
            commit_duration=duration(0.001 * self.boundaries),
            boundary_time=timestamp(time.time()),
            training_duration=duration(spent),
            usual_step=duration(STEP),
            watched_duration=duration(spent),
            waiting_duration=duration(0.2 * spent),
            loading_duration=duration(0.1 * spent),
            delayed_duration=duration(0.0),
        )
        if self.reports.leads:
            progress.reported.update(loss=1.0 / (1 + self.boundaries), lr=0.1)
        return progress


def usage_of(workers: Iterable[int]) -> Sample:
    """What a host and its workers use: so much that is new that all of it is sent."""
    cores, spent = random.uniform(7.0, 8.0), time.monotonic()
    host = resources_pb2.HostUsage(
        cpu_cores=cores,
        cpu_seconds=8 * spent,
        cpu_limit_cores=64.0,
        memory_bytes=random.randrange(1 << 36),
        memory_limit_bytes=1 << 38,
        received_bytes=int(spent) << 24,
        sent_bytes=int(spent) << 24,
        received_bytes_per_second=cores * 1e6,
        sent_bytes_per_second=cores * 1e6,
    )
    used = {
        worker: resources_pb2.WorkerUsage(
            cpu_cores=random.random(), cpu_seconds=spent, resident_bytes=random.randrange(1 << 33), processes=5
        )
        for worker in workers
    }
    return Sample(host, used)


class SimulatedAgent:
    """One of them.

    Args:
        host: its name.
        slots: the number of workers that it takes.
        credentials: those of the run.
        assignments: records each assignment that it receives.
    """

    def __init__(self, host: str, slots: int, credentials: JoinConfig, assignments: Assignments) -> None:
        self._channel = open_channel(
            target_of((*credentials.drivers, *credentials.other_drivers)),
            credentials.authority,
            credentials.token,
            (*CHANNEL_OPTIONS, *OWN_CONNECTION),
            grpc.aio.insecure_channel,
            grpc.aio.secure_channel,
        )
        self._hello = agent_pb2.Hello(
            run_id=credentials.run_id,
            host=host,
            pid=os.getpid(),
            version=VERSION,
            protocol=PROTOCOL,
            slots=slots,
            processors=host,
        )
        self._assignments = assignments
        self._workers: dict[int, Worker] = {}
        self._round_reports = RoundReports()
        self._usage, self._sampled = UsageReports(time.monotonic), 0.0
        self._control = ControlStream(
            agent_pb2_grpc.AgentServiceStub(self._channel),
            self._hello,
            asyncio.get_running_loop().time,
            self._welcomed,
            self._take,
            self._shut_down,
            self._heartbeat,
            FIRST_LEASE,
        )
        self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._control.run()
        except DriverConnectionError as error:
            print(json.dumps({"what": "ended", "host": self._hello.host, "reason": str(error)}), flush=True)
        await self._channel.close()

    def end(self) -> None:
        """Say that this agent ends, and its workers with it."""
        self._control.send(agent_pb2.ConnectRequest(agent_ending=agent_pb2.AgentEnding()))
        self._control.close()

    def _welcomed(self, welcome: agent_pb2.Welcome) -> None:
        self._hello.agent_id = welcome.agent_id or self._hello.agent_id
        self._hello.secret = welcome.secret or self._hello.secret

    def _shut_down(self, _order: agent_pb2.Shutdown) -> None:
        for worker_id in list(self._workers):
            self._end(worker_id, STOPPED_CODE)
        self.end()

    def _heartbeat(self) -> agent_pb2.Heartbeat:
        period, now = self._control.progress_period, time.monotonic()
        beat = agent_pb2.Heartbeat()
        for worker in self._workers.values():
            worker.look()
            # A real worker says it itself. Here all are in one process, so what is not sent is not made.
            brief = notification_pb2.WorkerProgress(round_id=worker.round_id, boundaries=worker.boundaries)
            if worker.reports.is_due(brief, period, now):
                beat.workers.add(worker_id=worker.worker_id, pid=worker.worker_id, progress=worker.progress())
        if now >= self._sampled + SAMPLE_PERIOD:
            self._sampled = now
            self._usage.take(usage_of(self._workers))
        self._usage.add_to(beat, period)
        return beat

    def _take(self, message: agent_pb2.ConnectResponse) -> None:
        match message.WhichOneof("kind"):
            case "start_worker":
                order = message.start_worker
                worker = self._workers[order.worker_id] = Worker(order.worker_id, order.slot)
                self._wait_for_round(worker)
            case "stop_worker":
                self._end(message.stop_worker.worker_id, STOPPED_CODE)
            case "assign_round":
                self._assign(message.assign_round)
            case "deliver_notice":
                for worker_id in message.deliver_notice.worker_ids:
                    if member := self._workers.get(worker_id):
                        self._notice(member, message.deliver_notice.notice)

    def _assign(self, order: agent_pb2.AssignRound) -> None:
        self._assignments.note(order)
        for seat in order.seats:
            if worker := self._workers.get(seat.worker_id):
                worker.begin(order.round.round_id, seat.rank)
                asyncio.get_running_loop().call_later(STEP, self._pass_first_boundary, worker, worker.round_id)

    def _pass_first_boundary(self, worker: Worker, round_id: rounds_pb2.RoundId) -> None:
        """A worker has made the first step of a round, if it is still in that."""
        if worker.round_id != round_id or worker.waits or worker.worker_id not in self._workers:
            return
        now = timestamp(time.time())
        times = notification_pb2.RoundTimes(waiting=now, assigned=now, built=now, synced=now, stepped=now)
        passed = notification_pb2.FirstBoundaryPassed(round_id=worker.round_id, times=times)
        self._report(worker, notification_pb2.Report(first_boundary_passed=passed, progress=worker.progress()))

    def _notice(self, worker: Worker, notice: notification_pb2.Notice) -> None:
        match notice.WhichOneof("kind"):
            case "hosts_updated" if notice.hosts_updated.round_id == worker.round_id:
                worker.wait()
                reached = notification_pb2.BoundaryReached(
                    round_id=worker.round_id, number=notice.hosts_updated.number, boundaries=worker.boundaries
                )
                self._report(worker, notification_pb2.Report(boundary_reached=reached))
            case "go_on" if notice.go_on.round_id == worker.round_id:
                worker.go_on()
            case "stop_at" if notice.stop_at.round_id == worker.round_id:
                worker.boundaries = notice.stop_at.boundary
                self._wait_for_round(worker)
            case "abort" if notice.abort.round_id == worker.round_id:
                worker.wait()
                self._wait_for_round(worker)
            case "leave" | "finish":
                self._end(worker.worker_id, 0)

    def _wait_for_round(self, worker: Worker) -> None:
        waiting = notification_pb2.WorkerWaiting(
            ordinal=1,
            version=worker.version,
            store=rounds_pb2.StoreAddress(host="10.0.0.1", port=20_000 + worker.slot),
        )
        self._report(worker, notification_pb2.Report(worker_waiting=waiting, progress=worker.progress()))

    def _end(self, worker_id: int, code: int) -> None:
        if self._workers.pop(worker_id, None) is not None:
            exited = agent_pb2.WorkerExited(worker_id=worker_id, code=code)
            self._control.send(agent_pb2.ConnectRequest(worker_exited=exited))

    def _report(self, worker: Worker, report: notification_pb2.Report) -> None:
        if self._control.progress_period:
            self._round_reports.shorten(report, worker.reports, time.monotonic())
        self._control.send(
            agent_pb2.ConnectRequest(worker_report=agent_pb2.WorkerReport(worker_id=worker.worker_id, report=report))
        )


class Assignments:
    """When assignments of rounds have come, printed once all of a round are here."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], dict[str, Any]] = {}
        self._late = 0.0

    def note(self, order: agent_pb2.AssignRound) -> None:
        """One has come."""
        now, round_id = time.monotonic(), order.round.round_id
        key = round_id.incarnation, round_id.n
        found = self._found.setdefault(key, {"hosts": 0, "seats": 0, "first": now, "bytes": 0})
        found["hosts"] += 1
        found["seats"] += len(order.seats)
        found["bytes"] = max(found["bytes"], order.ByteSize())
        found["last"] = now

    async def print(self) -> None:
        """Print those of each round once, until cancelled."""
        while True:
            due = time.monotonic() + QUIET / 2
            await asyncio.sleep(QUIET / 2)
            self._late = max(self._late, time.monotonic() - due)
            for key, found in list(self._found.items()):
                if time.monotonic() > found["last"] + QUIET:
                    del self._found[key]
                    print(json.dumps({"what": "assigned", "round": key, "late": self._late, **found}), flush=True)
                    self._late = 0.0


async def serve(credentials: JoinConfig, slots: int) -> None:
    """Do what standard input says, until it ends."""
    reader = asyncio.StreamReader(limit=1 << 22)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    assignments = Assignments()
    printing = asyncio.create_task(assignments.print())
    agents: dict[str, SimulatedAgent] = {}
    while line := await reader.readline():
        what, *hosts = json.loads(line)
        for host in hosts:
            match what:
                case "join":
                    agents[host] = SimulatedAgent(host, slots, credentials, assignments)
                case "end":
                    agents[host].end()
    printing.cancel()


def main(arguments: Sequence[str]) -> None:
    """Be these agents."""
    path, slots = arguments
    raise_limit()
    asyncio.run(serve(JoinConfig.from_json(Path(path).read_bytes()), int(slots)))


if __name__ == "__main__":
    main(sys.argv[1:])
