"""The event log: what has happened in a run, one JSON object a line, for whoever wants to know afterwards.

A line is an Event of status.proto with its fields' names there; what is not set is left out, ids of rounds and versions
are texts:

    {"seq": 12, "time": T, "text": "...", "round": {"round_id": "1.3", "cause": "...", "members": [...], ...}}

A run's records have lines about the progress in between, Progress of status.proto:

    {"time": T, "progress": {"steps": 512, "step_rate": 20.1, ...}}

Where lines are missing, because the file could not be written for too long, it says so:

    {"missing": 17, "text": "17 lines are missing here: they could not be written"}

Times are seconds since the epoch.
"""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from edriver.common.wire import round_id_of, version_of
from edriver.v1 import rounds_pb2, status_pb2


def event_line(event: status_pb2.Event) -> str:
    """An event's line."""
    return f"{json.dumps(plain(event))}\n"


def progress_line(time: float, progress: status_pb2.Progress) -> str:
    """The line about the progress at a time."""
    return f"{json.dumps({'time': time, 'progress': plain(progress)})}\n"


def gap_line(missing: int) -> str:
    """The line that stands for those that are missing."""
    text = f"{missing} lines are missing here: they could not be written"
    return f"{json.dumps({'missing': missing, 'text': text})}\n"


def plain(message: Message) -> Any:
    """A message as JSON has it: numbers are numbers, enums their names."""
    if isinstance(message, rounds_pb2.RoundId):
        return str(round_id_of(message))
    if isinstance(message, rounds_pb2.Version):
        return str(version_of(message))
    return {field.name: _plain_value(field, value) for field, value in message.ListFields()}


def _plain_value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(value)
    if isinstance(value, Message):
        return plain(value)
    if isinstance(value, bool | int | float | str):
        known = None if field.enum_type is None else field.enum_type.values_by_number.get(int(value))
        return value if known is None else known.name
    return [_plain_value(field, item) for item in value]
