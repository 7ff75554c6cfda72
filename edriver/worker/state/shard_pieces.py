"""Which rows go from whom to whom when a state is cut anew. Pure: all members compute the same from the same.

A parameter of n rows is cut as FSDP2 cuts it: each of `size` workers gets ceil(n / size) rows, and the last ones what
is left, or nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    """Rows that one shard takes from another.

    Attributes:
        column: the parameter's number.
        new: the position of the shard that takes them,
        old: and of the one that has them.
        first: the first row, counted in the whole parameter,
        end: and the row behind the last one.
    """

    column: int
    new: int
    old: int
    first: int
    end: int


def rows_of(rows: int, size: int, position: int) -> tuple[int, int]:
    """The first row of a shard, and the row behind its last one."""
    chunk = -(-rows // size)
    return min(rows, position * chunk), min(rows, (position + 1) * chunk)


def source_of(position: int, receiver: int, held: Sequence[Collection[int]]) -> int:
    """The rank from which a receiver takes a position's rows: itself if it holds them, else the holders share the work.

    Args:
        position: of the shards before.
        receiver: the rank that needs them.
        held: by rank, the positions that it holds.
    """
    if position in held[receiver]:
        return receiver
    holders = [rank for rank, positions in enumerate(held) if position in positions]
    return holders[receiver % len(holders)]


def pieces(
    rows: Sequence[int],
    sizes: tuple[int, int],
    held: Sequence[Collection[int]],
    targets: Collection[int],
    sender: int,
    receiver: int,
) -> Iterator[Piece]:
    """What one rank takes from another, or from itself, in the order in which it is sent.

    Args:
        rows: the number of rows of each parameter.
        sizes: the number of shards before and now.
        held: by rank, the positions of the shards before that it holds.
        targets: the positions of the new shards that the receiver is to hold.
        sender: whose rows are asked for.
        receiver: who takes them.
    """
    before, now = sizes
    sources = {position: source_of(position, receiver, held) for position in range(before)}
    if sender not in sources.values():
        return
    for new in sorted(targets):
        for column, count in enumerate(rows):
            first, end = rows_of(count, now, new)
            chunk = -(-count // before) or 1
            while first < end:
                old = first // chunk
                stop = min(end, (old + 1) * chunk)
                if sources[old] == sender:
                    yield Piece(column, new, old, first, stop)
                first = stop
