"""A run's metrics for Prometheus: events and standings in, the exposition out."""

from __future__ import annotations

import copy
import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from prometheus_client.parser import text_string_to_metric_families

from edriver.common.release import VERSION
from edriver.driver.observe.metrics.gauges import MAX_NAME_LENGTH, MAX_REPORTED_NAMES
from edriver.driver.observe.round_time import SETTLING_SECONDS
from edriver.model import events
from edriver.model.ids import RoundId, Version
from edriver.model.mode import Mode
from edriver.text.cause_names import CAUSE_NAMES, RECOVERY_PHASES
from edriver.v1 import agent_pb2, notification_pb2, resources_pb2, status_pb2
from edriver.wire.conversion import duration, timestamp
from scripts.docs_site import metrics
from tests import needs
from tests.unit.metrics_story import Story, recover, recovered

DOCS = Path(__file__).parents[2] / "docs"


def test_checkpoints_and_those_that_could_not_be_written_are_counted() -> None:
    shown = recovered().shown()
    names = ("checkpoints_total", "checkpoint_bytes_total", "checkpoint_failures_total", "checkpoint_step")
    assert [shown[f"edriver_{name}"] for name in names] == [2, 900, 1, 8]


def test_all_is_there_before_anything_has_happened() -> None:
    shown = Story().shown()
    assert shown[f'edriver_run_info{{run_id="abcd",version="{VERSION}"}}'] == 1.0
    assert shown["edriver_run_start_timestamp_seconds"] == 1000.0
    assert [shown[f"edriver_{name}"] for name in ("size", "np", "min_np", "max_np", "steps_total")] == [0, 2, 1, 3, 0]
    for cause in CAUSE_NAMES.values():
        assert shown[f'edriver_rounds_total{{cause="{cause}"}}'] == 0.0
        for phase in RECOVERY_PHASES:
            assert shown[f'edriver_recovery_seconds_count{{cause="{cause}",phase="{phase}"}}'] == 0.0
    assert "edriver_discovery_last_success_timestamp_seconds" not in shown


def test_a_recovery_is_counted_once_and_by_phase() -> None:
    shown = recovered().shown()
    assert shown['edriver_rounds_total{cause="start"}'] == 1.0
    assert shown['edriver_rounds_total{cause="failure"}'] == 1.0
    assert shown['edriver_interruptions_total{cause="failure"}'] == 1.0
    assert shown['edriver_interruptions_total{cause="resize"}'] == 0.0
    assert shown['edriver_recovery_seconds_count{cause="start",phase="sync"}'] == 1.0
    of_failures = [f'{{cause="failure",phase="{phase}"}}' for phase in RECOVERY_PHASES]
    assert [shown[f"edriver_recovery_seconds_count{labels}"] for labels in of_failures] == [1.0] * 7
    unnoticed, detect, abort, wait, *joining = [
        shown[f"edriver_recovery_seconds_sum{labels}"] for labels in of_failures
    ]
    assert [unnoticed, detect, abort, wait] == pytest.approx([0.9, 0.1, 0.25, 0.75])
    assert joining == [0.25, 0.5, 0.75]
    assert (shown["edriver_syncs_total"], shown["edriver_sync_bytes_total"]) == (1.0, 4096.0)
    assert shown["edriver_sync_seconds_total"] == pytest.approx(0.5)


def test_what_is_counted_goes_on_under_the_next_driver() -> None:
    before, after = recovered(), Story()
    after.event_history.view = copy.deepcopy(before.event_history.view)  # a snapshot has it

    def counted(story: Story) -> dict[str, float]:
        families = ("edriver_rounds_", "edriver_recovery_", "edriver_interruption_", "edriver_sync")
        return {name: value for name, value in story.shown().items() if name.startswith(families)}

    assert counted(before)['edriver_rounds_total{cause="failure"}'] == 1.0
    assert counted(after) == counted(before)


def test_where_time_has_gone() -> None:
    story = recovered()
    assert story.shown()['edriver_time_seconds_total{kind="training"}'] < 1.625  # all members have to tell of it first
    story.now += SETTLING_SECONDS
    shown = story.shown()
    spent = {
        kind: value
        for name, value in shown.items()
        if name.startswith("edriver_time_seconds")
        for kind in re.findall('kind="(.*)"', name)
    }
    assert {kind: seconds for kind, seconds in spent.items() if seconds} == pytest.approx(
        {"booting": 5.0, "training": 1.625, "repeating": 0.625, "recovering": 2.75}
    )
    assert {"waiting", "stalled", "ending"} <= spent.keys()
    assert shown["edriver_goodput_ratio"] == pytest.approx(1.625 / 10)
    assert shown["edriver_last_step_timestamp_seconds"] == 1010.0
    assert shown['edriver_interruption_seconds_count{kind="boot"}'] == 1.0
    assert shown['edriver_interruption_seconds_sum{kind="boot"}'] == 5.0
    assert shown['edriver_interruption_seconds_count{kind="failure"}'] == 1.0
    assert shown['edriver_interruption_seconds_sum{kind="failure"}'] == 2.75
    assert shown['edriver_interruption_seconds_count{kind="next_run"}'] == 0.0


