"""What is counted apart, and for how long."""

from __future__ import annotations

import math

import pytest

from edriver.driver.core.failures.budgets import Budget, Budgets
from edriver.driver.core.settings import Settings


def spent(limit: int | None, window: float, *times: float) -> Budget:
    budget = Budget("a failure", "--reset-limit", limit, window)
    for now in times:
        budget.spend(now, f"what happened at {now:g}")
    return budget


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        pytest.param(spent(None, math.inf, *range(1000)), None, id="no-limit"),
        pytest.param(spent(2, math.inf, 1, 2), None, id="kept"),
        pytest.param(
            spent(1, math.inf, 1, 2),
            "2 rounds ended by a failure, more than --reset-limit 1; the last: what happened at 2",
            id="one-too-many",
        ),
        pytest.param(
            spent(0, math.inf, 1),
            "1 round ended by a failure, more than --reset-limit 0; the last: what happened at 1",
            id="none-allowed",
        ),
        pytest.param(spent(1, 10.0, 1, 2, 1000), None, id="longer-ago-than-the-window"),
        pytest.param(
            spent(1, 10.0, 1, 991, 1000),
            "2 rounds ended by a failure within 10 s, more than --reset-limit 1; the last: what happened at 1000",
            id="within-the-window",
        ),
    ],
)
def test_overspent(budget: Budget, text: str | None) -> None:
    assert budget.overspent(1000.0) == text


def test_all_are_counted_even_those_that_no_limit_looks_at() -> None:
    assert spent(1, 10.0, *range(100)).total == 100


def test_the_three_do_not_spend_from_one_another() -> None:
    budgets = Budgets(Settings(1, 1, 1, reset_limit=1, preemption_limit=1, resize_limit=1))
    for budget in (budgets.failures, budgets.preemptions, budgets.resizes):
        budget.spend(0.0, "")
    assert budgets.overspent(0.0) is None
    budgets.preemptions.spend(0.0, "host b is drained")
    assert budgets.overspent(0.0) == (
        "2 rounds ended by a preemption, more than the limit of preemptions 1; the last: host b is drained"
    )
