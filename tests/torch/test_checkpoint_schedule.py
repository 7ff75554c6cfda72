"""At which steps ranks save: all at the same ones, however their clocks differ."""

from __future__ import annotations

from datetime import timedelta

import pytest

from edriver.worker.checkpoints.memory.schedule import Announced, Schedule


def _saved(schedule: Schedule, steps: range) -> list[int]:
    found = []
    for step in steps:
        if schedule.due(step):
            schedule.advance(step)
            found.append(step)
    return found


def test_each_so_many_steps() -> None:
    assert _saved(Schedule(10), range(1, 35)) == [10, 20, 30]
    assert _saved(Schedule(10), range(7, 50, 7)) == [14, 21, 35, 42], "after each ten, where the script offers one"
    assert _saved(Schedule(10), range(20, 25)) == [20]
    assert _saved(Schedule(3), range(3)) == []


def test_until_rank_0_knows_the_intervals_double() -> None:
    assert _saved(Schedule(None), range(1, 40)) == [2, 4, 8, 16, 32]


def test_an_announcement_holds_from_its_base_on_for_those_who_hear_it_late_too() -> None:
    early, late = Schedule(timedelta(seconds=10)), Schedule(timedelta(seconds=10))
    assert _saved(early, range(1, 5)) == _saved(late, range(1, 5)) == [2, 4]
    early.take(Announced(8, 25))
    assert _saved(early, range(5, 60)) == [8, 33, 58]
    assert _saved(late, range(5, 34)) == [8, 16, 32]
    late.take(Announced(8, 25))
    assert _saved(late, range(34, 90))[1:] == _saved(early, range(60, 90)) == [83]


@pytest.mark.parametrize(
    ("every", "interval"), [(timedelta(seconds=10), 100), (timedelta(seconds=0.01), 1), (None, 50)]
)
def test_rank_0_turns_times_into_steps(every: timedelta | None, interval: int) -> None:
    schedule = Schedule(every)
    _saved(schedule, range(1, 3))
    announced = schedule.announcement(step_seconds=0.1, save_seconds=0.05)
    assert announced == Announced(4, interval)
    schedule.take(announced)
    assert schedule.announcement(step_seconds=0.11, save_seconds=0.05) is None, "about the same"


@pytest.mark.parametrize("every", [0, -1, timedelta()])
def test_an_interval_is_positive(every: int | timedelta) -> None:
    with pytest.raises(ValueError, match="positive number of steps or a time"):
        Schedule(every)
