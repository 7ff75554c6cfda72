"""Where a run's wall time has gone, and the times in which no step was made.

What holds of any two looks, one after the other:

- Between two events, no kind of time gets less, and `until` does not go back.
- What is told while steps are being made is final: afterwards, no kind ever is less than it was then. So is what is
  told after the run's end.
- What is told while an interruption goes on is final up to the last boundary that was known. The time since then may
  turn out to be another kind, and partly not to be known yet: it counts as steps once a member tells of a boundary, or
  the workers are said to have held the state, at an earlier time than that of the look. A stall that was only presumed
  may become a recovery.

Members that tell of one another's boundaries must agree on the stalls: a stall that only one of them has seen is taken
off the training that the other has told of.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

import pytest

from edriver.common.ids import RoundId
from edriver.common.stall_limits import Phase
from edriver.common.wire import duration, epoch_seconds, round_id_message, round_id_of, span_seconds, timestamp
from edriver.driver.core.cause import Cause, CauseKind, Change, Done, Exit, ReportedText, RoundEnd, WorkerName
from edriver.driver.observe.time_ledger import TimeLedger
from edriver.text.time_spent import seconds_by_kind
from edriver.v1 import notification_pb2, status_pb2
from edriver.worker.rounds.step_times import StepTimes

BEGAN = 100.0
USUAL = 0.5

WORKER = WorkerName(2, "a", 1, 1)
CAUSES: Final = {
    RoundEnd.FAILURE: Cause(CauseKind.KILLED, WORKER, detail=Exit(-9)),
    RoundEnd.PREEMPTION: Cause(CauseKind.KILLED, WORKER, detail=Exit(-15), preempted=True),
    RoundEnd.RESIZE: Cause(CauseKind.MEMBERS_CHANGE, detail=Change(joined=1, left=0)),
    RoundEnd.UNPROVEN: Cause(CauseKind.PEER_UNPROVEN, WORKER, detail=ReportedText("connected from 127.0.0.1:4711")),
    RoundEnd.DONE: Cause(CauseKind.ALL_DONE, detail=Done(9, 9)),
}
BOOT, NEXT_RUN, FAILURE, PREEMPTION, RESIZE, UNPROVEN, STALL = (
    status_pb2.INTERRUPTION_KIND_BOOT,
    status_pb2.INTERRUPTION_KIND_NEXT_RUN,
    status_pb2.INTERRUPTION_KIND_FAILURE,
    status_pb2.INTERRUPTION_KIND_PREEMPTION,
    status_pb2.INTERRUPTION_KIND_RESIZE,
    status_pb2.INTERRUPTION_KIND_UNPROVEN,
    status_pb2.INTERRUPTION_KIND_STALL,
)
KIND_OF: Final = {
    RoundEnd.FAILURE: FAILURE,
    RoundEnd.PREEMPTION: PREEMPTION,
    RoundEnd.RESIZE: RESIZE,
    RoundEnd.UNPROVEN: UNPROVEN,
    RoundEnd.DONE: NEXT_RUN,
}
NO_PHASES = status_pb2.RecoveryPhases()

Stall = tuple[float, float, int]
"""When it began, how long it was, and the number of the boundary that came so late."""


class Story:
    """A run that began at 100, and the interruptions that are over."""

    def __init__(self, counts_steps: bool = True) -> None:
        self.ledger = TimeLedger(BEGAN, counts_steps)
        self.over: list[status_pb2.Interruption] = []
        self.n = 0

    def assigned(self, now: float, size: int = 2, lost: int = 0) -> None:
        self.n += 1
        self.over += self.ledger.assigned(RoundId(1, self.n), size, lost, now)

    def says(
        self,
        boundaries: int,
        at: float,
        now: float | None = None,
        stalled: float = 0.0,
        stall: Stall | None = None,
        usual: float | None = USUAL,
        since: float = 0.0,
        n: int | None = None,
        declared: float = 0.0,
    ) -> None:
        """A member has passed so many boundaries, the last one at a time; its round's state was synced at another."""
        message = notification_pb2.WorkerProgress(
            round_id=round_id_message(RoundId(1, n or self.n)),
            boundaries=boundaries,
            boundary_time=timestamp(at),
            training_duration=duration(max(0.0, at - since - stalled)) if since else None,
            stalled_duration=duration(stalled),
            declared_duration=duration(declared),
            usual_step=None if usual is None else duration(usual),
        )
        if stall is not None:
            start, length, boundary = stall
            message.last_stall.CopyFrom(
                notification_pb2.Stall(start_time=timestamp(start), duration=duration(length), boundary=boundary)
            )
        self.over += self.ledger.record_progress(message, at if now is None else now)

    def under_way(self, synced: float, now: float) -> None:
        self.over += self.ledger.under_way(synced, NO_PHASES, now)

    def round(self, assigned: float, synced: float, lost: int = 0) -> None:
        """A round, up to its first step."""
        self.assigned(assigned, lost=lost)
        self.says(1, synced + USUAL, since=synced)
        self.under_way(synced, synced + USUAL)

    def begun(self) -> None:
        """The first one: its members hold the state at 112, and make two steps a second until 120."""
        self.round(110.0, 112.0)
        self.says(16, 120.0)
        self.over.clear()

    def ended(self, now: float, how: RoundEnd = RoundEnd.FAILURE, noticed: float | None = None) -> None:
        self.over += self.ledger.round_ended(CAUSES[how], noticed, now)

    def run_ended(self, now: float) -> None:
        self.over += self.ledger.run_ended(now)

    def spent(self, now: float) -> dict[str, float]:
        """Seconds by kind, of those that there are: together they are all of the time."""
        spent = self.ledger.time_spent(now)
        kinds = seconds_by_kind(spent)
        check(spent, now)
        return {kind: round(seconds, 4) for kind, seconds in kinds.items() if seconds}

    def settled(self, now: float) -> dict[str, float]:
        """Of those, what no report can change any more."""
        kinds = seconds_by_kind(self.ledger.settled(now))
        return {kind: round(seconds, 4) for kind, seconds in kinds.items() if seconds}

    def goodput(self, now: float) -> float | None:
        spent = self.ledger.time_spent(now)
        return round(spent.goodput, 6) if spent.HasField("goodput") else None

    def lengths(self) -> list[tuple[status_pb2.InterruptionKind.ValueType, float, float]]:
        """The interruptions that are over: what, when, how long."""
        return [
            (each.kind, round(epoch_seconds(each.start_time), 4), round(span_seconds(each.duration), 4))
            for each in self.over
        ]


