"""When a state commits by itself: where failures would otherwise lead back further and further."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

COMMIT_SHARE: Final = 0.01
"""How much of a script's time commits may take that it has not asked for."""


class CommitSchedule:
    """Spaces commits out so that they take no more than COMMIT_SHARE of the time, however long each of them takes.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._due_at = 0.0

    def made(self, seconds: float) -> None:
        """A commit has been made, in this many seconds."""
        self._due_at = self._clock() + seconds / COMMIT_SHARE

    def due(self) -> bool:
        """Whether another one may be made."""
        return self._clock() >= self._due_at
