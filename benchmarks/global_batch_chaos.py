"""CHAOS of steps of a constant number of samples: kills, stops, drains and resizes, most of them inside a step.

python -m benchmarks.global_batch_chaos --schedules N [--seed S]  prints a line for each schedule, and a JSON object

Up to four workers on two hosts make steps of 12 micro-batches. A schedule is one to four disturbances after random
pauses; then what was taken is given back, and all four workers train again. From then on

* in every step that a rank has written down, each sample of the undisturbed run's step has counted once, and no other;
* the model is that of the undisturbed run after as many steps, but for the order of summation;
* no round has lost a step.

Where as many were killed or stopped as a round had workers, what they had trained is lost with them, and the run ends
or begins anew.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any, Final

from benchmarks.chaos import DisturbedRun, Verdict, chaos
from benchmarks.global_batch_chaos_job import Undisturbed

TOLERANCE: Final = 1e-9
"""Of what float64 sums in another order differ by; a sample that counts twice changes the model by 1e-5 and more."""


class GlobalBatchRun(DisturbedRun):
    """A run of four workers that each hold the whole state."""

    JOB = "global_batch_chaos_job.py"
    FLAGS = ()
    SIZES = (1, 2, 3, 4)


def faults_in(lines: list[dict[str, Any]], undisturbed: Undisturbed) -> list[str]:
    """What is wrong with the steps that ranks have written down."""
    faults = []
    for line in lines:
        if line["what"] != "notes":
            continue
        numbers, projection = undisturbed.after(line["step"])
        who = f"rank {line['rank']} of {line['size']} at step {line['step']}"
        if line["numbers"] != numbers or line["worst"] > TOLERANCE:
            faults.append(f"{who}: not each sample of the step has counted once, but {line['numbers']}")
        if abs(line["projection"] - projection) > TOLERANCE:
            faults.append(f"{who}: another model, by {abs(line['projection'] - projection):.1e}")
    return faults


def schedule(run: GlobalBatchRun, seed: int, undisturbed: Undisturbed) -> Verdict:
    """Do one, on a run that trains."""
    began, lost = time.monotonic(), run.steps_lost()
    done = run.disturb(random.Random(seed))
    try:
        goes_on = run.wait_for_training(time.monotonic())
    except TimeoutError as error:
        return Verdict(", ".join(done), [str(error)])
    found = [line for line in run.lines() if line["at"] > began]
    faults = faults_in(found, undisturbed)
    # A worker that is stopped for longer than its lease is given up.
    hurt = sum(what.startswith(("kill rank", "stop")) for what in done)
    all_lost = hurt >= min(line["size"] for line in found)
    if run.steps_lost() != lost and not all_lost:
        faults.append(f"{run.steps_lost() - lost} steps lost")
    if not goes_on and not all_lost:
        faults.append("the run has ended")
    return Verdict(", ".join(done), faults, over="" if goes_on else "ok: all workers were lost, and the run ended")


def main() -> int:
    """Do as many schedules as are asked for; 1 if anything was wrong."""
    undisturbed = Undisturbed()
    done = chaos("global_batch_chaos", GlobalBatchRun, lambda run, seed: schedule(run, seed, undisturbed))
    print(json.dumps(done))
    return min(1, done["faulty"])


if __name__ == "__main__":
    sys.exit(main())
