"""A worker's side of the protocol: which notice counts at which stage, and what a boundary decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edriver.model.ids import NO_ROUND, NO_VERSION, RoundId, Version
from edriver.model.store_address import StoreAddress
from edriver.v1 import cause_pb2, rounds_pb2
from edriver.v1 import notification_pb2 as pb
from edriver.wire.assignments import bits_of
from edriver.wire.conversion import round_id_message, version_of
from edriver.worker.rounds.participant import BoundaryVerdict, Participant, Stage

FIRST = RoundId(1, 1)
SECOND = RoundId(1, 2)


def hosts_updated(number: int, round_id: RoundId = FIRST) -> pb.Notice:
    return pb.Notice(hosts_updated=pb.HostsUpdated(round_id=round_id_message(round_id), number=number))


def stop_at(number: int, boundary: int, round_id: RoundId = FIRST) -> pb.Notice:
    return pb.Notice(stop_at=pb.StopAt(round_id=round_id_message(round_id), number=number, boundary=boundary))


def go_on(number: int, round_id: RoundId = FIRST) -> pb.Notice:
    return pb.Notice(go_on=pb.GoOn(round_id=round_id_message(round_id), number=number))


def abort(round_id: RoundId = FIRST) -> pb.Notice:
    return pb.Notice(abort=pb.Abort(round_id=round_id_message(round_id), cause=cause_pb2.Cause(text="worker 2 died")))


def finish(round_id: RoundId = FIRST) -> pb.Notice:
    return pb.Notice(finish=pb.Finish(round_id=round_id_message(round_id)))


def assignment(round_id: RoundId = FIRST) -> pb.Notice:
    seat = rounds_pb2.Seat(worker_id=7, rank=1, local_rank=0, local_size=1, cross_rank=1, cross_size=2)
    shared = rounds_pb2.RoundAssignment(
        round_id=round_id_message(round_id),
        size=2,
        store=rounds_pb2.StoreAddress(host="a", port=7001),
        source=0,
        receivers=bits_of([1]),
    )
    return pb.Notice(assignment=pb.Assignment(round=shared, seat=seat))


def comparing(size: int) -> list[int]:
    """The ranks that compare their states in a round of this size."""
    found = []
    for rank in range(size):
        participant = at(Stage.WAITING)
        notice = assignment()
        notice.assignment.round.size, notice.assignment.seat.rank = size, rank
        participant.take(notice)
        found += [rank] if participant.compares_at else []
    return found


LEAVE = pb.Notice(leave=pb.Leave())
SKIP = pb.Notice(skip=pb.Skip(ordinal=1))


def at(stage: Stage) -> Participant:
    """A participant in its script's first `run`, at a stage of its first round, that has answered no notice."""
    participant = Participant()
    if stage is Stage.OUTSIDE:
        return participant
    participant.enter()
    participant.wait(NO_VERSION, StoreAddress("a", 7007), "")
    if stage in (Stage.ASSIGNED, Stage.DONE, Stage.FINISHED):
        participant.take(assignment())
    if stage in (Stage.DONE, Stage.FINISHED):
        participant.done()
    if stage is Stage.FINISHED:
        participant.take(finish())
    if stage is Stage.LEAVING:
        participant.take(LEAVE)
    if stage is Stage.SKIPPING:
        participant.take(SKIP)
    assert participant.stage is stage
    return participant


def training(boundaries: int = 0) -> Participant:
    """A member that has passed so many boundaries."""
    participant = at(Stage.ASSIGNED)
    for _ in range(boundaries):
        assert reach(participant) is BoundaryVerdict.PASS
    return participant


def reach(participant: Participant, committed: bool = True) -> BoundaryVerdict:
    """Reach a boundary, as the loop does."""
    return participant.verdict() if participant.passed(committed) else BoundaryVerdict.PASS


def snapshot(participant: Participant) -> dict[str, Any]:
    """All that a participant knows, but for the count of notices."""
    return {name: value for name, value in vars(participant).items() if name != "news"}