def check(spent: status_pb2.TimeSpent, now: float) -> None:
    """What is true of it at any time."""
    kinds = seconds_by_kind(spent)
    until = epoch_seconds(spent.until)
    assert min(kinds.values()) >= 0.0, kinds
    assert sum(kinds.values()) == pytest.approx(until - BEGAN, abs=1e-5), kinds
    assert BEGAN <= until <= now + 1e-5
    if spent.HasField("goodput"):
        assert spent.goodput == pytest.approx(kinds["training"] / sum(kinds.values()), abs=1e-6)


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_a_boot() -> None:
    story = Story()
    assert story.spent(100.0) == {}
    assert story.spent(105.0) == {"booting": 5.0}
    going_on = story.ledger.interruption(105.0)
    assert going_on is not None
    assert (going_on.kind, epoch_seconds(going_on.start_time), going_on.HasField("duration")) == (BOOT, 100.0, False)
    assert not going_on.HasField("cause")
    story.assigned(110.0)
    story.says(1, 112.5)
    assert story.spent(112.5) == {"booting": 12.5}
    assert story.over == []
    phases = status_pb2.RecoveryPhases(wait=duration(10.0), sync=duration(2.0))
    story.over += story.ledger.under_way(112.0, phases, 113.0)
    assert story.spent(113.0) == {"booting": 12.0, "training": 0.5}
    assert story.goodput(113.0) == 0.04
    assert story.ledger.interruption(113.0) is None
    assert story.lengths() == [(BOOT, 100.0, 12.0)]
    assert (round_id_of(story.over[0].round_id), story.over[0].size, story.over[0].phases) == ((1, 1), 2, phases)
    assert story.ledger.recoveries().count == 0


def test_what_lies_behind_the_last_boundary_is_not_known_yet() -> None:
    story = Story()
    story.begun()
    spent = story.ledger.time_spent(120.4)
    assert epoch_seconds(spent.until) == 120.0
    assert story.spent(120.4) == {"booting": 12.0, "training": 8.0}
    assert story.goodput(120.4) == 0.4


def test_the_farthest_member_counts() -> None:
    story = Story()
    story.begun()
    story.says(20, 122.0)
    story.says(18, 121.0, now=122.2)
    story.says(0, 112.0, now=122.3)
    story.says(99, 122.4, n=7)
    assert story.spent(122.4) == {"booting": 12.0, "training": 10.0}


def test_a_kill() -> None:
    story = Story()
    story.begun()
    story.ended(120.9, noticed=120.6)  # it was killed at 120.3
    assert story.spent(120.9) == {"booting": 12.0, "training": 8.0, "recovering": 0.9}
    going_on = story.ledger.interruption(121.0)
    assert going_on is not None
    assert (going_on.kind, epoch_seconds(going_on.start_time)) == (FAILURE, 120.0)
    assert going_on.cause.text == "worker 2 (rank 1, a:1) was killed by SIGKILL"
    story.assigned(121.0, size=1)
    story.says(1, 122.5)
    story.under_way(122.0, 122.6)
    story.says(17, 130.0)
    assert story.spent(130.0) == {"booting": 12.0, "training": 16.0, "recovering": 2.0}
    assert story.goodput(130.0) == round(16 / 30, 6)
    assert story.lengths() == [(FAILURE, 120.0, 2.0)]
    (over,) = story.over
    assert (round_id_of(over.round_id), over.size, over.failed_rounds) == ((1, 2), 1, 0)
    assert over.cause == going_on.cause


def test_what_members_tell_after_the_end_of_their_round_counts() -> None:
    story = Story()
    story.begun()
    story.ended(120.9, noticed=120.85)
    assert story.spent(121.0) == {"booting": 12.0, "training": 8.0, "recovering": 1.0}
    story.says(17, 120.5, now=121.0)
    assert story.spent(121.0) == {"booting": 12.0, "training": 8.5, "recovering": 0.5}
    going_on = story.ledger.interruption(121.0)
    assert going_on is not None
    assert epoch_seconds(going_on.start_time) == 120.5
    story.assigned(121.1)
    story.says(18, 121.0, now=121.2, n=1)
    story.says(1, 122.5)
    story.under_way(122.0, 122.5)
    assert story.spent(122.5) == {"booting": 12.0, "training": 9.0, "recovering": 1.5}
    assert story.lengths() == [(FAILURE, 120.5, 1.5)]


@pytest.mark.parametrize("how", [how for how in RoundEnd if how is not RoundEnd.DONE])
def test_how_a_round_ends_is_the_kind_of_the_interruption(how: RoundEnd) -> None:
    story = Story()
    story.begun()
    story.ended(120.2, how)
    story.round(121.0, 122.0)
    assert story.lengths() == [(KIND_OF[how], 120.0, 2.0)]
    assert story.spent(122.5) == {"booting": 12.0, "training": 8.5, "recovering": 2.0}
    assert story.ledger.recoveries().count == (how is RoundEnd.FAILURE)


def test_reports_that_lag_behind_are_no_stall() -> None:
    """A stall is what a member tells of, or that none reports anything any more."""
    story = Story()
    story.begun()
    assert story.ledger.interruption(124.9) is None
    assert story.spent(124.9) == {"booting": 12.0, "training": 8.0}
    story.says(16, 120.0, now=123.0)
    assert story.spent(124.9) == {"booting": 12.0, "training": 8.0, "stalled": 2.5}
    going_on = story.ledger.interruption(124.9)
    assert going_on is not None
    assert epoch_seconds(going_on.start_time) == 120.5
    assert story.spent(128.1) == {"booting": 12.0, "training": 8.0, "stalled": 7.6}  # none reports any more


