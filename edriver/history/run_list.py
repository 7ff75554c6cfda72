"""All runs that have left records: how each ended, and when, without reading more than each file's end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from edriver.system.record_folder import EVENTS_FILE, RUN_FILE, is_run_id
from edriver.text.cause_names import RUN_END_NAMES
from edriver.text.message_reader import message_of
from edriver.text.progress_text import knows_steps
from edriver.v1 import status_pb2
from edriver.wire.conversion import epoch_seconds

TAIL_BYTES: Final = 256 * 1024
"""Bytes at the end of a run's events in which its end is looked for: it has at most 8 tracebacks and outputs."""

RUNNING, LOST = "running", RUN_END_NAMES[status_pb2.RUN_END_LOST]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in a line.

    Attributes:
        run_id: its id.
        state: running, done, stopped, failed, or lost: its driver has not recorded an end, and runs no more.
        start: when it began, in seconds since the epoch.
        seconds: how long it took, or has taken.
        command: what is run.
        name: what its user calls it; empty: nothing.
        tags: its user's, by name.
        commit: the git commit that it was started from; empty: it is not known.
        size: workers in its last round; None: it is not known.
        goodput: see TimeSpent in status.proto; None: no step was made, or it is not known.
        steps: that count; None: none was made, or it is not known.
    """

    run_id: str
    state: str
    start: float
    seconds: float
    command: tuple[str, ...] = ()
    name: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""
    size: int | None = None
    goodput: float | None = None
    steps: int | None = None


def recorded_runs(root: Path, living: frozenset[str] = frozenset()) -> list[RunSummary]:
    """The runs with records in a folder, the latest first. Records that cannot be read are passed over.

    Args:
        root: where each run has a folder.
        living: the ids of those in progress.

    Raises:
        OSError: the folder cannot be read.
    """
    found = []
    for folder in root.iterdir():
        if is_run_id(folder.name):
            try:
                found.append(_summary(folder, folder.name in living))
            except (OSError, ValueError, RecursionError):
                continue
    return sorted(found, key=lambda each: -each.start)


def _summary(folder: Path, lives: bool) -> RunSummary:
    run = json.loads((folder / RUN_FILE).read_bytes())
    if not isinstance(run, dict):
        raise ValueError("it is not an object")
    start = datetime.fromisoformat(str(run["start_time"])).timestamp()
    known: dict[str, Any] = {
        "run_id": folder.name,
        "start": start,
        "command": tuple(map(str, run.get("command") or ())),
        "name": str(run.get("name") or ""),
        "tags": {str(name): str(value) for name, value in (run.get("tags") or {}).items()},
        "commit": str((run.get("git") or {}).get("commit") or ""),
    }
    latest = start
    for line in _last_lines(folder / EVENTS_FILE):
        try:
            parsed = json.loads(line)
            at = datetime.fromisoformat(parsed["time"]).timestamp()
        except (ValueError, KeyError, TypeError):  # torn, or without a time
            continue
        latest = max(latest, at)
        if "run_ended" in parsed:
            return _ended(known, message_of(status_pb2.RunEnded, parsed["run_ended"]), at)
        if "progress" in parsed:
            progress = message_of(status_pb2.Progress, parsed["progress"])
            return RunSummary(
                **known,
                state=RUNNING if lives else LOST,
                seconds=max(0.0, latest - start),
                goodput=progress.time_spent.goodput if progress.time_spent.HasField("goodput") else None,
                steps=_steps(progress, progress.time_spent),
            )
    return RunSummary(**known, state=RUNNING if lives else LOST, seconds=max(0.0, latest - start))


def _ended(known: dict[str, Any], ended: status_pb2.RunEnded, at: float) -> RunSummary:
    return RunSummary(
        **known,
        state=RUN_END_NAMES[ended.end],
        seconds=max(0.0, at - known["start"]),
        size=ended.size or None,
        goodput=ended.time_spent.goodput if ended.time_spent.HasField("goodput") else None,
        steps=_steps(ended.progress, ended.time_spent) if ended.HasField("progress") else None,
    )


def living_summary(run: status_pb2.Run) -> RunSummary:
    """A run in progress, as its driver describes it."""
    return RunSummary(
        run_id=run.run_id,
        state=RUNNING,
        start=epoch_seconds(run.start_time),
        seconds=max(0.0, epoch_seconds(run.now) - epoch_seconds(run.start_time)),
        command=tuple(run.command),
        name=run.name,
        tags=dict(run.tags),
        size=run.size,
        goodput=run.time_spent.goodput if run.time_spent.HasField("goodput") else None,
        steps=_steps(run.progress, run.time_spent) if run.HasField("progress") else None,
    )


def _steps(progress: status_pb2.Progress, spent: status_pb2.TimeSpent) -> int | None:
    return progress.steps if knows_steps(spent) else None


def _last_lines(path: Path) -> Iterator[bytes]:
    """The lines at the end of a file, the last first."""
    with path.open("rb") as file:
        length = file.seek(0, 2)
        file.seek(max(0, length - TAIL_BYTES))
        lines = file.read(TAIL_BYTES).splitlines()
    yield from reversed(lines if length <= TAIL_BYTES else lines[1:])
