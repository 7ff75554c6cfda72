"""What a real run's worker uses, as status, metrics and records tell it, and as the worker has counted it itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from edriver.client import Client, WorkerStatus, here
from edriver.history.records import UnreadableLine, read_usage
from edriver.wire.conversion import epoch_seconds
from tests.process.running import ROOT, running
from tests.waiting import until

MIB = 1 << 20

HOLDS_AND_BURNS = """
import os, sys, time
held = bytearray(b"1") * (200 << 20)
name = "child" if os.fork() == 0 else "parent"
number = 0
while os.getppid() != 1:
    began = time.process_time()
    while time.process_time() - began < 0.005: pass
    with open(f"{name}.new", "w") as file: file.write(f"{time.time()} {time.process_time()}")
    os.replace(f"{name}.new", name)
    time.sleep(0.015)
"""
"""A worker of two processes, each of which writes down what it has used of processors. It needs no torch."""


def own_count(folder: Path) -> tuple[float, float]:
    """What both processes have used together, and about when."""
    read = [tuple(map(float, (folder / name).read_text().split())) for name in ("parent", "child")]
    return min(at for at, _ in read), sum(used for _, used in read)


def worker_as(client: Client, wanted: Callable[[WorkerStatus], bool]) -> WorkerStatus:
    """The worker, once it is as wanted; looked at whenever the run has an event or makes a sample."""

    def look() -> WorkerStatus | None:
        return next((worker for worker in client.status().workers if wanted(worker)), None)

    return until(look, client.status, every=0.1)


def test_what_a_worker_uses_is_what_it_has_counted_itself(tmp_path: Path) -> None:
    args = ["-np", "1", "--records", "records", "--metrics-port", "0", sys.executable, "-c", HOLDS_AND_BURNS]
    with running(args, tmp_path) as run:
        url = run.line(r"metrics for Prometheus: (\S+)")[1]
        with Client(here(run.id)) as client:
            first = worker_as(client, lambda worker: worker.usage.processes == 2 and worker.usage.HasField("cpu_cores"))
            began, before = own_count(tmp_path)
            target = first.usage.cpu_seconds + 1.0
            last = worker_as(client, lambda worker: worker.usage.cpu_seconds >= target)
            ended, after = own_count(tmp_path)
        share = (after - before) / (ended - began)
        assert last.usage.cpu_seconds == pytest.approx(after, abs=0.4 + 3 * share)  # a sample is up to 3 s old
        assert last.usage.cpu_cores == pytest.approx(share, rel=0.5)
        assert 200 * MIB < last.usage.resident_bytes < 240 * MIB
        shown = subprocess.run(
            [sys.executable, "-m", "edriver", "status", "--run", run.id],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert re.search(r"worker 1 \(localhost:0.*\) \w+, [\d.]+ cores, 2\d\d MiB in 2 processes", shown), shown
        assert re.search(
            r"host localhost \(1 slot\).*; [\d.]+ of \d+ cores, [\d.]+ (.iB )?of [\d.]+ .iB of memory", shown
        )
        metrics = urllib.request.urlopen(url, timeout=60).read().decode()
        counted = re.search(r'edriver_worker_cpu_seconds_total\{host="localhost",slot="0"\} (\S+)', metrics)
        assert counted
        assert float(counted[1]) >= target
    recorded = list(read_usage(next(tmp_path.glob("records/*/usage.jsonl"))))
    samples = [sample for sample in recorded if not isinstance(sample, UnreadableLine)]
    assert len(samples) == len(recorded) >= 2
    times = [epoch_seconds(sample.time) for sample in samples]
    assert times == sorted(times)
    assert all(sample.hosts["localhost"].memory_bytes > 0 for sample in samples)


LOSES_A_CHILD = """
import os, sys, time
child = os.fork()
if child == 0:
    while not os.path.exists("go"): time.sleep(0.02)
    held = bytearray(1500 << 20)
    for at in range(0, len(held), 4096): held[at] = 1
print("child", child, flush=True)
sys.exit(1 if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) else 0)
"""


def test_a_process_that_a_worker_has_started_and_that_is_killed_for_want_of_memory(
    tmp_path: Path, small_cgroup: Path
) -> None:
    within = ["sh", "-c", f'echo $$ > {small_cgroup}/cgroup.procs; exec "$@"', "sh"]
    args = ["-np", "1", "--records", "records", sys.executable, "-c", LOSES_A_CHILD]
    with running(args, tmp_path, through=within) as run:
        child = run.line(r"child (\d+)")[1]
        with Client(here(run.id)) as client:
            worker_as(client, lambda worker: worker.usage.processes == 2)
            (host,) = client.status().hosts
            assert host.usage.memory_limit_bytes == 600 * MIB
        (tmp_path / "go").touch()
        assert run.end() == 1, run.text
        killed = rf"worker 1 \(localhost:0\) lost process {child}, which it had started: out of memory, so the kernel"
        run.line(rf"{killed} killed it \(its cgroup's limit is 600 MiB\)")
        assert run.text.index(f"lost process {child}") < run.text.index("exited with code 1")
    events = [json.loads(line) for line in next(tmp_path.glob("records/*/events.jsonl")).read_text().splitlines()]
    (told,) = [event["cause"] for event in events if "lost process" in event.get("text", "")]
    assert (told["kind"], told["detail"], told["memory_limit"]) == (
        "CAUSE_KIND_CHILD_OUT_OF_MEMORY",
        child,
        str(600 * MIB),
    )
