"""Counts omitted lines, and limits how often they are reported. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from edriver.text.phrases import count_text

REPORT_INTERVAL: Final = 10.0
"""Seconds between two lines about the same."""


class OmittedLines:
    """One place where lines are omitted.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reported_at: float | None = None
        self._unreported = 0
        self._total = 0

    def add(self, count: int) -> None:
        """So many more."""
        self._unreported += count
        self._total += count

    def due(self, *, last: bool = False) -> str:
        """Report, as text, the lines omitted since the last report and in all; empty if no report is due.

        Args:
            last: report the rest, however recent the last report was.
        """
        now = self._clock()
        soon = self._reported_at is not None and now - self._reported_at < REPORT_INTERVAL
        if not self._unreported or (soon and not last):
            return ""
        text = count_text(self._unreported, "line" if self._unreported == self._total else "more line")
        text += f" (in all {self._total})" if self._unreported < self._total else ""
        self._reported_at, self._unreported = now, 0
        return text
