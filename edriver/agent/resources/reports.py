"""Reports of the use of resources, as part of the heartbeats."""

from __future__ import annotations

from collections.abc import Callable

from edriver.agent.resources.changes import UsageChanges
from edriver.agent.resources.sample import Sample
from edriver.v1 import agent_pb2


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

    def add_to(self, heartbeat: agent_pb2.Heartbeat) -> None:
        """Add what is new to a heartbeat."""
        sample, self._latest = self._latest, None
        if sample is None:
            return
        news = self._changes.of(sample)
        if news.host.ByteSize():
            heartbeat.usage.CopyFrom(news.host)
        beats = {beat.worker_id: beat for beat in heartbeat.workers}
        for worker_id, usage in news.workers.items():
            beat = beats.get(worker_id) or heartbeat.workers.add(worker_id=worker_id)
            beat.usage.CopyFrom(usage)
