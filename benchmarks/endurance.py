"""What a soak has found, and whether it is as it must be. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from benchmarks.lives import Life, change_of

SLOWEST = 3.0
"""How many times the median the slowest recovery may take."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """How long training paused after a wave.

    Attributes:
        kill: the number of the wave's last kill, from 1.
        round: the number of the round with which training went on.
        entered: from that kill until all survivors were in that round and about to train.
        seconds: from that kill to the first step finished by all survivors.
        rank_zero: whether the wave hit rank 0.
        victims: how many it killed.
    """

    kill: int
    round: int
    entered: float
    seconds: float
    rank_zero: bool
    victims: int


@dataclass(slots=True)
class Outcome:
    """What a soak has found so far.

    Attributes:
        kills: how many there were.
        rank_zero: how many of them hit rank 0.
        seconds: how long it took.
        lives: every process that lives or lived long, by process id and the kill at which it was first seen.
        recoveries: one for each wave.
        processes: the most of edriver's processes and workers that there were in any moment of quiet.
        wrong: what must not be, in sentences.
        steps, steps_lost, rounds: of the whole run.
    """

    kills: int = 0
    rank_zero: int = 0
    seconds: float = 0.0
    lives: list[Life] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    processes: int = 0
    wrong: list[str] = field(default_factory=list)
    steps: int = 0
    steps_lost: int = 0
    rounds: int = 0

    @property
    def long_lives(self) -> list[Life]:
        """Those that can be judged."""
        return [life for life in self.lives if life.is_long]


def slow_ones(recoveries: list[Recovery]) -> list[Recovery]:
    """Those that took more than SLOWEST times the median, the slowest first."""
    if not recoveries:
        return []
    bound = SLOWEST * median(r.seconds for r in recoveries)
    return sorted((r for r in recoveries if r.seconds > bound), key=lambda r: -r.seconds)


def complaints(outcome: Outcome) -> Iterator[str]:
    """Everything that is not as it must be, in sentences."""
    yield from outcome.wrong
    if not any(life.role == "worker" for life in outcome.long_lives):
        yield "too few kills to judge anything"
    if outcome.steps_lost:
        yield f"{outcome.steps_lost} steps were lost"
    for life in outcome.long_lives:
        if not (change := change_of(life)).is_flat:
            yield (
                f"{life.name}: memory {change.growth / 1e6:+.2f} MB per 100 kills over {life.span} kills, descriptors "
                f"{change.descriptors[0]} to {change.descriptors[1]}, threads {change.threads[0]} to "
                f"{change.threads[1]}"
            )
    for slow in slow_ones(outcome.recoveries):
        yield (
            f"kill {slow.kill}: {slow.seconds * 1000:.0f} ms until round {slow.round} trained, of which "
            f"{slow.entered * 1000:.0f} ms until all were in it: over {SLOWEST:g} times the median of "
            f"{median(r.seconds for r in outcome.recoveries) * 1000:.0f} ms"
        )
