"""The event log: what has happened in a run, one JSON object a line, for whoever wants to know afterwards.

A line is an Event of status.proto with its fields' names there; what is not set is left out, ids of rounds and versions
are texts:

    {"seq": 12, "time": T, "text": "...", "round": {"round_id": "1.3", "cause": "...", "members": [...], ...}}

Times are seconds since the epoch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from edriver.v1 import rounds_pb2, status_pb2
from edriver.wire import round_id_of, version_of

_log = logging.getLogger("edriver.driver")


class EventLog:
    """Writes the log of one run.

    Args:
        path: the file, to which lines are appended; it is kept open for no longer than that takes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._broken = False

    def write(self, told: Iterable[status_pb2.Event]) -> None:
        """Append these. A log that cannot be written is no reason to end a run."""
        text = "".join(f"{json.dumps(plain(event))}\n" for event in told)
        if not text:
            return
        try:
            with self._path.open("a") as file:
                file.write(text)
        except OSError as error:
            if not self._broken:
                _log.warning("the event log %s cannot be written: %s", self._path, error.strerror)
            self._broken = True


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
