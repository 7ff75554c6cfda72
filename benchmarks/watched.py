"""What watchers and queries cost a run: `python -m benchmarks.watched`.

Two workers train. In every second turn 50 watchers and 100 queries a second ask the driver. The watchers are one
process at the lowest priority, since they would run on other machines. This is done twice: for workers that wait, as
for a GPU, and for workers that compute. Prints one JSON object with an object for each, `waiting` and `computing`:

- ratio: steps a second while it is watched, by those while it is not; the median of the turns.
- driver, watched_driver: the part of a core that the driver needs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from statistics import median

from benchmarks.jobs import ROOT, Workload, end_well_on_sigterm
from benchmarks.processes import usage_of
from benchmarks.under_edriver import EdriverJob
from edriver.agent.workers.priority import ENDED_NICENESS, lower
from edriver.client import here

WORKERS, WARM_STEPS = 2, 50
TURN_SECONDS = 8.0
SETTLING = 4.0
"""Seconds that watchers have to come, and to go."""


class Turn:
    """A span of time in which the run was watched, or was not.

    Attributes:
        rate: steps a second.
        core: the part of a core that the driver needed.
    """

    def __init__(self, job: EdriverJob) -> None:
        time.sleep(SETTLING)
        before, began = usage_of(job.driver).seconds, time.monotonic()
        time.sleep(TURN_SECONDS)
        ended = time.monotonic()
        self.core = (usage_of(job.driver).seconds - before) / (ended - began)
        job.look()
        self.rate = job.history.counted_steps(began, ended) / (ended - began)


LOADS = {
    "waiting": Workload(samples=4096, batch_size=8, hidden=64, step_seconds=0.01),
    "computing": Workload(samples=4096, batch_size=64, hidden=512, step_seconds=0.0),
}
"""What the workers do in a step."""


def measure(workload: Workload, turns: int) -> dict[str, float]:
    """Let a run train, watched in every second turn."""
    with EdriverJob(workload) as job:
        job.start({"localhost": WORKERS}, np=WORKERS, max_np=WORKERS)
        job.wait_for_steps(size=WORKERS, steps=WARM_STEPS)
        target = here(_run_id(job)).target
        quiet, watched = [], []
        for _ in range(turns):
            quiet.append(Turn(job))
            watchers = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.status_speed", "--as-client", "load", target],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            os.setpriority(os.PRIO_PROCESS, watchers.pid, ENDED_NICENESS)
            lower(watchers.pid, ENDED_NICENESS)  # where the kernel schedules by session, that alone counts
            watched.append(Turn(job))
            watchers.wait()
        job.finish()
    return {
        "ratio": round(median(two.rate / one.rate for one, two in zip(quiet, watched, strict=True)), 3),
        "driver": round(median(turn.core for turn in quiet), 3),
        "watched_driver": round(median(turn.core for turn in watched), 3),
    }


def _run_id(job: EdriverJob) -> str:
    output = (job.folder / "output-0.txt").read_text()
    return output.partition("edriver: run ")[2].partition(":")[0]


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watched")
    parser.add_argument("--turns", type=int, default=5, help="(default: %(default)s)")
    flags = parser.parse_args()
    end_well_on_sigterm()
    print(json.dumps({name: measure(load, flags.turns) for name, load in LOADS.items()}, indent=1))


if __name__ == "__main__":
    main()
