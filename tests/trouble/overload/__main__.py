"""Overload and abuse of a real run, one case after the other: `python -m tests.trouble.overload [CASE ...]`.

Without a name all of them, which takes an hour. Each prints whether the run went on and ended with 0, the greatest
memory of each kind of process, what is on disk, and what the run says of the reason. The disks take root, for mount.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.jobs import end_well_on_sigterm
from tests.trouble.overload import cases

CASES: Final[Mapping[str, Callable[[Path], list[str]]]] = {
    "flapping": cases.flapping,
    "flapping-slowly": partial(cases.flapping, period=3),
    "hosts": cases.hosts,
    "output": cases.output,
    "disk-of-records": cases.disk,
    "disk-of-logs": partial(cases.disk, what="logs"),
    "clock-forward": cases.clock,
    "clock-back": partial(cases.clock, seconds=-3600.0),
    **{f"stopped-{seconds}": partial(cases.stopped, seconds=float(seconds)) for seconds in (3, 8, 60)},
    **{f"stopped-{seconds}-kill": partial(cases.stopped, seconds=float(seconds), kill=True) for seconds in (3, 8, 60)},
}


def main() -> int:
    """Run the cases; returns how many went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.trouble.overload")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"(default: all) {', '.join(CASES)}")
    names = parser.parse_args().cases or list(CASES)
    if unknown := set(names) - CASES.keys():
        parser.error(f"there is no case {min(unknown)!r}: there is {', '.join(CASES)}")
    end_well_on_sigterm()
    wrong = 0
    for name in names:
        print(f"{name}:", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = CASES[name](Path(folder))
            except AssertionError as error:
                wrong += 1
                found = [f"WRONG: {error}"]
        print(*(f"    {line}" for line in found), sep="\n", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
