"""A run told event by event, and what Prometheus reads of it."""

from __future__ import annotations

from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from edriver.discovery.poll_filter import Polls
from edriver.driver.core.membership import Membership
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.hosts.usage import UsageTracker
from edriver.driver.observe.metrics.counters import EventCounters
from edriver.driver.observe.metrics.gauges import RunGauges
from edriver.driver.observe.metrics.usage_metrics import UsageMetrics
from edriver.driver.observe.progress import ProgressTracker
from edriver.model import events
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.mode import Mode
from edriver.model.settings import Settings
from edriver.model.store_address import StoreAddress
from edriver.v1 import agent_pb2, notification_pb2, resources_pb2, rounds_pb2
from edriver.wire.conversion import duration, timestamp
from tests.told_events import told


class Story:
    """A run of two hosts, and what Prometheus reads of it; a second passes with every event."""

    def __init__(self, mode: Mode = Mode.ELASTIC) -> None:
        self.now = 1000.0
        self.membership = Membership(Settings(np=2, min_np=1, max_np=3, mode=mode), now=0.0, draw=lambda: 0.5)
        self.event_history = EventHistory(self.membership, ProgressTracker(lambda: self.now), lambda: self.now)
        self.polls = Polls()
        self.registry = CollectorRegistry()
        self.registry.register(EventCounters("r", self.event_history))
        self.usage = UsageTracker(self.membership.roster)
        used = UsageMetrics(self.usage, self.membership.roster)
        self.registry.register(RunGauges("abcd", self.membership, self.event_history, self.polls, used))

    def take(self, *happened: events.Event) -> None:
        for event in happened:
            self.now += 1.0
            step = self.membership.step(event, self.now - 1000.0)
            told(self.event_history, event, step)

    def hosts(self, **slots: int) -> None:
        self.take(events.HostsObserved(HostSet(tuple(Host(name, count) for name, count in slots.items()))))

    def waits(self, worker: int, version: Version = NO_VERSION) -> None:
        self.take(events.WorkerWaiting(worker, 1, version, StoreAddress("10.0.0.1", 4000 + worker), ""))

    def begun(self) -> None:
        """Until workers 1 and 2, of host a, train in round 1.1."""
        self.hosts(a=2)
        self.take(events.AgentConnected("a", 1))
        self.waits(1)
        self.waits(2)

    def says(
        self, worker: int, n: int, boundaries: int, **more: float | dict[str, float] | Duration | Timestamp
    ) -> None:
        message = notification_pb2.WorkerProgress(
            round_id=rounds_pb2.RoundId(incarnation=1, n=n),
            boundaries=boundaries,
            **more,  # type: ignore[arg-type]
        )
        self.event_history.record_progress(agent_pb2.WorkerHeartbeat(worker_id=worker, progress=message))

    def uses(self, host: str, *workers: agent_pb2.WorkerHeartbeat, **fields: Any) -> None:
        heartbeat = agent_pb2.Heartbeat(usage=resources_pb2.HostUsage(**fields), workers=workers)
        self.usage.record(host, heartbeat)

    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def shown(self) -> dict[str, float]:
        """Each sample by its name and labels, as in name{label="value"}."""
        found = {}
        for family in text_string_to_metric_families(self.text()):
            for sample in family.samples:
                labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
                found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
        return found


def recovered() -> Story:
    """A run that has lost worker 2 and goes on without it in round 1.2, two of seven steps lost."""
    story = Story()
    recover(story)
    return story


def recover(story: Story) -> None:
    story.begun()
    times = {"built": 1004.5, "synced": 1005.0, "stepped": 1005.5}
    story.take(events.FirstBoundaryPassed(1, RoundId(1, 1), times))
    story.take(events.FirstBoundaryPassed(2, RoundId(1, 1), {**times, "received_bytes": 4096}))
    story.says(1, 1, 7, commits=3, commit_duration=duration(0.5), commit_bytes=300, boundary_time=timestamp(1006.0))
    story.says(2, 1, 7, commits=2, commit_duration=duration(0.25), commit_bytes=200)
    story.take(events.WorkerExited(2, -9, reaped=1006.9))
    story.waits(1, Version(RoundId(1, 1), 5))
    now = story.now
    times = {
        "stopped": now - 0.9,
        "waiting": now - 0.75,
        "built": now + 0.25,
        "synced": now + 0.75,
        "stepped": now + 1.5,
    }
    story.now += 1.0
    story.take(events.FirstBoundaryPassed(1, RoundId(1, 2), times))
    boundary = timestamp(now + 2.0)
    disk = {"checkpoints": 2, "checkpoint_bytes": 900, "checkpoint_failures": 1, "checkpoint_steps": 8}
    story.says(1, 2, 4, commits=5, commit_duration=duration(0.75), commit_bytes=500, boundary_time=boundary, **disk)
