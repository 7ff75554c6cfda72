"""CHAOS of sharded training: kills, stops, drains and resizes at random, and what is left of the bits.

python -m benchmarks.sharded_chaos --schedules N [--seed S]      prints a line for each schedule, and a JSON object

Two replicas of two workers on two hosts train without a commit. A schedule is one to four disturbances after random
pauses; then what was taken is given back, and all four workers train again. From then on

* every digest that a rank has written down is that of an undisturbed run at the same step and position;
* no round has lost a step.

If as many workers were killed or stopped as there were replicas, the newest state of a position may be lost. Then the
run says so, and ends, or goes on from the older state of workers that had left training.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

from benchmarks.chaos import DisturbedRun, chaos, disturbed_schedule
from benchmarks.sharded_chaos_job import SHARDS, Undisturbed


class ShardedRun(DisturbedRun):
    """A run of two replicas of two workers."""

    JOB = "sharded_chaos_job.py"
    FLAGS = ("--replica-size", str(SHARDS))
    SIZES = (2, 4)
    HOLDERS = SHARDS


def faults_in(lines: list[dict[str, Any]], undisturbed: Undisturbed) -> list[str]:
    """What is wrong with the digests that ranks have written down."""
    return [
        f"rank {line['rank']} of {line['size']} has other bits at step {line['step']}"
        for line in lines
        if line["what"] == "notes" and line["digest"] != undisturbed.digests(line["step"])[line["rank"] % SHARDS]
    ]


def main() -> int:
    """Do as many schedules as are asked for; 1 if anything was wrong."""
    faults_of = partial(faults_in, undisturbed=Undisturbed())
    done = chaos("sharded_chaos", ShardedRun, partial(disturbed_schedule, faults_in=faults_of))
    print(json.dumps(done))
    return min(1, done["faulty"])


if __name__ == "__main__":
    sys.exit(main())