TAKEN_AT: dict[str, tuple[pb.Notice, set[Stage]]] = {
    "hosts-updated": (hosts_updated(1), {Stage.ASSIGNED, Stage.DONE}),
    "stop-at-unasked": (stop_at(1, 5), set()),
    "stop-at-number-0": (stop_at(0, 5), set()),
    "go-on-unasked": (go_on(1), set()),
    "abort": (abort(), {Stage.ASSIGNED, Stage.DONE, Stage.FINISHED}),
    "assignment": (assignment(), {Stage.WAITING}),
    "finish": (finish(), {Stage.DONE}),
    "leave": (LEAVE, {Stage.WAITING}),
    "skip": (SKIP, {Stage.WAITING}),
    "skip-of-another-call": (pb.Notice(skip=pb.Skip(ordinal=2)), set()),
    "attached": (pb.Notice(attached=pb.Attached(run_id="r", worker_id=7)), set()),
    "abort-of-another-round": (abort(SECOND), set()),
    "hosts-updated-of-another-round": (hosts_updated(1, SECOND), set()),
    "finish-of-another-round": (finish(SECOND), set()),
}


@pytest.mark.parametrize("stage", Stage, ids=lambda stage: stage.value)
@pytest.mark.parametrize(("notice", "taken_at"), TAKEN_AT.values(), ids=TAKEN_AT)
def test_a_notice_counts_only_at_its_stages(notice: pb.Notice, taken_at: set[Stage], stage: Stage) -> None:
    participant = at(stage)
    before, news = snapshot(participant), participant.news
    answer = participant.take(notice)
    assert (snapshot(participant) != before) == (stage in taken_at)
    assert (answer is not None) == (notice.HasField("hosts_updated") and stage in taken_at)
    assert participant.news == news + 1  # even a dropped one is news: the boundary looks, and finds nothing


@pytest.mark.parametrize("stage", Stage, ids=lambda stage: stage.value)
def test_a_ping_is_answered_at_every_stage_and_is_no_news(stage: Stage) -> None:
    participant = at(stage)
    news = participant.news
    assert participant.take(pb.Notice(ping=pb.Ping(number=17))) == pb.Report(pong=pb.Pong(number=17))
    assert participant.news == news


@pytest.mark.parametrize(
    ("stage", "notice", "after"),
    [
        pytest.param(Stage.WAITING, assignment(), Stage.ASSIGNED, id="assigned"),
        pytest.param(Stage.WAITING, LEAVE, Stage.LEAVING, id="leaving"),
        pytest.param(Stage.WAITING, SKIP, Stage.SKIPPING, id="skipping"),
        pytest.param(Stage.DONE, finish(), Stage.FINISHED, id="finished"),
    ],
)
def test_notices_that_change_the_stage(stage: Stage, notice: pb.Notice, after: Stage) -> None:
    participant = at(stage)
    participant.take(notice)
    assert participant.stage is after


# ---- boundaries -----------------------------------------------------------------------------------------------


def test_a_quiet_boundary_has_no_news() -> None:
    participant = training(boundaries=2)  # the first one looks: Assignment was news; the second one compares the state
    assert [participant.passed(committed=True) for _ in range(3)] == [False, False, False]
    assert participant.boundaries == 5


def test_a_dropped_notice_is_looked_at_once() -> None:
    participant = training(boundaries=2)
    participant.take(abort(SECOND))
    assert participant.passed(committed=True)
    assert participant.verdict() is BoundaryVerdict.PASS
    assert not participant.passed(committed=True)


