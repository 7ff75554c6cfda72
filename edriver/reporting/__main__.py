"""The process that reports one run to one library: `python -m edriver.reporting LIBRARY RUN_ID [--resumed]`.

What is for the operator goes to its standard output, a line each, which the driver prints. What libraries print goes
nowhere.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Final

from edriver.client import Client, find
from edriver.reporting import LIBRARIES
from edriver.reporting.entries import Entries
from edriver.reporting.tracker import Tracker
from edriver.v1 import status_pb2

NICENESS: Final = 5
"""It may share its cores with workers: training goes first."""


def report(client: Client, tracker: Tracker, say: Callable[[str], object], *, resumed: bool) -> None:
    """Report a run to its end.

    Args:
        client: of the run.
        tracker: where to.
        say: prints a line for the operator.
        resumed: whether the run has had another driver, whose process has reported what was then.
    """
    snapshot, entries = client.snapshot(), Entries()
    say(tracker.begin(snapshot.run))
    if resumed:
        entries.begin(snapshot)
    ended: status_pb2.RunEnded | None = None
    try:
        for message in client.watch_progress(snapshot.seq if resumed else 0):
            for entry in entries.take(message, time.time()):
                tracker.add(entry)
            if message.event.HasField("run_ended"):
                ended = message.event.run_ended
    finally:
        tracker.end(ended)


def _tracker(library: str) -> Tracker:
    """Import a library, which takes seconds."""
    module = import_module(f"edriver.reporting.{library}_tracker")
    made: Tracker = getattr(module, f"{library.capitalize()}Tracker")()
    return made


def main() -> int:
    """Report; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m edriver.reporting")
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("run_id")
    parser.add_argument("--resumed", action="store_true")
    flags = parser.parse_args()
    os.nice(NICENESS)
    operator = os.fdopen(os.dup(1), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)

    def say(line: str) -> None:
        operator.write(f"{line}\n")

    try:
        with find(flags.run_id) as client:
            report(client, _tracker(flags.library), say, resumed=flags.resumed)
    except Exception as error:  # noqa: BLE001  a library may raise anything; the run continues without it
        say(f"failed: {type(error).__name__}: {error}".replace("\n", " "))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
