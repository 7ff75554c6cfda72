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

import pytest

from edriver.model.cause import RoundEnd
from edriver.v1 import status_pb2
from edriver.wire.conversion import duration, epoch_seconds, round_id_of, span_seconds
from tests.unit.time_ledger_story import BOOT, FAILURE, KIND_OF, RESIZE, STALL, UNPROVEN, Story


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
    assert story.recoveries().count == 0


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


def test_of_members_at_the_same_boundary_the_first_counts() -> None:
    """The other one was stopped between a step and its boundary, for so long that the round ended of it."""
    story = Story()
    story.begun()
    story.says(16, 125.0, now=125.1, stalled=4.5, stall=(120.5, 4.5, 16))
    assert story.spent(125.1) == {"booting": 12.0, "training": 8.0, "stalled": 4.6}  # no step since, as far as is known
    story.ended(125.1)
    story.round(125.2, 125.5)
    assert story.lengths() == [(FAILURE, 120.0, 5.5)]
    assert story.spent(126.0) == {"booting": 12.0, "training": 8.5, "stalled": 4.6, "recovering": 0.9}


def test_what_any_member_at_the_same_boundary_declares_is_no_stall() -> None:
    story = Story()
    story.begun()
    story.says(16, 120.1, now=129.9, declared=9.8)  # rank 0 evaluates
    story.says(16, 120.0, now=130.0)
    assert story.ledger.interruption(130.0) is None


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
    assert story.recoveries().count == (how is RoundEnd.FAILURE)


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


@pytest.mark.parametrize(
    ("declared", "spent"),
    [(28.8, {"recovering": 30.0}), (0.0, {"stalled": 29.0, "recovering": 1.0})],
    ids=["declared", "not-declared"],
)
def test_a_kill_in_what_is_declared_is_no_stall_either(declared: float, spent: dict[str, float]) -> None:
    story = Story()
    story.begun()
    story.says(16, 120.0, now=149.0, declared=declared)
    story.ended(150.0, noticed=149.5)
    assert story.spent(150.0) == {"booting": 12.0, "training": 8.0, **spent}


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
    assert story.recoveries().count == 0


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
    assert span_seconds(story.recoveries().longest) == 35.0


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
