"""`edriver export`: a run's reported values, in files for other programs."""

from __future__ import annotations

import argparse
import csv
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from edriver.client import RunError
from edriver.commands.which_run import add_recorded_run
from edriver.dashboard.report import facts, recorded_run
from edriver.history.records import RecordError, Records, UnreadableLine, read, records_of
from edriver.model.limits import is_host_name
from edriver.runview.progress_rows import ProgressRow, progress_rows
from edriver.system.private_files import make_private, open_private
from edriver.text.command_parser import CommandParser
from edriver.text.phrases import count_text
from edriver.wire.conversion import timestamp

INSTALL_COMMAND: Final = "pip install 'edriver[tensorboard]'"

COLUMNS: Final = (
    *("run", "time", "seconds", "step", "samples"),
    *("undone", "workers", "steps_per_second", "samples_per_second"),
)
"""Of a CSV file, before those of the reported values; the page's are the same."""


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = CommandParser(
        prog="edriver export",
        description="Writes the values that a run has reported, its speed and its size to files for other programs: "
        "all "
        "samples in its records.",
    )
    made.add_argument(
        "kind", choices=("tensorboard", "csv"), help="the format: event files for TensorBoard, or a table"
    )
    add_recorded_run(made)
    made.add_argument(
        "--out",
        metavar="PATH",
        type=Path,
        help="for TensorBoard: the log directory, in which the run gets its own folder (default: runs); for a table: "
        "the "
        "file (default: edriver-RUN.csv)",
    )
    return made


def export(arguments: Sequence[str]) -> str:
    """Write the export; returns its path.

    Raises:
        RunError: the records do not exist, or the export cannot be written.
    """
    flags = parser().parse_args(arguments)
    try:
        records = records_of(flags.run)
        samples = progress_rows(each for each in read(records.events) if not isinstance(each, UnreadableLine))
    except RecordError as error:
        raise RunError(str(error)) from None
    except OSError as error:
        raise RunError(f"{error.filename}: {error.strerror}") from None
    if not samples:
        raise RunError(f"{records.events} has no samples of training: there is nothing to export")
    name = _name_of(records, flags.run)
    try:
        if flags.kind == "tensorboard":
            return _tensorboard(records, samples, name, flags.out or Path("runs"))
        return _table(samples, name, flags.out or Path(f"edriver-{name}.csv"))
    except OSError as error:
        raise RunError(f"--out {error.filename}: {error.strerror}") from None


def _name_of(records: Records, named: str) -> str:
    """A run's id, or what it was called by: it becomes part of a file's name."""
    run_id = records.run.get("run_id")
    if isinstance(run_id, str) and is_host_name(run_id):
        return run_id
    return records.events.stem if records.events == Path(named) else Path(named).resolve().name


def _tensorboard(records: Records, samples: Sequence[ProgressRow], name: str, out: Path) -> str:
    from edriver.history.tensorboard import write_events

    about = "\n".join(
        f"* **{word}**: `{sentence.replace('`', ' ')}`" for word, sentence in facts(recorded_run(records))
    )
    folder = out / name
    make_private(folder)
    try:
        points = write_events(folder / f"events.out.tfevents.{samples[0].time:.0f}.edriver", samples, about)
    except ImportError as error:
        raise RunError(
            f"the package {error.name}, which writes TensorBoard's files, is missing: {INSTALL_COMMAND}"
        ) from None
    return f"{folder}: {count_text(points, 'point')}; tensorboard --logdir {out} shows them"


def _table(samples: Sequence[ProgressRow], name: str, out: Path) -> str:
    names = list(dict.fromkeys(reported for sample in samples for reported in sample.reported))
    with os.fdopen(open_private(out, os.O_TRUNC), "w", encoding="utf-8", errors="replace", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, *names])
        writer.writerows(_rows(samples, name, names))
    return f"{out}: {count_text(len(samples), 'row')}"


def _rows(samples: Iterable[ProgressRow], name: str, names: Sequence[str]) -> Iterable[list[object]]:
    for sample in samples:
        yield [
            name,
            timestamp(sample.time).ToJsonString(),
            sample.seconds,
            sample.step,
            "" if sample.samples is None else sample.samples,
            int(sample.undone),
            sample.workers,
            sample.step_rate,
            sample.sample_rate,
            *(_number(sample.reported[each]) if each in sample.reported else "" for each in names),
        ]


def _number(value: float) -> object:
    """As protobuf's JSON has what is not a number."""
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
