"""A run of up to three workers, told event by event, and what its observers make of it."""

from __future__ import annotations

from edriver.driver.core.membership import Membership
from edriver.driver.observe.console.announcements import Announcements
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.progress import ProgressTracker
from edriver.model import events
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.mode import Mode
from edriver.model.settings import Settings
from edriver.model.store_address import StoreAddress
from edriver.text.time_spent import seconds_by_kind
from edriver.v1 import agent_pb2, notification_pb2, status_pb2
from edriver.wire.conversion import round_id_message, timestamp
from tests.told_events import told


class Story:
    """A run of up to three workers, and its observers' events; a second passes with every event."""

    def __init__(self, limit: int = 1_000_000, np: int = 2, min_np: int = 1, mode: Mode = Mode.ELASTIC) -> None:
        self.now = 100.0
        self.membership = Membership(Settings(np=np, min_np=min_np, max_np=3, mode=mode), now=0.0)
        self.event_history = EventHistory(self.membership, ProgressTracker(lambda: self.now), lambda: self.now, limit)
        self.announcements = Announcements()

    def take(self, event: events.Event) -> list[status_pb2.Event]:
        self.now += 1.0
        loss = self.announcements.loss(event, self.membership.roster)
        step = self.membership.step(event, self.now - 100.0)
        return told(self.event_history, event, step, loss, [*self.announcements.lines(loss, step)])

    def hosts(self, **slots: int) -> list[status_pb2.Event]:
        return self.take(events.HostsObserved(HostSet(tuple(Host(name, count) for name, count in slots.items()))))

    def waits(self, worker: int, version: Version = NO_VERSION) -> list[status_pb2.Event]:
        return self.take(events.WorkerWaiting(worker, 1, version, StoreAddress("10.0.0.1", 4000 + worker), ""))

    def begun(self) -> None:
        """Until workers 1 and 2, of host a, train in round 1.1."""
        self.hosts(a=2)
        self.take(events.AgentConnected("a", 1))
        self.waits(1)
        self.waits(2)

    def steps(self, worker: int, n: int, **times: float) -> list[status_pb2.Event]:
        return self.take(events.FirstBoundaryPassed(worker, RoundId(1, n), times))

    def says(self, worker: int, n: int, boundaries: int, at: float) -> list[status_pb2.Event]:
        """A sign of life: it has passed so many boundaries, the last one at a time."""
        progress = notification_pb2.WorkerProgress(
            round_id=round_id_message(RoundId(1, n)), boundaries=boundaries, boundary_time=timestamp(at)
        )
        return self.event_history.record_progress(agent_pb2.WorkerHeartbeat(worker_id=worker, progress=progress))

    def spent(self) -> dict[str, float]:
        """Seconds by kind, of those that there are."""
        spent = seconds_by_kind(self.event_history.ledger.time_spent(self.now))
        return {kind: round(seconds, 4) for kind, seconds in spent.items() if seconds}


def connected(*slots: int) -> Story:
    """Hosts a, b, ... with so many slots, whose agents have answered; the run may use three workers."""
    story = Story(np=1)
    names = "abcdef"[: len(slots)]
    story.hosts(**dict(zip(names, slots, strict=True)))
    for number, name in enumerate(names, start=1):
        story.take(events.AgentConnected(name, number))
    return story
