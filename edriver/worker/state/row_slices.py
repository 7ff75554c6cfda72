"""Which rows go from whom to whom when a state is cut anew. Pure: all members compute the same from the same.

A parameter of n rows is cut as FSDP2 cuts it: each of `size` workers gets ceil(n / size) rows, and the last ones what
is left, or nothing.

What a worker takes from each other one, and gives it, follows from its own shards alone: the plan takes as long as
there are parameters and workers, and not their product.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class RowSlice(NamedTuple):
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


def shard_rows(rows: int, size: int, position: int) -> tuple[int, int]:
    """The first row of a shard, and the row behind its last one."""
    chunk = -(-rows // size)
    return min(rows, position * chunk), min(rows, (position + 1) * chunk)


@dataclass(frozen=True, slots=True)
class Moves:
    """What one rank has to do with all others, in the order in which it is sent.

    Attributes:
        incoming: by sender, the rows that this rank takes; from itself, those that it holds.
        outgoing: by receiver, the rows that others take from it.
    """

    incoming: dict[int, list[RowSlice]]
    outgoing: dict[int, list[RowSlice]]


def plan_moves(
    rank: int,
    rows: Sequence[int],
    sizes: tuple[int, int],
    held: Sequence[Collection[int]],
    targets: Sequence[Collection[int]],
) -> Moves:
    """What a rank takes and gives when shards are cut anew.

    It takes as long as there are parameters, ranks, and slices of this rank's: a pair of ranks that have nothing to do
    with one another costs nothing.

    Args:
        rank: whose moves.
        rows: the number of rows of each parameter.
        sizes: the number of shards before and now.
        held: by rank, the positions of the shards before that it holds.
        targets: by rank, the positions of the new shards that it is to hold.
    """
    before, now = sizes
    holders, takers = _by_position(held), _by_position(targets)
    incoming = dict[int, list[RowSlice]]()
    for new in sorted(targets[rank]):
        for column, count in enumerate(rows):
            for old, first, end in _cuts(shard_rows(count, now, new), count, before):
                sender = rank if old in held[rank] else choose_source(holders[old], rank)
                incoming.setdefault(sender, []).append(RowSlice(column, new, old, first, end))
    outgoing = dict[int, list[RowSlice]]()
    for old in held[rank]:
        receivers = [{t for t in takers.get(new, ()) if _sends(rank, t, old, held, holders)} for new in range(now)]
        for column, count in enumerate(rows):
            for new, first, end in _cuts(shard_rows(count, before, old), count, now):
                for receiver in receivers[new]:
                    outgoing.setdefault(receiver, []).append(RowSlice(column, new, old, first, end))
    for found in outgoing.values():
        found.sort(key=lambda rows: (rows.new, rows.column, rows.first))
    return Moves(incoming, outgoing)


def choose_source(holders: Sequence[int], receiver: int) -> int:
    """The rank from which one that does not hold a position's rows takes them: the holders share the work."""
    return holders[receiver % len(holders)]


def _sends(
    rank: int, receiver: int, old: int, held: Sequence[Collection[int]], holders: Mapping[int, Sequence[int]]
) -> bool:
    return receiver != rank and old not in held[receiver] and choose_source(holders[old], receiver) == rank


def _by_position(of_ranks: Sequence[Collection[int]]) -> dict[int, list[int]]:
    """For each position, the ranks that have it, ascending."""
    found = dict[int, list[int]]()
    for rank, positions in enumerate(of_ranks):
        for position in positions:
            found.setdefault(position, []).append(rank)
    return found


def _cuts(part: tuple[int, int], count: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Cut a part of a parameter's rows where its shards end: the position of each, its first row, and the one behind.

    Args:
        part: the first row, and the one behind the last.
        count: the number of the parameter's rows.
        size: the number of shards.
    """
    first, end = part
    chunk = -(-count // size) or 1
    while first < end:
        position = first // chunk
        stop = min(end, (position + 1) * chunk)
        yield position, first, stop
        first = stop
