"""How long the driver goes without a word from an agent before it gives it up. Pure: the clock comes with each call."""

from __future__ import annotations


class Leases:
    """Deadlines, renewed by every word that is heard.

    A driver that was itself suspended (a debugger, a laptop's lid) has heard nothing from anybody and must not blame
    them: `expired` is called at a steady interval, and if it comes late, all leases are longer by as much.

    Args:
        seconds: the length of a lease.
        interval: seconds between calls of `expired`.
    """

    def __init__(self, seconds: float, interval: float) -> None:
        self.seconds = seconds
        self._interval = interval
        self._deadlines: dict[int, float] = {}
        self._checked: float | None = None

    def renew(self, key: int, now: float, seconds: float | None = None) -> None:
        """A word was heard from this one; optionally with a lease of another length."""
        self._deadlines[key] = now + (self.seconds if seconds is None else seconds)

    def drop(self, key: int) -> None:
        """The one with this key is not waited for any more."""
        self._deadlines.pop(key, None)

    def expired(self, now: float) -> list[int]:
        """Drop and return those whose lease is over."""
        late = 0.0 if self._checked is None else max(0.0, now - self._checked - self._interval)
        self._checked = now
        if late > self._interval:  # less is a busy machine, on which the agents' words are late as well
            self._deadlines = {key: deadline + late for key, deadline in self._deadlines.items()}
        over = [key for key, deadline in self._deadlines.items() if deadline <= now]
        for key in over:
            del self._deadlines[key]
        return over
