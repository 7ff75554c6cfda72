"""Figures and goals of `make bench`: medians, ratios, and a goal that is not measured is not met."""

from __future__ import annotations

import pytest

from benchmarks.figures import Figures, Key
from benchmarks.goals import GOALS, Goal, judge
from benchmarks.report import Results, figures_table, goals_table, page, phases_table
from benchmarks.trials import sharded_trials

OURS, THEIRS = Key("K1", "edriver", "downtime"), Key("K1", "torchrun", "downtime")


def figures(**by_system: list[float]) -> Figures:
    found = Figures()
    for system, values in by_system.items():
        for value in values:
            found.add("K1", system, {"downtime": value})
    return found


@pytest.mark.parametrize(
    ("goal", "value", "connected"),
    [
        pytest.param(Goal("", OURS, most=0.09), 0.09, True, id="at-the-bound"),
        pytest.param(Goal("", OURS, most=0.08), 0.09, False, id="above"),
        pytest.param(Goal("", OURS, least=0.1), 0.09, False, id="below"),
        pytest.param(Goal("", THEIRS, least=40, over=OURS), 50.0, True, id="ratio-of-medians"),
        pytest.param(Goal("", THEIRS, most=40, over=OURS), 50.0, False, id="ratio-too-large"),
        pytest.param(Goal("", Key("K0", "edriver", "downtime"), most=1), None, False, id="not-measured"),
        pytest.param(Goal("", OURS, most=1, over=Key("K1", "bare", "downtime")), None, False, id="nothing-beside-it"),
    ],
)
def test_a_goal_is_judged_by_medians(goal: Goal, value: float | None, connected: bool) -> None:
    found = judge(goal, figures(edriver=[0.01, 0.09, 5.0], torchrun=[4.5]))

    assert found.value == pytest.approx(value) if value is not None else found.value is None
    assert found.connected is connected


def test_nothing_is_lost_is_a_goal_that_nothing_meets() -> None:
    found = Figures()
    found.add("K1", "edriver", {"steps lost": 0.0})

    assert judge(Goal("", Key("K1", "edriver", "steps lost"), most=0), found).connected


def test_every_goal_has_one_bound() -> None:
    assert all((goal.most is None) != (goal.least is None) for goal in GOALS)
    assert len({goal.what for goal in GOALS}) == len(GOALS)


def test_what_goals_of_sharded_models_are_about_is_measured() -> None:
    measured = {(trial.part, trial.system) for trial in sharded_trials() if trial.system != "torchft"}
    keys = {key for goal in GOALS for key in (goal.of, goal.over) if key and key.part.startswith("HSDP")}

    assert {(key.part, key.system) for key in keys if key.system != "torchft"} == measured


def test_tables_tell_what_was_measured_and_what_was_not() -> None:
    found = figures(edriver=[0.08, 0.085, 0.2], torchrun=[5.0])

    assert "| K1 | downtime | 85 ms (80 to 200 ms) | 5000 ms |\n" in figures_table(found)
    assert "| K1: kill to the next finished step | 85 ms | at most 90 ms | yes |\n" in goals_table(found)
    assert "| K1: the same, against the bare floor | not measured | at most 1.500 | **no** |\n" in goals_table(found)
    assert "K0" not in goals_table(found)
    assert phases_table(found) == ""


def test_the_page_has_what_came_to_nothing() -> None:
    results = Results("make bench", "2026-01-01", 0.5, repeats=1, failures=["K1, torchft: it ended"])
    results.figures.add("K1", "edriver", {"downtime": 0.08, "phase: detect": 0.002})

    text = page(results, "../pictures/recovery.png")

    assert "- K1, torchft: it ended\n" in text
    assert "| detect | 2 ms |  |\n" in text
    assert "](../pictures/recovery.png)" in text
