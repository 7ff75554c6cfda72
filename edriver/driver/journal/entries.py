"""An entry of the journal, and its form on disk."""

from __future__ import annotations

import dataclasses
import enum
import io
import pickle
from typing import Any, Final, NamedTuple

from edriver.driver.core import events
from edriver.driver.journal.admitted import find_admitted, reduced

_ROOMS: Final = ("edriver.common.", "edriver.discovery.hosts", "edriver.driver.core.")
"""Where the classes of events, and of what they hold, are defined."""


class Entry(NamedTuple):
    """One turn of the core.

    Attributes:
        clock: the core's time, in seconds: see Membership.
        wall_clock: seconds since the epoch.
        event: what the core was given.
        progress: see Received.
    """

    clock: float
    wall_clock: float
    event: events.Event
    progress: bytes = b""


def event_to_bytes(event: events.Event) -> bytes:
    """The event as the journal holds it."""
    buffer = io.BytesIO()
    _Writer(buffer, protocol=5).dump(event)
    return buffer.getvalue()


def event_from_bytes(data: bytes) -> events.Event:
    """The event in these bytes. They can make nothing but events and what these consist of.

    Raises:
        ValueError: they hold something else.
    """
    try:
        event = _EventsOnly(io.BytesIO(data)).load()
    except Exception as error:  # noqa: BLE001  damaged bytes raise nearly everything
        raise ValueError(f"it is no event: {error}") from None
    if type(event).__module__ != events.__name__:
        raise ValueError(f"it is no event, but a {type(event).__name__}")
    return event  # type: ignore[no-any-return]


class _Writer(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """As every Python reads it."""
        return reduced(obj)


class _EventsOnly(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """A class of data, of the rooms above.

        Raises:
            UnpicklingError: it is something else.
        """
        return find_admitted(module_name, global_name, lambda found: module_name.startswith(_ROOMS) and _is_data(found))


def _is_data(found: object) -> bool:
    return isinstance(found, type) and (dataclasses.is_dataclass(found) or issubclass(found, (enum.Enum, tuple)))
