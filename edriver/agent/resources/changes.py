"""What of the samples goes to the driver with its heartbeats: that in which something has changed noticeably; pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from edriver.agent.resources.sample import Sample
from edriver.v1 import agent_pb2, resources_pb2

REFRESH_INTERVAL: Final = 30.0
"""Seconds after which a sample is sent, whatever is in it: heartbeats may be lost."""

NOTICEABLE_CORES: Final = 0.02
"""A change of the busy cores that is worth a word,"""

NOTICEABLE_CPU_SECONDS: Final = 0.5
"""processor time that is,"""

NOTICEABLE_BYTES: Final = 1 << 20
"""bytes of memory, or of the network in a second,"""

NOTICEABLE_SHARE: Final = 0.01
"""and the part of what was sent last by which these have to change."""


class UsageChanges:
    """Decides what of each sample is sent.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._host: tuple[float, resources_pb2.HostUsage] | None = None
        self._workers: dict[int, tuple[float, resources_pb2.WorkerUsage]] = {}

    def forget(self) -> None:
        """What was sent may not have arrived: all of the next sample is sent."""
        self._host = None
        self._workers.clear()

    def of(self, sample: Sample, period: float = 0.0) -> Sample:
        """The part of a sample to send now; its host has no fields if they have not changed.

        Args:
            sample: the latest.
            period: seconds between two that are sent of the host, or of one worker, at least.
        """
        now = self._clock()
        host = resources_pb2.HostUsage()
        known = self._host
        if known is None or _is_due(now - known[0], period, partial(_host_changed, known[1], sample.host)):
            self._host = now, sample.host
            host = sample.host
        changed = {}
        for worker_id, usage in sample.workers.items():
            sent = self._workers.get(worker_id)
            if sent is None or _is_due(now - sent[0], period, partial(_worker_changed, sent[1], usage)):
                changed[worker_id] = usage
                self._workers[worker_id] = now, usage
        for worker_id in self._workers.keys() - sample.workers.keys():
            del self._workers[worker_id]
        return Sample(host, changed)


def _is_due(age: float, period: float, changed: Callable[[], bool]) -> bool:
    return age >= REFRESH_INTERVAL or (age >= period and changed())


def _differs(before: float, now: float) -> bool:
    return abs(now - before) >= max(NOTICEABLE_BYTES, NOTICEABLE_SHARE * before)


def _host_changed(before: resources_pb2.HostUsage, now: resources_pb2.HostUsage) -> bool:
    return (
        abs(now.cpu_cores - before.cpu_cores) >= NOTICEABLE_CORES
        or now.cpu_seconds - before.cpu_seconds >= NOTICEABLE_CPU_SECONDS
        or now.HasField("cpu_cores") != before.HasField("cpu_cores")
        or now.cpu_limit_cores != before.cpu_limit_cores
        or now.memory_limit_bytes != before.memory_limit_bytes
        or now.memory_kills != before.memory_kills
        or now.standbys != before.standbys
        or _differs(before.memory_bytes, now.memory_bytes)
        or _differs(before.received_bytes_per_second, now.received_bytes_per_second)
        or _differs(before.sent_bytes_per_second, now.sent_bytes_per_second)
        or now.received_bytes - before.received_bytes >= NOTICEABLE_BYTES
        or now.sent_bytes - before.sent_bytes >= NOTICEABLE_BYTES
        or abs(now.gpu_utilization - before.gpu_utilization) >= NOTICEABLE_SHARE
        or _differs(before.gpu_memory_bytes, now.gpu_memory_bytes)
        or len(now.gpus) != len(before.gpus)
    )


def _worker_changed(before: resources_pb2.WorkerUsage, now: resources_pb2.WorkerUsage) -> bool:
    return (
        abs(now.cpu_cores - before.cpu_cores) >= NOTICEABLE_CORES
        or now.cpu_seconds - before.cpu_seconds >= NOTICEABLE_CPU_SECONDS
        or now.HasField("cpu_cores") != before.HasField("cpu_cores")
        or now.processes != before.processes
        or now.gpus != before.gpus
        or _differs(before.resident_bytes, now.resident_bytes)
        or abs(now.gpu_utilization - before.gpu_utilization) >= NOTICEABLE_SHARE
        or _differs(before.gpu_memory_bytes, now.gpu_memory_bytes)
    )


class UsageReports:
    """Keeps the latest sample until a heartbeat takes along what is new in it.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._latest: Sample | None = None
        self._changes = UsageChanges(clock)

    def take(self, sample: Sample) -> None:
        """This is the latest sample."""
        self._latest = sample

    def forget(self) -> None:
        """Send everything again: what was sent may not have arrived."""
        self._changes.forget()

    def add_to(self, heartbeat: agent_pb2.Heartbeat, period: float = 0.0) -> None:
        """Add what is new to a heartbeat; see UsageChanges.of for the period."""
        sample, self._latest = self._latest, None
        if sample is None:
            return
        news = self._changes.of(sample, period)
        if news.host.ByteSize():
            heartbeat.usage.CopyFrom(news.host)
        beats = {beat.worker_id: beat for beat in heartbeat.workers}
        for worker_id, usage in news.workers.items():
            beat = beats.get(worker_id) or heartbeat.workers.add(worker_id=worker_id)
            beat.usage.CopyFrom(usage)