def test_what_the_script_declares_is_no_stall() -> None:
    story = Story()
    story.begun()
    story.says(16, 120.0, now=149.0, declared=28.8)
    assert story.ledger.interruption(150.0) is None
    assert story.spent(150.0) == {"booting": 12.0, "training": 8.0}
    assert story.spent(155.0) == {"booting": 12.0, "training": 8.0, "stalled": 5.7}


def test_a_kill_in_what_is_declared_is_no_stall_either() -> None:
    story = Story()
    story.begun()
    story.says(16, 120.0, now=149.0, declared=28.8)
    story.ended(150.0, noticed=149.5)
    assert story.spent(150.0) == {"booting": 12.0, "training": 8.0, "recovering": 30.0}
    story.says(16, 120.0, now=150.1, declared=0.0)
    assert story.spent(150.0) == {"booting": 12.0, "training": 8.0, "stalled": 29.0, "recovering": 1.0}


def test_what_follows_an_assignment_is_settled_by_the_first_steps() -> None:
    story = Story()
    assert story.settled(105.0) == {"booting": 5.0}
    story.assigned(110.0)
    assert story.settled(115.0) == {"booting": 10.0}
    story.says(1, 112.5, now=115.0)
    assert story.settled(115.0) == {"booting": 10.0}
    story.under_way(112.0, 115.5)
    assert story.settled(115.5) == {"booting": 12.0}
    story.ended(116.0)
    assert story.settled(117.0) == {"booting": 12.0, "recovering": 1.0}  # from its end, not from 112.5
    story.assigned(118.0)
    assert story.settled(118.5) == {"booting": 12.0, "training": 0.5, "recovering": 2.0}
    story.ended(119.0)
    assert story.settled(120.0) == {"booting": 12.0, "training": 0.5, "recovering": 4.0}


def test_a_stall_is_settled_once_all_members_have_told_of_it() -> None:
    """Reports are older than they look, and not every member need have seen it."""
    story = Story()
    story.begun()
    story.says(16, 120.0, now=123.0)
    assert story.spent(127.9)["stalled"] == 2.5
    assert story.settled(127.9) == {"booting": 12.0, "training": 8.0}
    story.says(17, 122.0, now=128.0)
    assert story.spent(128.0) == {"booting": 12.0, "training": 10.0, "stalled": 5.5}
    story.says(17, 122.0, now=129.0, stalled=1.5, stall=(120.5, 1.5, 17))
    assert story.spent(129.0)["training"] == 8.5
    assert story.settled(132.9) == {"booting": 12.0, "training": 8.0}
    assert story.settled(134.0) == {"booting": 12.0, "training": 8.5, "stalled": 1.5}


def test_the_last_step_is_the_last_boundary_that_is_known_of() -> None:
    story = Story()
    story.assigned(110.0)
    assert story.ledger.last_step is None
    story.says(1, 112.5)
    story.under_way(112.0, 113.0)
    assert story.ledger.last_step == 112.5
    story.says(2, 113.0)
    story.ended(115.0)
    story.ledger.waits(True, 115.0)
    story.spent(150.0)
    assert story.ledger.last_step == 113.0


def test_a_stall_in_a_round() -> None:
    story = Story()
    story.begun()
    assert story.spent(122.5) == {"booting": 12.0, "training": 8.0}
    assert story.ledger.interruption(122.5) is None
    going_on = story.ledger.interruption(140.0)
    assert going_on is not None
    assert (going_on.kind, epoch_seconds(going_on.start_time)) == (STALL, 120.5)
    assert (round_id_of(going_on.round_id), going_on.size, going_on.HasField("cause")) == ((1, 1), 2, False)
    assert story.spent(140.0)["stalled"] == 19.5
    stall = (120.5, 30.0, 17)
    story.says(17, 150.5, stalled=30.0, stall=stall)
    story.says(17, 150.5, now=150.6, stalled=30.0, stall=stall)
    story.says(36, 160.0, stalled=30.0, stall=stall)
    story.says(36, 160.0, now=160.1, stalled=30.0, stall=stall)
    assert story.spent(160.4) == {"booting": 12.0, "training": 18.0, "stalled": 30.0}
    assert story.goodput(160.4) == 0.3
    assert story.lengths() == [(STALL, 120.5, 30.0)]
    assert (round_id_of(story.over[0].round_id), story.over[0].size) == ((1, 1), 2)
    assert story.ledger.interruption(160.4) is None
    story.says(60, 192.0, stalled=50.0, stall=(165.5, 20.0, 47))
    assert story.lengths()[1:] == [(STALL, 165.5, 20.0)]
    assert story.ledger.recoveries().count == 0


def test_members_that_met_the_same_stall_at_different_boundaries_tell_of_one() -> None:
    """One that has started its step already waits in the next collective, the other before it."""
    story = Story()
    story.begun()
    story.says(17, 150.5, stalled=30.0, stall=(120.5, 30.0, 17))
    story.says(18, 151.0, stalled=30.0, stall=(120.6, 29.9, 18))
    assert story.lengths() == [(STALL, 120.5, 30.0)]
    assert story.spent(151.0) == {"booting": 12.0, "training": 9.0, "stalled": 30.0}


def test_the_last_steps_before_a_stall_may_be_told_late() -> None:
    story = Story()
    story.begun()
    assert story.spent(125.0)["stalled"] == 4.5
    story.says(25, 124.5, now=125.1)
    assert story.spent(125.1) == {"booting": 12.0, "training": 12.5}


def test_no_stall_is_known_before_the_usual_step_is() -> None:
    story = Story()
    story.assigned(110.0)
    story.says(1, 112.5, usual=None)
    story.under_way(112.0, 112.5)
    assert story.ledger.interruption(500.0) is None
    assert story.spent(500.0) == {"booting": 12.0, "training": 0.5}


def test_a_worker_that_is_stopped_until_its_lease_expires() -> None:
    story = Story()
    story.begun()
    assert story.spent(149.0)["stalled"] == 28.5
    story.ended(150.0)
    assert story.spent(151.0) == {"booting": 12.0, "training": 8.0, "stalled": 29.5, "recovering": 1.5}
    story.ledger.noticed(151.0)  # it was killed then
    story.round(151.5, 152.0)
    assert story.spent(152.5) == {"booting": 12.0, "training": 8.5, "stalled": 29.5, "recovering": 2.5}
    assert story.lengths() == [(FAILURE, 120.0, 32.0)]


