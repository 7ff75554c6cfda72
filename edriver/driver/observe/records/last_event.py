"""Where an event log ends."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from edriver.common.wire import epoch_seconds

TAIL_BYTES: Final = 4 * 1024 * 1024
"""Bytes at the end of an event log within which there is an event: one has 1 MiB at most, and between two there are
lines about the progress."""


NONE_WRITTEN: Final = (0, 0.0)
"""What `last_event` returns where there is no event."""


def last_event(path: Path) -> tuple[int, float]:
    """The number of the last event in an event log, and its time in seconds since the epoch; or NONE_WRITTEN."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return NONE_WRITTEN
    for line in reversed(lines):
        try:
            found = json.loads(line)
            if found.get("seq") is not None:
                at = Timestamp()
                at.FromJsonString(found["time"])
                return int(found["seq"]), epoch_seconds(at)
        except (ValueError, AttributeError, TypeError, LookupError):
            continue  # cut off: at the beginning by us, at the end by the end of its writer
    return NONE_WRITTEN
