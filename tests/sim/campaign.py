"""Many seeds at once."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import traceback
from collections import Counter

from tests.sim.faults import Nemesis


def run_seed(seed: int) -> tuple[int, str, str]:
    """Run one seed; returns it with the outcome in a word, and what went wrong."""
    nemesis = Nemesis(seed)
    try:
        end = nemesis.run()
    except AssertionError as error:
        return seed, "violation", f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
    return seed, end.cause.kind.value, ""


def run_seeds(seeds: range, jobs: int) -> tuple[Counter[str], list[tuple[int, str]]]:
    """Run seeds in parallel; returns how they ended, and the violations with their seeds."""
    outcomes: Counter[str] = Counter()
    violations = []
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for seed, outcome, trouble in pool.map(run_seed, seeds, chunksize=20):
            outcomes[outcome] += 1
            if trouble:
                violations.append((seed, trouble))
    return outcomes, violations