def test_goodput_can_be_recomputed_from_the_counters_of_the_same_scrape() -> None:
    story = Story()
    take = story.take
    ratios = set()

    def look() -> None:
        shown = story.shown()
        if (ratio := shown.get("edriver_goodput_ratio")) is not None:
            seconds = sum(value for name, value in shown.items() if name.startswith("edriver_time_seconds_total"))
            assert ratio == pytest.approx(shown['edriver_time_seconds_total{kind="training"}'] / seconds)
            ratios.add(ratio)

    def take_and_look(*happened: events.Event) -> None:
        take(*happened)
        look()

    story.take = take_and_look  # type: ignore[method-assign]
    recover(story)
    for _ in range(8):
        story.now += 1.0
        look()
    assert len(ratios) > 2


def test_before_the_first_step_there_is_no_goodput() -> None:
    """It is no 0, at which an alert would go off."""
    assert not {"edriver_goodput_ratio", "edriver_last_step_timestamp_seconds"} & Story().shown().keys()


def test_in_restart_mode_time_of_rounds_is_unknown_and_nothing_is_said_of_steps() -> None:
    story = Story(Mode.RESTART)
    story.begun()
    story.now += 10.0
    shown = story.shown()
    assert shown['edriver_time_seconds_total{kind="unknown"}'] == 10.0
    assert shown['edriver_time_seconds_total{kind="training"}'] == 0.0
    assert not {name for name in shown if name.startswith(("edriver_goodput", "edriver_step"))}
    assert not [name for name in Story().shown() if "unknown" in name]


def test_no_counter_falls() -> None:
    """Prometheus takes one that falls for one that has begun anew, and adds all of it again."""
    known: dict[tuple[str, ...], float] = {}
    story = Story()
    take = story.take

    def look() -> None:
        for family in text_string_to_metric_families(story.text()):
            for sample in family.samples if family.type in ("counter", "histogram") else ():
                series = (sample.name, *map(str, sorted(sample.labels.items())))
                assert sample.value >= known.get(series, 0.0), series
                known[series] = sample.value

    def take_and_look(*happened: events.Event) -> None:
        for event in happened:
            take(event)
            look()
            story.now += 0.5
            look()

    story.take = take_and_look  # type: ignore[method-assign]
    recover(story)
    assert known["edriver_rounds_total", "('cause', 'start')"] == 1.0


def test_a_round_that_ends_before_it_is_under_way_is_counted_once() -> None:
    story = Story()
    story.begun()
    story.take(events.WorkerExited(2, -9, reaped=1004.5))
    shown = story.shown()
    assert shown['edriver_rounds_total{cause="start"}'] == 1.0
    assert shown['edriver_interruptions_total{cause="failure"}'] == 1.0
    assert shown['edriver_recovery_seconds_count{cause="start",phase="sync"}'] == 0.0


def test_a_strangers_connection_is_no_failure() -> None:
    story = Story()
    story.begun()
    story.take(events.PeerUnproven(2, RoundId(1, 1), "connected from 127.0.0.1:4711"))
    for worker in (1, 2):
        story.waits(worker, Version(RoundId(1, 1), 5))
    shown = story.shown()
    for name in ("rounds", "interruptions"):
        assert shown[f'edriver_{name}_total{{cause="unproven"}}'] == 1.0
        assert shown[f'edriver_{name}_total{{cause="failure"}}'] == 0.0


def test_steps_and_commits_only_grow() -> None:
    shown = recovered().shown()
    assert shown["edriver_step"] == 9.0
    assert shown["edriver_steps_lost_total"] == 2.0
    assert shown["edriver_steps_total"] == 11.0
    assert shown["edriver_commits_total"] == 5 + 2
    assert shown["edriver_commit_seconds_total"] == 0.75 + 0.25
    assert shown["edriver_commit_bytes_total"] == 700.0


