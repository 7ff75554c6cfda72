"""How long a worker may take over what it does, without a boundary, before it counts as stalled; and over one step."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final


class Phase(enum.StrEnum):
    """What a worker is doing."""

    INIT = "init"  # from its place in a round to the round's first boundary
    STEP = "step"  # between two boundaries
    COMMIT = "commit"  # in `state.commit()`, the copying
    EVAL = "eval"  # declared by the script
    SAVE = "save"  # declared by the script: a checkpoint is written


DEFAULT_STALL_LIMITS: Final[Mapping[str, float]] = {
    Phase.INIT: 1800.0,
    Phase.STEP: 600.0,
    Phase.COMMIT: 600.0,
    Phase.EVAL: 1800.0,
    Phase.SAVE: 1800.0,
}
"""Seconds; 0 is for ever. A step has what NCCL's own watchdog gives a collective."""

COLLECTIVE_TIMEOUT: Final = 1800.0
"""Seconds that a collective may wait: torch's own default for Gloo. A lost peer is noticed long before."""


STALL_FACTOR: Final = 5
"""A step that takes more than this many times as long as a usual one,"""

MIN_STALL_SECONDS: Final = 1.0
"""and this many seconds more than a usual one, counts as a usual step and a stall."""


def collective_timeout(limits: Mapping[str, float]) -> float:
    """Seconds that a collective may wait: longer than any member may be busy with something else."""
    if not all(limits.values()):
        return timedelta(days=365).total_seconds()
    return max([COLLECTIVE_TIMEOUT, *(1.5 * limit for limit in limits.values())])


def boundary_timeout(limits: Mapping[str, float]) -> float:
    """Seconds that a worker may take from one boundary to the next within the limits: each phase once."""
    return sum(limits.values()) if all(limits.values()) else math.inf


def limits_of(texts: Iterable[str], base: Mapping[str, float] = DEFAULT_STALL_LIMITS) -> dict[str, float]:
    """Read limits written as SECONDS, for all phases, or PHASE=SECONDS; later ones win.

    Args:
        texts: the limits.
        base: of the phases that none of them names.

    Raises:
        ValueError: one of them is neither; with a sentence that names it.
    """
    limits = dict(base)
    for text in texts:
        name, equals, seconds = text.rpartition("=")
        if equals and name not in set(Phase):
            raise ValueError(f"unknown phase {name!r}: choose one of {', '.join(Phase)}")
        try:
            value = float(seconds)
        except ValueError:
            raise ValueError(f"{text!r} is neither SECONDS nor PHASE=SECONDS") from None
        if not 0 <= value < float("inf"):
            raise ValueError(f"{text!r}: give seconds, or 0 for no limit")
        limits |= {Phase(name): value} if equals else dict.fromkeys(Phase, value)
    return limits


def text_of(limits: Mapping[str, float]) -> str:
    """Limits as one text of PHASE=SECONDS words."""
    return " ".join(f"{phase}={seconds:g}" for phase, seconds in sorted(limits.items()))


def excess(seconds: float, usual: float | None) -> float:
    """How much longer than a usual step a step is, if that makes it a stall; else 0.

    Args:
        seconds: between two boundaries.
        usual: seconds that a step usually takes; None: not known yet.
    """
    if usual is None or seconds <= max(STALL_FACTOR * usual, usual + MIN_STALL_SECONDS):
        return 0.0
    return seconds - usual
