"""The formulas of `python -m benchmarks.catch_up`, and what it takes for a pause."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks.catch_up_ways import (
    ALL_BESIDE,
    CATCH_UP,
    CATCH_UP_IDLE,
    MOMENTS_BESIDE,
    PLAIN,
    QUEUE_STEPS,
    Join,
    Speeds,
    Way,
    expected_pause,
    keeps_up,
    steps_to_catch_up,
)

FREE = Speeds(link=1e9, copy=math.inf, load=math.inf, replay=math.inf)
"""Only the link takes time: 100 million parameters are 0.4 s for 4 bytes of each, 1.2 s for 12."""


@pytest.mark.parametrize(
    ("way", "step", "pause"),
    [
        pytest.param(PLAIN, 1.0, 1.2, id="all-of-it"),
        pytest.param(MOMENTS_BESIDE, 1.0, 0.4, id="the-moments-in-a-long-step"),
        pytest.param(MOMENTS_BESIDE, 0.5, 0.7, id="the-moments-in-a-short-one"),
        pytest.param(ALL_BESIDE, 1.0, 0.2, id="all-in-a-short-step"),
        pytest.param(ALL_BESIDE, 2.0, 0.0, id="all-in-a-long-one"),
        pytest.param(CATCH_UP, 0.5, 0.4, id="the-last-gradients"),
        pytest.param(CATCH_UP, 0.3, 1.2, id="all-of-it-to-a-newcomer-that-never-catches-up"),
        pytest.param(CATCH_UP_IDLE, 0.5, 0.0, id="the-last-gradients-in-a-step"),
    ],
)
def test_the_pause_is_what_travels_beyond_a_step(way: Way, step: float, pause: float) -> None:
    assert expected_pause(way, 100e6, step, step, FREE) == pytest.approx(pause)


def test_a_copy_that_takes_longer_than_the_last_gradients_is_the_pause() -> None:
    assert expected_pause(CATCH_UP, 100e6, 1.0, 1.0, replace(FREE, copy=2e9)) == pytest.approx(0.6)


def test_a_newcomer_that_replays_slower_than_others_train_never_catches_up() -> None:
    assert not keeps_up(100e6, 1.0, replace(FREE, replay=90e6))


def test_a_queue_holds_what_comes_to_wait_while_the_state_travels_if_the_newcomer_can_catch_up_at_all() -> None:
    barely = 0.4001

    assert keeps_up(100e6, barely, FREE)
    assert 1.2 / barely < QUEUE_STEPS


def test_steps_until_a_newcomer_is_one_behind() -> None:
    assert steps_to_catch_up(100e6, 0.8, FREE) == pytest.approx(3.0)  # 1.2 s, and half as fast as the link
    assert steps_to_catch_up(100e6, 0.4, FREE) == math.inf


def test_a_pause_is_the_time_between_two_steps_ends_beyond_a_usual_step() -> None:
    # Steps of 1 s; 0.2 s for the copy; 1.1 s each beside the transfer; the newcomer's first waits for 0.5 s.
    join = Join(ends=(1.0, 2.0, 3.0, 4.2, 5.3, 6.4, 7.9, 8.9, 9.9), began=3, joined=6)

    assert join.step == pytest.approx(1.0)
    assert join.first_pause == pytest.approx(0.2)
    assert join.last_pause == pytest.approx(0.5)
    assert join.slowdown == pytest.approx(1.1)


def test_without_steps_meanwhile_the_pause_is_that_of_the_first_step_together() -> None:
    join = Join(ends=(1.0, 2.0, 3.0, 5.0, 6.0, 7.0), began=3, joined=3)

    assert join.pause == pytest.approx(1.0)
    assert join.slowdown is None
