"""Who is waited for while no step is made: tables of what members say."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edriver.driver.observe.pace.hold_up import (
    GOES_ON_SECONDS,
    MAX_NAMED,
    SETTLE_SECONDS,
    HoldUpWatch,
    MemberStanding,
    is_declared,
)
from edriver.text.pace_text import hold_up_text, waited_for_text
from edriver.v1 import notification_pb2, pace_pb2
from edriver.wire.conversion import duration, epoch_seconds, timestamp

NOW = 1000.0
WAITING = pace_pb2.WORKER_ACTIVITY_WAITING
LOADING = pace_pb2.WORKER_ACTIVITY_LOADING
COMPUTING = pace_pb2.WORKER_ACTIVITY_COMPUTING
EVALUATING = pace_pb2.WORKER_ACTIVITY_EVALUATING


def member(
    rank: int,
    activity: pace_pb2.WorkerActivity.ValueType | None = None,
    *,
    seconds: float = 3.0,
    heard: float = NOW,
    stopped: bool = False,
    place: str = "train.py:40 (main)",
    boundaries: int = 0,
) -> MemberStanding:
    """One that says what it does since its last boundary; without an activity, one that has passed one lately."""
    standing = None
    if activity is not None:
        standing = notification_pb2.Standing(activity=activity, place=place, duration=duration(seconds))
    return MemberStanding(rank + 1, rank, "ab"[rank > 1], rank % 2, heard, standing, stopped, boundaries)


@pytest.mark.parametrize(("behind", "named"), [(1, []), (2, [0]), (8, [0])])
def test_what_a_member_said_of_a_step_that_is_over_is_not_what_it_does(behind: int, named: list[int]) -> None:
    """It fell silent before it could say that it goes on; members make their steps together."""
    waited = [member(0, WAITING, heard=NOW - 2.0, boundaries=283 - behind), member(1, WAITING, boundaries=283)]
    found = looked(waited)
    assert found is not None
    assert [each.rank for each in found.waited_for] == named
    assert all(each.activity == pace_pb2.WORKER_ACTIVITY_SILENT for each in found.waited_for)


def looked(members: Sequence[MemberStanding], later: float = SETTLE_SECONDS + 0.1) -> pace_pb2.HoldUp | None:
    """Look when the first reports have come, and again a little later."""
    watch = HoldUpWatch()
    watch.check(members, NOW)
    return watch.check(members, NOW + later)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        (
            [member(0, WAITING), member(1, LOADING), member(2, WAITING)],
            "all are waiting for rank 1 (a:1), which is loading data at train.py:40 (main)",
        ),
        (
            [member(0, WAITING), member(1, COMPUTING)],
            "all are waiting for rank 1 (a:1), which is at train.py:40 (main)",
        ),
        ([member(0, WAITING), member(1, COMPUTING, place="")], "all are waiting for rank 1 (a:1), which is computing"),
        (
            [member(0, EVALUATING), member(1, WAITING)],
            "all are waiting for rank 0 (a:0), which is evaluating at train.py:40 (main)",
        ),
        (
            [member(0, WAITING), member(1, stopped=True)],
            "all are waiting for rank 1 (a:1), whose process is stopped (by a signal or a debugger)",
        ),
        (
            [member(0, WAITING), member(1, WAITING, stopped=True)],
            "all are waiting for rank 1 (a:1), whose process is stopped (by a signal or a debugger)",
        ),
        (
            [member(0, WAITING), member(1, heard=NOW - 2.0)],
            "all are waiting for rank 1 (a:1), which does not answer",
        ),
        ([member(0, WAITING), member(1, WAITING)], "all 2 are waiting for one another in collectives"),
        (
            [member(0, WAITING), member(1, WAITING, place="train.py:44 (log)"), member(2, WAITING)],
            (
                "all 3 are waiting for one another in collectives: rank 0 (a:0) at train.py:40 (main), rank 1 (a:1) at "
                "train.py:44 (log). All ranks have to call the same collectives in the same order (is one inside "
                "`if edriver.rank() == 0:`?)"
            ),
        ),
        ([member(0, WAITING), member(1, WAITING, place="")], "all 2 are waiting for one another in collectives"),
        (
            [member(0, LOADING), member(1, LOADING)],
            (
                "none is waiting for another: rank 0 (a:0), which is loading data at train.py:40 (main); "
                "rank 1 (a:1), which is loading data at train.py:40 (main)"
            ),
        ),
        (
            [member(rank, COMPUTING if rank else WAITING, place="") for rank in range(6)],
            (
                "all are waiting for rank 1 (a:1), which is computing; rank 2 (b:0), which is computing; rank 3 (b:1), "
                "which is computing, and 2 others"
            ),
        ),
    ],
    ids=[
        "loads data",
        "at a line",
        "computes",
        "evaluates",
        "stopped",
        "stopped while it waited",
        "does not answer",
        "all wait",
        "all wait in different collectives",
        "all wait, and where is not known of one",
        "none waits",
        "many",
    ],
)
def test_who_is_waited_for(members: list[MemberStanding], text: str) -> None:
    found = looked(members)
    assert found is not None
    assert waited_for_text(found) == text
    assert epoch_seconds(found.start_time) == NOW - 3.0
    assert hold_up_text(found, NOW + 20.0) == f"no step for 23 s; {text}"


@pytest.mark.parametrize(
    ("members", "later"),
    [
        ([member(0), member(1)], 1.0),
        ([member(0), member(1, stopped=True)], 1.0),
        ([member(0, WAITING), member(1, heard=NOW + 0.2)], 1.0),
        ([member(0, WAITING), member(1, heard=NOW - 2.0)], 0.1),
    ],
    ids=["steps are made", "it was stopped a moment ago", "one goes on", "reports may be on their way"],
)
def test_nothing_is_said(members: list[MemberStanding], later: float) -> None:
    assert looked(members, later) is None


def test_one_whose_last_report_was_on_its_way_is_silent_after_a_while() -> None:
    found = looked([member(0, WAITING), member(1, heard=NOW + 0.2)], 0.2 + GOES_ON_SECONDS)
    assert found is not None
    assert [(each.rank, each.activity) for each in found.waited_for] == [(1, pace_pb2.WORKER_ACTIVITY_SILENT)]


def test_it_begins_anew_once_steps_are_made() -> None:
    watch = HoldUpWatch()
    silent = member(1, heard=NOW - 2.0)
    watch.check([member(0, WAITING), silent], NOW)
    watch.check([member(0), silent], NOW + 1.0)
    assert watch.check([member(0, WAITING), silent], NOW + 1.1) is None
    assert watch.check([member(0, WAITING), silent], NOW + 1.7) is not None


def test_a_bounded_number_is_named() -> None:
    found = looked([member(rank, COMPUTING) for rank in range(20)])
    assert found is not None
    assert [each.rank for each in found.waited_for] == list(range(MAX_NAMED))
    assert (found.waited_for_count, found.waiting) == (20, 0)


def test_what_the_script_has_declared() -> None:
    evaluates = looked([member(0, EVALUATING), member(1, WAITING)])
    both = looked([member(0, EVALUATING), member(1, LOADING)])
    assert evaluates is not None
    assert both is not None
    assert is_declared(evaluates)
    assert not is_declared(both)
    assert not is_declared(pace_pb2.HoldUp(start_time=timestamp(1.0), waiting=2))
