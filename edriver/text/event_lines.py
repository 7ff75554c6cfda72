"""The event log: the events of a run, one JSON object per line.

A line is an Event of status.proto in protobuf's JSON (https://protobuf.dev/programming-guides/json), so any protobuf
library can read it. Fields have the names of the .proto file; 64-bit integers are texts, enums their names, and what is
no number is "NaN", "Infinity" or "-Infinity". Zeros and empty lists are written; what is left out is not known:

    {"seq": "12", "time": T, "text": "...", "round": {"round_id": {"incarnation": 1, "n": "3"}, "members": [...], ...}}

A run's records have lines about the progress in between, ProgressSample of status.proto:

    {"time": T, "progress": {"steps": "512", "step_rate": 20.1, ...}}

What hosts used over time is in a separate file, UsageSample of resources.proto:

    {"time": T, "hosts": {"a": {"cpu_cores": 3.71, ...}, ...}, "total": {...}, "host_count": 1}

If lines are missing, because the file could not be written for too long, a line reports it:

    {"missing": 17, "text": "17 lines are missing here: they could not be written"}

Points in time are RFC 3339 texts in UTC ("2026-03-01T12:00:00.123456Z"), spans are seconds ("1.500s").
"""

from __future__ import annotations

import json
from typing import Any

from edriver.text.message_writer import plain
from edriver.v1 import resources_pb2, status_pb2
from edriver.wire.conversion import timestamp


def event_line(event: status_pb2.Event) -> str:
    """An event's line."""
    return _line(plain(event))


def progress_line(time: float, progress: status_pb2.Progress) -> str:
    """The line about the progress at a time."""
    return _line(plain(status_pb2.ProgressSample(time=timestamp(time), progress=progress)))


def usage_line(sample: resources_pb2.UsageSample) -> str:
    """The line about what hosts used."""
    return _line(plain(sample))


def gap_line(missing: int) -> str:
    """The line that stands for those that are missing."""
    return _line({"missing": missing, "text": f"{missing} lines are missing here: they could not be written"})


def _line(content: dict[str, Any]) -> str:
    return f"{json.dumps(content)}\n"
