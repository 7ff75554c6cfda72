"""CHAOS of sharded training: kills, stops, drains and resizes at random, and what is left of the bits.

python -m benchmarks.sharded_chaos --schedules N [--seed S]      prints a line for each schedule, and a JSON object

Two replicas of two workers on two hosts train without a commit. A schedule is one to four disturbances after random
pauses; then what was taken is given back, and all four workers train again. From then on

* every digest that a rank has written down is that of an undisturbed run at the same step and position;
* no round has lost a step.

A run may end if as many workers were killed or stopped as there were replicas: then it says that a position is lost.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any, Final

from benchmarks.chaos import DisturbedRun, Verdict, chaos
from benchmarks.sharded_chaos_job import SHARDS, Undisturbed

POSITIONS_LOST: Final = "all workers that held the "


class ShardedRun(DisturbedRun):
    """A run of two replicas of two workers."""

    JOB = "sharded_chaos_job.py"
    FLAGS = ("--replica-size", str(SHARDS))
    SIZES = (2, 4)


def faults_in(lines: list[dict[str, Any]], undisturbed: Undisturbed) -> list[str]:
    """What is wrong with the digests that ranks have written down."""
    return [
        f"rank {line['rank']} of {line['size']} has other bits at step {line['step']}"
        for line in lines
        if line["what"] == "notes" and line["digest"] != undisturbed.digests(line["step"])[line["rank"] % SHARDS]
    ]


def schedule(run: ShardedRun, seed: int, undisturbed: Undisturbed) -> Verdict:
    """Do one, on a run that trains."""
    began, lost = time.monotonic(), run.steps_lost()
    done = run.disturb(random.Random(seed))
    try:
        goes_on = run.wait_for_training(time.monotonic())
    except TimeoutError as error:
        return Verdict(", ".join(done), [str(error)])
    found = [line for line in run.lines() if line["at"] > began]
    faults = faults_in(found, undisturbed)
    if run.steps_lost() != lost:
        faults.append(f"{run.steps_lost() - lost} steps lost")
    replicas = min(line["size"] for line in found) // SHARDS
    hurt = sum(what.startswith(("kill rank", "stop")) for what in done)
    if not goes_on and not (POSITIONS_LOST in run.output() and hurt >= replicas):
        faults.append("the run has ended")
    return Verdict(", ".join(done), faults, over="" if goes_on else "ok: a position was lost, and the run ended")


def main() -> int:
    """Do as many schedules as are asked for; 1 if anything was wrong."""
    undisturbed = Undisturbed()
    done = chaos("sharded_chaos", ShardedRun, lambda run, seed: schedule(run, seed, undisturbed))
    print(json.dumps(done))
    return min(1, done["faulty"])


if __name__ == "__main__":
    sys.exit(main())