@pytest.mark.parametrize("boundaries", [0, 1, 7])
def test_a_notice_is_answered_with_the_boundaries_passed_and_the_next_one_waits(boundaries: int) -> None:
    participant = training(boundaries)
    answer = participant.take(hosts_updated(1))
    assert answer is not None
    reached = answer.boundary_reached
    assert (reached.round_id, reached.number, reached.boundaries) == (round_id_message(FIRST), 1, boundaries)
    assert reach(participant) is BoundaryVerdict.WAIT
    assert participant.verdict() is BoundaryVerdict.WAIT  # until a verdict comes
    assert participant.boundaries == boundaries + 1


@pytest.mark.parametrize("further", [0, 1, 4])
def test_all_boundaries_before_the_agreed_one_pass(further: int) -> None:
    participant = training(boundaries=3)
    participant.take(hosts_updated(1))
    assert reach(participant) is BoundaryVerdict.WAIT
    participant.take(stop_at(1, boundary=4 + further))
    verdicts = [participant.verdict(), *(reach(participant) for _ in range(further))]
    assert verdicts == [BoundaryVerdict.PASS] * further + [BoundaryVerdict.STOP]
    assert participant.boundaries == 4 + further


def test_a_verdict_that_comes_before_the_boundary_needs_no_wait() -> None:
    participant = training(boundaries=3)
    participant.take(hosts_updated(1))
    participant.take(stop_at(1, boundary=5))
    assert [reach(participant), reach(participant)] == [BoundaryVerdict.PASS, BoundaryVerdict.STOP]


def test_a_verdict_to_go_on_costs_one_look() -> None:
    participant = training(boundaries=3)
    participant.take(hosts_updated(1))
    assert reach(participant) is BoundaryVerdict.WAIT
    participant.take(go_on(1))
    assert participant.verdict() is BoundaryVerdict.PASS
    assert not participant.passed(committed=True)


def test_a_notice_between_the_count_and_the_look_reports_the_boundary_as_passed() -> None:
    participant = training(boundaries=3)
    participant.take(abort(SECOND))  # news of no concern, so that the training thread goes on to look
    assert participant.passed(committed=True)
    answer = participant.take(hosts_updated(1))
    assert answer is not None
    assert answer.boundary_reached.boundaries == 4
    assert participant.verdict() is BoundaryVerdict.PASS
    assert reach(participant) is BoundaryVerdict.WAIT  # and the one after it does not slip through


def test_a_done_member_answers_with_all_its_boundaries() -> None:
    participant = training(boundaries=6)
    participant.done()
    answer = participant.take(hosts_updated(1))
    assert answer is not None
    assert answer.boundary_reached.boundaries == 6


@pytest.mark.parametrize(
    "verdicts",
    [
        pytest.param([], id="before-the-verdict"),
        pytest.param([stop_at(1, boundary=4)], id="at-the-agreed-boundary"),
        pytest.param([stop_at(1, boundary=9)], id="before-the-agreed-boundary"),
        pytest.param([go_on(1)], id="after-go-on"),
    ],
)
@pytest.mark.parametrize("abort_last", [True, False], ids=["abort-last", "abort-first"])
def test_an_abort_overrides_whatever_was_agreed(verdicts: list[pb.Notice], abort_last: bool) -> None:
    participant = training(boundaries=3)
    participant.take(hosts_updated(1))
    for notice in [*verdicts, abort()] if abort_last else [abort(), *verdicts]:
        participant.take(notice)
    assert reach(participant) is BoundaryVerdict.ABORT
    assert participant.abort_cause == "worker 2 died"


def test_a_waiting_boundary_returns_at_an_abort() -> None:
    participant = training(boundaries=3)
    participant.take(hosts_updated(1))
    assert reach(participant) is BoundaryVerdict.WAIT
    participant.take(abort())
    assert participant.verdict() is BoundaryVerdict.ABORT


