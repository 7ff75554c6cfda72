"""Run many seeds, or replay one: `python -m tests.sim --seeds 20000`, `python -m tests.sim --seed 17`."""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.sim.campaign import run_seeds
from tests.sim.faults import Nemesis


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="replay this one and print every event and action")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if options.seed is not None:
        print(Nemesis(options.seed, print).run())
        return 0
    start = time.monotonic()
    outcomes, violations = run_seeds(range(options.first, options.first + options.seeds), options.jobs)
    for seed, trouble in violations[:10]:
        print(f"seed {seed}: {trouble}", file=sys.stderr)
    print(f"{options.seeds} seeds in {time.monotonic() - start:.0f} s: {dict(outcomes)}")
    print(f"{options.seeds - len(violations)} passed, {len(violations)} failed")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
