"""A history that never grows beyond a limit: it is thinned as it gets longer, all of it evenly; pure."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

MOST: Final = 2000
"""What is kept at most."""

SPACING: Final = 1.0
"""Seconds between two of them at first."""

Value = TypeVar("Value")


class Thinned(Generic[Value]):
    """Values of something that changes with time, oldest first.

    What comes sooner after the last one than the spacing is passed over. When there are too many every second one is
    dropped, never the first, and the spacing doubles.

    Args:
        most: how many are kept; 2 or more.
        spacing: seconds between two of them at first.

    Attributes:
        kept: each with its time.
        spacing: seconds between two of them now.
    """

    def __init__(self, most: int = MOST, spacing: float = SPACING) -> None:
        self._most = most
        self.spacing = spacing
        self.kept: list[tuple[float, Value]] = []

    def due(self, now: float) -> bool:
        """Whether a value of this time would be kept."""
        return not self.kept or now - self.kept[-1][0] >= self.spacing

    def add(self, now: float, value: Value) -> bool:
        """Add a value, if one is due; returns whether others were dropped for it."""
        if not self.due(now):
            return False
        self.kept.append((now, value))
        if len(self.kept) <= self._most:
            return False
        del self.kept[1::2]
        self.spacing *= 2
        return True
