"""`edriver report`: one page of a run, from its records."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from edriver.client import RunError, living_runs
from edriver.commands.which_run import add_recorded_run
from edriver.dashboard.report import html_report, recorded_run, text_summary
from edriver.history.records import RecordError, records_of
from edriver.model.limits import is_host_name
from edriver.system.private_files import open_private
from edriver.text.command_parser import CommandParser


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = CommandParser(
        prog="edriver report",
        description="Writes a report of a run, from its records, as one HTML file: size, goodput, every recovery, "
        "lost steps.",
    )
    add_recorded_run(made)
    made.add_argument("--output", metavar="FILE", type=Path, help="the file to write (default: edriver-RUN.html)")
    return made


def report(arguments: Sequence[str]) -> str:
    """Write the report; returns its summary and the path of the page.

    Raises:
        RunError: the records do not exist or are invalid, or the page cannot be written.
    """
    flags = parser().parse_args(arguments)
    try:
        records = records_of(flags.run)
        run_id = records.run.get("run_id")
        recorded = recorded_run(records, lives=None if run_id is None else run_id in living_runs())
    except RecordError as error:
        raise RunError(str(error)) from None
    except OSError as error:
        raise RunError(f"{error.filename}: {error.strerror}") from None
    name = records.events.stem if records.events == Path(flags.run) else flags.run
    if isinstance(run_id, str) and is_host_name(run_id):  # it becomes part of a file's name
        name = run_id
    output = flags.output or Path(f"edriver-{Path(name).name}.html")
    page = html_report(recorded, name)
    try:
        with os.fdopen(open_private(output, os.O_TRUNC), "w", encoding="utf-8", errors="replace") as file:
            file.write(page)
    except OSError as error:
        raise RunError(f"--output {output}: {error.strerror}") from None
    except ValueError as error:  # a NUL in the path
        raise RunError(f"--output {str(output)!a}: {error}") from None
    return f"{text_summary(recorded)}\n{output}"