# ---- stale numbers and rounds ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stale",
    [
        pytest.param(stop_at(1, boundary=4), id="stop-at-of-an-older-interrupt"),
        pytest.param(go_on(1), id="go-on-of-an-older-interrupt"),
        pytest.param(stop_at(3, boundary=4), id="stop-at-of-an-interrupt-to-come"),
        pytest.param(stop_at(2, boundary=4, round_id=SECOND), id="stop-at-of-another-round"),
        pytest.param(go_on(2, round_id=SECOND), id="go-on-of-another-round"),
        pytest.param(hosts_updated(2), id="the-same-notice-again"),
        pytest.param(hosts_updated(1), id="an-older-notice"),
    ],
)
def test_only_the_verdict_of_the_last_answer_counts(stale: pb.Notice) -> None:
    participant = training(boundaries=3)
    participant.take(hosts_updated(1))
    participant.take(go_on(1))
    participant.take(hosts_updated(2))
    assert reach(participant) is BoundaryVerdict.WAIT
    assert participant.take(stale) is None
    assert participant.verdict() is BoundaryVerdict.WAIT
    participant.take(stop_at(2, boundary=4))
    assert participant.verdict() is BoundaryVerdict.STOP


def test_a_second_go_on_does_not_undo_a_later_answer() -> None:
    participant = training(boundaries=3)
    participant.take(hosts_updated(1))
    participant.take(go_on(1))
    participant.take(hosts_updated(2))
    participant.take(go_on(1))
    assert reach(participant) is BoundaryVerdict.WAIT


def test_to_pass_an_agreed_boundary_is_the_scripts_mistake() -> None:
    """It caught what its signal handler raised while the boundary waited for the verdict."""
    participant = training(boundaries=3)
    participant.take(hosts_updated(1))
    participant.take(stop_at(1, boundary=4))
    participant.passed(committed=True)
    participant.passed(committed=True)
    assert participant.verdict() is BoundaryVerdict.SWALLOWED


@pytest.mark.parametrize("verdict", [BoundaryVerdict.STOP, BoundaryVerdict.ABORT])
def test_to_go_on_after_a_round_is_over_is_the_scripts_mistake(verdict: BoundaryVerdict) -> None:
    participant = training(boundaries=3)
    participant.take(hosts_updated(1))
    participant.take(stop_at(1, boundary=4) if verdict is BoundaryVerdict.STOP else abort())
    assert [reach(participant) for _ in range(3)] == [verdict, BoundaryVerdict.SWALLOWED, BoundaryVerdict.SWALLOWED]
    participant.wait(Version(FIRST, 3), StoreAddress("a", 7007), "")
    participant.take(assignment(SECOND))
    assert reach(participant) is BoundaryVerdict.PASS


def test_a_new_round_begins_with_nothing_of_the_old_one() -> None:
    participant = training(boundaries=3)
    participant.take(hosts_updated(1))
    participant.take(stop_at(1, boundary=4))
    participant.take(abort())
    participant.wait(Version(FIRST, 3), StoreAddress("a", 7007), "")
    participant.take(assignment(SECOND))
    assert (participant.round_id, participant.boundaries, participant.abort_cause) == (SECOND, 0, None)
    assert [reach(participant) for _ in range(5)] == [BoundaryVerdict.PASS] * 5
    assert participant.take(hosts_updated(1, SECOND)) is not None  # numbers count within a round


@pytest.mark.parametrize("round_id", [RoundId(1, 2), RoundId(1, 1), RoundId(0, 9)], ids=str)
def test_a_place_in_a_round_that_is_not_newer_is_dropped(round_id: RoundId) -> None:
    participant = at(Stage.WAITING)
    participant.take(assignment(SECOND))
    participant.wait(NO_VERSION, StoreAddress("a", 7007), "")
    participant.take(assignment(round_id))
    assert participant.stage is Stage.WAITING
    participant.take(assignment(RoundId(2, 1)))  # a restarted driver's
    assert participant.round_id == RoundId(2, 1)


@pytest.mark.parametrize("notice", [abort(), hosts_updated(1), finish()], ids=["abort", "hosts-updated", "finish"])
def test_a_worker_that_has_stopped_ignores_notices_of_that_round(notice: pb.Notice) -> None:
    participant = training(boundaries=3)
    participant.wait(Version(FIRST, 3), StoreAddress("a", 7007), "")
    before = snapshot(participant)
    assert participant.take(notice) is None
    assert snapshot(participant) == before


