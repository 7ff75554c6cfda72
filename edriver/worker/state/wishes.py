"""What members of a round of sharded state wish for at a boundary, as the seal before it carries it."""

from __future__ import annotations

from typing import NamedTuple


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

    def in_bits(self) -> int:
        """As bits, of which the members' disjunction says what any of them wishes for."""
        return sum(wish << at for at, wish in enumerate(self))

    @staticmethod
    def of_bits(bits: int) -> Wishes:
        """What any member wishes for, by that disjunction."""
        return Wishes(*(bool(bits >> at & 1) for at in range(len(Wishes._fields))))