def test_a_death_that_is_heard_of_after_it_has_ended_the_round() -> None:
    story = Story()
    story.begun()
    story.ended(130.0)
    assert story.spent(131.0) == {"booting": 12.0, "training": 8.0, "stalled": 9.5, "recovering": 1.5}
    story.ledger.noticed(129.0)
    assert story.spent(131.0) == {"booting": 12.0, "training": 8.0, "stalled": 8.5, "recovering": 2.5}
    story.ledger.noticed(121.0)  # another one
    assert story.spent(131.0) == {"booting": 12.0, "training": 8.0, "stalled": 8.5, "recovering": 2.5}


def test_time_without_hosts_is_waiting_and_part_of_the_interruption() -> None:
    story = Story()
    story.begun()
    story.ledger.waits(True, 119.0)  # it has no meaning while steps are made
    story.ended(120.5, noticed=120.4)
    story.ledger.waits(True, 121.0)
    story.ledger.waits(True, 130.0)
    assert story.spent(131.0) == {"booting": 12.0, "training": 8.0, "waiting": 10.0, "recovering": 1.0}
    story.ledger.waits(False, 154.0)
    story.ledger.waits(False, 154.2)
    story.round(154.5, 155.0)
    assert story.spent(155.5) == {"booting": 12.0, "training": 8.5, "waiting": 33.0, "recovering": 2.0}
    assert story.lengths() == [(FAILURE, 120.0, 35.0)]
    assert span_seconds(story.ledger.recoveries().longest) == 35.0


def test_an_assigned_round_waits_no_longer() -> None:
    story = Story()
    story.begun()
    story.ended(130.0)
    story.ledger.waits(True, 131.0)
    story.assigned(141.0)
    assert story.spent(145.0) == {
        "booting": 12.0,
        "training": 8.0,
        "stalled": 9.5,
        "waiting": 10.0,
        "recovering": 5.5,
    }


def test_a_boot_that_waits_is_a_boot() -> None:
    story = Story()
    story.ledger.waits(True, 101.0)
    assert story.spent(105.0) == {"booting": 5.0}
    story.round(110.0, 112.0)
    assert story.spent(112.5) == {"booting": 12.0, "training": 0.5}


def test_rounds_that_fail_before_a_step_are_one_interruption() -> None:
    story = Story()
    story.begun()
    story.ended(120.5, RoundEnd.RESIZE)
    for n in range(3):
        story.assigned(121.0 + 2 * n)
        story.ended(122.0 + 2 * n, RoundEnd.FAILURE, noticed=121.9 + 2 * n)
    going_on = story.ledger.interruption(126.5)
    assert going_on is not None
    assert (going_on.kind, going_on.failed_rounds) == (RESIZE, 3)
    assert story.over == []
    story.round(127.0, 128.0)
    assert story.lengths() == [(RESIZE, 120.0, 8.0)]
    assert (story.over[0].failed_rounds, round_id_of(story.over[0].round_id)) == (3, (1, 5))
    assert story.spent(128.5) == {"booting": 12.0, "training": 8.5, "recovering": 8.0}


def test_a_boot_in_which_rounds_fail() -> None:
    story = Story()
    story.assigned(110.0)
    story.ended(115.0)
    story.round(120.0, 122.0)
    assert story.lengths() == [(BOOT, 100.0, 22.0)]
    assert story.over[0].failed_rounds == 1
    assert story.spent(122.5) == {"booting": 22.0, "training": 0.5}


def test_steps_of_a_round_in_which_not_all_members_made_one_count() -> None:
    story = Story()
    story.assigned(110.0)
    story.says(6, 115.0, since=112.0)
    assert story.spent(115.2) == {"booting": 15.2}
    story.ended(116.0, noticed=115.9)
    assert story.spent(117.0) == {"booting": 12.0, "training": 3.0, "recovering": 2.0}
    assert story.lengths() == [(BOOT, 100.0, 12.0)]
    assert not story.over[0].HasField("phases")
    story.round(118.0, 119.0)
    assert story.lengths()[1:] == [(FAILURE, 115.0, 4.0)]
    assert story.over[1].failed_rounds == 0


def test_steps_of_such_a_round_count_even_if_they_are_told_after_its_end() -> None:
    story = Story()
    story.begun()
    story.ended(120.5)
    story.assigned(121.0)
    story.ended(125.5, RoundEnd.UNPROVEN)
    going_on = story.ledger.interruption(125.6)
    assert going_on is not None
    assert (going_on.kind, going_on.failed_rounds) == (FAILURE, 1)
    story.says(6, 125.0, now=125.6, since=122.0)
    story.says(4, 124.0, now=125.7, since=122.0)
    assert story.spent(126.0) == {"booting": 12.0, "training": 11.0, "recovering": 3.0}
    going_on = story.ledger.interruption(126.0)
    assert going_on is not None
    assert (going_on.kind, epoch_seconds(going_on.start_time), going_on.failed_rounds) == (UNPROVEN, 125.0, 0)
    story.round(127.0, 128.0)
    assert story.lengths() == [(FAILURE, 120.0, 2.0), (UNPROVEN, 125.0, 3.0)]
    assert [each.failed_rounds for each in story.over] == [0, 0]


def test_such_steps_do_not_hide_that_the_run_waits() -> None:
    story = Story()
    story.begun()
    story.ended(120.5)
    story.assigned(121.0)
    story.ended(125.5)
    story.ledger.waits(True, 125.6)
    story.says(6, 125.0, now=126.0, since=122.0)
    assert story.spent(135.6) == {"booting": 12.0, "training": 11.0, "recovering": 2.6, "waiting": 10.0}


