"""HSDP: 2 replicas x 2 shards of 25 M parameters with Adam, over Gloo: recovery, joining, the seal, speed, equal bits.

    python -m benchmarks.sharded_recovery [--quick] [--repeats 3] [--only "HSDP K1" "HSDP SEAL"]

Prints a JSON line for each trial, as soon as it has ended, and at the end one for each goal, judged by the medians of
this run. `make bench` has the same trials among all others. torchft's HSDP takes part where torchft is installed; on a
machine that does nothing else, this installs it in a folder of its own, and measures:

    make sharded-bench REPEATS=5 PARTS='"HSDP K1" "HSDP K0"'
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from benchmarks.figures import Figures
from benchmarks.goals import GOALS, judge
from benchmarks.jobs import HarnessError, end_well_on_sigterm
from benchmarks.trials import sharded_trials


def main() -> int:
    """Measure; returns 1 if a trial came to nothing."""
    flags = _flags()
    end_well_on_sigterm()
    figures, failed = Figures(), False
    chosen = [trial for trial in sharded_trials(flags.quick) if trial.part in flags.only]
    for repeat in range(flags.repeats):
        for trial in (trial for trial in chosen if repeat == 0 or not trial.once):
            line: dict[str, object] = {"part": trial.part, "system": trial.system}
            try:
                found = trial.run()
            except (HarnessError, subprocess.SubprocessError, OSError, ValueError, LookupError) as error:
                failed = True
                _print({**line, "failed": str(error)})
            else:
                figures.add(trial.part, trial.system, found)
                _print({**line, **found})
    measured = {key.part for key in figures}
    for goal in GOALS:
        if goal.of.part in measured and goal.of.part.startswith("HSDP"):
            judged = judge(goal, figures)
            _print({"goal": goal.what, "bound": goal.bound, "measured": judged.value, "met": judged.connected})
    return 1 if failed else 0


def _print(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


def _flags() -> argparse.Namespace:
    parts = list(dict.fromkeys(trial.part for trial in sharded_trials()))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded_recovery")
    parser.add_argument(
        "--quick", action="store_true", help="a small model, 2 kills, few turns: does the harness work?"
    )
    parser.add_argument("--repeats", type=int, default=1, help="runs of each (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, help="only these")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
