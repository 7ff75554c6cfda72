"""A clock that can be held, so that what is replayed gets the times at which it happened."""

from __future__ import annotations

from collections.abc import Callable


class HeldClock:
    """Reads another clock, unless it is held.

    Args:
        clock: the other one.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: float | None = None

    def __call__(self) -> float:
        """The time."""
        return self._clock() if self._held is None else self._held

    def hold(self, time: float) -> None:
        """Read this from now on."""
        self._held = time

    def release(self) -> None:
        """Read the other clock again."""
        self._held = None
