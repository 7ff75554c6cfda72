"""An entry of the journal, and its form on disk."""

from __future__ import annotations

import json
import typing
from functools import cache
from typing import NamedTuple

from edriver.driver.journal.codec import Codec, kinds_in, to_json
from edriver.driver.journal.formats import FORMAT, JournalPart, upgraded
from edriver.model import events


class JournalEntry(NamedTuple):
    """One turn of the core.

    Attributes:
        clock: the core's time, in seconds: see Membership.
        wall_clock: seconds since the epoch.
        event: what the core was given.
        progress: see InboundMessage.
    """

    clock: float
    wall_clock: float
    event: events.Event
    progress: bytes = b""


@cache
def _codec() -> Codec:
    return Codec(kinds_in(events.Event))


def event_to_bytes(event: events.Event) -> bytes:
    """The event as the journal holds it: JSON, see codec.py."""
    return to_json(_codec().encode(event)).encode()


def event_from_bytes(data: bytes, written_in: int = FORMAT) -> events.Event:
    """The event in these bytes. They can make nothing but events and what these consist of.

    Args:
        data: the bytes.
        written_in: the FORMAT in which they were written.

    Raises:
        ValueError: they hold something else.
    """
    try:
        event = _codec().decode(upgraded(JournalPart.EVENT, json.loads(data), written_in))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not an event: {str(error) or type(error).__name__}") from None
    if not isinstance(event, typing.get_args(events.Event)):
        raise ValueError(f"it is not an event, but {event!a:.100}")
    return event  # type: ignore[no-any-return]
