"""What hosts and workers used, over time and now; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from edriver.model.limits import MAX_AMOUNT
from edriver.runview.points import Points
from edriver.v1 import resources_pb2, status_pb2
from edriver.wire.conversion import epoch_seconds

MAX_POINTS: Final = 1000
"""Times that are remembered: more than a chart is wide."""

MAX_DRAWN_HOSTS: Final = 20
"""Hosts that have curves, the first that were heard of; all hosts have one together."""

MAX_ROWS: Final = 2000
"""Hosts and workers in the table of what is used now."""

ALL_HOSTS: Final = ""
"""Under what name all hosts together are."""

SAMPLE_INTERVAL: Final = 2.0
"""Seconds between two samples, at first: as agents take them."""

_SUMMED: Final = (
    "cpu_seconds",
    "cpu_limit_cores",
    "memory_bytes",
    "memory_limit_bytes",
    "received_bytes",
    "sent_bytes",
    "memory_kills",
    "standbys",
)
_SUMMED_IF_KNOWN: Final = (
    "cpu_cores",
    "received_bytes_per_second",
    "sent_bytes_per_second",
    "gpu_memory_bytes",
    "gpu_memory_limit_bytes",
)

Used = tuple[float | None, int, float | None, float | None, float | None, int | None]
"""Cores, bytes of memory, bytes a second received and sent, how busy the GPUs are, bytes on them; None: unknown."""

Point = tuple[float, dict[str, Used]]


class UsageHistory:
    """What was used.

    Attributes:
        hosts: what each host has used, as far as that was heard last.
        most_memory: bytes of memory that each host has had in use at most, of what was heard.
    """

    def __init__(self) -> None:
        self._points: Points[Point] = Points(MAX_POINTS, SAMPLE_INTERVAL)
        self._drawn: dict[str, None] = {}
        self._workers: list[status_pb2.WorkerStatus] = []
        self.hosts: dict[str, resources_pb2.HostUsage] = {}
        self.most_memory: dict[str, int] = {}

    @property
    def points(self) -> list[Point]:
        """What is remembered: a time, and what each host that has a curve used then."""
        return self._points.all

    def add(self, revision: int, sample: resources_pb2.UsageSample) -> None:
        """Hosts used so much at a time."""
        hosts = {name: sample.hosts[name] for name in sorted(sample.hosts)}
        self._take(revision, epoch_seconds(sample.time), hosts, sample.total, sample.host_count)

    def look(self, revision: int, run: status_pb2.Run) -> None:
        """Hosts and workers use so much now."""
        hosts = {host.name: host.usage for host in run.hosts if host.HasField("usage")}
        if hosts:
            self._workers = [worker for worker in run.workers if worker.HasField("usage")]
            self._take(revision, epoch_seconds(run.now), hosts, sum_of(hosts.values()), len(hosts))

    def _take(
        self,
        revision: int,
        time: float,
        hosts: Mapping[str, resources_pb2.HostUsage],
        total: resources_pb2.HostUsage,
        count: int,
    ) -> None:
        self.hosts = dict(hosts)
        for name, usage in hosts.items():
            if name in self.most_memory or len(self.most_memory) < MAX_ROWS:
                self.most_memory[name] = max(self.most_memory.get(name, 0), usage.memory_bytes)
            if name not in self._drawn and len(self._drawn) < MAX_DRAWN_HOSTS:
                self._drawn[name] = None
        used = {name: _used(hosts[name]) for name in self._drawn if name in hosts}
        if count > 1:
            used[ALL_HOSTS] = _used(total)
        self._points.add(revision, time, (time, used))

    def since(self, revision: int) -> dict[str, Any]:
        """What has changed since then, as it goes to the page."""
        points = self._points.since(revision)
        return {**points, "rows": self._rows()} if points else {}

    def _rows(self) -> list[dict[str, Any]]:
        """The table: each host, and its workers."""
        of_host: dict[str, list[status_pb2.WorkerStatus]] = {}
        for worker in self._workers:
            of_host.setdefault(worker.host, []).append(worker)
        rows: list[dict[str, Any]] = []
        for name, usage in self.hosts.items():
            if len(rows) >= MAX_ROWS:
                break
            limits = (usage.cpu_limit_cores, usage.memory_limit_bytes, usage.gpu_memory_limit_bytes)
            rows.append({"host": name, "slot": None, "rank": None, "used": _used(usage), "limits": limits})
            for worker in sorted(of_host.get(name, ()), key=lambda worker: (worker.slot, worker.worker_id)):
                rank = worker.rank if worker.HasField("rank") else None
                used = _used_by_worker(worker.usage)
                rows.append({"host": name, "slot": worker.slot, "rank": rank, "used": used, "limits": None})
        return rows[:MAX_ROWS]


def sum_of(hosts: Iterable[resources_pb2.HostUsage]) -> resources_pb2.HostUsage:
    """What hosts use together; how busy their GPUs are is the mean over the hosts that have some."""
    total = resources_pb2.HostUsage()
    busy = []
    for usage in hosts:
        for name in _SUMMED:
            setattr(total, name, min(MAX_AMOUNT, getattr(total, name) + getattr(usage, name)))
        known = {field.name for field, _ in usage.ListFields()}
        for name in _SUMMED_IF_KNOWN:
            if name in known:
                setattr(total, name, min(MAX_AMOUNT, getattr(total, name) + getattr(usage, name)))
        if usage.HasField("gpu_utilization"):
            busy.append(usage.gpu_utilization)
    if busy:
        total.gpu_utilization = sum(busy) / len(busy)
    return total


def _used(usage: resources_pb2.HostUsage) -> Used:
    return (
        round(usage.cpu_cores, 3) if usage.HasField("cpu_cores") else None,
        usage.memory_bytes,
        round(usage.received_bytes_per_second) if usage.HasField("received_bytes_per_second") else None,
        round(usage.sent_bytes_per_second) if usage.HasField("sent_bytes_per_second") else None,
        round(usage.gpu_utilization, 3) if usage.HasField("gpu_utilization") else None,
        usage.gpu_memory_bytes if usage.HasField("gpu_memory_bytes") else None,
    )


def _used_by_worker(usage: resources_pb2.WorkerUsage) -> Used:
    return (
        round(usage.cpu_cores, 3) if usage.HasField("cpu_cores") else None,
        usage.resident_bytes,
        None,
        None,
        round(usage.gpu_utilization, 3) if usage.HasField("gpu_utilization") else None,
        usage.gpu_memory_bytes if usage.HasField("gpu_memory_bytes") else None,
    )