@pytest.mark.parametrize(
    "reports",
    [
        pytest.param([2, 4, 6, 8], id="one-of-them-at-the-last-lost-step"),
        pytest.param([2, 8], id="none-there"),
        pytest.param([8], id="only-the-first-before"),
        pytest.param([2, 2, 4, 4, 4, 6, 6, 8, 8], id="two-members"),
    ],
)
def test_steps_that_are_made_again_count_once_as_such(reports: Sequence[int]) -> None:
    story = Story()
    story.begun()
    story.ended(120.5)
    story.round(121.0, 122.0, lost=4)
    assert story.spent(122.5) == {"booting": 12.0, "training": 8.0, "recovering": 2.0, "repeating": 0.5}
    for boundaries in reports:
        story.says(boundaries, 122.0 + 0.5 * boundaries)
    assert story.spent(126.0) == {"booting": 12.0, "training": 10.0, "recovering": 2.0, "repeating": 2.0}
    assert story.over[-1].steps_lost == 4
    story.ended(126.2, RoundEnd.RESIZE)
    story.round(126.5, 127.0)
    story.says(10, 132.0)
    assert story.spent(132.0) == {"booting": 12.0, "training": 15.0, "recovering": 3.0, "repeating": 2.0}


def test_the_share_of_the_repeated_steps_does_not_depend_on_when_members_report() -> None:
    story = Story()
    story.begun()
    story.ended(120.5)
    story.assigned(121.0, lost=50)
    story.says(1, 122.01, usual=0.01)
    story.under_way(122.0, 122.01)
    story.says(100, 123.0, usual=0.01)
    assert story.spent(123.0) == {"booting": 12.0, "training": 8.5, "recovering": 2.0, "repeating": 0.5}


def test_what_is_left_to_be_made_again_when_a_round_ends_is_made_again_in_the_next() -> None:
    story = Story()
    story.begun()
    story.ended(120.5)
    story.round(121.0, 122.0, lost=4)
    story.says(2, 123.0)
    story.ended(123.2)
    story.round(123.5, 124.0, lost=2)  # the two of this round; two of the first round have still not been made again
    story.says(8, 128.0)
    assert story.spent(128.0) == {"booting": 12.0, "training": 10.0, "recovering": 3.0, "repeating": 3.0}


def test_what_was_lost_before_a_round_that_fails_is_made_again_in_the_next() -> None:
    story = Story()
    story.begun()
    story.ended(120.5)
    story.assigned(121.0, lost=4)
    story.ended(121.5)
    story.round(121.8, 122.0, lost=0)
    story.says(8, 126.0)
    assert story.spent(126.0) == {"booting": 12.0, "training": 10.0, "recovering": 2.0, "repeating": 2.0}
    assert (story.over[-1].failed_rounds, story.over[-1].steps_lost) == (1, 4)


def test_what_was_not_made_again_before_a_script_was_done_is_not_made_again_by_its_next_run() -> None:
    story = Story()
    story.begun()
    story.ended(120.5)
    story.round(121.0, 122.0, lost=4)
    story.says(2, 123.0)
    story.ended(123.1, RoundEnd.DONE)  # it was good enough
    story.round(123.5, 124.0)
    story.says(8, 128.0)
    assert story.spent(128.0) == {"booting": 13.0, "training": 12.0, "recovering": 2.0, "repeating": 1.0}


def test_a_stall_among_steps_that_are_made_again_is_a_stall() -> None:
    story = Story()
    story.begun()
    story.ended(120.5)
    story.round(121.0, 122.0, lost=4)
    story.says(3, 133.5, stalled=10.0, stall=(122.5, 10.0, 2))
    assert story.spent(133.5) == {
        "booting": 12.0,
        "training": 8.0,
        "recovering": 2.0,
        "repeating": 1.5,
        "stalled": 10.0,
    }


def test_a_stall_that_only_one_member_tells_of_makes_no_time_negative() -> None:
    """A newcomer knows of no usual step yet, so that nothing is unusual to it."""
    story = Story()
    story.begun()
    story.ended(120.5)
    story.round(121.0, 122.0, lost=2)
    story.says(2, 133.0, usual=None)
    story.says(3, 133.5, stalled=10.0, stall=(122.5, 10.0, 2))
    spent = story.spent(133.5)
    assert (spent["stalled"], spent["training"] + spent["repeating"]) == (10.0, 9.5)
    assert spent["training"] >= 8.0


def test_a_run_whose_steps_are_not_known() -> None:
    story = Story(counts_steps=False)
    assert story.spent(105.0) == {"booting": 5.0}
    story.assigned(110.0)
    assert story.lengths() == [(BOOT, 100.0, 10.0)]
    story.says(3, 112.0)
    assert story.spent(115.0) == {"booting": 10.0, "training": 5.0}
    assert story.goodput(115.0) == round(5 / 15, 6)
    assert story.ledger.interruption(500.0) is None
    story.ended(120.0, noticed=119.0)
    assert story.spent(121.0) == {"booting": 10.0, "training": 10.0, "recovering": 1.0}
    story.assigned(123.0)
    assert story.lengths()[1:] == [(FAILURE, 120.0, 3.0)]
    assert story.spent(125.0) == {"booting": 10.0, "training": 12.0, "recovering": 3.0}
    story.ended(130.0, RoundEnd.DONE)
    story.run_ended(131.0)
    assert story.spent(200.0) == {"booting": 10.0, "training": 17.0, "recovering": 3.0, "ending": 1.0}
    story = Story(counts_steps=False)
    story.assigned(110.0)
    story.run_ended(130.0)
    assert story.spent(200.0) == {"booting": 10.0, "training": 20.0}


@pytest.mark.parametrize("counts_steps", [False, True], ids=["restart", "elastic"])
def test_a_round_that_nobody_has_ended_has_ended_when_the_next_one_begins(counts_steps: bool) -> None:
    story = Story(counts_steps)
    story.round(110.0, 112.0)
    story.says(16, 120.0)
    story.round(130.0, 132.0)
    assert [kind for kind, _, _ in story.lengths()] == [BOOT, FAILURE]
    assert story.spent(133.0)["training"] == (8.5 if counts_steps else 23.0)


