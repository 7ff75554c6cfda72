"""The formats of what a journal holds, and how data of an older one becomes data of the present one.

A change that adds a field with a default, or drops one that decides nothing, needs no new format: see codec.py. All
other changes do: a new name for a type or a field, another meaning or unit, a field without a default. Then FORMAT
grows by one, and UPGRADES gets a function from the format before. It works on the JSON, not on classes, which may be
gone by then. `tests/data/journal` has a file of each format; a test resumes from each of them.

A driver writes a snapshot as soon as it has taken a run over, so a journal is of one format throughout. A newer format
than a driver knows is refused, with the release that wrote it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from edriver.driver.journal.codec import Json

FORMAT: Final = 7
"""In which a journal is written. Formats up to 5 were pickles of one release, and are not read."""

OLDEST_FORMAT: Final = 6
"""The oldest that can be read."""


class JournalPart(enum.Enum):
    """What a piece of JSON in a journal is."""

    HEAD = "head"
    EVENT = "event"
    SNAPSHOT = "snapshot"


Upgrade: TypeAlias = Callable[[JournalPart, Json], Json]
"""Converts a part from its format to the next one."""


def _server_ended(part: JournalPart, data: Json) -> Json:
    """Format 6 had a CheckpointsHeld without an address for a checkpoint server that had ended."""
    match part, data:
        case JournalPart.EVENT, {"CheckpointsHeld": {"host": host, "agent_id": agent_id, "address": ""}}:
            return {"CheckpointServerEnded": {"host": host, "agent_id": agent_id}}
    return data


UPGRADES: dict[int, Upgrade] = {6: _server_ended}
"""From each format between OLDEST_FORMAT and FORMAT to the one after it."""


def upgraded(part: JournalPart, data: Json, written_in: int, upgrades: Mapping[int, Upgrade] = UPGRADES) -> Json:
    """The same data in the present format.

    Args:
        part: what it is.
        data: the data.
        written_in: its format, from OLDEST_FORMAT to FORMAT.
        upgrades: by the format that they begin with.
    """
    for number in range(written_in, FORMAT):
        data = upgrades[number](part, data)
    return data
