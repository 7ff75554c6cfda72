"""Which members are slower than the others; pure.

All members make their steps at the same pace, that of the slowest. What differs is their own part of a step: all of it
but waiting for others. A straggler's is well above the median of the others', in each half of a window, so that a
pause does not make one; and it stays one until it is hardly above it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from edriver.v1 import pace_pb2

HALF_SECONDS: Final = 15.0
"""Seconds of half a window, at least,"""

HALF_STEPS: Final = 5
"""and steps."""

MAX_HALF_SECONDS: Final = 600.0
"""Seconds of half a window, at most."""

SAMPLES_PER_HALF: Final = 15
"""The number of a member's reports remembered per half window."""

REPORTS_PER_HALF: Final = 2
"""The number of a member's reports in half a window, at least."""

SLOW_RATIO: Final = 1.25
"""A straggler's own part of a step is at least so many times that of the others,"""

SLOW_SHARE: Final = 0.1
"""so much of a step longer,"""

SLOW_SECONDS: Final = 0.002
"""and so many seconds."""

MAX_RATIO: Final = 1000.0
"""A ratio that is higher says nothing more."""

RECOVERED_RATIO: Final = 1.1
"""Below it a worker no longer counts as a straggler."""


class StepReport(NamedTuple):
    """A member's report on a round so far. Times are in seconds.

    Attributes:
        time: when it was reported.
        boundaries: the number of boundaries passed.
        watched: the total time of steps.
        waiting: the part of it spent waiting for others; None if that cannot be measured.
        loading: the part of it spent in a data loader.
        delayed: the part of it delayed by lack of a processor.
    """

    time: float
    boundaries: int
    watched: float
    waiting: float | None
    loading: float
    delayed: float


class StepTimes(NamedTuple):
    """What a member's step consists of, on average over some time; in seconds, as in StepReport."""

    seconds: float
    waiting: float | None
    loading: float
    delayed: float

    @property
    def own(self) -> float | None:
        """The member's own part of the time; None if unknown."""
        return None if self.waiting is None else max(0.0, self.seconds - self.waiting)


class Window:
    """The latest reports of one member of a round."""

    __slots__ = ("_half", "_samples")  # there is one for each worker

    def __init__(self) -> None:
        self._samples: list[StepReport] = []  # some thirty at most: an empty deque takes 600 bytes
        self._half = HALF_SECONDS

    def add(self, sample: StepReport) -> None:
        """It has reported; one whose counts have fallen starts again."""
        samples = self._samples
        if samples and (sample.boundaries < samples[-1].boundaries or sample.watched < samples[-1].watched):
            samples.clear()
        spacing = self._half / SAMPLES_PER_HALF
        if len(samples) > 1 and sample.time - samples[-2].time < spacing:
            samples.pop()
        samples.append(sample)
        first = samples[0]
        if (steps := sample.boundaries - first.boundaries) > 0:
            usual = (sample.time - first.time) / steps
            self._half = min(MAX_HALF_SECONDS, max(HALF_SECONDS, HALF_STEPS * usual))
        reports = (sample.time - first.time) / max(1, len(samples) - 1)  # between two of them: rare in a large run
        self._half = max(self._half, REPORTS_PER_HALF * reports)
        while len(samples) > 2 and samples[1].time <= sample.time - 2 * self._half:
            del samples[0]

    def halves(self, now: float) -> tuple[StepTimes, StepTimes] | None:
        """The steps in the half before the last one, and in that; None: too little is known."""
        samples, half = self._samples, self._half
        if len(samples) < 3 or samples[-1].time < now - half or samples[0].time > samples[-1].time - 1.8 * half:
            return None
        middle = min(samples, key=lambda each: abs(each.time - (samples[-1].time - half)))
        earlier, later = _step(samples[0], middle), _step(middle, samples[-1])
        return None if earlier is None or later is None else (earlier, later)

    def latest(self) -> StepTimes | None:
        """The steps of the last half, or of less; None: none was made."""
        if len(self._samples) < 2:
            return None
        last = self._samples[-1]
        first = next(each for each in self._samples if each.time >= last.time - self._half or each is last)
        return _step(first, last)


