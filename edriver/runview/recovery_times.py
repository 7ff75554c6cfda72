"""How long recoveries from failures took; pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from edriver.v1 import status_pb2
from edriver.wire.conversion import duration, span_seconds

MAX_RECOVERIES: Final = 10_000
"""Latest recoveries of which the median is taken."""


@dataclass(slots=True)
class RecoveryTimes:
    """The lengths of the interruptions by failures.

    Attributes:
        latest: the lengths of the latest ones, in seconds.
        longest: the greatest length, in seconds.
        count: the total number.
    """

    latest: deque[float] = field(default_factory=deque)
    longest: float = 0.0
    count: int = 0

    def __post_init__(self) -> None:
        """Bound them, also those that a journal has held."""
        self.latest = deque(self.latest, maxlen=MAX_RECOVERIES)

    def add(self, interruption: status_pb2.Interruption) -> None:
        """An interruption is over: if a failure had begun it, and it led to a round, that was a recovery."""
        if interruption.kind == status_pb2.INTERRUPTION_KIND_FAILURE and interruption.round_id.n:
            seconds = span_seconds(interruption.duration)
            self.latest.append(seconds)
            self.longest = max(self.longest, seconds)
            self.count += 1

    def summary(self) -> status_pb2.RecoverySummary:
        """Describe their number and lengths."""
        if not self.count:
            return status_pb2.RecoverySummary()
        longest, middle = duration(self.longest), duration(median(self.latest))
        return status_pb2.RecoverySummary(count=self.count, median=middle, longest=longest)
