"""Counts lines that were left out, and says when that is worth a line: no flood of complaints about a flood. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from edriver.text.phrases import count_text

SPACING: Final = 10.0
"""Seconds between two lines about the same."""


class LeftOut:
    """One place where lines are left out.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told_at: float | None = None
        self._untold = 0
        self._total = 0

    def add(self, count: int) -> None:
        """So many more."""
        self._untold += count
        self._total += count

    def due(self, *, last: bool = False) -> str:
        """How many lines were left out since the last telling, and in all, as text; empty: not to be told now.

        Args:
            last: tell what is left, however short the last telling was ago.
        """
        now = self._clock()
        soon = self._told_at is not None and now - self._told_at < SPACING
        if not self._untold or (soon and not last):
            return ""
        text = count_text(self._untold, "line" if self._untold == self._total else "more line")
        text += f" (in all {self._total})" if self._untold < self._total else ""
        self._told_at, self._untold = now, 0
        return text
