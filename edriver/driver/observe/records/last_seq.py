"""Where an event log ends."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

TAIL_BYTES: Final = 4 * 1024 * 1024
"""Bytes at the end of an event log within which there is an event: one has 1 MiB at most, and between two there are
lines about the progress."""


def last_seq(path: Path) -> int:
    """The number of the last event in an event log; 0: it has none, or cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            seq = json.loads(line).get("seq")
            if seq is not None:
                return int(seq)
        except (ValueError, AttributeError, TypeError):
            continue  # cut off: at the beginning by us, at the end by the end of its writer
    return 0
