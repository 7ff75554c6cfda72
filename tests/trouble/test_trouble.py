"""Random trouble over several hosts, in short: see __main__.py."""

from __future__ import annotations

import pytest

from tests.trouble.runner import run_schedule
from tests.trouble.schedule import schedule_of


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(5))
def test_every_epoch_visits_every_sample_once_whatever_happens_to_hosts(seed: int) -> None:
    assert run_schedule(schedule_of(seed)) == []
