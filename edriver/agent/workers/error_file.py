"""The error file that torch's @record writes: what ended a script, also where its process could not report it.

The script's own processes write it. It may be torn, huge, no JSON, or no file at all: such a one is left alone.

The agent reads it once the process has been reaped, and sends what it says with the exit. The driver takes it for that
worker's exception if it has heard of none. What a file says never counts as an error that the script repeats: in a
script that only runs others, a lost connection looks the same.
"""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from edriver.text.wire_text import wire_text
from edriver.v1 import agent_pb2
from edriver.wire.conversion import timestamp

MAX_ERROR_FILE_BYTES: Final = 1024 * 1024
"""Bytes of the largest error file that is read."""

MAX_LATENESS: Final = 2.0
"""Seconds by which a file may have changed after the whole second that it names, and still have been written then."""


def read(path: Path) -> tuple[bytes, float]:
    """The file, and when it was last changed, in seconds since the epoch; nothing, if it cannot be used."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return b"", 0.0
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_ERROR_FILE_BYTES:
            return b"", 0.0
        return os.read(descriptor, MAX_ERROR_FILE_BYTES), found.st_mtime
    except OSError:
        return b"", 0.0
    finally:
        os.close(descriptor)


def recorded_error(data: bytes, changed: float) -> agent_pb2.RecordedError | None:
    """The content of an error file; None: it cannot be understood. Pure.

    Args:
        data: all of the file.
        changed: when it was last changed. The file names a whole second; this orders those of one second.
    """
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict):
        return None
    message, details = parsed.get("message"), parsed
    texts = [message]
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        details = extra if isinstance(extra, dict) else {}
        texts = [details.get("py_callstack"), message.get("message")]
    text = next((text for text in texts if isinstance(text, str) and text.strip()), None)
    if text is None:
        return None
    return agent_pb2.RecordedError(
        traceback=wire_text(text), record_time=_record_time(details.get("timestamp"), changed)
    )


def _record_time(recorded: object, changed: float) -> Timestamp | None:
    try:
        second = float(recorded) if isinstance(recorded, str | int | float) else math.nan
        if not second > 0:  # nor NaN
            return None
        return timestamp(changed if second <= changed < second + MAX_LATENESS else second)
    except (ValueError, OverflowError):
        return None
