"""What is counted apart, and for how long."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from edriver.driver.core.failures.budgets import Budget, Budgets
from edriver.model.cause import Cause, CauseKind, Change, LimitExceeded, ReportedText, RoundEnd, WorkerName
from edriver.model.settings import Settings


def lost_at(now: float) -> Cause:
    """The loss of a worker with a name of its own."""
    return Cause(CauseKind.ENDED, WorkerName(int(now), "a", 0, 0))


def overspent(limit: int, total: int, recent: int, window: float, last: float) -> Cause:
    """The cause of a run whose budget of failures is spent."""
    spent = LimitExceeded(RoundEnd.FAILURE, limit, total, recent, window, lost_at(last))
    return Cause(CauseKind.BUDGET_SPENT, detail=spent)


def spent(limit: int | None, window: float, *times: float) -> Budget:
    budget = Budget(RoundEnd.FAILURE, limit, window)
    for now in times:
        budget.spend(now, lost_at(now))
    return budget


@pytest.mark.parametrize(
    ("budget", "cause"),
    [
        pytest.param(spent(None, math.inf, *range(1000)), None, id="no-limit"),
        pytest.param(spent(2, math.inf, 1, 2), None, id="kept"),
        pytest.param(
            spent(1, math.inf, 1, 2),
            overspent(1, total=2, recent=2, window=math.inf, last=2),
            id="one-too-many",
        ),
        pytest.param(
            spent(0, math.inf, 1),
            overspent(0, total=1, recent=1, window=math.inf, last=1),
            id="none-allowed",
        ),
        pytest.param(spent(1, 10.0, 1, 2, 1000), None, id="longer-ago-than-the-window"),
        pytest.param(
            spent(1, 10.0, 1, 991, 1000),
            overspent(1, total=3, recent=2, window=10.0, last=1000),
            id="within-the-window",
        ),
    ],
)
def test_overspent(budget: Budget, cause: Cause | None) -> None:
    assert budget.overspent(1000.0) == cause


def test_all_are_counted_even_those_that_no_limit_looks_at() -> None:
    assert spent(1, 10.0, *range(100)).total == 100


def test_failures_preemptions_and_resizes_are_counted_apart() -> None:
    budgets = Budgets(Settings(1, 1, 1, reset_limit=1, preemption_limit=1, resize_limit=1))
    resize = Cause(CauseKind.MEMBERS_CHANGE, detail=Change(1, 0))
    preemption = replace(resize, preempted=True)
    for cause in (lost_at(0), resize, preemption, Cause(CauseKind.PEER_UNPROVEN, detail=ReportedText(""))):
        budgets.spend(0.0, cause)
    totals = [b.total for b in (budgets.failures, budgets.preemptions, budgets.resizes, budgets.unproven)]
    assert totals == [1, 1, 1, 1]
    assert budgets.overspent(0.0) is None
    budgets.spend(0.0, preemption)
    found = LimitExceeded(RoundEnd.PREEMPTION, 1, 2, 2, math.inf, preemption)
    assert budgets.overspent(0.0) == Cause(CauseKind.BUDGET_SPENT, detail=found)