def test_the_next_run_of_a_script() -> None:
    story = Story()
    story.begun()
    story.ended(120.5, RoundEnd.DONE)
    assert story.spent(123.0) == {"booting": 12.0, "training": 8.0, "ending": 3.0}
    story.says(17, 120.4, now=123.0)
    assert story.spent(123.0) == {"booting": 12.0, "training": 8.4, "ending": 2.6}
    story.ledger.waits(True, 124.0)
    story.round(130.0, 131.0)
    assert story.spent(131.5) == {"booting": 22.6, "training": 8.9}
    assert story.lengths() == [(NEXT_RUN, 120.4, 10.6)]
    assert story.over[0].cause.text
    assert story.ledger.recoveries().count == 0


def test_a_run_that_is_done() -> None:
    story = Story()
    story.begun()
    story.ended(120.5, RoundEnd.DONE)
    story.run_ended(122.0)
    assert story.ledger.over
    assert story.over == []
    for now in (122.0, 150.0):
        assert story.spent(now) == {"booting": 12.0, "training": 8.0, "ending": 2.0}
        assert story.goodput(now) == round(8 / 22, 6)
        assert story.ledger.interruption(now) is None


def test_a_run_that_is_done_though_its_round_was_to_stop() -> None:
    story = Story()
    story.begun()
    story.ended(120.2, RoundEnd.RESIZE)  # at a boundary that the members did not reach, for their functions returned
    story.says(20, 122.0)
    story.ended(122.1, RoundEnd.DONE)
    story.run_ended(123.0)
    assert story.spent(123.0) == {"booting": 12.0, "training": 10.0, "ending": 1.0}
    assert story.over == []


def test_a_round_that_was_to_stop_and_fails_before_it_does() -> None:
    story = Story()
    story.begun()
    story.ended(120.2, RoundEnd.RESIZE)
    story.says(20, 122.0)
    story.ended(122.3, noticed=122.2)
    story.round(123.0, 124.0)
    assert story.lengths() == [(FAILURE, 122.0, 2.0)]
    assert story.ledger.recoveries().count == 1


def test_a_run_that_is_stopped_while_it_trains() -> None:
    story = Story()
    story.begun()
    story.run_ended(121.0)
    assert story.spent(150.0) == {"booting": 12.0, "training": 8.0, "ending": 1.0}
    assert story.over == []
    story.says(30, 127.0)
    story.ended(128.0)
    assert story.spent(150.0) == {"booting": 12.0, "training": 8.0, "ending": 1.0}


def test_a_run_that_ends_in_an_interruption() -> None:
    story = Story()
    story.begun()
    story.ended(120.5, noticed=120.4)
    story.ledger.waits(True, 121.0)
    story.run_ended(125.0)
    assert story.spent(150.0) == {"booting": 12.0, "training": 8.0, "waiting": 4.0, "recovering": 1.0}
    assert story.lengths() == [(FAILURE, 120.0, 5.0)]
    assert (story.over[0].size, story.over[0].HasField("phases"), story.over[0].round_id.n) == (0, False, 0)
    assert story.ledger.recoveries().count == 0


def test_a_run_that_ends_in_a_round_without_a_step_has_lost_what_was_lost_before_it() -> None:
    story = Story()
    story.begun()
    story.ended(120.5)
    story.assigned(121.0, lost=1)
    story.ended(122.0)
    story.assigned(123.0, lost=2)
    story.run_ended(125.0)
    assert [each.steps_lost for each in story.over] == [3]


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_run_without_a_step_has_no_goodput(rounds: int) -> None:
    story = Story()
    for n in range(rounds):
        story.assigned(101.0 + 2 * n)
        story.ended(102.0 + 2 * n)
    assert story.goodput(109.0) is None
    story.run_ended(110.0)
    assert story.goodput(150.0) is None
    assert story.spent(150.0) == {"booting": 10.0}
    assert story.lengths() == [(BOOT, 100.0, 10.0)]
    assert story.over[0].failed_rounds == rounds


@pytest.mark.parametrize("wrong", [-1e6, -3.0, 3.0, 1e6])
def test_a_members_clock_that_is_wrong_makes_no_time(wrong: float) -> None:
    story = Story()
    story.assigned(110.0)
    story.says(1, 112.5 + wrong, now=112.5, since=112.0 + wrong)
    story.under_way(112.0 + wrong, 112.6)
    story.spent(112.6)
    story.says(10, 117.0 + wrong, now=117.0, stalled=2.0)
    story.spent(117.0)
    story.ended(117.5, noticed=117.2 + wrong)
    story.spent(118.0)
    story.says(11, 117.4 + wrong, now=118.0, stalled=2.0)
    story.spent(118.0)
    story.assigned(119.0, lost=2)
    story.says(1, 120.5 + wrong, now=120.5, since=120.0 + wrong)
    story.ended(121.0)  # not all members have made a step
    story.spent(121.5)
    story.round(122.0, 123.0)
    story.spent(124.0)
    story.run_ended(125.0)
    assert sum(story.spent(130.0).values()) == pytest.approx(25.0)
    assert all(each.duration.ToMicroseconds() >= 0 for each in story.over)


def test_a_driver_whose_clock_goes_back_takes_no_time_away() -> None:
    story = Story()
    story.begun()
    before = story.spent(120.0)
    story.ended(90.0, noticed=89.0)
    after = seconds_by_kind(story.ledger.time_spent(91.0))
    assert {kind: seconds for kind, seconds in after.items() if seconds} == before
    story.ledger.waits(True, 92.0)
    story.ledger.waits(False, 80.0)
    story.round(121.0, 122.0)
    assert story.spent(122.5) == {"booting": 12.0, "training": 8.5, "recovering": 2.0}


@pytest.mark.parametrize(
    ("seconds", "median", "longest"),
    [
        pytest.param([], 0.0, 0.0, id="none"),
        pytest.param([3.0], 3.0, 3.0, id="one"),
        pytest.param([5.0, 2.0], 3.5, 5.0, id="two"),
        pytest.param([9.0, 2.0, 3.0], 3.0, 9.0, id="three"),
        pytest.param([9.0, 2.0, 3.0, 4.0], 3.5, 9.0, id="four"),
    ],
)
def test_recoveries(seconds: Sequence[float], median: float, longest: float) -> None:
    story = Story()
    story.begun()
    at = 120.0
    for length in seconds:
        story.ended(at + 0.2)
        story.round(at + 0.5, at + length)
        at += length + USUAL
        story.ended(at + 0.1, RoundEnd.RESIZE)
        story.round(at + 0.2, at + 100.0)
        at += 100.0 + USUAL
    summary = story.ledger.recoveries()
    assert summary.count == len(seconds)
    assert (span_seconds(summary.median), span_seconds(summary.longest)) == (median, longest)
    assert summary.HasField("median") == summary.HasField("longest") == bool(seconds)


