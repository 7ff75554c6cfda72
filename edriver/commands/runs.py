"""`edriver runs`: this user's runs on this machine, including those that have ended."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from edriver.dashboard.known_runs import KnownRuns
from edriver.history.run_list import RunSummary
from edriver.text.command_parser import CommandParser
from edriver.text.printable import printable_line
from edriver.text.progress_text import time_text

SHOWN_RUNS: Final = 20
"""Runs that are listed unless all are asked for, the latest."""

_COLUMNS: Final = ("RUN", "NAME", "STATE", "STARTED", "TOOK", "WORKERS", "STEPS", "GOODPUT", "COMMAND")


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = CommandParser(
        prog="edriver runs",
        description="Lists your runs on this machine, latest first: those in progress, and those with records.",
    )
    made.add_argument("--all", action="store_true", help=f"list all runs, not only the latest {SHOWN_RUNS}")
    made.add_argument(
        "--tag", metavar="NAME=VALUE", action="append", default=[], help="list only runs with this tag; may be repeated"
    )
    made.add_argument("--records", metavar="DIR", type=Path, help="the folder that you gave to the runs with --records")
    made.add_argument("--json", action="store_true", help="print a JSON array with all that is known about each run")
    return made


def runs(arguments: Sequence[str]) -> str:
    """Read the records, and query the drivers of runs in progress.

    Raises:
        RunError: the records cannot be read.
    """
    flags = parser().parse_args(arguments)
    found = KnownRuns(flags.records).all()
    wanted = [tuple(tag.partition("=")[::2]) for tag in flags.tag]
    found = [each for each in found if all(each.tags.get(name) == value for name, value in wanted)]
    shown = found if flags.all else found[:SHOWN_RUNS]
    if flags.json:
        return json.dumps([dataclasses.asdict(each) for each in shown], indent=2)
    if not shown:
        return "there are no runs" if not flags.tag else "there are no runs with such tags"
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    lines = list(table(shown, width))
    if len(shown) < len(found):
        lines.append(f"and {len(found) - len(shown)} more: --all lists them")
    return "\n".join(lines)


def table(found: Sequence[RunSummary], width: int | None) -> Iterator[str]:
    """A line for each run, below the names of the columns.

    Args:
        found: the runs.
        width: columns of the terminal, to which lines are cut; None: they are not.
    """
    rows = [_COLUMNS, *map(_row, found)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_COLUMNS) - 1)]
    for row in rows:
        cells = [cell.ljust(wide) for cell, wide in zip(row, [*widths, 0], strict=True)]
        yield "  ".join(cells)[:width].rstrip()


def _row(run: RunSummary) -> tuple[str, ...]:
    """Its cells. What its records say may be anything."""
    cells = (
        run.run_id,
        run.name or "-",
        run.state,
        time.strftime("%Y-%m-%d %H:%M", time.localtime(run.start)),
        time_text(run.seconds),
        "-" if run.size is None else str(run.size),
        "-" if run.steps is None else f"{run.steps:,}",
        "-" if run.goodput is None else f"{100 * run.goodput:.1f} %",
        shlex.join(run.command),
    )
    return tuple(map(printable_line, cells))
