"""How long a process may be silent.

A process that counts silence, and stood still itself, blames no other: see `Lease`. The driver's own clock
(`ProcessClock`) counts 2 s at most between two readings, so that time in which it was stopped counts against no host.
"""

from __future__ import annotations

from collections.abc import Callable

MIN_LEASE = 1.0
"""Seconds below which a lease would end of a busy machine alone."""


class ProcessClock:
    """A clock that stops while its own process is stopped, or its machine is.

    It is read regularly; a gap between two readings counts only up to a maximum. So a deadline that
    has passed while this process could do nothing is not held against others, whose messages lie unread in its sockets.

    Args:
        clock: seconds that only grow.
        longest: seconds between two readings, at most, while the process runs.
    """

    def __init__(self, clock: Callable[[], float], longest: float) -> None:
        self._clock = clock
        self._longest = longest
        self._read = self._lived = clock()

    def go_on_from(self, lived: float) -> None:
        """Go on where the clock of another process has stopped.

        Args:
            lived: what that one read last.
        """
        self._read, self._lived = self._clock(), lived

    def __call__(self) -> float:
        """Seconds that the process has lived through, from where the clock began."""
        now = self._clock()
        self._lived += min(now - self._read, self._longest)
        self._read = now
        return self._lived


class Lease:
    """Measures another process's silence, and detects when it has lasted too long.

    The count grows tick by tick, each tick by two periods at most. Time in which this process itself did not run (it
    was stopped, or starved by others) is therefore not held against a process whose messages may lie unread in a
    socket.

    Args:
        duration: seconds of silence after which the lease expires.
        clock: seconds that only grow; an event loop's `time`.
        period: seconds between two ticks; None: what is left to the lease.

    Attributes:
        duration: as given.
        period: seconds between two ticks.
        silence: seconds without a message, as of the last tick.
    """

    def __init__(self, duration: float, clock: Callable[[], float], period: float | None = None) -> None:
        self.duration = duration
        self.period = min(1.0, duration / 10) if period is None else period
        self._clock = clock
        self.renew()

    @property
    def next_tick(self) -> float:
        """Seconds until the next `tick` is due: a period, or less if the lease ends earlier."""
        left = self.duration - self.silence - (self._clock() - self._counted_to)
        return max(0.0, min(self.period, left))

    @property
    def left(self) -> float:
        """Seconds of silence that were left at the last tick, at least 0."""
        return max(0.0, self.duration - self.silence)

    def renew(self) -> None:
        """A message has arrived: count from zero."""
        self.silence = 0.0
        self._counted_to = self._clock()

    def lengthen(self, duration: float) -> None:
        """Allow for another duration of silence from now on."""
        self.duration = duration
        self.renew()

    def tick(self, share: float = 1.0, now: float | None = None) -> bool:
        """Count on, after `next_tick`; returns whether the lease has expired.

        Args:
            share: how much of the time counts: less where this process is late, and may have messages to read.
            now: what the clock shows, if the caller has read it already, for many leases; None: read it.
        """
        if now is None:
            now = self._clock()
        self.silence += min(now - self._counted_to, 2 * self.period) * share
        self._counted_to = now
        return self.silence >= self.duration
