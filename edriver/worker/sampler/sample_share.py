"""Which workers of a round train on the same samples.

Each worker has samples of its own, unless a ShardedState has several dimensions inside a replica. Workers that differ
only along dimensions which fully_shard does not shard over (tensor, pipeline or context parallelism) compute the same
step together, so they need the same samples.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from edriver.worker import context


class SampleShare(NamedTuple):
    """A worker's place among those that train on other samples.

    Attributes:
        rank: the number of its share of the samples, 0 to size - 1.
        size: the number of shares.
        is_first: whether this worker has the lowest rank of those with this share.
    """

    rank: int
    size: int
    is_first: bool


class SampleDimensions:
    """The dimensions inside a replica, and which of them have samples of their own. A part of the worker's context."""

    def __init__(self) -> None:
        self._inside: Mapping[str, int] = {}
        self._over: Collection[str] = ()

    def set(self, inside: Mapping[str, int], over: Collection[str]) -> None:
        """Know them from now on.

        Args:
            inside: the dimensions of a replica, outermost first: their names and sizes.
            over: the names of those that fully_shard shards over.
        """
        self._inside, self._over = inside, over

    def share(self, rank: int, size: int) -> SampleShare:
        """The share of the worker with this rank.

        Args:
            rank: in the round: replica * replica size + position; positions count through the dimensions, the last one
                fastest.
            size: the number of workers in the round.
        """
        if not self._inside:
            return SampleShare(rank, size, True)
        replica_size = math.prod(self._inside.values())
        replica, position = divmod(rank, replica_size)
        share, shares, is_first, stride = 0, 1, True, replica_size
        for name, length in self._inside.items():
            stride //= length
            at = position // stride % length
            if name in self._over:
                share, shares = share * length + at, shares * length
            else:
                is_first = is_first and not at
        return SampleShare(replica * shares + share, size // replica_size * shares, is_first)


def sample_share() -> SampleShare:
    """This worker's share of the samples in the current round.

    Raises:
        RuntimeError: this worker has no rank yet.
    """
    place = context.assignment()
    return context.current.part(SampleDimensions).share(place.rank, place.size)
