"""What strangers who connect and say nothing cost a run: `python -m benchmarks.idle_connections`. As root.

Two workers train on two hosts (network namespaces). In turns a third host opens 1,100 connections to each of a worker's
two ports, its store's and its Gloo listener's, or does not. The third host's process gives way to all others, since it
would sit on another machine. Prints one JSON object:

- ratio: steps a second with these connections, by those without; the median of the turns.
- ratios: of each turn.
- lost: workers that ended meanwhile.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.jobs import Workload, end_well_on_sigterm
from benchmarks.under_edriver import EdriverJob
from tests.attacks.test_idle_connections import strangers
from tests.process.sites import Site, environment_of, site

WARM_STEPS, TURN_SECONDS, SETTLING = 50, 3.0, 1.0
EACH = 1100
"""Connections to each of a worker's two ports."""

WORKLOAD = Workload(samples=4096, batch_size=8, hidden=64, step_seconds=0.01)


def rate(job: EdriverJob) -> float:
    """Steps a second, for a while."""
    time.sleep(SETTLING)
    began = time.monotonic()
    time.sleep(TURN_SECONDS)
    ended = time.monotonic()
    job.look()
    return job.history.counted_steps(began, ended) / (ended - began)


def workers(there: Site) -> list[int]:
    """The workers' processes."""
    commands = there.processes().items()
    return [pid for pid, text in commands if "churn_job" in text and "EDRIVER_WORKER_ID" in environment_of(pid)]


def measure(turns: int) -> dict[str, object]:
    """Let a run train, with the connections in every second turn."""
    ratios = []
    with tempfile.TemporaryDirectory() as folder, site(Path(folder)) as there:
        environ = {"PATH": there.ssh.path, "TMPDIR": str(there.ssh.temporary / "host0")}
        with EdriverJob(WORKLOAD, ["ip", "netns", "exec", there.hosts[0].namespace], environ) as job:
            job.start({"host1": 1, "host2": 1}, np=2, max_np=2)
            job.wait_for_steps(size=2, steps=WARM_STEPS)
            first = set(workers(there))
            one, other = first
            for _ in range(turns):
                quiet = rate(job)
                with strangers(there.hosts[0], one, EACH), strangers(there.hosts[0], other, EACH):
                    ratios.append(rate(job) / quiet)
            lost = len(first - set(workers(there)))
            job.finish()
    return {"ratio": round(median(ratios), 3), "ratios": [round(ratio, 3) for ratio in ratios], "lost": lost}


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle_connections")
    parser.add_argument("--turns", type=int, default=30, help="(default: %(default)s)")
    flags = parser.parse_args()
    end_well_on_sigterm()
    print(json.dumps(measure(flags.turns)))


if __name__ == "__main__":
    main()