@dataclass(frozen=True, slots=True)
class StragglerVerdict:
    """A straggler.

    Attributes:
        ratio: its own part of a step, divided by the median of the others'.
        excess: its own part of a step beyond that median, in seconds.
        reason: the main cause of the excess.
    """

    ratio: float
    excess: float
    reason: pace_pb2.StragglerReason.ValueType


def stragglers(
    halves: Mapping[int, tuple[StepTimes, StepTimes]], known: Mapping[int, object]
) -> dict[int, StragglerVerdict]:
    """Which members are slower than the others, the slowest first.

    Args:
        halves: of each member, the steps of two halves of a window.
        known: those that are stragglers already.
    """
    if len(halves) < 2:
        return {}
    seen = all(step.waiting is not None for pair in halves.values() for step in pair)
    earlier, later = (_compared({one: pair[half] for one, pair in halves.items()}, seen) for half in (0, 1))
    found = {}
    for one, pair in halves.items():
        slow = _is_slow(earlier[one], pair[0]) and _is_slow(later[one], pair[1])
        if slow or (one in known and later[one].ratio >= RECOVERED_RATIO and later[one].excess >= SLOW_SECONDS):
            found[one] = later[one]
    return dict(sorted(found.items(), key=lambda item: -item[1].ratio))


def _compared(steps: Mapping[int, StepTimes], seen: bool) -> dict[int, StragglerVerdict]:
    """How each member compares with the others in some time.

    Args:
        steps: of each member.
        seen: whether it is known how much of these was waiting.
    """
    own = _median_of_others({one: _part(step, seen) for one, step in steps.items()})
    loading = _median_of_others({one: step.loading for one, step in steps.items()})
    delayed = _median_of_others({one: step.delayed for one, step in steps.items()})
    return {one: _verdict(step, seen, own(one), loading(one), delayed(one)) for one, step in steps.items()}


def _is_slow(verdict: StragglerVerdict, step: StepTimes) -> bool:
    return verdict.ratio >= SLOW_RATIO and verdict.excess >= max(SLOW_SHARE * step.seconds, SLOW_SECONDS)


def _part(step: StepTimes, seen: bool) -> float:
    """What is compared: a member's own part of a step; where waiting cannot be seen, loading alone."""
    return (step.own or 0.0) if seen else step.loading


def _verdict(step: StepTimes, seen: bool, own: float, loading: float, delayed: float) -> StragglerVerdict:
    """How a member compares with the medians of the others."""
    excess = _part(step, seen) - own
    base = own if seen else step.seconds - excess
    ratio = MAX_RATIO if excess > 0 else 1.0
    if base > 0:
        ratio = min(MAX_RATIO, (base + excess) / base)
    parts = {
        pace_pb2.STRAGGLER_REASON_LOADING: step.loading - loading,
        pace_pb2.STRAGGLER_REASON_PROCESSOR: step.delayed - delayed,
    }
    parts[pace_pb2.STRAGGLER_REASON_COMPUTING] = excess - sum(max(0.0, part) for part in parts.values())
    return StragglerVerdict(ratio, excess, max(parts, key=lambda reason: parts[reason]))


def _median_of_others(values: Mapping[int, float]) -> Callable[[int], float]:
    """For each member, the median of the others' values, with one sort for all of them."""
    ordered = sorted(values.values())
    middle, odd = divmod(len(ordered), 2)

    def of_others(one: int) -> float:
        value = values[one]
        if odd:  # without one, an even number is left: the two in the middle of those
            low = ordered[middle - 1] if value > ordered[middle - 1] else ordered[middle]
            high = ordered[middle + 1] if value < ordered[middle + 1] else ordered[middle]
            return (low + high) / 2
        return ordered[middle] if value < ordered[middle] else ordered[middle - 1]

    return of_others


def _step(first: StepReport, last: StepReport) -> StepTimes | None:
    steps = last.boundaries - first.boundaries
    if steps <= 0 or last.watched <= first.watched:
        return None
    waiting = None if first.waiting is None or last.waiting is None else (last.waiting - first.waiting) / steps
    return StepTimes(
        (last.watched - first.watched) / steps,
        waiting,
        (last.loading - first.loading) / steps,
        (last.delayed - first.delayed) / steps,
    )
