"""What a driver is given in a short run, and the parts of a driver that a journal holds."""

from __future__ import annotations

from collections.abc import Iterator

from edriver.driver.agents.registry import AgentRegistry
from edriver.driver.core.membership import Membership
from edriver.driver.feeds.mailbox import Mailbox
from edriver.driver.journal.keyed_random import KeyedRandom
from edriver.driver.journal.orders import order_text
from edriver.driver.observe.cause_text import cause_text
from edriver.driver.observe.console.announcements import Announcements
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.progress import ProgressTracker
from edriver.driver.run.driver_state import DriverState
from edriver.model import actions, events
from edriver.model.cause import AgentFault, AgentFaultKind
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.settings import Settings
from edriver.model.store_address import StoreAddress
from edriver.v1 import agent_pb2, notification_pb2, rounds_pb2, status_pb2
from edriver.wire.orders import orders_of


class Driver:
    """The parts of a driver that a snapshot holds.

    Attributes:
        ordered: what the latest event has led to, as the journal has it.
    """

    def __init__(self) -> None:
        self.now = 100.0
        clock = lambda: self.now  # noqa: E731
        self.draws = KeyedRandom(b"k" * 32)
        self.core = Membership(Settings(np=2, min_np=1, max_np=4), now=0.0, draw=self.draws.random)
        self.history = EventHistory(self.core, ProgressTracker(clock), clock)
        self.announcements = Announcements()
        self.registry = AgentRegistry(Mailbox(100), clock, draw_secret=self.draws.secret)
        self.ordered: list[str] = []

    @property
    def state(self) -> DriverState:
        """See DriverState."""
        return DriverState(self.core, self.history, self.announcements, self.registry, self.draws)

    def take(self, event: events.Event, now: float) -> list[bytes]:
        """One turn; returns what observers are told."""
        self.now = 100.0 + now
        loss = self.announcements.loss(event, self.core.roster)
        step = self.core.step(event, now)
        self.ordered.clear()
        for action in step:
            if (order := order_text(action, self.draws.count)) is not None:
                self.ordered.append(order)
            messages = [*orders_of(action, self.core.roster.workers, self.now, self.draws.secret, cause_text)]
            if isinstance(action, actions.StartAgent):
                self.registry.expect(action.host, action.agent_id)
            for host, message in messages:
                self.registry.send(host, message)
        if isinstance(event, events.AgentConnected):
            self.registry.note_connected(event.agent_id)
        lines = [*self.announcements.lines(loss, step)]
        return _told(self.history.take(event, step, loss, lines))

    def hear(self, progress: bytes, now: float) -> list[bytes]:
        """A worker's progress, which comes before its event; returns what observers are told."""
        self.now = 100.0 + now
        return _told(self.history.record_progress(agent_pb2.WorkerHeartbeat.FromString(progress)))


def _told(new_events: list[status_pb2.Event]) -> list[bytes]:
    return [event.SerializeToString(deterministic=True) for event in new_events]


def story() -> Iterator[tuple[float, events.Event, bytes]]:
    """Two hosts; a round; a worker dies, and another round is formed: times, events, and progress before these."""

    def waiting(worker_id: int, version: Version) -> events.WorkerWaiting:
        return events.WorkerWaiting(worker_id, 1, version, StoreAddress("a", 4000 + worker_id), "digest")

    def progress(worker_id: int, boundaries: int) -> bytes:
        made = notification_pb2.WorkerProgress(
            round_id=rounds_pb2.RoundId(incarnation=1, n=1), boundaries=boundaries, epoch=0, samples_done=4, samples=99
        )
        made.boundary_time.FromMilliseconds(105_000 + boundaries)
        made.training_duration.FromMilliseconds(100)
        return agent_pb2.WorkerHeartbeat(worker_id=worker_id, pid=7, progress=made).SerializeToString()

    first = RoundId(1, 1)
    yield 1.0, events.HostsObserved(HostSet((Host("a", 1), Host("b", 1)))), b""
    yield 1.1, events.AgentConnected("a", 1), b""
    yield 1.2, events.AgentConnected("b", 2), b""
    yield 5.0, waiting(1, NO_VERSION), b""
    yield 5.1, waiting(2, NO_VERSION), b""
    yield 5.2, events.FirstBoundaryPassed(1, first, {"notified": 1.0, "synced": 2.0}, "same"), b""
    yield 5.3, events.FirstBoundaryPassed(2, first, {"notified": 1.0, "synced": 2.5}, "same"), b""
    yield 9.0, events.WorkerEnding(2, 109.0), progress(1, 6)
    yield 9.1, events.CollectiveRaised(1, first, "Traceback"), b""
    yield 9.2, events.WorkerExited(2, -9, "last words", 109.1), b""
    yield 9.3, waiting(1, Version(first, 7)), progress(1, 7)
    yield 9.4, events.Ticked(), b""
    yield 20.0, events.AgentSilent("b", 2, AgentFault(AgentFaultKind.SILENT, seconds=5.0)), b""
    yield 21.0, events.AgentConnected("b", 2), b""
    yield 30.0, events.DrainRequested("b", None, "enough", "me"), b""


SNAPSHOT_AT = 9
"""After how many events of the story a recorded journal has its snapshot."""
