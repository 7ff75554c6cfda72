"""Random churn over real processes, `make churn` in short: kills, resizes, and both in the middle of recovery."""

from __future__ import annotations

import pytest

from benchmarks.churn_check import run_schedule
from benchmarks.schedule import schedule_of


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(178, id="two-killed-at-once-rank-0-among-them"),
        pytest.param(116, id="rank-0-killed-again-during-recovery-then-all-hosts-replaced"),
        pytest.param(172, id="a-change-undone-then-rank-0-killed"),
    ],
)
def test_every_epoch_visits_every_sample_once(seed: int) -> None:
    assert run_schedule(schedule_of(seed, bursts=2)) == []
