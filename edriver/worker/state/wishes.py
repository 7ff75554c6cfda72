"""What members of a round of sharded state wish for at a boundary, as the seal before it carries it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple


class Wishes(NamedTuple):
    """What a member wishes for at the boundary after a seal; after it, what any member does.

    Attributes:
        commit: that all commit.
        checkpoint: that there is a checkpoint of it, as rank 0 alone may,
        for_disk: and that it goes to disk.
        busy: that there is no checkpoint: it still writes its part of the one before.
        no_memory: that a checkpoint goes straight to disk: its host's memory cannot have its part.
    """

    commit: bool = False
    checkpoint: bool = False
    for_disk: bool = False
    busy: bool = False
    no_memory: bool = False

    def in_sum(self, members: int) -> float:
        """As a number, of which the members' sum says what any of them wishes for."""
        return float(sum(unit for wish, (unit, _) in zip(self, _digits(members), strict=True) if wish))

    @staticmethod
    def of_sum(total: float, members: int) -> Wishes:
        """What any member wishes for, by that sum."""
        return Wishes(*(int(total) // unit % radix > 0 for unit, radix in _digits(members)))

    def in_bits(self) -> int:
        """As bits, of which the members' disjunction says what any of them wishes for."""
        return sum(wish << at for at, wish in enumerate(self))

    @staticmethod
    def of_bits(bits: int) -> Wishes:
        """What any member wishes for, by that disjunction."""
        return Wishes(*(bool(bits >> at & 1) for at in range(len(Wishes._fields))))


_OF_RANK_0: Final = ("checkpoint", "for_disk")


def _digits(members: int) -> Iterator[tuple[int, int]]:
    """A digit of a sum for each wish, its unit and its radix, which counts the members: a float64 has all of them."""
    unit = 1
    for name in Wishes._fields:
        radix = 2 if name in _OF_RANK_0 else members + 1
        yield unit, radix
        unit *= radix
