"""Random churn over real processes, `make churn` in short: kills, resizes, and both in the middle of recovery.

Two survivors at least are left each time: one that hangs in a send which nothing can free (backend/gloo/sever.py) is
replaced then. A single one is left alone, as it alone holds the state; `make churn` draws such schedules, too.
"""

from __future__ import annotations

import pytest

from benchmarks.churn_check import run_schedule
from benchmarks.schedule import schedule_of
from benchmarks.under_edriver import EdriverJob


class QuickJob(EdriverJob):
    """The same training in processes that start quickly (tests/quick_start.py); no test gives it orders."""

    script = "tests.trouble.job"


@pytest.mark.long_except("two-killed-at-once-rank-0-among-them")
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(56, id="two-killed-at-once-rank-0-among-them"),
        pytest.param(2112, id="rank-0-killed-again-during-recovery-then-all-hosts-replaced"),
        pytest.param(368, id="a-change-undone-then-rank-0-killed"),
    ],
)
def test_every_epoch_visits_every_sample_once(seed: int) -> None:
    assert run_schedule(schedule_of(seed, bursts=2), QuickJob) == []
