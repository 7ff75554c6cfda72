"""How often something took how long, counted in buckets as a histogram of Prometheus has them; pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate


@dataclass(slots=True)
class Distribution:
    """A histogram of durations.

    Attributes:
        bounds: the upper bounds of the buckets in seconds, ascending and inclusive.
        counts: the number of durations in each bucket; the last one has those above all bounds.
        sum: the sum of all durations, in seconds.
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        """Unless they are given, no length has been counted."""
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, seconds: float) -> None:
        """Count a length; one that clocks make negative counts as 0."""
        length = max(0.0, seconds)
        self.counts[bisect_left(self.bounds, length)] += 1
        self.sum += length

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each bound with the number of durations up to it; the last bound is infinite."""
        return zip((*self.bounds, float("inf")), accumulate(self.counts), strict=True)
