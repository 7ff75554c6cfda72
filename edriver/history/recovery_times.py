"""How long recoveries from failures took: their median, for all who show it; pure."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

from edriver.v1 import status_pb2
from edriver.wire.conversion import duration, span_seconds

MAX_RECOVERIES: Final = 10_000
"""Latest recoveries of which the median is taken."""


class RecoveryTimes:
    """How long the interruptions by failures took."""

    def __init__(self) -> None:
        """There was none."""
        self._latest: deque[float] = deque(maxlen=MAX_RECOVERIES)
        self._longest = 0.0
        self._count = 0

    def add(self, seconds: float) -> None:
        """One more took so long."""
        self._latest.append(seconds)
        self._longest = max(self._longest, seconds)
        self._count += 1

    def add_if_it_is_one(self, interruption: status_pb2.Interruption) -> None:
        """An interruption is over: if a failure had begun it, and it led to a round, that was a recovery."""
        if interruption.kind == status_pb2.INTERRUPTION_KIND_FAILURE and interruption.round_id.n:
            self.add(span_seconds(interruption.duration))

    def summary(self) -> status_pb2.RecoverySummary:
        """How many there were, and how long they took."""
        if not self._count:
            return status_pb2.RecoverySummary()
        longest, middle = duration(self._longest), duration(median(self._latest))
        return status_pb2.RecoverySummary(count=self._count, median=middle, longest=longest)
