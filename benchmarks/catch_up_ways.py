"""Ways in which a replica that joins can get its state, what each costs by a formula, and what was measured. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

PARAMETER_BYTES, MOMENTS_BYTES, GRADIENT_BYTES = 4, 8, 4
"""Of a parameter, of its two moments (Adam's), and of its gradient, in bytes."""

STATE_BYTES: Final = PARAMETER_BYTES + MOMENTS_BYTES

QUEUE_STEPS: Final = 4
"""Steps whose gradients may wait for the link. While the state is under way, fewer than 3 come to wait, if the link
is fast enough for the newcomer to catch up at all: 12 bytes a parameter take less than three times what 4 take."""


@dataclass(frozen=True, slots=True)
class Way:
    """How the state travels.

    Attributes:
        name: what it is called.
        replays: whether a copy of the state travels beside training, and each step's gradients after it.
        at_boundary: what travels while all wait at a boundary: parts of PARTS,
        beside_step: and what while they compute the next step's gradients.
        counts: whether the newcomer computes gradients in its first step; else it takes part in it with none.
    """

    name: str
    replays: bool = False
    at_boundary: tuple[str, ...] = ()
    beside_step: tuple[str, ...] = ()
    counts: bool = True


PARAMETERS, MOMENTS = "parameters", "moments"
PARTS: Final = (PARAMETERS, MOMENTS)

PLAIN = Way("plain", at_boundary=PARTS)
MOMENTS_BESIDE = Way("moments beside a step", at_boundary=(PARAMETERS,), beside_step=(MOMENTS,))
ALL_BESIDE = Way("all beside a step", beside_step=PARTS, counts=False)
CATCH_UP = Way("catch-up", replays=True)
CATCH_UP_IDLE = Way("catch-up, first step idle", replays=True, counts=False)
WAYS: Final = (PLAIN, MOMENTS_BESIDE, ALL_BESIDE, CATCH_UP, CATCH_UP_IDLE)


@dataclass(frozen=True, slots=True)
class Speeds:
    """What a transfer depends on.

    Attributes:
        link: bytes a second of the link from a holder to the newcomer.
        copy: bytes a second at which a holder copies its state, or its gradients.
        load: bytes a second at which a newcomer takes over what has arrived.
        replay: parameters a second for which the newcomer's optimizer makes a step.
    """

    link: float
    copy: float
    load: float
    replay: float


def keeps_up(parameters: float, step: float, speeds: Speeds) -> bool:
    """Whether a newcomer comes nearer: a step's gradients arrive, and are replayed, in less than a step."""
    return max(GRADIENT_BYTES * parameters / speeds.link, parameters / speeds.replay) < step


def steps_to_catch_up(parameters: float, step: float, speeds: Speeds) -> float:
    """Steps that are made from the copy until the newcomer is one behind; infinite: it never is."""
    if not keeps_up(parameters, step, speeds):
        return math.inf
    share = GRADIENT_BYTES * parameters / speeds.link / step
    return STATE_BYTES / GRADIENT_BYTES * share / (1 - share)


def expected_pause(way: Way, parameters: float, step: float, computing: float, speeds: Speeds) -> float:
    """The longest pause of those that hold the state, in seconds. Who never catches up gets the state the plain way.

    Args:
        way: how the state travels.
        parameters: of a position.
        step: seconds from one boundary to the next,
        computing: and those of them in which gradients are computed, so that nothing of the state changes.
        speeds: of link and hosts.
    """
    if way.replays and not keeps_up(parameters, step, speeds):
        way = PLAIN
    if way.replays:
        copy = STATE_BYTES * parameters / speeds.copy
        last = GRADIENT_BYTES * parameters / speeds.link + parameters / speeds.replay
        return max(copy, last if way.counts else last - computing)

    def seconds(parts: Sequence[str]) -> float:
        nbytes = sum({PARAMETERS: PARAMETER_BYTES, MOMENTS: MOMENTS_BYTES}[part] for part in parts) * parameters
        return nbytes / speeds.link + nbytes / speeds.load

    return seconds(way.at_boundary) + max(0.0, seconds(way.beside_step) - computing)


@dataclass(frozen=True, slots=True)
class Join:
    """When a holder of the state ended its steps, around a join.

    Attributes:
        ends: of its steps, in seconds.
        began: how many of them it had made when the join began,
        joined: and how many when the newcomer had the state, or took its first step.
    """

    ends: tuple[float, ...]
    began: int
    joined: int

    @property
    def _durations(self) -> list[float]:
        return [end - begin for begin, end in zip(self.ends, self.ends[1:], strict=False)]

    @property
    def step(self) -> float:
        """A step before the join, in seconds."""
        return median(self._durations[: self.began - 1])

    @property
    def first_pause(self) -> float:
        """The longest time between two steps' ends, beyond a step, before the newcomer takes part."""
        before = self._durations[self.began - 1 : self.joined - 1]
        return max((duration - self.step for duration in before), default=0.0)

    @property
    def last_pause(self) -> float:
        """By how much the newcomer's first step takes longer than those after it."""
        durations = self._durations
        return durations[self.joined - 1] - median(durations[self.joined :])

    @property
    def pause(self) -> float:
        """The longest pause, in seconds."""
        return max(self.first_pause, self.last_pause)

    @property
    def slowdown(self) -> float | None:
        """A step while the newcomer catches up over one before; None: there were none. The first has the copy in it."""
        meanwhile = self._durations[self.began : self.joined - 1]
        return median(meanwhile) / self.step if meanwhile else None