def test_a_resize() -> None:
    story = Story()
    story.begun()
    story.hosts(a=2, b=1)
    story.take(events.AgentConnected("b", 2))
    story.waits(3)
    story.take(events.BoundaryReached(1, RoundId(1, 1), 1, 4), events.BoundaryReached(2, RoundId(1, 1), 1, 4))
    assert story.shown()["edriver_size"] == 0.0
    version = Version(RoundId(1, 1), 5)
    story.waits(1, version)
    story.waits(2, version)
    shown = story.shown()
    assert (shown['edriver_rounds_total{cause="resize"}'], shown["edriver_size"]) == (1.0, 3.0)
    assert shown['edriver_interruptions_total{cause="resize"}'] == 1.0
    assert shown['edriver_workers{state="training"}'] == 3.0


def test_where_hosts_stand() -> None:
    story = Story()
    story.hosts(a=2, b=1, c=1, d=1)
    story.take(events.AgentConnected("a", 1), events.AgentConnected("c", 3), events.AgentConnected("d", 4))
    story.take(events.DrainRequested("c", None, "by hand"))
    state = story.membership
    state.placement.quarantine.exclude(state.roster.hosts["d"], math.inf)
    shown = story.shown()
    states = ("used", "starting", "quarantined", "leaving", "unreachable")
    assert [shown[f'edriver_hosts{{state="{state}"}}'] for state in states] == [1, 1, 1, 1, 0]
    assert 'host="' not in story.text()


def test_what_the_script_says() -> None:
    story = Story()
    story.begun()
    assert "edriver_epoch" not in story.shown()
    story.says(1, 1, 3, epoch=2, samples_done=40, samples=160, reported={"loss": 0.5, "grad": math.nan})
    shown = story.shown()
    assert [shown[f"edriver_{name}"] for name in ("epoch", "epoch_samples_done", "epoch_samples")] == [2, 40, 160]
    assert shown['edriver_reported{name="loss"}'] == 0.5
    assert math.isnan(shown['edriver_reported{name="grad"}'])
    assert shown["edriver_samples_per_second"] == 0.0


def test_a_script_that_makes_up_ever_new_names_gets_no_more_series() -> None:
    story = Story()
    story.begun()
    names: set[str] = set()
    for turn in range(5):
        story.says(1, 1, turn, reported={f"loss {turn} {n}": 1.0 for n in range(MAX_REPORTED_NAMES)})
        names |= {name for name in story.shown() if name.startswith("edriver_reported")}
    assert len(names) == MAX_REPORTED_NAMES
    story = Story()
    story.begun()
    story.says(1, 1, 1, reported={"x" * (MAX_NAME_LENGTH + 1): 1.0, 'a"}\n': 2.0})
    assert 'edriver_reported{name="a\\"}\\n"} 2.0' in story.text()
    assert "xx" not in story.text()


def test_discovery() -> None:
    story = Story()
    story.polls.add(1000.0, 1000.25, believed=True)
    story.polls.add(1002.0, 1002.5, believed=False)
    shown = story.shown()
    assert shown['edriver_discovery_polls_total{result="answered"}'] == 1.0
    assert shown['edriver_discovery_polls_total{result="failed"}'] == 1.0
    assert shown["edriver_discovery_last_poll_seconds"] == 0.5
    assert shown["edriver_discovery_last_success_timestamp_seconds"] == 1000.25


@pytest.mark.parametrize("received", [-5, 5])
def test_times_that_go_back_spoil_no_sum(received: int) -> None:
    story = Story()
    times = notification_pb2.RoundTimes(built=timestamp(1.0), synced=timestamp(0.0), received_bytes=received)
    story.event_history.view.fold(
        status_pb2.Event(
            seq=1,
            round=status_pb2.Round(
                kind=status_pb2.ROUND_KIND_FAILURE,
                first_step_time=timestamp(1.0),
                phases=status_pb2.RecoveryPhases(sync=duration(-1.0)),
                members=[status_pb2.Member(times=times)],
            ),
        )
    )
    shown = story.shown()
    assert shown["edriver_sync_seconds_total"] == 0.0
    assert shown['edriver_recovery_seconds_sum{cause="failure",phase="sync"}'] == 0.0
    assert shown['edriver_recovery_seconds_count{cause="failure",phase="sync"}'] == 1.0


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({"commits": 2**63}, id="commits"),
        pytest.param({"commit_bytes": 2**63}, id="bytes"),
        pytest.param({"commit_duration": Duration(seconds=2**60)}, id="seconds"),
    ],
)
def test_invalid_sums_are_refused(message: dict[str, float]) -> None:
    story = Story()
    story.begun()
    with pytest.raises(ValueError, match="it says that worker 1 has made"):
        story.says(1, 1, 3, **message)
    assert story.shown()["edriver_commits_total"] == 0.0


