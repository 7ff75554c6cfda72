"""What onlookers are told of a run, event by event."""

from __future__ import annotations

import pytest

from edriver.common.ids import NO_VERSION, RoundId, Version
from edriver.common.store_address import StoreAddress
from edriver.discovery.hosts import Host, HostSet
from edriver.driver.core import events
from edriver.driver.core.membership import Membership
from edriver.driver.core.settings import Settings
from edriver.driver.observe.console.announcements import Announcements
from edriver.driver.observe.event_history import Chronicle, ForgottenError
from edriver.driver.observe.progress import Pace
from edriver.v1 import cause_pb2, status_pb2


class Story:
    """A run of up to three workers, and what is told of it; a second passes with every event."""

    def __init__(self, limit: int = 1_000_000) -> None:
        self.now = 100.0
        self.membership = Membership(Settings(np=2, min_np=1, max_np=3), now=0.0)
        self.chronicle = Chronicle(self.membership, Pace(lambda: self.now), lambda: self.now, limit)
        self.announcements = Announcements()

    def take(self, event: events.Event) -> list[status_pb2.Event]:
        self.now += 1.0
        loss = self.announcements.loss(event, self.membership.roster)
        step = self.membership.step(event, self.now - 100.0)
        return self.chronicle.take(event, step, loss, [*self.announcements.lines(loss, step)])

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


def words(told: list[status_pb2.Event]) -> list[str]:
    """Each event in short."""
    return [_words(event) for event in told]


def _words(event: status_pb2.Event) -> str:
    match event.WhichOneof("kind"):
        case "host":
            return f"host {event.host.name}: {event.host.slots}{', connected' if event.host.connected else ''}"
        case "worker":
            state = status_pb2.WorkerState.Name(event.worker.state).removeprefix("WORKER_STATE_").lower()
            return f"worker {event.worker.worker_id}: {state}"
        case "round":
            told = event.round
            how = "ended" if told.HasField("ended") else "under way" if told.HasField("under_way") else "assigned"
            return f"round {told.round_id.n}: {how}"
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
    told = story.waits(2)
    assert words(told) == ["worker 2: training", "round 1: assigned"]
    first = told[1].round
    assert told[1].text == "round 1.1: 2 workers on a"
    assert (first.cause, first.kind) == ("the run began", status_pb2.ROUND_CAUSE_START)
    assert [(member.worker_id, member.slot) for member in first.members] == [(1, 0), (2, 1)]
    assert (first.assigned, first.HasField("before_ended"), first.HasField("noticed")) == (104.0, False, False)


def test_a_round_is_under_way_when_all_have_made_a_step() -> None:
    story = Story()
    story.begun()
    assert story.steps(1, 1, waiting=102.0, built=104.5, synced=104.5, stepped=106.0) == []
    (told,) = story.steps(2, 1, waiting=103.0, built=105.0, synced=105.5, stepped=105.9)
    assert words([told]) == ["round 1: under way"]
    phases = told.round.phases
    assert (phases.detect, phases.abort) == (0.0, 0.0)
    assert (phases.rendezvous, phases.sync, phases.first_step) == (1.0, 0.5, 0.5)
    assert [member.times.stepped for member in told.round.members] == [106.0, 105.9]
    assert story.steps(2, 1) == []


@pytest.mark.parametrize("peer_first", [False, True], ids=["agent-first", "peer-first"])
def test_a_loss_is_the_next_rounds_cause(peer_first: bool) -> None:
    story = Story()
    story.begun()
    story.steps(1, 1)
    story.steps(2, 1)
    both: list[events.Event] = [events.WorkerEnding(2, seen=105.5), events.CollectiveRaised(1, RoundId(1, 1), "")]
    told = [event for each in (both[::-1] if peer_first else both) for event in story.take(each)]
    ended = next(event for event in told if event.WhichOneof("kind") == "round")
    assert (ended.round.ended, len(ended.round.members)) == (107.0, 0)
    expected = cause_pb2.CAUSE_KIND_COLLECTIVE_FAILED if peer_first else cause_pb2.CAUSE_KIND_ENDED
    assert (ended.cause.kind, ended.text.startswith("round 1.1 ended: ")) == (expected, True)
    told = story.take(events.WorkerExited(2, -9, reaped=105.9)) + story.waits(1, Version(RoundId(1, 1), 7))
    begun = next(event.round for event in told if event.WhichOneof("kind") == "round")
    assert (begun.round_id.n, begun.kind) == (2, status_pb2.ROUND_CAUSE_FAILURE)
    assert (begun.noticed, begun.before_ended) == (105.5, 107.0)
    assert begun.cause == ended.text.removeprefix("round 1.1 ended: ")


