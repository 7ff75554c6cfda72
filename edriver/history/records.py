"""What a run has left behind, read back: its folder of records, or an event log alone.

The folder, `$XDG_STATE_HOME/edriver/RUN_ID` (without the variable: `~/.local/state/edriver/RUN_ID`), has `run.json`, an
object that says what the run was to be, and `events.jsonl`: a line for each event as the event log has it, and between
them `{"time": T, "progress": {...}}`. That of a run that has failed has `failure.txt`: of what, in words.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from edriver.model.ids import RoundId
from edriver.system.record_folder import (
    EVENTS_FILE,
    FAILURE_FILE,
    OUTPUT_FOLDER,
    RUN_FILE,
    USAGE_FILE,
    called,
    default_root,
    recorded_names,
)
from edriver.text.message_reader import message_of
from edriver.text.suggestion import did_you_mean_run
from edriver.v1 import resources_pb2, status_pb2
from edriver.wire.conversion import round_id_of

MAX_FAILURE_CHARACTERS: Final = 1024 * 1024
"""Most characters that are read of what a run failed of."""

_MEMBERS: Final = b'"members": [{'
_FIRST_STEP: Final = b'"first_step_time": "'
"""As edriver.text.event_lines writes them; inside a text the quotes would have backslashes."""


class RecordError(ValueError):
    """There are no such records, or they are nonsense; the message is one sentence for who asked."""


@dataclass(frozen=True, slots=True)
class Records:
    """Where a run's records are.

    Attributes:
        events: the file of its events.
        run: the contents of run.json; empty without the file.
        failure: why the run failed, in words; empty if it has not failed, or no record says so.
        usage: the file with the usage of its hosts, or None.
        output: the folder with the output of its workers, or None.
    """

    events: Path
    run: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""
    usage: Path | None = None
    output: Path | None = None


@dataclass(frozen=True, slots=True)
class UnreadableLine:
    """A line of an event log that is not an event.

    Attributes:
        number: from 1.
        why: what is wrong with it.
    """

    number: int
    why: str


def records_of(named: str, environ: Mapping[str, str] = os.environ) -> Records:
    """A run's records.

    Args:
        named: a run's ID or name, which means the latest run of that name, the folder, or an event log.
        environ: the environment.

    Raises:
        RecordError: the records do not exist.
    """
    path = Path(named)
    if path.is_file():
        return Records(path)
    if (path / EVENTS_FILE).is_file():
        return _records_in(path)
    try:
        root = default_root(environ)
    except RuntimeError as error:
        raise RecordError(f"{named!r} is neither a file nor a folder, and {error}") from None
    if path.name == named and (root / named).is_dir():
        return _records_in(root / named)
    names = recorded_names(root)
    if found := called(named, names):
        return _records_in(root / found[0])
    if path.is_dir():
        return _records_in(path)
    suggestion = did_you_mean_run(named, names) or f": neither a file nor a folder, nor in {root}"
    raise RecordError(f"there are no records of a run {named!r}{suggestion}")


def _records_in(folder: Path) -> Records:
    events = folder / EVENTS_FILE
    if not events.is_file():
        raise RecordError(f"{folder} is not the folder of a run: there is no {EVENTS_FILE} in it")
    file = folder / RUN_FILE
    failure = _failure_in(folder)
    usage = folder / USAGE_FILE if (folder / USAGE_FILE).is_file() else None
    output = folder / OUTPUT_FOLDER if (folder / OUTPUT_FOLDER).is_dir() else None
    if not file.is_file():
        return Records(events, failure=failure, usage=usage, output=output)
    try:
        run = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{file} is not JSON: {error}") from None
    if not isinstance(run, dict):
        raise RecordError(f"{file} is not an object")
    return Records(events, run, failure, usage, output)


def _failure_in(folder: Path) -> str:
    try:
        with (folder / FAILURE_FILE).open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_FAILURE_CHARACTERS).strip()
    except OSError:
        return ""


def read(path: Path) -> Iterator[status_pb2.Event | status_pb2.ProgressSample | UnreadableLine]:
    """What an event log tells, in its order, but for the members of a round that makes its first step, where an earlier
    event has them: with their times they are most of the log, and nothing here asks for those.

    A torn last line, which a driver leaves that is killed, is passed over.

    Raises:
        OSError: the file cannot be read.
    """
    assigned: set[RoundId] = set()
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                if (entry := _entry(line, assigned)) is not None:
                    yield entry
            except (ValueError, OverflowError, RecursionError) as error:
                if line.endswith(b"\n"):
                    yield UnreadableLine(number, str(error))


def _entry(line: bytes, assigned: set[RoundId]) -> status_pb2.Event | status_pb2.ProgressSample | None:
    """What a line tells; None: that the driver could not write others.

    Args:
        line: the line.
        assigned: the rounds of which the members are known; this one's is added.

    Raises:
        ValueError, OverflowError, RecursionError: the line does not have this form.
    """
    begin = line.find(_MEMBERS) if _FIRST_STEP in line else -1
    if begin >= 0:
        with suppress(ValueError):  # a host's name has a bracket: the cut was in the middle of it
            end = line.index(b"]", begin)
            event = _message(json.loads(line[:begin] + b'"members": []' + line[end + 1 :]))
            if isinstance(event, status_pb2.Event) and round_id_of(event.round.round_id) in assigned:
                return event
    entry = _message(json.loads(line))
    if isinstance(entry, status_pb2.Event) and entry.round.members:
        assigned.add(round_id_of(entry.round.round_id))
    return entry


def _message(parsed: object) -> status_pb2.Event | status_pb2.ProgressSample | None:
    if isinstance(parsed, dict) and "progress" in parsed:
        return message_of(status_pb2.ProgressSample, parsed)
    if isinstance(parsed, dict) and "missing" in parsed:
        return None
    event = message_of(status_pb2.Event, parsed)
    if not event.seq:
        raise ValueError("it has no number")
    return event


def read_usage(path: Path) -> Iterator[resources_pb2.UsageSample | UnreadableLine]:
    """What a run's hosts used, in the order of time; a torn last line is passed over.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield message_of(resources_pb2.UsageSample, json.loads(line))
            except (ValueError, RecursionError) as error:
                if line.endswith(b"\n"):
                    yield UnreadableLine(number, str(error))