def beat(worker_id: int, **fields: Any) -> agent_pb2.WorkerHeartbeat:
    return agent_pb2.WorkerHeartbeat(worker_id=worker_id, usage=resources_pb2.WorkerUsage(**fields))


def test_what_hosts_and_workers_use() -> None:
    story = Story()
    story.begun()
    gpu = resources_pb2.GpuUsage(index=3, utilization=0.75, memory_bytes=10, memory_limit_bytes=80)
    lost = resources_pb2.GpuUsage(index=4, memory_bytes=1, memory_limit_bytes=80)
    first = beat(1, cpu_seconds=7.5, resident_bytes=200, processes=3, gpu_memory_bytes=9)
    story.uses(
        "a", first, beat(2, cpu_seconds=1.0), cpu_seconds=100.0, memory_bytes=5, memory_kills=1, gpus=[gpu, lost]
    )
    shown = story.shown()
    assert shown['edriver_worker_cpu_seconds_total{host="a",slot="0"}'] == 7.5
    assert shown['edriver_worker_cpu_seconds_total{host="a",slot="1"}'] == 1.0
    assert shown['edriver_worker_resident_memory_bytes{host="a",slot="0"}'] == 200
    assert shown['edriver_worker_gpu_memory_bytes{host="a",slot="0"}'] == 9
    assert 'edriver_worker_gpu_memory_bytes{host="a",slot="1"}' not in shown
    assert shown['edriver_host_cpu_seconds_total{host="a"}'] == 100.0
    assert shown['edriver_host_memory_kills_total{host="a"}'] == 1
    assert shown['edriver_gpu_utilization_ratio{gpu="3",host="a"}'] == 0.75
    assert shown['edriver_gpu_memory_bytes{gpu="4",host="a"}'] == 1
    assert 'edriver_gpu_utilization_ratio{gpu="4",host="a"}' not in shown


def test_a_slot_has_the_series_of_its_latest_worker_and_what_is_gone_has_none() -> None:
    story = Story()
    story.begun()
    story.uses("a", beat(1, cpu_seconds=7.5), beat(2, cpu_seconds=9.0), beat(99, cpu_seconds=1.0))
    story.take(events.WorkerExited(2, -9, reaped=1004.5))
    slots = [name for name in story.shown() if name.startswith("edriver_worker_cpu_seconds")]
    assert slots == ['edriver_worker_cpu_seconds_total{host="a",slot="0"}']


def names_in(text: str) -> set[str]:
    """The names of edriver's metrics in a text, without what Prometheus adds to a histogram's."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bedriver_\w+", text)}


def test_the_documents_name_every_metric_and_no_other() -> None:
    story = recovered()
    story.says(1, 2, 5, epoch=1, samples_done=1, samples=2, reported={"loss": 1.0})
    story.polls.add(1.0, 2.0, believed=True)
    story.take(events.StopRequested("enough"))
    used = resources_pb2.WorkerUsage(gpu_memory_bytes=1)
    gpus = [resources_pb2.GpuUsage(utilization=0.5)]
    story.uses("a", agent_pb2.WorkerHeartbeat(worker_id=1, usage=used), gpus=gpus)
    lines = story.text().splitlines()
    exposed = names_in("\n".join(line for line in lines if line.startswith("# TYPE") or not line.startswith("#")))
    assert names_in(metrics.page()) == exposed
    dashboard = json.loads((DOCS / "grafana" / "edriver.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert names_in("\n".join(asked)) <= exposed
    assert names_in((DOCS / "grafana" / "alerts.yml").read_text()) <= exposed


@pytest.mark.needs(needs.PROMETHEUS)
def test_prometheus_finds_no_fault_with_the_names() -> None:
    story = recovered()
    story.says(1, 2, 5, epoch=1, samples_done=1, samples=2, reported={"loss": 1.0})
    story.polls.add(1.0, 2.0, believed=True)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=story.text(), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.needs(needs.PROMETHEUS)
def test_prometheus_finds_no_fault_with_the_alerts() -> None:
    rules = DOCS / "grafana" / "alerts.yml"
    done = subprocess.run(["promtool", "check", "rules", str(rules)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "SUCCESS: 9 rules found" in done.stdout


@pytest.mark.needs(needs.PROMETHEUS)
def test_alerts_go_off_when_they_should_and_only_then() -> None:
    cases = Path(__file__).with_name("alerts_test.yml")
    done = subprocess.run(["promtool", "test", "rules", str(cases)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