def test_a_resize_and_the_next_call_of_run_are_causes_of_their_own() -> None:
    story = Story()
    story.begun()
    story.waits(story.take(events.HostsObserved(HostSet((Host("a", 3),))))[-1].worker.worker_id)
    told: list[status_pb2.Event] = []
    for worker in (1, 2):
        told += story.take(events.BoundaryReached(worker, RoundId(1, 1), 1, 4))
    (ended,) = [event for event in told if event.WhichOneof("kind") == "round"]
    assert (ended.text, ended.HasField("cause")) == ("", False)
    told = story.waits(1, Version(RoundId(1, 1), 5)) + story.waits(2, Version(RoundId(1, 1), 5))
    (begun,) = [event.round for event in told if event.WhichOneof("kind") == "round"]
    assert begun.kind == status_pb2.ROUND_CAUSE_RESIZE
    for worker in (1, 2, 3):
        story.take(events.WorkerDone(worker, RoundId(1, 2), 9))
    for worker in (1, 2, 3):
        told = story.take(events.WorkerWaiting(worker, 2, NO_VERSION, StoreAddress("10.0.0.1", 4000 + worker), ""))
    begun = next(event.round for event in told if event.WhichOneof("kind") == "round")
    assert (begun.round_id.n, begun.kind) == (3, status_pb2.ROUND_CAUSE_START)


def test_a_strangers_connection_is_a_cause_of_its_own() -> None:
    story = Story()
    story.begun()
    told = story.take(events.PeerUnproven(2, RoundId(1, 1), "connected from 127.0.0.1:4711"))
    (ended,) = [event.round for event in told if event.WhichOneof("kind") == "round"]
    assert ended.aborted_for == status_pb2.ROUND_CAUSE_UNPROVEN
    story.waits(1, Version(RoundId(1, 1), 7))
    told = story.waits(2, Version(RoundId(1, 1), 7))
    (begun,) = [event.round for event in told if event.WhichOneof("kind") == "round"]
    assert (begun.round_id.n, begun.kind) == (2, status_pb2.ROUND_CAUSE_UNPROVEN)


def test_one_who_is_gone() -> None:
    story = Story()
    story.begun()
    told = story.take(events.WorkerExited(2, -9))
    assert words(told)[0] == "worker 2: gone"
    assert told[0].text
    cause = told[0].cause
    assert (cause.kind, cause.worker_id, cause.rank, cause.code) == (cause_pb2.CAUSE_KIND_KILLED, 2, 1, -9)
    assert story.take(events.WorkerExited(2, -9)) == []


def test_a_host_that_goes_and_one_that_fails() -> None:
    story = Story()
    story.hosts(a=2, b=1)
    told = story.take(events.AgentLost("b", 2, "ssh: no route"))
    assert words(told)[0] == "host b: 1"
    assert told[0].host.obstacle == "is not used: ssh: no route"
    assert (told[0].cause.kind, told[0].cause.said) == (cause_pb2.CAUSE_KIND_HOST_UNUSED, "ssh: no route")
    assert words(story.hosts(a=1))[:2] == ["host a: 1", "host b: 0"]
    assert story.hosts(a=1) == []


def test_the_end() -> None:
    story = Story()
    story.begun()
    told = story.take(events.StopRequested("the driver got SIGINT"))
    assert words(told) == ["round 1: ended", "run: RUN_END_STOPPED"]
    assert (told[-1].text, told[-1].cause.kind) == ("the driver got SIGINT", cause_pb2.CAUSE_KIND_STOPPED)
    assert story.chronicle.over


def test_numbers_have_no_gaps_and_what_is_asked_for_comes() -> None:
    story = Story()
    story.begun()
    chronicle = story.chronicle
    assert [event.seq for event in chronicle.since(0, 100)] == list(range(1, chronicle.last_seq + 1))
    assert [event.seq for event in chronicle.since(3, 2)] == [4, 5]
    assert chronicle.since(chronicle.last_seq, 10) == []
    with pytest.raises(ForgottenError, match=f"there is no event {chronicle.last_seq + 1} yet"):
        chronicle.since(chronicle.last_seq + 1, 1)


def test_what_is_long_ago_is_forgotten() -> None:
    story = Story(limit=1000)
    story.begun()
    for n in range(50):
        story.hosts(a=2, **{f"h{n}": 1})
    chronicle = story.chronicle
    with pytest.raises(ForgottenError, match=r"the events before \d+ are forgotten: ask how the run stands"):
        chronicle.since(0, 10)
    assert chronicle.since(chronicle.last_seq - 1, 10)[0].seq == chronicle.last_seq
