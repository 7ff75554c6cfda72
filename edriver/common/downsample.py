"""A history that never grows beyond a limit: it is thinned as it gets longer, all of it evenly; pure.

When there are more than MAX_SAMPLES, every second one is dropped.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

MAX_SAMPLES: Final = 2000
"""What is kept at most."""

MIN_INTERVAL: Final = 1.0
"""Seconds between two of them at first."""

Value = TypeVar("Value")


class Downsampled(Generic[Value]):
    """Values of something that changes with time, oldest first.

    What comes sooner after the last one than the spacing is passed over. When there are too many every second one is
    dropped, never the first, and the spacing doubles.

    Args:
        limit: how many are kept; 2 or more.
        interval: seconds between two of them at first.

    Attributes:
        samples: each with its time.
        interval: seconds between two of them now.
    """

    def __init__(self, limit: int = MAX_SAMPLES, interval: float = MIN_INTERVAL) -> None:
        self._limit = limit
        self.interval = interval
        self.samples: list[tuple[float, Value]] = []

    def due(self, now: float) -> bool:
        """Whether a value of this time would be kept."""
        return not self.samples or now - self.samples[-1][0] >= self.interval

    def add(self, now: float, value: Value, due: bool = False) -> bool:
        """Add a value, if one is due; returns whether others were dropped for it.

        Args:
            now: its time.
            value: the value.
            due: whether it is kept, however soon it comes.
        """
        if not due and not self.due(now):
            return False
        self.samples.append((now, value))
        if len(self.samples) <= self._limit:
            return False
        del self.samples[1::2]
        self.interval *= 2
        return True
