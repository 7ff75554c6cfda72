"""Grafana's dashboard and the alerts, asked by promtool of runs in which little has happened: 0 / 0 is no answer."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from edriver.model.mode import Mode
from tests import needs
from tests.unit.metrics_story import Story, recovered

GRAFANA = Path(__file__).parents[2] / "docs" / "grafana"
PANELS = [
    panel for panel in json.loads((GRAFANA / "edriver.json").read_text())["panels"] if panel.get("targets") is not None
]
ANNOTATIONS = json.loads((GRAFANA / "edriver.json").read_text())["annotations"]["list"]
RULES = yaml.safe_load((GRAFANA / "alerts.yml").read_text())["groups"][0]["rules"]


def as_grafana_fills_in(expression: str) -> str:
    filled = expression.replace("$run", "abcd").replace("$__rate_interval", "1m").replace("$__range", "10m")
    assert "$" not in filled
    return filled


def begun() -> Story:
    story = Story()
    story.begun()
    return story


def of_an_empty_epoch() -> Story:
    """A sampler over no data, no step."""
    story = begun()
    story.says(1, 1, 0, epoch=1, samples_done=0, samples=0)
    return story


def in_restart_mode() -> Story:
    story = Story(Mode.RESTART)
    story.begun()
    return story


def fault_of(story: Story, cases: list[dict[str, Any]], folder: Path) -> str:
    """What promtool has against these cases, of a run in which nothing more happens for 20 minutes; empty: nothing."""
    series = []
    for name, value in story.shown().items():
        metric, _, labels = name.rstrip("}").partition("{")
        where = ",".join(['job="edriver"', 'instance="a:9400"', *([labels] if labels else [])])
        series.append({"series": f"{metric}{{{where}}}", "values": f"{value}x80"})
    test = {"interval": "15s", "input_series": series, "promql_expr_test": cases}
    (folder / "test.yml").write_text(json.dumps({"evaluation_interval": "15s", "tests": [test]}))  # JSON is YAML, too
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True, timeout=60
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.needs(needs.PROMETHEUS)
@pytest.mark.parametrize("made", [Story, begun, of_an_empty_epoch, in_restart_mode, recovered])
def test_no_answer_is_nan(made: Callable[[], Story], tmp_path: Path) -> None:
    asked = [target["expr"] for panel in PANELS for target in panel["targets"]]
    asked += [each["expr"] for each in [*ANNOTATIONS, *RULES]]
    assert len(asked) > 50
    cases = [
        {"expr": f"({expression}) != ({expression})", "eval_time": "10m", "exp_samples": []}  # NaN alone is not itself
        for expression in map(as_grafana_fills_in, asked)
    ]
    assert fault_of(made(), cases, tmp_path) == ""


@pytest.mark.needs(needs.PROMETHEUS)
@pytest.mark.parametrize("made", [Story, begun, of_an_empty_epoch, in_restart_mode])
def test_a_panel_that_may_be_empty_says_why(made: Callable[[], Story], tmp_path: Path) -> None:
    """Those of the driver's own process are left out: every client of Prometheus has them."""
    silent = [panel for panel in PANELS if not panel["fieldConfig"]["defaults"].get("noValue")]
    cases = []
    for panel in silent:
        asked = [as_grafana_fills_in(target["expr"]) for target in panel["targets"]]
        if "process_" in asked[0]:
            continue
        any_of = " or ".join(f"count({expression}) > 0" for expression in asked)
        cases.append({"expr": f"({any_of}) * 0", "eval_time": "10m", "exp_samples": [{"labels": "{}", "value": 0}]})
    assert len(cases) > 10
    assert fault_of(made(), cases, tmp_path) == ""


@pytest.mark.needs(needs.PROMETHEUS)
def test_promtool_finds_a_nan(tmp_path: Path) -> None:
    """What the tests above rest on."""
    expression = "rate(edriver_commit_seconds_total[1m]) / rate(edriver_commits_total[1m])"
    case = {"expr": f"({expression}) != ({expression})", "eval_time": "10m", "exp_samples": []}
    assert "NaN" in fault_of(Story(), [case], tmp_path)
