"""`edriver runs`: this user's runs on this machine, those that have ended, too."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from edriver.client import Client, RunError, here, living_runs
from edriver.history.run_list import RunSummary, living_summary, recorded_runs
from edriver.system.record_folder import default_root
from edriver.text.progress_text import time_text

SHOWN_RUNS: Final = 20
"""Runs that are listed unless all are asked for, the latest."""

ANSWER_TIMEOUT: Final = 3.0
"""Seconds that a run may take to say how it stands."""

_COLUMNS: Final = ("RUN", "NAME", "STATE", "STARTED", "TOOK", "WORKERS", "STEPS", "GOODPUT", "COMMAND")


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser(
        prog="edriver runs",
        description="Lists your runs on this machine, the latest first: those that go on, and those with records.",
        allow_abbrev=False,
    )
    made.add_argument("--all", action="store_true", help=f"not just the latest {SHOWN_RUNS}")
    made.add_argument("--tag", metavar="NAME=VALUE", action="append", default=[], help="only those with this tag")
    made.add_argument("--records", metavar="DIR", type=Path, help="of which folder, if --records said so")
    made.add_argument("--json", action="store_true", help="an array of objects, with all that is known of each")
    return made


def runs(arguments: Sequence[str]) -> str:
    """Look at the records and ask those that go on.

    Raises:
        RunError: the records cannot be read.
    """
    flags = parser().parse_args(arguments)
    found = _found(flags.records)
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


def _found(folder: Path | None) -> list[RunSummary]:
    living = frozenset(living_runs())
    answers = {each.run_id: each for each in _those_that_answer(living)}
    try:
        root = default_root(os.environ) if folder is None else folder
        recorded = recorded_runs(root, living) if folder is not None or root.is_dir() else []
    except OSError as error:
        raise RunError(f"{error.filename}: {error.strerror}") from None
    except RuntimeError as error:
        raise RunError(str(error)) from None
    known = {each.run_id: each for each in recorded}
    for run_id, answer in answers.items():
        commit = known[run_id].commit if run_id in known else ""
        known[run_id] = dataclasses.replace(answer, commit=commit)
    return sorted(known.values(), key=lambda each: -each.start)


def _those_that_answer(living: Iterable[str]) -> Iterator[RunSummary]:
    for run_id in living:
        with contextlib.suppress(RunError), Client(here(run_id), timeout=ANSWER_TIMEOUT) as client:
            yield living_summary(client.status())


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
    return (
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
