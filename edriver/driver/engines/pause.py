"""When to ask an engine again that has refused: ever more rarely. Pure."""

from __future__ import annotations


class Pause:
    """A time in which an engine is not asked, twice as long each time.

    Args:
        first: seconds that the first one takes,
        longest: and the longest.

    Attributes:
        until: when it is over.
    """

    def __init__(self, first: float, longest: float) -> None:
        self.until = 0.0
        self._first = self._next = first
        self._longest = longest

    def begin(self, now: float) -> float:
        """Begin a pause; returns its length in seconds."""
        seconds, self._next = self._next, min(2 * self._next, self._longest)
        self.until = now + seconds
        return seconds

    def end(self) -> None:
        """What was asked for has been given: the next one is as short as the first."""
        self.until = 0.0
        self._next = self._first
