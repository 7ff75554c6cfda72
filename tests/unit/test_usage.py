"""What the driver knows of the use of resources, what is kept of it over time, and what pages and reports get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edriver.dashboard.report import facts, recorded_run
from edriver.driver.core.roster import Roster
from edriver.driver.observe.hosts.usage import MAX_SAMPLED_HOSTS, UsageTracker
from edriver.driver.observe.records.record_file import RecordFile
from edriver.driver.observe.records.recorder import Recorder, UsageWriter
from edriver.history.records import records_of
from edriver.model.hosts import Host, HostSet
from edriver.model.limits import MAX_AMOUNT, OutOfBoundsError
from edriver.model.records import Worker, WorkerState
from edriver.runview.history import History
from edriver.runview.usage import MAX_DRAWN_HOSTS, MAX_POINTS, SAMPLE_INTERVAL, UsageHistory, sum_of
from edriver.text.event_lines import event_line, usage_line
from edriver.text.usage_text import host_usage_text, worker_usage_text
from edriver.v1 import agent_pb2, resources_pb2, status_pb2
from edriver.wire import message_limits
from edriver.wire.conversion import timestamp

MIB, GIB = 1 << 20, 1 << 30


def host_usage(memory: int = 3 * GIB, **more: Any) -> resources_pb2.HostUsage:
    known = {"cpu_cores": 1.5, "received_bytes_per_second": 10.0, "sent_bytes_per_second": 20.0, **more}
    return resources_pb2.HostUsage(cpu_limit_cores=8, memory_bytes=memory, memory_limit_bytes=32 * GIB, **known)


def beat(worker_id: int = 0, host: resources_pb2.HostUsage | None = None, **used: Any) -> agent_pb2.Heartbeat:
    usage = resources_pb2.WorkerUsage(**used)
    workers = [agent_pb2.WorkerHeartbeat(worker_id=worker_id, usage=usage)] if worker_id else []
    return agent_pb2.Heartbeat(usage=host, workers=workers)


def roster_of(*hosts: str) -> Roster:
    """Hosts with one worker each, numbered from 1."""
    roster = Roster()
    roster.observe(HostSet(tuple(Host(name, 1) for name in hosts)))
    for number, name in enumerate(hosts, start=1):
        roster.hosts[name].connected = True
        roster.workers[number] = Worker(number, name, 0, WorkerState.TRAINING, rank=number - 1)
    return roster


def test_what_is_there_is_in_the_run_and_what_is_gone_is_forgotten() -> None:
    roster = roster_of("a", "b")
    tracker = UsageTracker(roster)
    tracker.record("a", beat(1, host_usage(), resident_bytes=5))
    tracker.record("b", beat(2, resident_bytes=6))
    tracker.record("b", beat(99, resident_bytes=7))
    run = status_pb2.Run()
    for name in ("a", "b"):
        run.hosts.add(name=name)
    run.workers.add(worker_id=1)
    run.workers.add(worker_id=3)
    tracker.fill(run)
    assert [host.HasField("usage") for host in run.hosts] == [True, False]
    assert [worker.usage.resident_bytes for worker in run.workers] == [5, 0]
    assert not run.workers[1].HasField("usage")
    roster.hosts["a"].connected = False
    del roster.workers[1]
    assert tracker.sample(100.0) is None
    assert (tracker.hosts, list(tracker.workers)) == ({}, [2])


def test_samples_are_kept_over_time_without_gpus_and_with_their_sum() -> None:
    names = [f"h{number:03}" for number in range(MAX_SAMPLED_HOSTS + 5)]
    tracker = UsageTracker(roster_of(*names))
    gpus = [resources_pb2.GpuUsage(uuid="GPU-1")]
    for name in names:
        tracker.record(name, beat(host=host_usage(memory=1, gpus=gpus, gpu_utilization=0.5)))
    sample = tracker.sample(100.0)
    assert sample is not None
    assert tracker.sample(100.0 + SAMPLE_INTERVAL / 2) is None
    assert tracker.sample(100.0 + SAMPLE_INTERVAL) is not None
    assert next(tracker.samples()) == sample
    assert len(sample.hosts) == MAX_SAMPLED_HOSTS
    assert not sample.hosts["h000"].gpus
    assert (sample.host_count, sample.total.memory_bytes, sample.total.gpu_utilization) == (len(names), len(names), 0.5)
    for second in range(10_000):
        tracker.sample(200.0 + 2 * second)
    assert len(list(tracker.samples())) <= 2000


def test_many_hosts_are_added_up_more_rarely() -> None:
    names = [f"h{number:04}" for number in range(1000)]
    tracker = UsageTracker(roster_of(*names))
    for name in names:
        tracker.record(name, beat(host=host_usage()))
    sampled = [second for second in range(40) if tracker.sample(100.0 + second) is not None]
    assert sampled == [0, 10, 20, 30]


def test_a_sum_has_what_is_known_of_any_and_a_bound() -> None:
    used = [host_usage(), resources_pb2.HostUsage(memory_bytes=MAX_AMOUNT), resources_pb2.HostUsage()]
    total = sum_of(used)
    assert (total.cpu_cores, total.memory_bytes) == (1.5, MAX_AMOUNT)
    assert not total.HasField("gpu_memory_bytes")


@pytest.mark.parametrize(
    "heartbeat",
    [
        pytest.param(beat(host=resources_pb2.HostUsage(cpu_seconds=-1.0)), id="negative"),
        pytest.param(beat(host=resources_pb2.HostUsage(cpu_cores=float("nan"))), id="nan"),
        pytest.param(beat(host=resources_pb2.HostUsage(memory_bytes=MAX_AMOUNT + 1)), id="host"),
        pytest.param(beat(1, resident_bytes=2**63), id="worker"),
        pytest.param(beat(host=resources_pb2.HostUsage(gpus=[resources_pb2.GpuUsage(memory_bytes=2**63)])), id="gpu"),
    ],
)
def test_amounts_that_cannot_be_are_refused(heartbeat: agent_pb2.Heartbeat) -> None:
    with pytest.raises(OutOfBoundsError):
        message_limits.check(agent_pb2.ConnectRequest(heartbeat=heartbeat))


def test_in_words() -> None:
    assert host_usage_text(host_usage()) == "1.5 of 8 cores, 3.0 of 32.0 GiB of memory, network 10 B/s in, 20 B/s out"
    gpus = {"gpu_utilization": 0.87, "gpu_memory_bytes": 40 * GIB, "gpu_memory_limit_bytes": 80 * GIB}
    assert host_usage_text(host_usage(memory=900 * MIB, **gpus, memory_kills=2, standbys=1)) == (
        "1.5 of 8 cores, 900 MiB of 32.0 GiB of memory, network 10 B/s in, 20 B/s out, GPUs 87 %, 40.0 of 80.0 GiB, "
        "2 killed, out of memory, 1 standby"
    )
    first = resources_pb2.WorkerUsage(resident_bytes=200 * MIB, processes=1)
    assert worker_usage_text(first) == "200 MiB"
    used = resources_pb2.WorkerUsage(
        cpu_cores=0.256, resident_bytes=2 * GIB, processes=5, gpus=[1], gpu_utilization=0.5, gpu_memory_bytes=GIB
    )
    assert worker_usage_text(used) == "0.26 cores, 2.0 GiB in 5 processes, GPU 1 50 %, 1.0 GiB"


# ---- over time


def sample_of(time: float, *hosts: str, memory: int = 1) -> resources_pb2.UsageSample:
    sample = resources_pb2.UsageSample(time=timestamp(time), host_count=len(hosts))
    for name in hosts:
        sample.hosts[name].CopyFrom(host_usage(memory=memory))
    sample.total.CopyFrom(sum_of(sample.hosts.values()))
    return sample


def test_a_page_gets_what_is_new() -> None:
    usage = UsageHistory()
    assert usage.since(0) == {}
    usage.add(1, sample_of(10.0, "b", "a"))
    usage.add(2, sample_of(12.0, "a", memory=7))
    everything = usage.since(0)
    assert [sorted(used) for _, used in everything["points"]] == [["", "a", "b"], ["a"]]
    assert [row["host"] for row in everything["rows"]] == ["a"]
    assert everything["points"][1] == (12.0, {"a": (1.5, 7, 10, 20, None, None)})
    assert usage.since(1)["points"] == [(12.0, {"a": (1.5, 7, 10, 20, None, None)})]
    assert usage.since(2) == {}
    assert usage.most_memory == {"a": 7, "b": 1}
    json.dumps(everything, allow_nan=False)


def test_a_look_has_the_workers_of_each_host_in_order() -> None:
    usage = UsageHistory()
    run = status_pb2.Run(now=timestamp(10.0))
    for name in ("b", "a", "new"):
        run.hosts.add(name=name, usage=None if name == "new" else host_usage())
    worker = resources_pb2.WorkerUsage(cpu_cores=0.5, resident_bytes=9)
    run.workers.add(worker_id=3, host="a", slot=1, usage=worker)
    run.workers.add(worker_id=2, host="a", slot=0, rank=4, usage=worker)
    run.workers.add(worker_id=4, host="b", slot=0)
    usage.look(1, run)
    rows = usage.since(0)["rows"]
    assert [(row["host"], row["slot"], row["rank"]) for row in rows] == [
        ("b", None, None),
        ("a", None, None),
        ("a", 0, 4),
        ("a", 1, None),
    ]
    assert rows[0]["limits"] == (8, 32 * GIB, 0)
    assert rows[2]["used"] == (0.5, 9, None, None, None, None)


def test_many_hosts_are_drawn_together() -> None:
    usage = UsageHistory()
    usage.add(1, sample_of(10.0, *(f"h{number}" for number in range(100))))
    ((_, used),) = usage.since(0)["points"]
    assert len(used) == MAX_DRAWN_HOSTS + 1
    assert used[""][0] == 150.0


def test_a_run_of_a_month_is_thinned() -> None:
    usage = UsageHistory()
    for number in range(20_000):
        usage.add(number + 1, sample_of(120.0 * number, "a"))
    assert MAX_POINTS / 2 <= len(usage.points) <= MAX_POINTS
    assert len(usage.since(20_000 - 1)["points"]) <= 1


# ---- in the records


def test_lines_are_written_ever_more_seldom_and_read_again(tmp_path: Path) -> None:
    now = [0.0]
    file = tmp_path / "usage.jsonl"
    recorder = Recorder([UsageWriter(RecordFile(file, "record"))], 0.0, lambda: now[0], delay=0.0)
    recorder.start()
    for second in range(0, 100_000, 10):
        now[0] = float(second)
        recorder.usage(sample_of(now[0], "a", memory=second))
    recorder.close()
    lines = file.read_text().splitlines()
    assert 1000 < len(lines) < 2000
    file.write_text("\n".join([lines[0], "{broken", *lines[1:]]) + "\n" + '{"torn')
    event = status_pb2.Event(seq=1, time=timestamp(1.0), text="began", remark=status_pb2.Remark())
    (tmp_path / "events.jsonl").write_text(event_line(event))
    recorded = recorded_run(records_of(str(tmp_path)))
    assert MAX_POINTS / 2 <= len(recorded.history.usage.points) <= MAX_POINTS
    told = dict(facts(recorded))
    assert told["left out"] == "1 line about what hosts used, which cannot be read"
    assert told["memory"].startswith("at most, on a 97")


def test_a_history_without_it_says_nothing_of_it() -> None:
    history = History()
    history.fold(status_pb2.Event(seq=1, time=timestamp(1.0), text="began", remark=status_pb2.Remark()))
    assert "usage" not in history.since(0)
    history.sample_usage(sample_of(2.0, "a"))
    assert history.since(1)["usage"]["rows"]
    assert usage_line(sample_of(2.0, "a")).endswith("}\n")
