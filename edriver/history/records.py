"""What a run has left behind, read back: its folder of records, or an event log alone.

The folder, `$XDG_STATE_HOME/edriver/RUN_ID` (without the variable: `~/.local/state/edriver/RUN_ID`), has `run.json`, an
object that says what the run was to be, and `events.jsonl`: a line for each event as the event log has it, and between
them `{"time": T, "progress": {...}}`. That of a run that has failed has `failure.txt`: of what, in words.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from edriver.common.wire import round_id_of
from edriver.system.record_folder import EVENTS_FILE, FAILURE_FILE, RUN_FILE, USAGE_FILE, default_root
from edriver.v1 import resources_pb2, status_pb2

MAX_FAILURE_CHARACTERS: Final = 1024 * 1024
"""Most characters that are read of what a run failed of."""

Kind = TypeVar("Kind", bound=Message)


class RecordError(ValueError):
    """There are no such records, or they are nonsense; the message is one sentence for who asked."""


@dataclass(frozen=True, slots=True)
class Records:
    """Where a run's records are.

    Attributes:
        events: the file of its events.
        run: what run.json says; empty: there is none.
        failure: of what the run failed, in words; empty: it has not, or there is no record of it.
        usage: the file of what its hosts used; None: there is none.
    """

    events: Path
    run: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""
    usage: Path | None = None


@dataclass(frozen=True, slots=True)
class UnreadableLine:
    """A line of an event log that is no event.

    Attributes:
        number: from 1.
        why: what is wrong with it.
    """

    number: int
    why: str


def records_of(named: str, environ: Mapping[str, str] = os.environ) -> Records:
    """A run's records.

    Args:
        named: a run's id, the folder, or an event log.
        environ: the environment.

    Raises:
        RecordError: there are none.
    """
    path = Path(named)
    if path.is_file():
        return Records(path)
    if path.is_dir():
        return _records_in(path)
    try:
        root = default_root(environ)
    except RuntimeError as error:
        raise RecordError(f"{named!r} is neither a file nor a folder, and {error}") from None
    if path.name != named or not (root / named).is_dir():
        raise RecordError(f"there are no records of a run {named!r}: neither a file nor a folder, nor in {root}")
    return _records_in(root / named)


def _records_in(folder: Path) -> Records:
    events = folder / EVENTS_FILE
    if not events.is_file():
        raise RecordError(f"{folder} is not the folder of a run: there is no {EVENTS_FILE} in it")
    file = folder / RUN_FILE
    failure = _failure_in(folder)
    usage = folder / USAGE_FILE if (folder / USAGE_FILE).is_file() else None
    if not file.is_file():
        return Records(events, failure=failure, usage=usage)
    try:
        run = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{file} is not JSON: {error}") from None
    if not isinstance(run, dict):
        raise RecordError(f"{file} is not an object")
    return Records(events, run, failure, usage)


def _failure_in(folder: Path) -> str:
    try:
        with (folder / FAILURE_FILE).open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_FAILURE_CHARACTERS).strip()
    except OSError:
        return ""


def read(path: Path) -> Iterator[status_pb2.Event | status_pb2.ProgressSample | UnreadableLine]:
    """What an event log tells, in its order, but for what nothing here asks for: the times of rounds' members, and once
    more the members of a round that makes its first step.

    A torn last line, which a driver leaves that is killed, is passed over.

    Raises:
        OSError: the file cannot be read.
    """
    assigned: set[str] = set()
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                parsed = json.loads(line)
                if isinstance(parsed, dict) and "progress" in parsed:
                    yield _sample(parsed)
                elif not (isinstance(parsed, dict) and "missing" in parsed):  # what the driver could not write
                    yield _event(parsed, assigned)
            except (ValueError, OverflowError, RecursionError) as error:
                if line.endswith(b"\n"):
                    yield UnreadableLine(number, str(error))


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


def message_of(kind: type[Kind], parsed: object) -> Kind:
    """The message that edriver.text.event_lines.plain has written so; fields that are not known are passed over.

    Raises:
        ValueError: it has not.
    """
    if not isinstance(parsed, dict):
        raise ValueError("it is not an object")
    try:
        return json_format.ParseDict(parsed, kind(), ignore_unknown_fields=True)
    except json_format.ParseError as error:
        raise ValueError(str(error)) from None


def _sample(parsed: dict[str, Any]) -> status_pb2.ProgressSample:
    """Progress at a time. What the script reports is not read by json_format, which takes five times as long."""
    progress = parsed["progress"]
    reported = progress.pop("reported", None) if isinstance(progress, dict) else None
    sample = message_of(status_pb2.ProgressSample, parsed)
    try:
        for name, value in (reported or {}).items():
            sample.progress.reported[name] = float(value)  # "NaN" is one, too
    except (AttributeError, TypeError) as error:
        raise ValueError(f"what is reported is no numbers: {error}") from None
    return sample


def _event(parsed: object, assigned: set[str]) -> status_pb2.Event:
    """An event. The members of a round are read once, when it is assigned.

    Args:
        parsed: a line.
        assigned: the rounds of which the members are known; this one's is added.
    """
    members = _cut_out_members(parsed)
    event = message_of(status_pb2.Event, parsed)
    if not event.seq:
        raise ValueError("it has no number")
    name = str(round_id_of(event.round.round_id))
    if not members or (event.round.HasField("first_step_time") and name in assigned):
        return event
    assigned.add(name)
    try:
        _add_members(event.round, members)
    except (AttributeError, TypeError) as error:
        raise ValueError(f"a member is not one: {error}") from None
    return event


def _cut_out_members(parsed: object) -> list[dict[str, Any]]:
    """The members of the round that an event is about, if it is, which are then missing in it."""
    about = parsed.get("round") if isinstance(parsed, dict) else None
    members = about.get("members") if isinstance(about, dict) else None
    if not isinstance(about, dict) or not isinstance(members, list):
        return []
    del about["members"]
    return members


def _add_members(message: status_pb2.Round, members: Iterable[dict[str, Any]]) -> None:
    """Who they are and where. json_format takes forty times as long: 9 s for a week of 1,000 workers."""
    add = message.members.add
    for parsed in members:
        add(worker_id=int(parsed.get("worker_id", 0)), host=parsed.get("host", ""), slot=int(parsed.get("slot", 0)))
