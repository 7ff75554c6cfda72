"""How soon a library's own training loop goes on after a kill, against a loop of one's own: the same model, in turn.

    python -m benchmarks.library_recovery [--workers 3] [--kills 5] [--only trainer keras]

Needs what the extra `libraries` installs. A kill's time is from the signal to the end of the survivors' first step in
the next round.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from benchmarks.horovod_recovery import kills

JOB = Path(__file__).with_name("library_job.py")
KINDS = ("native", "accelerate", "trainer", "lightning", "keras")


def main() -> None:
    """Print each kind's times, and their ratio to the native ones."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--workers", type=int, default=3)
    arguments.add_argument("--kills", type=int, default=5, help="of each, in each of two runs")
    arguments.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    given = arguments.parse_args()
    kinds = sorted({"native", *given.only}, key=KINDS.index)
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for kind in (*kinds, *reversed(kinds)):
        times[kind].extend(kills(JOB, kind, given.workers, given.kills))
    native = statistics.median(times["native"])
    for kind, each in times.items():
        median = statistics.median(each)
        print(
            f"{kind}: median {median * 1e3:.0f} ms, {median / native:.2f} times the native one, "
            f"of {sorted(round(seconds * 1e3) for seconds in each)}"
        )


if __name__ == "__main__":
    main()
