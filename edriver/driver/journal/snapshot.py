"""A snapshot of the driver's state, and its form on disk.

It holds objects as they are: what refers to one another does so afterwards. What a driver brings itself, such as its
clock, is not in it, but named.
"""

from __future__ import annotations

import io
import pickle
import types
from collections.abc import Mapping
from typing import Any, Final

from edriver.driver.journal.admitted import find_admitted, reduced
from edriver.driver.journal.draws import Draws

_ROOMS: Final = ("edriver.", "google.protobuf.")
"""Where the classes of what a snapshot holds are defined."""

_OTHERS: Final = frozenset(
    {
        ("builtins", "object"),
        ("builtins", "set"),
        ("builtins", "frozenset"),
        ("collections", "Counter"),
        ("collections", "OrderedDict"),
        ("collections", "defaultdict"),
        ("collections", "deque"),
        ("copyreg", "_reconstructor"),
    }
)


def snapshot_to_bytes(state: object, brought: Mapping[str, object]) -> bytes:
    """A snapshot of this.

    Args:
        state: any objects of the driver's.
        brought: what is not to be in it, by name.
    """
    buffer = io.BytesIO()
    _Writer(buffer, brought).dump(state)
    return buffer.getvalue()


def snapshot_from_bytes(data: bytes, brought: Mapping[str, object]) -> Any:
    """What a snapshot holds.

    Args:
        data: the snapshot.
        brought: what takes the place of what was not in it.

    Raises:
        ValueError: it holds something that does not belong there.
    """
    try:
        return _Reader(io.BytesIO(data), brought).load()
    except Exception as error:  # noqa: BLE001  damaged bytes raise nearly everything
        raise ValueError(f"it is no snapshot: {error}") from None


def _bound(owner: object, name: str) -> object:
    """A method of an object of edriver's."""
    if not type(owner).__module__.startswith(_ROOMS):
        raise pickle.UnpicklingError(f"{type(owner).__name__}.{name} does not belong in a journal")
    return getattr(owner, name)


def brought_by(clock: object, wall_clock: object, draws: Draws) -> dict[str, object]:
    """What each driver brings itself: its clocks, and its draws."""
    return {"clock": clock, "wall_clock": wall_clock, "draw": draws.number}


class _Writer(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, brought: Mapping[str, object]) -> None:
        super().__init__(buffer, protocol=5)
        self._brought = brought

    def persistent_id(self, obj: Any) -> str | None:
        """The name of what is not to be in it."""
        if not callable(obj):
            return None
        return next((name for name, other in self._brought.items() if obj is other or obj == other), None)

    def reducer_override(self, obj: Any) -> Any:
        """Methods are found by their object and their name."""
        if isinstance(obj, types.MethodType):
            return _bound, (obj.__self__, obj.__name__)
        return reduced(obj)


class _Reader(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, brought: Mapping[str, object]) -> None:
        super().__init__(buffer)
        self._brought = brought

    def persistent_load(self, pid: Any) -> Any:
        """What takes the place of what was not in it."""
        return self._brought[pid]

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """A class of the rooms above.

        Raises:
            UnpicklingError: it is something else.
        """

        def admits(found: object) -> bool:
            ours = module_name.startswith(_ROOMS) and isinstance(found, type)
            return ours or found is _bound or (module_name, global_name) in _OTHERS

        return find_admitted(module_name, global_name, admits)
