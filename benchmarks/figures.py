"""The figures of a whole `make bench`: each value that a trial gave, by what, under which system, and name. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple


class Key(NamedTuple):
    """What a figure is of.

    Attributes:
        part: the scenario or the micro benchmark.
        system: under what it was measured: edriver, torchrun, torchft, bare.
        name: the figure; UNITS has its unit.
    """

    part: str
    system: str
    name: str


@dataclass(frozen=True, slots=True)
class Unit:
    """How values are written.

    Attributes:
        factor: what a value is multiplied by,
        word: and what is written behind it;
        digits: how many digits after the point.
    """

    factor: float = 1
    word: str = ""
    digits: int = 0

    def __call__(self, value: float) -> str:
        """The value, written."""
        return f"{value * self.factor:.{self.digits}f} {self.word}".strip()


MILLISECONDS, SECONDS = Unit(1000, "ms"), Unit(1, "s", 1)
FINE = Unit(1000, "ms", 1)
MICROSECONDS, NANOSECONDS = Unit(1e6, "us"), Unit(1e9, "ns")
RATIO, RATE = Unit(digits=3), Unit(1e-9, "GB/s", 2)
UNITS = {
    "steps lost": Unit(),
    "samples lost": Unit(),
    "samples repeated": Unit(),
    "kills": Unit(),
    "rounds": Unit(),
    "steps": Unit(),
    "ranks with other bits than undisturbed": Unit(),
    "seal": MICROSECONDS,
    "steps a second": Unit(digits=2),
    "steps a second, bare": Unit(digits=2),
    "ratio to bare": RATIO,
    "goodput": RATIO,
    "steps that count": Unit(),
    "undisturbed steps": Unit(),
    "memory of the driver": Unit(1e-6, "MB"),
    "memory of an agent": Unit(1e-6, "MB"),
    "processor of the driver": Unit(100, "% of a core", 2),
    "processor of an agent": Unit(100, "% of a core", 2),
    "check": NANOSECONDS,
    "ElasticSampler of 1e8: each of the next": NANOSECONDS,
    "DistributedSampler of 1e7: each of the next": NANOSECONDS,
    "boundary": MICROSECONDS,
    "boundary after a step": MICROSECONDS,
    "boundary after a step, flat buffers": MICROSECONDS,
    "boundary, flat buffers": MICROSECONDS,
    "group": FINE,
    "bare group": FINE,
    "teardown": FINE,
    "bare destroy": FINE,
    "launch to the group": SECONDS,
    "launch to the first step": SECONDS,
    "own boot": SECONDS,
    "adoption": SECONDS,
    "end of the lease": SECONDS,
    "a node killed": SECONDS,
    "steps a second without a driver, by with one": RATIO,
    "standby: kill to in charge": SECONDS,
    "all workers killed: to the next step": SECONDS,
    "all workers killed: that beyond a launch": SECONDS,
    "a node added: to its first step": SECONDS,
}
"""The units of figures by name; others are times, and are written in milliseconds unless their name tells a speed."""


def unit_of(name: str) -> Unit:
    """How a figure's values are written."""
    return UNITS.get(name, RATE if name.endswith("speed") else MILLISECONDS)


class Figures:
    """All values, in the order of their arrival."""

    def __init__(self) -> None:
        self._values: dict[Key, list[float]] = {}

    def add(self, part: str, system: str, found: Mapping[str, float]) -> None:
        """Take in what one trial gave, by name."""
        for name, value in found.items():
            self._values.setdefault(Key(part, system, name), []).append(value)

    def values(self, key: Key) -> list[float]:
        """What was measured of it, in order; none: nothing was."""
        return self._values.get(key, [])

    def median(self, key: Key) -> float | None:
        """The middle one of its values; None: there are none."""
        values = self.values(key)
        return median(values) if values else None

    def __iter__(self) -> Iterator[Key]:
        """All that there are values of, in the order in which they came first."""
        return iter(self._values)
