"""Steps that are made again, and what the ledger of time says of a run that ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edriver.model.cause import RoundEnd
from edriver.text.time_spent import seconds_by_kind
from edriver.wire.conversion import span_seconds
from tests.unit.time_ledger_story import BOOT, FAILURE, NEXT_RUN, USUAL, Story


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
    assert story.spent(115.0) == {"booting": 10.0, "unknown": 5.0}
    assert story.settled(115.0) == {"booting": 10.0, "unknown": 5.0}
    assert story.goodput(115.0) is None
    assert story.ledger.interruption(500.0) is None
    story.ended(120.0, noticed=119.0)
    assert story.spent(121.0) == {"booting": 10.0, "unknown": 10.0, "recovering": 1.0}
    story.assigned(123.0)
    assert story.lengths()[1:] == [(FAILURE, 120.0, 3.0)]
    assert story.spent(125.0) == {"booting": 10.0, "unknown": 12.0, "recovering": 3.0}
    story.ended(130.0, RoundEnd.DONE)
    story.run_ended(131.0)
    assert story.spent(200.0) == {"booting": 10.0, "unknown": 17.0, "recovering": 3.0, "ending": 1.0}
    assert story.goodput(200.0) is None
    story = Story(counts_steps=False)
    story.assigned(110.0)
    story.run_ended(130.0)
    assert story.spent(200.0) == {"booting": 10.0, "unknown": 20.0}


@pytest.mark.parametrize("counts_steps", [False, True], ids=["restart", "elastic"])
def test_a_round_that_nobody_has_ended_has_ended_when_the_next_one_begins(counts_steps: bool) -> None:
    story = Story(counts_steps)
    story.round(110.0, 112.0)
    story.says(16, 120.0)
    story.round(130.0, 132.0)
    assert [kind for kind, _, _ in story.lengths()] == [BOOT, FAILURE]
    assert story.spent(133.0)["training" if counts_steps else "unknown"] == (8.5 if counts_steps else 23.0)


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
    assert story.recoveries().count == 0


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
    assert story.recoveries().count == 1


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
    assert story.recoveries().count == 0


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
    summary = story.recoveries()
    assert summary.count == len(seconds)
    assert (span_seconds(summary.median), span_seconds(summary.longest)) == (median, longest)
    assert summary.HasField("median") == summary.HasField("longest") == bool(seconds)
