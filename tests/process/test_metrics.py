"""Metrics of a real run, read by a real Prometheus server, as the dashboard reads them."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.process.prometheus import Prometheus, prometheus
from tests.process.running import BOUND, ROOT, SCRIPTS, Hosts, Run, running

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]
GRAFANA = ROOT / "docs" / "grafana"


def url_of(run: Run) -> str:
    return run.line(r"^edriver: metrics for Prometheus: (\S+)$")[1]


def through_a_recovery_and_a_resize(run: Run, hosts: Hosts) -> None:
    """A worker is killed, its replacement joins, a host is added."""
    run.line("rank 1 of 2 .* at step")
    run.line("rank 0 passed step 10")
    os.kill(run.pids()[1], signal.SIGKILL)
    after = len(run.lines)
    run.line(r"rank 1 of 2 .* at step", after)
    hosts.are("localhost:2", "127.0.0.1:1")
    after = len(run.lines)
    run.line(r"rank 2 of 3 .* at step", after)
    run.line(r"rank 2 passed step", after)


@pytest.mark.long
def test_the_dashboard_has_data_from_a_real_run(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:2")
    args = ["-np", "2", "--min-np", "1", "--max-np", "3", "--host-discovery-script", str(hosts.script)]
    began = time.time()
    with running([*args, "--metrics-port", "0", *TRAIN], tmp_path, {"EPOCHS": "40000"}) as run:
        url = url_of(run)
        assert url.startswith("http://127.0.0.1:")
        target = url.removeprefix("http://").removesuffix("/metrics")
        run_id = run.id
        with prometheus(tmp_path, target, GRAFANA / "alerts.yml") as server:
            server.until(lambda: server.ask("query", query="edriver_rounds_total")["result"])  # the first 0
            through_a_recovery_and_a_resize(run, hosts)
            wanted = (
                'edriver_rounds_total{cause="failure"} >= 1',
                'edriver_rounds_total{cause="resize"} >= 1',
                'edriver_recovery_seconds_count{cause="resize",phase="first_step"} >= 1',
                'sum(edriver_recovery_seconds_sum{cause="failure"}) > 0',  # abort is 0 if survivors knew first
                "edriver_size == 3",
                "edriver_commits_total > 20",
                "edriver_commit_bytes_total > 0",
                "edriver_commit_seconds_total > 0",
                "edriver_syncs_total >= 2",
                "edriver_sync_bytes_total > 0",
                'edriver_workers{state="training"} == 3',
                'edriver_hosts{state="used"} == 2',
                'edriver_discovery_polls_total{result="answered"} > 2',
                'edriver_reported{name="loss"} > 0',
                "edriver_samples_per_second > 0",
                "edriver_samples_total > 0",
                'edriver_time_seconds_total{kind="training"} > 0',
                'edriver_time_seconds_total{kind="recovering"} > 0',
                'edriver_time_seconds_total{kind="booting"} > 0',
                "0 < edriver_goodput_ratio < 1",
                (
                    "abs(edriver_goodput_ratio - on (job, instance) edriver_time_seconds_total{kind='training'}"
                    " / on (job, instance) sum by (job, instance) (edriver_time_seconds_total)) < 1e-9"
                ),
                "time() - edriver_last_step_timestamp_seconds < 60",
                'edriver_interruption_seconds_count{kind="failure"} >= 1',
                'edriver_interruption_seconds_sum{kind="boot"} > 0',
                f'edriver_run_info{{run_id="{run_id}"}}',
            )
            for expression in wanted:
                server.until(lambda e=expression: server.ask("query", query=e)["result"])  # type: ignore[misc]
            for expression in asked_by_the_dashboard(run_id):  # a rate needs two scrapes within its window
                server.until(lambda e=expression: seen(server, e, began), expression)  # type: ignore[misc]
            assert server.ask("label/run_id/values") == [run_id]
            rules = server.until(lambda: evaluated(server))
            assert {name: state for name, state in rules.items() if state != "ok"} == {}
            assert len(rules) == 9
            # Those that a calm run must not set off; `for` has not passed for others.
            assert {alert["labels"]["alertname"] for alert in server.ask("alerts")["alerts"]} <= {"EdriverGoodputLow"}
            run.process.send_signal(signal.SIGINT)
            assert run.end() == 130
            run.line("waiting up to 2 s until Prometheus has read how the run ended")
            ended = f'last_over_time(edriver_run_end_info{{run_id="{run_id}",end="stopped"}}[10m])'
            server.until(lambda: server.ask("query", query=ended)["result"], "the end of the run")
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(url, timeout=BOUND)
        assert run.gone(), run.left_behind()


def asked_by_the_dashboard(run_id: str) -> list[str]:
    """What its panels ask, as Grafana fills it in."""
    dashboard = json.loads((GRAFANA / "edriver.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    expressions += [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    assert len(expressions) > 20
    filled = {"$run": run_id, "$__rate_interval": "10s", "$__range": "10m"}
    for variable, value in filled.items():
        expressions = [expression.replace(variable, value) for expression in expressions]
    assert not [expression for expression in expressions if "$" in expression]
    return [expression for expression in expressions if "edriver_gpu_" not in expression]  # there need be no GPU here


def seen(server: Prometheus, expression: str, began: float) -> bool:
    """Whether it gives something; never NaN, not before anything has happened either."""
    values = server.values(expression, began)
    assert not [value for value in values if math.isnan(value)], expression
    return bool(values)


def evaluated(server: Prometheus) -> dict[str, str]:
    """How each rule fares, once all have been evaluated."""
    rules = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
    return {} if any(rule["health"] == "unknown" for rule in rules) else {r["name"]: r["health"] for r in rules}


def test_a_port_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running(["-np", "1", "--metrics-port", str(port), *TRAIN], tmp_path) as run:
            assert run.end() == 1
    first, *others = run.lines
    assert first.startswith("edriver: run ")
    records, last = others
    assert records.startswith("edriver: records: ")
    sentence = f"metrics cannot be served at 127.0.0.1:{port}: Address already in use; give another --metrics-port"
    assert last.startswith(f"edriver: failed: the driver cannot listen: {sentence}")
    assert run.gone(), run.left_behind()


@pytest.mark.parametrize(
    ("flags", "loaded"),
    [pytest.param([], False, id="without-the-flag"), pytest.param(["--metrics-port", "0"], True, id="with-it")],
)
def test_prometheus_client_is_loaded_only_for_metrics(tmp_path: Path, flags: list[str], loaded: bool) -> None:
    with running(["-np", "1", *flags, "true"], tmp_path, {"PYTHONPROFILEIMPORTTIME": "1"}) as run:
        run.end()
    assert any(line.endswith(" grpc.aio") for line in run.lines)
    assert any("prometheus_client" in line for line in run.lines) == loaded