# ---- of anything that may happen -------------------------------------------------------------------------------------


class Chance(Story):
    """What a driver may see of a run, whatever its members say."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        super().__init__(counts_steps=self.draw.random() < 0.8)
        self.now = BEGAN
        self.in_round = self.under_way_now = False
        self.wrong = self.draw.choice([0.0, 0.0, 0.3, -0.3, 1e4, -1e4])
        self.seen: list[tuple[float, dict[str, float], float]] = []

    def time(self) -> float:
        """Of something that a member says."""
        return self.now - self.draw.choice([0.0, self.draw.uniform(0, 2), self.draw.uniform(0, 20)]) + self.wrong

    def happens(self) -> None:
        draw = self.draw
        self.now += draw.choice([0.0, draw.uniform(0.0, 0.5), draw.uniform(0.0, 5.0), draw.uniform(0.0, 60.0)])
        match draw.randrange(12):
            case 0 | 1 if not self.in_round:
                self.assigned(self.now, size=3, lost=draw.choice([0, 0, 1, 7]))
                self.in_round, self.under_way_now = True, False
            case 2 if self.in_round and not self.under_way_now:
                self.under_way(self.time(), self.now)
                self.under_way_now = True
            case 3 if self.in_round:
                self.ended(self.now, draw.choice(list(RoundEnd)), draw.choice([None, self.time()]))
                self.in_round = False
            case 4:
                self.ledger.noticed(self.time())
            case 5:
                self.ledger.waits(draw.random() < 0.5, self.now)
            case _ if self.n:
                stalled = draw.choice([0.0, 0.0, draw.uniform(0.0, 50.0)])
                boundaries = draw.randrange(30)
                self.says(
                    boundaries,
                    self.time(),
                    self.now,
                    stalled=stalled,
                    stall=(self.time(), stalled, boundaries) if stalled else None,
                    usual=draw.choice([None, 0.01, 0.5, 3.0]),
                    since=self.time() - 20.0,
                    n=max(1, self.n - draw.choice([0, 0, 0, 1])),
                )


@pytest.mark.parametrize("seed", range(400))
def test_all_time_is_of_one_kind_whatever_happens(seed: int) -> None:
    story = Chance(seed)
    for _ in range(story.draw.randrange(120)):
        story.happens()
        before = look(story.ledger, story.now)
        story.now += story.draw.choice([0.0, 0.4, 3.0, 40.0])
        after = look(story.ledger, story.now)
        assert all(after[kind] >= before[kind] - 1e-5 for kind in after), (before, after)
    story.run_ended(story.now)
    ended = look(story.ledger, story.now)
    assert sum(ended.values()) - ended["until"] == pytest.approx(story.now - BEGAN, abs=1e-5)
    if story.n:
        story.says(99, story.now)
    story.ended(story.now)
    story.ledger.noticed(story.now)
    story.ledger.waits(True, story.now)
    assert look(story.ledger, story.now + 99.0) == ended
    assert all(each.duration.ToMicroseconds() >= 0 for each in story.over)


def look(ledger: TimeLedger, now: float) -> dict[str, float]:
    """Seconds by kind, and until when."""
    spent = ledger.time_spent(now)
    check(spent, now)
    return seconds_by_kind(spent) | {"until": epoch_seconds(spent.until)}


# ---- of members that tell the truth ----------------------------------------------------------------------------------


class Members:
    """A run of two members that make their steps together, and what is true of it.

    Attributes:
        story: what the driver makes of it.
        now: seconds since the epoch.
        true: seconds by kind, as they are.
        gaps: the interruptions that there were, but for stalls: kind, start, length, failed rounds, steps lost.
        stalls: the stalls that there were: start and length.
        final: what the last look told that was final.
        settled: what the last look told that was settled,
        surprised: and whether steps have been told of since that were taken for none.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.story = Story()
        self.now = BEGAN
        self.usual = self.draw.choice([0.05, 0.5, 2.0])
        self.true = dict.fromkeys(seconds_by_kind(status_pb2.TimeSpent()), 0.0)
        self.gaps: list[tuple[int, float, float, int, int]] = []
        self.stalls: list[tuple[float, float]] = []
        self.final: Mapping[str, float] = {}
        self.settled: Mapping[str, float] = {}
        self.surprised = False
        self.step_times = [StepTimes(lambda: self.now, lambda: self.now) for _ in range(2)]
        self.boundary = BEGAN
        self.kind: status_pb2.InterruptionKind.ValueType = BOOT
        self.waited = self.unnoticed = 0.0
        self.failed_rounds = self.lost = 0
        self.first, self.highest = 0, 0  # steps of the run: before the round, and the most that there ever were
        self.made = 0  # in the round

    def passes(self, seconds: float) -> None:
        """Time passes, and is looked at now and then."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + self.draw.choice([seconds, self.draw.uniform(0.0, 3.0)]) + 1e-3)
            self.look()

    def look(self) -> None:
        told = look(self.story.ledger, self.now)
        assert all(told[kind] >= seconds - 1e-4 for kind, seconds in self.final.items()), (told, self.final)
        if self.story.ledger.interruption(self.now) is None:
            self.final = told
        settled = seconds_by_kind(self.story.ledger.settled(self.now))
        grows = all(settled[kind] >= seconds - 1e-4 for kind, seconds in self.settled.items())
        assert grows or self.surprised, (settled, self.settled)
        self.settled = settled

    def report(self, member: int) -> None:
        """A member's sign of life."""
        progress = notification_pb2.WorkerProgress()
        self.step_times[member].fill(progress)
        self.story.over += self.story.ledger.record_progress(progress, self.now)
        self.look()

    def assigned(self) -> None:
        """The next round begins at a step that a member holds."""
        begins = self.first + self.made - self.draw.choice([0, self.draw.randint(0, self.made)])
        lost, self.first, self.made = self.first + self.made - begins, begins, 0
        self.lost += lost
        self.story.assigned(self.now, lost=lost)
        self.passes(self.draw.uniform(0.0, 2.0))

    def synced(self) -> float:
        """The gap is over: it consists of what is known of it."""
        length = self.now - self.boundary
        self.gaps.append((self.kind, self.boundary, length, self.failed_rounds, self.lost))
        if self.kind in (BOOT, NEXT_RUN):
            self.true["booting"] += length
        else:
            self.true["stalled"] += self.unnoticed
            self.true["waiting"] += self.waited
            self.true["recovering"] += length - self.waited - self.unnoticed
        self.waited = self.unnoticed = 0.0
        self.failed_rounds = self.lost = 0
        for each in self.step_times:
            each.synced(RoundId(1, self.story.n))
        self.boundary = self.now
        return self.now

    def step(self, ordinary: bool) -> bool:
        """The next one; returns whether it was an ordinary one."""
        draw = self.draw
        stall = (
            draw.uniform(6 * self.usual + 1.0, 60.0) if draw.random() < 0.04 and not ordinary and self.made > 4 else 0.0
        )
        new = self.first + self.made >= self.highest  # others are taken to be alike
        evaluation = draw.uniform(0.0, 20.0) if draw.random() < 0.04 and new and not ordinary else 0.0
        if evaluation:
            self.declares(evaluation)
        self.passes(self.usual + stall)
        for each in self.step_times:
            each.passed()
        if stall:
            self.stalls.append((self.now - stall, stall))
        self.true["stalled"] += stall
        self.made += 1
        self.true["repeating" if self.first + self.made <= self.highest else "training"] += self.usual + evaluation
        self.boundary = self.now
        return not stall and not evaluation

    def declares(self, seconds: float) -> None:
        """The script evaluates."""
        for each in self.step_times:
            each.entered(Phase.EVAL)
        self.passes(seconds)
        for each in self.step_times:
            each.entered(Phase.STEP)

    def round(self, steps: int, under_way: bool = True, told: bool = True) -> None:
        """So many steps; where it is not under way, one member was too slow for its first one.

        Args:
            steps: how many.
            under_way: whether all members make them.
            told: whether any of them are told of before the round has ended.
        """
        self.assigned()
        self.surprised = self.surprised or not told
        synced = self.synced()
        for number in range(1, steps + 1):
            ordinary = self.step(ordinary=not under_way)
            left = self.highest - self.first - self.made
            if not told:
                continue
            if number == 1:
                for member in (0, 1)[: 1 + under_way]:
                    self.report(member)
                if under_way:
                    self.story.over += self.story.ledger.under_way(synced, NO_PHASES, self.now)
                    self.look()
            elif self.draw.random() < 0.4 or not ordinary or left == 0:
                self.report(self.draw.randrange(2) if under_way else 0)
        self.highest = max(self.highest, self.first + self.made)

    def ended(self, how: RoundEnd) -> None:
        silent = self.draw.choice([0.0, 1.0, 30.0]) if how is not RoundEnd.DONE else 0.0
        self.passes(self.draw.uniform(0.0, self.usual) + silent * 6 * self.usual)
        if (silence := self.now - self.boundary) > max(5 * self.usual, self.usual + 1.0):
            self.unnoticed = silence - self.usual
        self.story.ended(self.now, how)
        self.kind = KIND_OF[how]
        self.look()
        self.passes(self.draw.uniform(0.0, 0.5))
        for member in (0, 1):
            self.report(member)

    def fails(self) -> None:
        """A round without a step."""
        self.assigned()
        self.story.ended(self.now)
        self.failed_rounds += 1
        self.waits()

    def waits(self) -> None:
        seconds = self.draw.choice([0.0, self.draw.uniform(0.0, 40.0)])
        if seconds:
            self.story.ledger.waits(True, self.now)
            self.passes(seconds)
            self.story.ledger.waits(False, self.now)
            self.waited += seconds


