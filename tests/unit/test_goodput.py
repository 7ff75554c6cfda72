"""Goodput and speed: what happens is the same for all systems, and only steps that survive count."""

from __future__ import annotations

import pytest

from benchmarks.goodput import Change, events, undisturbed_steps
from benchmarks.history import History
from benchmarks.records import Boot, RoundStart, StepDone
from benchmarks.speed import rate


def run() -> History:
    """Two workers from 0 to 4 s finish steps 1 to 3; one goes on from step 2 at 6 s."""
    found = History()
    found.add(RoundStart(0.0, 1, rank, 2, 10 + rank, "a", 0) for rank in (0, 1))
    found.add(StepDone(float(step), 1, rank, step) for rank in (0, 1) for step in (1, 2, 3))
    found.add([RoundStart(6.0, 2, 0, 1, 10, "a", 2), StepDone(7.0, 2, 0, 3), StepDone(8.0, 2, 0, 4)])
    return found


@pytest.mark.parametrize(
    ("begin", "end", "steps"),
    [
        pytest.param(0.0, 10.0, 4, id="a-step-trained-twice-counts-once"),
        pytest.param(2.5, 10.0, 2, id="it-counts-when-it-survives"),
        pytest.param(0.0, 8.0, 3, id="the-end-is-not-in-it"),
    ],
)
def test_steps_count_in_the_round_that_they_survive_in(begin: float, end: float, steps: int) -> None:
    assert run().counted_steps(begin, end) == steps


def test_time_without_training_is_the_last_rounds() -> None:
    assert run().seconds_by_size(1.0, 10.0) == {2: 5.0, 1: 4.0}
    assert run().seconds_by_size(7.0, 9.0) == {1: 2.0}


def test_what_an_undisturbed_run_makes_depends_on_its_sizes() -> None:
    assert undisturbed_steps({2: 2.0, 4: 3.0}, rates={2: 10.0, 3: 99.0, 4: 8.0}) == 44.0


@pytest.mark.parametrize("seed", range(10))
def test_a_seed_gives_the_same_events_and_sizes_that_change(seed: int) -> None:
    found = events(seed, 11)

    assert found == events(seed, 11)
    sizes = [event.size for event in found if isinstance(event, Change)]
    assert sizes == [2 if number % 2 == 0 else 4 for number in range(len(sizes))]


def test_only_newcomers_boots_are_looked_at() -> None:
    found = History()
    found.add([Boot(5.0, 1, started=0.0), Boot(13.0, 2, started=11.0), Boot(12.0, 3, started=11.5)])

    assert found.longest_boot(after=10.0) == 2.0
    assert found.longest_boot(after=20.0) is None


def test_a_rate_is_taken_from_whole_steps_only() -> None:
    steps = [0.0, 1.0, 1.5, 2.0, 2.5, 9.0]

    assert rate(steps, 0.9, 3.0) == 2.0  # three steps in 1.5 s, whatever the turn's own length
    with pytest.raises(ValueError, match="1 steps"):
        rate(steps, 2.2, 3.0)
