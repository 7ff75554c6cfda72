"""`make bench`: churn under edriver and under torchrun, taking turns in one invocation, and the ratio.

    python -m benchmarks.churn [--repeats 5] [--only K1 UP] [--output docs/benchmarks/churn.md]

With --repeats 1 it is a quick look.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import report
from benchmarks.jobs import HarnessError, end_well_on_sigterm
from benchmarks.quiet import FIRST_LINE_TRIES, first_line, quiet_run
from benchmarks.scenarios import SCENARIOS, Figures

QUIET = "QUIET"
QUIET_SECONDS = 30.0


def main() -> int:
    """Run what was asked for; returns 1 if a run came to nothing."""
    flags = _flags()
    end_well_on_sigterm()
    results = report.Results(os.getloadavg()[0])
    for repeat in range(1, flags.repeats + 1):
        for scenario in SCENARIOS:
            if scenario.name in flags.only:
                _measure(results, scenario.name, "edriver", scenario.edriver, repeat)
                _measure(results, scenario.name, "torchrun", scenario.torchrun, repeat)
    if QUIET in flags.only:
        _say(f"{QUIET}: watching for {QUIET_SECONDS:g} s")
        results.first_lines = [first_line() for _ in range(FIRST_LINE_TRIES)]
        results.shares = quiet_run(QUIET_SECONDS)
        results.quiet_seconds = QUIET_SECONDS
    print(report.table(results))
    print(report.own_table(results))
    if flags.output:
        command = shlex.join(["python", "-m", "benchmarks.churn", *sys.argv[1:]])
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        flags.output.write_text(report.page(results, command, date))
    return 1 if results.failures else 0


def _measure(results: report.Results, name: str, system: str, run: Callable[[], Figures], repeat: int) -> None:
    began = time.monotonic()
    try:
        figures = run()
    except HarnessError as error:
        results.failures.append(f"{name}, {system}, repeat {repeat}: {error.what}")
        _say(f"{name}, {system}, repeat {repeat}: {error}")
        return
    results.runs.setdefault((name, system), []).append(figures)
    _say(f"{name}, {system}, repeat {repeat} ({time.monotonic() - began:.0f} s): {figures}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _flags() -> argparse.Namespace:
    names = [*(scenario.name for scenario in SCENARIOS), QUIET]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.churn", description="edriver and torchrun under churn")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="only these")
    parser.add_argument("--output", type=Path, help="write a page of Markdown")
    flags = parser.parse_args()
    if flags.repeats < 1:
        parser.error(f"--repeats is {flags.repeats}: at least one run is needed")
    return flags


if __name__ == "__main__":
    sys.exit(main())
