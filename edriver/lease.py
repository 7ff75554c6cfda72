"""How long somebody may be silent."""

from __future__ import annotations

from collections.abc import Callable


class Lease:
    """Counts another process's silence, and says when it has lasted too long.

    The count grows tick by tick, each tick by two periods at most. Time in which this process itself did not run (it
    was stopped, or starved by others) is therefore not held against somebody whose words may lie unread in a socket.

    Args:
        duration: seconds of silence after which the lease expires.
        clock: seconds that only grow; an event loop's `time`.
        period: seconds between two ticks; None: what is left to the lease.

    Attributes:
        duration: as given.
        period: seconds between two ticks.
        silence: seconds without a word, as of the last tick.
    """

    def __init__(self, duration: float, clock: Callable[[], float], period: float | None = None) -> None:
        self.duration = duration
        self.period = min(1.0, duration / 10) if period is None else period
        self._clock = clock
        self.renew()

    @property
    def next_tick(self) -> float:
        """Seconds until `tick` is to be called: a period, or less where the lease ends before."""
        left = self.duration - self.silence - (self._clock() - self._counted_to)
        return max(0.0, min(self.period, left))

    def renew(self) -> None:
        """There was a word: count from zero."""
        self.silence = 0.0
        self._counted_to = self._clock()

    def lengthen(self, duration: float) -> None:
        """Allow for another duration of silence from now on."""
        self.duration = duration
        self.renew()

    def tick(self) -> bool:
        """Count on, after `next_tick`; returns whether the lease has expired."""
        now = self._clock()
        self.silence += min(now - self._counted_to, 2 * self.period)
        self._counted_to = now
        return self.silence >= self.duration
