"""`make bench`: everything that edriver must reach, measured in one invocation beside what it is compared with.

    python -m benchmarks.bench [--repeats 5] [--only K1 UP] [--page docs/benchmarks/recovery.md] [--picture FILE]

The systems take turns, repeat by repeat. --repeats 1 --only K1 K0 UP DOWN is a quick look at churn.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import subprocess
import sys
import time
import traceback
from pathlib import Path

from benchmarks import report
from benchmarks.figures import unit_of
from benchmarks.jobs import HarnessError, end_well_on_sigterm
from benchmarks.picture import draw
from benchmarks.trials import Trial, trials


def main() -> int:
    """Run what was asked for; returns 1 if a trial came to nothing."""
    flags = _flags()
    end_well_on_sigterm()
    queue = _queue(trials(flags.commit_steps, flags.seed), flags.only, flags.repeats)
    _say(f"{len(queue)} trials, about {sum(trial.seconds for trial in queue) / 60:.0f} minutes")
    results = report.Results(
        command=shlex.join(["python", "-m", "benchmarks.bench", *sys.argv[1:]]),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        load=os.getloadavg()[0],
        repeats=flags.repeats,
    )
    for number, trial in enumerate(queue, start=1):
        _measure(results, trial, f"{number} of {len(queue)}: {trial.part}, {trial.system}")
    results.load_after = os.getloadavg()[0]
    print(report.tables(results.figures))
    if flags.picture:
        draw(results.figures, flags.picture)
    if flags.page:
        picture = os.path.relpath(flags.picture, flags.page.parent) if flags.picture else ""
        flags.page.write_text(report.page(results, picture))
    return 1 if results.failures else 0


def _queue(found: list[Trial], only: list[str], repeats: int) -> list[Trial]:
    """The trials in their order, interleaved: all of the first repeat, then all of the second."""
    chosen = [trial for trial in found if trial.part in only]
    return [trial for repeat in range(repeats) for trial in chosen if repeat == 0 or not trial.once]


def _measure(results: report.Results, trial: Trial, what: str) -> None:
    began = time.monotonic()
    try:
        found = trial.run()
    except (HarnessError, subprocess.SubprocessError, OSError, ValueError, LookupError) as error:
        # One trial that comes to nothing, for whatever reason, must not cost what all others gave.
        results.failures.append(f"{trial.part}, {trial.system}: {getattr(error, 'what', error)}")
        _say(f"{what}: {traceback.format_exc()}")
        return
    results.figures.add(trial.part, trial.system, found)
    text = ", ".join(f"{name} {unit_of(name)(value)}" for name, value in found.items())
    _say(f"{what} ({time.monotonic() - began:.0f} s): {text}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _flags() -> argparse.Namespace:
    parts = list(dict.fromkeys(trial.part for trial in trials(0, 0)))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description="edriver, and what it is beside")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, help="only these")
    parser.add_argument(
        "--commit-steps", type=int, default=0, help="every which step edriver's job commits (default: never)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of what happens in GOODPUT (default: %(default)s)")
    parser.add_argument("--page", type=Path, help="write a page of Markdown")
    parser.add_argument("--picture", type=Path, help="draw a picture")
    flags = parser.parse_args()
    if flags.repeats < 1:
        parser.error(f"--repeats is {flags.repeats}: at least one run is needed")
    return flags


if __name__ == "__main__":
    sys.exit(main())
