"""Which workers of a round train on the same samples.

Each worker has samples of its own, unless a ShardedState has several dimensions inside a replica. Workers that differ
only along dimensions which fully_shard does not shard over (tensor, pipeline or context parallelism) compute the same
step together, so they need the same samples.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from edriver.model.plan import Assignment
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
    """The dimensions inside a replica, and which of them have samples of their own: of the state that is trained."""

    def __init__(self) -> None:
        self._inside: Mapping[str, int] = {}
        self._over: Collection[str] = ()
        self._stages: Collection[str] = ()

    def set(self, inside: Mapping[str, int], over: Collection[str], stages: Collection[str] = ()) -> None:
        """Know them from now on.

        Args:
            inside: the dimensions of a replica, outermost first: their names and sizes.
            over: the names of those that fully_shard shards over.
            stages: the names of those along which workers have different layers.
        """
        self._inside, self._over, self._stages = inside, over, stages

    def clear(self) -> None:
        """From now on each worker has samples of its own."""
        self._inside, self._over, self._stages = {}, (), ()

    def share(self, rank: int, size: int) -> SampleShare:
        """The share of the worker with this rank. One that is in no whole replica trains on nothing, and has the first.

        Args:
            rank: in the round: replica * replica size + position; positions count through the dimensions, the last one
                fastest.
            size: the number of workers in the round.
        """
        if not self._inside:
            return SampleShare(rank, size, True)
        replica_size = math.prod(self._inside.values())
        if rank >= size // replica_size * replica_size:
            return SampleShare(0, max(1, size // replica_size * self._in_replica), False)
        replica, position = divmod(rank, replica_size)
        share, stride = replica, replica_size
        for name, length in self._inside.items():
            stride //= length
            if name in self._over:
                share = share * length + position // stride % length
        is_first = self._first(rank, self._over) == rank
        return SampleShare(share, size // replica_size * self._in_replica, is_first)

    def leader(self, rank: int) -> int:
        """The lowest rank of the workers that compute the same as the worker with this rank, but for their part of it:
        who differ only along dimensions that are neither fully_shard's nor stages.
        """
        return self._first(rank, {*self._over, *self._stages})

    def _first(self, rank: int, apart: Collection[str]) -> int:
        """The lowest rank of the workers that differ from this one along other dimensions alone."""
        first, stride = rank, math.prod(self._inside.values())
        for name, length in self._inside.items():
            stride //= length
            if name not in apart:
                first -= rank // stride % length * stride
        return first

    @property
    def _in_replica(self) -> int:
        """The number of shares in a replica."""
        return math.prod(length for name, length in self._inside.items() if name in self._over)


def sample_share(place: Assignment) -> SampleShare:
    """The share of the samples that a worker with this place in the current round has."""
    return context.current.part(SampleDimensions).share(place.rank, place.size)
