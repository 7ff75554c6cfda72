"""What observers receive of a run, event by event."""

from __future__ import annotations

import pytest

from edriver.common.ids import NO_VERSION, RoundId, Version
from edriver.common.store_address import StoreAddress
from edriver.common.wire import epoch_seconds, span_seconds
from edriver.discovery.hosts import Host, HostSet
from edriver.driver.core import events
from edriver.driver.core.cause import AgentFault, AgentFaultKind
from edriver.driver.core.membership import Membership
from edriver.driver.core.settings import Settings
from edriver.driver.observe.console.announcements import Announcements
from edriver.driver.observe.event_buffer import ForgottenError
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.progress import ProgressTracker
from edriver.v1 import cause_pb2, status_pb2


class Story:
    """A run of up to three workers, and its observers' events; a second passes with every event."""

    def __init__(self, limit: int = 1_000_000) -> None:
        self.now = 100.0
        self.membership = Membership(Settings(np=2, min_np=1, max_np=3), now=0.0)
        self.event_history = EventHistory(self.membership, ProgressTracker(lambda: self.now), lambda: self.now, limit)
        self.announcements = Announcements()

    def take(self, event: events.Event) -> list[status_pb2.Event]:
        self.now += 1.0
        loss = self.announcements.loss(event, self.membership.roster)
        step = self.membership.step(event, self.now - 100.0)
        return self.event_history.take(event, step, loss, [*self.announcements.lines(loss, step)])

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


def words(reported: list[status_pb2.Event]) -> list[str]:
    """Each event in short."""
    return [_words(event) for event in reported]


def _words(event: status_pb2.Event) -> str:
    match event.WhichOneof("kind"):
        case "host":
            return f"host {event.host.name}: {event.host.slots}{', connected' if event.host.connected else ''}"
        case "worker":
            state = status_pb2.WorkerState.Name(event.worker.state).removeprefix("WORKER_STATE_").lower()
            return f"worker {event.worker.worker_id}: {state}"
        case "round":
            reported = event.round
            how = (
                "ended"
                if reported.HasField("end_time")
                else "under way"
                if reported.HasField("first_step_time")
                else "assigned"
            )
            return f"round {reported.round_id.n}: {how}"
        case "run_ended":
            return f"run: {status_pb2.RunEnd.Name(event.run_ended.end)}"
        case _:
            return event.text


def test_a_start_in_order() -> None:
    story = Story()
    assert words(story.hosts(a=2)) == ["host a: 2", "waiting: 0 of 2 workers are ready"]
    assert words(story.take(events.AgentConnected("a", 1))) == [
        "host a: 2, connected",
        "worker 1: booting",
        "worker 2: booting",
    ]
    assert words(story.waits(1))[0] == "worker 1: waiting"
    reported = story.waits(2)
    assert words(reported) == ["worker 2: training", "round 1: assigned"]
    first = reported[1].round
    assert reported[1].text == "round 1.1: 2 workers on a"
    assert (first.cause.kind, first.kind) == (cause_pb2.CAUSE_KIND_RUN_BEGAN, status_pb2.ROUND_KIND_START)
    assert [(member.worker_id, member.slot) for member in first.members] == [(1, 0), (2, 1)]
    assert epoch_seconds(first.assign_time) == 104.0
    assert not first.HasField("previous_end_time")
    assert not first.HasField("detect_time")


def test_a_round_is_under_way_when_all_have_made_a_step() -> None:
    story = Story()
    story.begun()
    assert story.steps(1, 1, waiting=102.0, built=104.5, synced=104.5, stepped=106.0) == []
    (reported,) = story.steps(2, 1, waiting=103.0, built=105.0, synced=105.5, stepped=105.9)
    assert words([reported]) == ["round 1: under way"]
    phases = {field.name: span_seconds(span) for field, span in reported.round.phases.ListFields()}
    assert phases == {"detect": 0.0, "abort": 0.0, "rendezvous": 1.0, "sync": 0.5, "first_step": 0.5}
    assert [epoch_seconds(member.times.stepped) for member in reported.round.members] == [106.0, 105.9]
    assert story.steps(2, 1) == []


@pytest.mark.parametrize("peer_first", [False, True], ids=["agent-first", "peer-first"])
def test_a_loss_is_the_next_rounds_cause(peer_first: bool) -> None:
    story = Story()
    story.begun()
    story.steps(1, 1)
    story.steps(2, 1)
    both: list[events.Event] = [events.WorkerEnding(2, seen=105.5), events.CollectiveRaised(1, RoundId(1, 1), "")]
    reported = [event for each in (both[::-1] if peer_first else both) for event in story.take(each)]
    ended = next(event for event in reported if event.WhichOneof("kind") == "round")
    assert (epoch_seconds(ended.round.end_time), len(ended.round.members)) == (107.0, 0)
    expected = cause_pb2.CAUSE_KIND_COLLECTIVE_FAILED if peer_first else cause_pb2.CAUSE_KIND_ENDED
    assert (ended.cause.kind, ended.text.startswith("round 1.1 ended: ")) == (expected, True)
    reported = story.take(events.WorkerExited(2, -9, reaped=105.9)) + story.waits(1, Version(RoundId(1, 1), 7))
    begun = next(event.round for event in reported if event.WhichOneof("kind") == "round")
    assert (begun.round_id.n, begun.kind) == (2, status_pb2.ROUND_KIND_FAILURE)
    assert (epoch_seconds(begun.detect_time), epoch_seconds(begun.previous_end_time)) == (105.5, 107.0)
    assert begun.cause.text == ended.text.removeprefix("round 1.1 ended: ")
    begun.cause.text = ""
    assert begun.cause == ended.cause


