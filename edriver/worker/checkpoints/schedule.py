"""When a checkpoint is due."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta


class CheckpointSchedule:
    """One checkpoint an interval. All workers follow it, so that another rank 0 goes on where the last one was.

    Args:
        every: a number of steps: after each that divides by it. Or a time: at the first step of each such stretch of
            the wall clock, counted from the epoch, but not at a worker's first step.
        clock: seconds since the epoch.

    Raises:
        ValueError: the interval is not positive.
        TypeError: it is neither a number of steps nor a time.
    """

    def __init__(self, every: timedelta | int, clock: Callable[[], float]) -> None:
        given: object = every
        if isinstance(given, bool) or not isinstance(given, timedelta | int):
            raise TypeError(f"every= takes a number of steps or a datetime.timedelta, and was given {every!r}")
        if (every.total_seconds() if isinstance(every, timedelta) else every) <= 0:
            raise ValueError(f"every= takes a positive number of steps or a positive time, and was given {every!r}")
        self._every = every
        self._clock = clock
        self._stretch: float | None = None

    def due(self, steps: int) -> bool:
        """Whether one is due at this step. To be asked at each step, in order."""
        if isinstance(self._every, int):
            return steps % self._every == 0
        before, self._stretch = self._stretch, self._clock() // self._every.total_seconds()
        return before is not None and before != self._stretch
