"""Who is killed in a soak, and when. Pure: a seed gives the same waves every time.

Kills come in waves of one or two; the next wave comes when the run has all its workers again. A run is divided into
reigns: each begins with a fall, in which every wave kills rank 0 first, and goes on with an elder, a worker that no
wave kills, so that one worker survives hundreds of kills.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

REIGN = 500
"""Kills in a reign, more or less."""

FALL = 0.35
"""The share of a reign's kills that may hit any worker. Three of four of them hit rank 0: a quarter of all."""

PAIRS = 0.8
"""The share of waves that kill two."""

LONGEST_DELAY = 0.3
"""Seconds: the second kill of a wave may hit any moment of the recovery from the first."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One kill.

    Attributes:
        delay: seconds after the kill before it; 0 for a wave's first, and for one that comes at once.
        rank_zero: whether it hits rank 0 of the newest round.
        choice: which of the others it hits otherwise, as a fraction of their number.
    """

    delay: float
    rank_zero: bool
    choice: float


@dataclass(frozen=True, slots=True)
class Wave:
    """Kills that do not wait for one another.

    Attributes:
        reign: the reign it belongs to, from 0.
        spares_elder: whether the reign's elder is left alone.
        strikes: one or two.
    """

    reign: int
    spares_elder: bool
    strikes: tuple[Strike, ...]


def waves_of(seed: int, kills: int) -> list[Wave]:
    """Draw waves with exactly so many kills."""
    rng = random.Random(seed)
    waves: list[Wave] = []
    reigns = max(1, round(kills / REIGN))
    for reign in range(reigns):
        first, end = kills * reign // reigns, kills * (reign + 1) // reigns
        done = first
        while done < end:
            falls = done < first + FALL * (end - first)
            strikes = [_strike(rng, 0.0, falls)]
            if end - done > 1 and rng.random() < PAIRS:
                delay = rng.choice((0.0, rng.uniform(0.0, LONGEST_DELAY)))
                strikes.append(_strike(rng, delay, falls and rng.random() < 0.5))
            waves.append(Wave(reign, not falls, tuple(strikes)))
            done += len(strikes)
    return waves


def _strike(rng: random.Random, delay: float, rank_zero: bool) -> Strike:
    return Strike(delay, rank_zero, rng.random())
