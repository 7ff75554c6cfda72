"""Which hosts come and go in discovery's answers. Pure: time is the sequence of answers."""

from __future__ import annotations

from collections import Counter
from typing import Final

from edriver.model.hosts import HostSet

ANSWERS_CONSIDERED: Final = 60
"""Answers over which changes are counted; then the count starts again."""

MIN_CHANGES: Final = 6
"""Changes of a host among these from which on it is unsteady."""


class Steadiness:
    """Counts how often each host was added or removed.

    Attributes:
        unsteady: the host that has changed most, and how often; None: all are steady.
    """

    def __init__(self) -> None:
        """No answer has been seen."""
        self.unsteady: tuple[str, int] | None = None
        self._last: HostSet | None = None
        self._changes: Counter[str] = Counter()
        self._answers = 0

    def accept(self, answer: HostSet) -> None:
        """Take in an answer."""
        self._answers += 1
        if self._last is not None and answer != self._last:
            self._changes.update({host.name for host in answer} ^ {host.name for host in self._last})
        self._last = answer
        most = self._changes.most_common(1)
        if most and most[0][1] >= MIN_CHANGES:
            self.unsteady = most[0]
        if self._answers == ANSWERS_CONSIDERED:
            if not most or most[0][1] < MIN_CHANGES:
                self.unsteady = None
            self._answers = 0
            self._changes.clear()
