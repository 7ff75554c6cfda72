"""How soon a script for Horovod trains again after a kill, against one written for edriver: the same job, in turn.

    python -m benchmarks.horovod_recovery [--workers 3] [--kills 5]

A kill's time is from the signal to the end of the survivors' first step in the next round.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

JOB = Path(__file__).with_name("horovod_job.py")
STEPS_BEFORE = 20
"""How many steps a full round makes before one of its workers is killed."""

_STEP = re.compile(r"rank (\d+) of (\d+) pid (\d+) step (\d+) at ([\d.]+)")


def kills(job: Path, kind: str, workers: int, count: int) -> Iterator[float]:
    """Start a run, kill its last worker again and again, and yield the seconds until the others have made a step.

    Args:
        job: a script that prints a line after each step, as horovod_job.passed does.
        kind: its argument.
        workers: the size of a full round.
        count: how many kills.
    """
    command = [sys.executable, "-m", "edriver", "-np", str(workers), "--min-np", "1", "--cooldown-range", "0.1", "0.2"]
    run = subprocess.Popen(
        [*command, "--no-records", sys.executable, str(job), kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.stdout is not None
    pids: dict[int, int] = {}
    full_steps, killed_at = 0, 0.0
    try:
        for line in run.stdout:
            if not (found := _STEP.search(line)):
                continue
            rank, size, pid = map(int, found.groups()[:3])
            if killed_at and size < workers:
                yield float(found[5]) - killed_at
                killed_at, full_steps = 0.0, 0
                pids.clear()
                count -= 1
                if not count:
                    return
            elif size == workers:
                pids[rank] = pid
                full_steps += rank == 0
                if full_steps >= STEPS_BEFORE and not killed_at and workers - 1 in pids:
                    killed_at = time.monotonic()
                    os.kill(pids[workers - 1], signal.SIGKILL)
    finally:
        run.terminate()
        run.communicate()


def main() -> None:
    """Print the times of both, and their ratio."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--workers", type=int, default=3)
    arguments.add_argument("--kills", type=int, default=5, help="of each, in each of two runs")
    given = arguments.parse_args()
    times: dict[str, list[float]] = {"horovod": [], "native": []}
    for kind in ("native", "horovod", "horovod", "native"):
        times[kind].extend(kills(JOB, kind, given.workers, given.kills))
    medians = {kind: statistics.median(each) for kind, each in times.items()}
    for kind, each in times.items():
        print(f"{kind}: median {medians[kind] * 1e3:.0f} ms of {[round(seconds * 1e3) for seconds in each]}")
    print(f"ratio: {medians['horovod'] / medians['native']:.2f}")


if __name__ == "__main__":
    main()
