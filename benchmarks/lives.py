"""Whether what a process holds is flat over many kills. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import linear_regression, median

from benchmarks.vitals import Vitals

WARM_UP = 20
"""Kills that a process lives through before it is judged: allocators and caches fill up."""

LEAST_SPAN = 30
"""Kills over which a process must have been watched beyond that to be judged."""

GROWTH_BOUND = 1 << 20
"""Most bytes that memory may grow by per 100 kills. One gradient bucket forgotten a reset would be a hundred MB."""

_EDGE = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """What a process held after so many kills of the run."""

    kills: int
    vitals: Vitals


@dataclass(slots=True)
class Life:
    """One process, as it was seen after each wave that it lived through.

    Attributes:
        role: driver, agent, guard, worker.
        pid: the process.
        samples: in order.
    """

    role: str
    pid: int
    samples: list[Sample] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What it is, for people."""
        return f"{self.role} {self.pid}"

    @property
    def judged(self) -> list[Sample]:
        """The samples after its warm-up."""
        return [sample for sample in self.samples if sample.kills >= self.samples[0].kills + WARM_UP]

    @property
    def span(self) -> int:
        """How many kills it was watched over after its warm-up."""
        judged = self.judged
        return judged[-1].kills - judged[0].kills if judged else 0

    @property
    def is_long(self) -> bool:
        """Whether it can be judged."""
        return self.span >= LEAST_SPAN


@dataclass(frozen=True, slots=True)
class Change:
    """How a long life's holdings changed after its warm-up.

    Attributes:
        growth: bytes of memory per 100 kills: the slope of a straight line through the samples.
        memory: bytes at the beginning and at the end: the median of a few samples each.
        descriptors: at the beginning and at the end: the least of a few samples, as a worker has more or fewer
            connections with its rank, and a driver a few while it asks discovery.
        threads: the same.
    """

    growth: float
    memory: tuple[int, int]
    descriptors: tuple[int, int]
    threads: tuple[int, int]

    @property
    def is_flat(self) -> bool:
        """Whether nothing grows."""
        return (
            self.growth <= GROWTH_BOUND
            and self.descriptors[1] <= self.descriptors[0]
            and self.threads[1] <= self.threads[0]
        )


def change_of(life: Life) -> Change:
    """Judge a long life."""
    judged = life.judged
    slope = linear_regression([s.kills for s in judged], [s.vitals.memory for s in judged]).slope
    return Change(
        growth=100 * slope,
        memory=_edges(judged, lambda v: v.memory, lambda values: int(median(values))),
        descriptors=_edges(judged, lambda v: v.descriptors, min),
        threads=_edges(judged, lambda v: v.threads, min),
    )


def _edges(samples: list[Sample], of: Callable[[Vitals], int], one: Callable[[Iterable[int]], int]) -> tuple[int, int]:
    values = [of(sample.vitals) for sample in samples]
    return one(values[:_EDGE]), one(values[-_EDGE:])
