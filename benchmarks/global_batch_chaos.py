"""CHAOS of steps of a constant number of samples: kills, stops, drains and resizes, most of them inside a step.

python -m benchmarks.global_batch_chaos --schedules N [--seed S]  prints a line for each schedule, and a JSON object

Up to four workers on two hosts make steps of 12 micro-batches. A schedule is one to four disturbances after random
pauses; then what was taken is given back, and all four workers train again. From then on

* in every step that a rank has written down, each sample of the undisturbed run's step has counted once, and no other;
* the model is that of the undisturbed run after as many steps, but for the order of summation;
* no round has lost a step.

Where as many were killed or stopped as a round had workers, what they had trained is lost with them, and the run ends.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any, Final

from benchmarks.chaos import DisturbedRun, chaos, disturbed_schedule
from benchmarks.global_batch_chaos_job import Undisturbed

TOLERANCE: Final = 1e-9
"""Of what float64 sums in another order differ by; a sample that counts twice changes the model by 1e-5 and more."""


class GlobalBatchRun(DisturbedRun):
    """A run of four workers that each hold the whole state."""

    JOB = "global_batch_chaos_job.py"
    FLAGS = ()
    SIZES = (1, 2, 3, 4)
    HOLDERS = 1


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


def main() -> int:
    """Do as many schedules as are asked for; 1 if anything was wrong."""
    faults_of = partial(faults_in, undisturbed=Undisturbed())
    done = chaos("global_batch_chaos", GlobalBatchRun, partial(disturbed_schedule, faults_in=faults_of))
    print(json.dumps(done))
    return min(1, done["faulty"])


if __name__ == "__main__":
    sys.exit(main())