def test_a_resize_and_the_next_call_of_run_are_causes_of_their_own() -> None:
    story = Story()
    story.begun()
    story.waits(story.take(events.HostsObserved(HostSet((Host("a", 3),))))[-1].worker.worker_id)
    reported: list[status_pb2.Event] = []
    for worker in (1, 2):
        reported += story.take(events.BoundaryReached(worker, RoundId(1, 1), 1, 4))
    (ended,) = [event for event in reported if event.WhichOneof("kind") == "round"]
    assert (ended.text, ended.HasField("cause")) == ("", False)
    reported = story.waits(1, Version(RoundId(1, 1), 5)) + story.waits(2, Version(RoundId(1, 1), 5))
    (begun,) = [event.round for event in reported if event.WhichOneof("kind") == "round"]
    assert begun.kind == status_pb2.ROUND_KIND_RESIZE
    for worker in (1, 2, 3):
        story.take(events.WorkerDone(worker, RoundId(1, 2), 9))
    for worker in (1, 2, 3):
        reported = story.take(events.WorkerWaiting(worker, 2, NO_VERSION, StoreAddress("10.0.0.1", 4000 + worker), ""))
    begun = next(event.round for event in reported if event.WhichOneof("kind") == "round")
    assert (begun.round_id.n, begun.kind) == (3, status_pb2.ROUND_KIND_START)


def test_a_strangers_connection_is_a_cause_of_its_own() -> None:
    story = Story()
    story.begun()
    reported = story.take(events.PeerUnproven(2, RoundId(1, 1), "connected from 127.0.0.1:4711"))
    (ended,) = [event.round for event in reported if event.WhichOneof("kind") == "round"]
    assert ended.abort_kind == status_pb2.ROUND_KIND_UNPROVEN
    story.waits(1, Version(RoundId(1, 1), 7))
    reported = story.waits(2, Version(RoundId(1, 1), 7))
    (begun,) = [event.round for event in reported if event.WhichOneof("kind") == "round"]
    assert (begun.round_id.n, begun.kind) == (2, status_pb2.ROUND_KIND_UNPROVEN)


def test_a_worker_that_has_exited() -> None:
    story = Story()
    story.begun()
    reported = story.take(events.WorkerExited(2, -9))
    assert words(reported)[0] == "worker 2: gone"
    assert reported[0].text
    cause = reported[0].cause
    assert (cause.kind, cause.worker_id, cause.rank, cause.code) == (cause_pb2.CAUSE_KIND_KILLED, 2, 1, -9)
    assert story.take(events.WorkerExited(2, -9)) == []


def test_a_host_that_goes_and_one_that_fails() -> None:
    story = Story()
    story.hosts(a=2, b=1)
    reported = story.take(events.AgentLost("b", 2, AgentFault(AgentFaultKind.ENDED, "ssh: no route")))
    assert words(reported)[0] == "host b: 1"
    (obstacle,) = reported[0].host.obstacles
    assert (obstacle.kind, obstacle.detail) == (cause_pb2.CAUSE_KIND_HOST_UNUSED, "ssh: no route")
    assert (reported[0].cause.kind, reported[0].cause.detail) == (cause_pb2.CAUSE_KIND_HOST_UNUSED, "ssh: no route")
    assert words(story.hosts(a=1))[:2] == ["host a: 1", "host b: 0"]
    assert story.hosts(a=1) == []


def test_the_end() -> None:
    story = Story()
    story.begun()
    reported = story.take(events.StopRequested("the driver got SIGINT"))
    assert words(reported) == ["round 1: ended", "run: RUN_END_STOPPED"]
    assert (reported[-1].text, reported[-1].cause.kind) == ("the driver got SIGINT", cause_pb2.CAUSE_KIND_STOPPED)
    assert story.event_history.over


def test_numbers_have_no_gaps_and_what_is_asked_for_comes() -> None:
    story = Story()
    story.begun()
    event_history = story.event_history
    assert [event.seq for event in event_history.since(0, 100)] == list(range(1, event_history.last_seq + 1))
    assert [event.seq for event in event_history.since(3, 2)] == [4, 5]
    assert event_history.since(event_history.last_seq, 10) == []
    with pytest.raises(ForgottenError, match=f"there is no event {event_history.last_seq + 1} yet"):
        event_history.since(event_history.last_seq + 1, 1)


def test_what_is_long_ago_is_forgotten() -> None:
    story = Story(limit=1000)
    story.begun()
    for n in range(50):
        story.hosts(a=2, **{f"h{n}": 1})
    event_history = story.event_history
    with pytest.raises(ForgottenError, match=r"the events before \d+ are forgotten: ask how the run stands"):
        event_history.since(0, 10)
    assert event_history.since(event_history.last_seq - 1, 10)[0].seq == event_history.last_seq
