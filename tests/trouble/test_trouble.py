"""Random trouble over several hosts, in short: see __main__.py."""

from __future__ import annotations

from tests.trouble.runner import run_schedules
from tests.trouble.schedule import schedule_of

SEEDS = range(5)


def test_every_epoch_visits_every_sample_once_whatever_happens_to_hosts() -> None:
    assert run_schedules([schedule_of(seed) for seed in SEEDS]) == []
