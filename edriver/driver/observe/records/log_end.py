"""Where an event log ends."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final, NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp

from edriver.wire.conversion import epoch_seconds

TAIL_BYTES: Final = 4 * 1024 * 1024
"""Bytes at the end of an event log within which there is an event: one has 1 MiB at most, and between two there are
lines about the progress."""


class LogEnd(NamedTuple):
    """The end of an event log.

    Attributes:
        seq: the number of its last event; 0 without events.
        time: the time of that event, in seconds since the epoch.
        steps: the steps according to the last line after that event; 0 if no line has them.
    """

    seq: int = 0
    time: float = 0.0
    steps: int = 0


def log_end(path: Path) -> LogEnd:
    """Read the end of an event log; there may be none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return LogEnd()
    steps = 0
    for line in reversed(lines):
        try:
            found = json.loads(line)
            if found.get("seq") is not None:
                at = Timestamp()
                at.FromJsonString(found["time"])
                return LogEnd(int(found["seq"]), epoch_seconds(at), steps)
            steps = steps or int(found["progress"]["steps"])
        except (ValueError, AttributeError, TypeError, LookupError):
            continue  # cut off: at the beginning by us, at the end by the end of its writer
    return LogEnd()