# ---- what is offered and reported -----------------------------------------------------------------------------


def test_versions_follow_commits_and_boundaries() -> None:
    participant = Participant()
    assert (participant.committed, participant.round_id) == (NO_VERSION, NO_ROUND)
    participant = training()
    assert participant.committed == NO_VERSION
    participant.synced()
    assert participant.committed == Version(FIRST, 0)
    reach(participant, committed=False)
    assert (participant.committed, participant.live) == (Version(FIRST, 0), Version(FIRST, 1))
    reach(participant, committed=True)
    assert participant.committed == participant.live == Version(FIRST, 2)


def test_a_place_is_handed_on_as_it_came() -> None:
    assigned = at(Stage.ASSIGNED).assignment
    assert assigned is not None
    assert (assigned.round_id, assigned.rank, assigned.size, assigned.receivers) == (FIRST, 1, 2, (1,))
    assert (assigned.local_rank, assigned.local_size, assigned.cross_rank, assigned.cross_size) == (0, 1, 1, 2)
    assert (assigned.store, assigned.sources) == (("a", 7001), (0,))


def test_waiting_says_all_that_the_driver_needs() -> None:
    participant = at(Stage.OUTSIDE)
    participant.enter()
    participant.enter()
    message = participant.wait(Version(FIRST, 4), StoreAddress("10.0.0.7", 7007), "digest").worker_waiting
    assert (message.ordinal, version_of(message.version)) == (2, Version(FIRST, 4))
    assert (message.store.host, message.store.port, message.digest) == ("10.0.0.7", 7007, "digest")


def lost(participant: Participant, offer: Version) -> int:
    """Leave the round with this offer; returns the steps that it says are lost."""
    return participant.wait(offer, StoreAddress("a", 7007), "", "torn").worker_waiting.steps_lost


def test_a_torn_worker_says_how_many_steps_it_has_lost_since_its_commit() -> None:
    participant = training()
    participant.synced()
    for committed in (True, False, False, False):
        reach(participant, committed)
    assert lost(participant, participant.committed) == 3
    assert lost(participant, participant.committed) == 0, "it has gone back"


def test_steps_count_as_lost_across_rounds() -> None:
    participant = training()
    participant.synced()
    for committed in (True, False):
        reach(participant, committed)
    assert lost(participant, participant.live) == 0
    participant.take(assignment(SECOND))
    participant.synced(committed=False)
    for _ in range(3):
        reach(participant, committed=False)
    assert lost(participant, participant.committed) == 4


def test_what_a_worker_received_in_a_sync_is_its_commit() -> None:
    participant = training()
    participant.synced()
    reach(participant, committed=False)
    lost(participant, participant.live)
    participant.take(assignment(SECOND))
    participant.synced(committed=True)
    reach(participant, committed=False)
    assert lost(participant, participant.committed) == 1


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        pytest.param(
            lambda p: p.done(),
            pb.Report(worker_done=pb.WorkerDone(round_id=round_id_message(FIRST), boundaries=3)),
            id="done",
        ),
        pytest.param(
            lambda p: p.raised("boom"),
            pb.Report(collective_raised=pb.CollectiveRaised(round_id=round_id_message(FIRST), traceback="boom")),
            id="raised",
        ),
    ],
)
def test_reports_name_their_round(report: Callable[[Participant], pb.Report], expected: pb.Report) -> None:
    assert report(training(boundaries=3)) == expected


def test_of_many_members_some_compare_their_states() -> None:
    assert [comparing(size) for size in (1, 2, 8)] == [[], [0, 1], [*range(8)]]
    assert comparing(800) == [*range(0, 800, 100)]
    assert max(len(comparing(size)) for size in range(1, 100)) < 16
