"""The workers' output as it goes to a page."""

from __future__ import annotations

from typing import Any, Final

from edriver.client import WorkerLine
from edriver.history.records import Records
from edriver.history.worker_output import latest_output, recorded_output
from edriver.text.printable import printable
from edriver.wire.conversion import epoch_seconds

MAX_OUTPUT_LINES: Final = 500
"""Lines that a page gets at a time, the latest."""

MAX_OUTPUT_LINE_BYTES: Final = 4000
"""Bytes of such a line that it gets."""

MAX_RECORDED_LINES: Final = 2000
"""Lines of all workers together that are part of the page of a run that has ended."""


def page_line(line: WorkerLine) -> list[Any]:
    """A line: its number and time, whose it is, what it says, and whether the next one takes its place."""
    place = str(line.rank) if line.HasField("rank") else f"{line.host}:{line.slot}"
    text = line.text[:MAX_OUTPUT_LINE_BYTES].decode("utf-8", "replace")
    slot = f"{line.host}:{line.slot}"
    return [
        line.seq,
        epoch_seconds(line.time),
        place,
        line.stderr,
        printable(text),
        slot,
        line.worker_id,
        line.unfinished,
    ]


def latest_lines(records: Records) -> list[list[Any]]:
    """The latest lines of each worker of a run that has ended.

    Raises:
        OSError: they cannot be read.
    """
    return [] if records.output is None else [*map(page_line, latest_output(records.output, MAX_RECORDED_LINES))]


def recorded_lines(records: Records, host: str, slot: int | None) -> dict[str, Any]:
    """The latest lines of a run that has ended, as an answer to a page that followed it.

    Args:
        records: the run's.
        host: on which host; empty: on any.
        slot: in which slot there; None: in any.

    Raises:
        OSError: they cannot be read.
    """
    if records.output is None:
        return {"lines": [], "why": "the run's records do not have the output of its workers"}
    found = recorded_output(records.output, host=host, slot=slot, lines=MAX_OUTPUT_LINES)
    return {"lines": [*map(page_line, found)], "why": ""}