@pytest.mark.parametrize("seed", range(80))
def test_what_is_told_is_what_was(seed: int) -> None:
    run = Members(seed)
    draw = run.draw
    run.passes(12.0)
    run.round(20)
    for _ in range(8):
        how = draw.choices(list(RoundEnd), [5, 1, 3, 1, 1])[0]
        if how is RoundEnd.DONE and run.first + run.made < run.highest:
            how = RoundEnd.FAILURE  # a script is not done before all is made again
        run.ended(how)
        if run.kind == NEXT_RUN:
            run.first, run.made, run.highest = run.first + run.made, 0, run.first + run.made
        run.waits()
        while draw.random() < 0.3:
            run.fails()
        under_way = draw.random() < 0.8
        run.round(draw.randrange(1, 40), under_way, told=under_way or draw.random() < 0.5)
    run.ended(RoundEnd.DONE)
    run.story.run_ended(run.now)
    run.true["ending"] = run.now - run.boundary
    told = look(run.story.ledger, run.now)
    assert told.pop("until") == pytest.approx(run.now, abs=1e-3)
    assert told == pytest.approx(run.true, abs=1e-3)
    assert seconds_by_kind(run.story.ledger.settled(run.now)) == told
    assert [
        (each.kind, epoch_seconds(each.start_time), span_seconds(each.duration), each.failed_rounds, each.steps_lost)
        for each in run.story.over
        if each.kind != STALL
    ] == [pytest.approx(gap, abs=1e-3) for gap in run.gaps]
    assert [(start, length) for kind, start, length in run.story.lengths() if kind == STALL] == [
        pytest.approx(stall, abs=1e-3) for stall in run.stalls
    ]
    failures = [length for kind, _, length, _, _ in run.gaps if kind == FAILURE]
    summary = run.story.ledger.recoveries()
    assert summary.count == len(failures)
    if failures:
        assert span_seconds(summary.median) == pytest.approx(statistics.median(failures), abs=1e-3)
        assert span_seconds(summary.longest) == pytest.approx(max(failures), abs=1e-3)
