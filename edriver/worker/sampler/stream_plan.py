"""Which worker reads which shards: a plan that all workers of a round make alike, each by itself.

Shards are dealt in the epoch's order. A shard stays with its worker, which has it open, except where another one would
have nothing to read:

    1. a worker that has no shard of unknown length left gets half of those of the worker that has most
    2. where no worker has a second one, and one is without a whole batch, it joins another one in its shard
    3. once all lengths are known, samples are moved, so that each worker has whole batches as long as all have

The last two are for the end of an epoch, or for fewer shards than workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from edriver.worker.sampler.stream_shards import EpochProgress, Piece, ReadRange


@dataclass(slots=True)
class _Shared:
    """A shard that several workers read.

    Attributes:
        anchor: where the first chunk starts that went to one of them.
        workers: their ranks.
    """

    anchor: int
    workers: list[int]


class ShardPlan:
    """The shards of each worker.

    Args:
        shards: the remaining shards, in the epoch's order.
        size: the number of workers.
        batch_size: the number of samples in a worker's batch.
    """

    def __init__(self, shards: Sequence[int], size: int, batch_size: int) -> None:
        self._batch_size = batch_size
        self._queues = [list(shards[rank::size]) for rank in range(size)]
        self._shared: dict[int, _Shared] = {}
        self._pieces: list[list[Piece]] | None = None  # of each worker, once samples have been moved

    def copy(self, progress: EpochProgress) -> ShardPlan:
        """Another one that says the same of what is left."""
        other = ShardPlan([], 1, self._batch_size)
        other._queues = [progress.open_shards(queue) for queue in self._queues]
        shared = progress.open_shards(self._shared)
        other._shared = {s: _Shared(self._shared[s].anchor, list(self._shared[s].workers)) for s in shared}
        other._pieces = None if self._pieces is None else [list(pieces) for pieces in self._pieces]
        return other

    def state(self) -> list[Any]:
        """This as plain values."""
        shared = [[shard, one.anchor, *one.workers] for shard, one in sorted(self._shared.items())]
        pieces = None if self._pieces is None else [[list(piece) for piece in mine] for mine in self._pieces]
        return [self._batch_size, [list(queue) for queue in self._queues], shared, pieces]

    @classmethod
    def of_state(cls, state: Sequence[Any]) -> ShardPlan:
        """What `state` returned."""
        batch_size, queues, shared, pieces = state
        plan = cls([], 1, batch_size)
        plan._queues = [list(queue) for queue in queues]
        plan._shared = {shard: _Shared(anchor, list(workers)) for shard, anchor, *workers in shared}
        plan._pieces = None if pieces is None else [[Piece(*piece) for piece in mine] for mine in pieces]
        return plan

    def ranges(self, rank: int, progress: EpochProgress) -> list[ReadRange]:
        """What a worker is to read next, in order."""
        if self._pieces is not None:
            return [ReadRange(*left) for piece in self._pieces[rank] for left in progress.left_of(piece)]
        return [part for shard in self._queues[rank] for part in self._parts(rank, shard, progress)]

    def balance(self, progress: EpochProgress) -> bool:
        """Give workers that have no shard of unknown length others' shards; whether any was given. (1)"""
        given = False
        for rank, queue in enumerate(self._queues):
            if not self._unknown(rank, progress):
                richest = max(range(len(self._queues)), key=lambda other: len(self._whole(other, progress)))
                whole = self._whole(richest, progress)
                for shard in whole[len(whole) - len(whole) // 2 :]:
                    self._queues[richest].remove(shard)
                    queue.append(shard)
                    given = True
        return given

    def share(self, progress: EpochProgress) -> bool:
        """Assign workers without a shard of unknown length to those of others; False if no such shard exists. (2)"""
        unknown = dict.fromkeys(s for rank in range(len(self._queues)) for s in self._unknown(rank, progress))
        if not unknown:
            return False
        members = {s: [rank for rank, queue in enumerate(self._queues) if s in queue] for s in unknown}
        joined = set()
        for rank, queue in enumerate(self._queues):
            if not self._unknown(rank, progress):
                shard = min(unknown, key=lambda s: len(members[s]))
                members[shard].append(rank)
                queue.append(shard)
                joined.add(shard)
        for shard in joined:
            self._shared[shard] = _Shared(progress.left(shard)[0][0], members[shard])
        return True

    def move(self, progress: EpochProgress, quota: int) -> None:
        """Give each worker as many samples, of shards whose lengths are known, or all that are left. (3)

        What is left beyond that stays where it is.
        """
        owned = [
            [piece for part in self.ranges(rank, progress) for piece in part.runs()]
            for rank in range(len(self._queues))
        ]
        kept = [cut(pieces, quota) for pieces in owned]
        for mine in kept:
            for spare in owned:
                mine += cut(spare, quota - samples_in(mine))
        self._pieces = [mine + spare for mine, spare in zip(kept, owned, strict=True)]

    def pad(self, quota: int) -> None:
        """Fill up what workers lack with samples that others have: from the first ones of those that are left."""
        assert self._pieces is not None, "samples have been moved"
        first = [piece for pieces in self._pieces for piece in pieces]
        for mine in self._pieces:
            others = [piece for piece in first if piece not in mine]
            mine += cut(others, quota - samples_in(mine))

    def padded(self, rank: int) -> list[ReadRange]:
        """What a worker is to read of samples that are left and of repeated ones."""
        assert self._pieces is not None, "samples have been moved"
        return [ReadRange(*piece) for piece in self._pieces[rank]]

    def _parts(self, rank: int, shard: int, progress: EpochProgress) -> list[ReadRange]:
        shared = self._shared.get(shard)
        if shared is None:
            return [ReadRange(shard, start, stop) for start, stop in progress.left(shard)]
        member, members = shared.workers.index(rank), len(shared.workers)
        return [
            ReadRange(shard, start, stop, shared.anchor, self._batch_size, member, members)
            for start, stop in progress.left(shard)
        ]

    def _unknown(self, rank: int, progress: EpochProgress) -> list[int]:
        return [shard for shard in self._queues[rank] if shard not in progress.lengths]

    def _whole(self, rank: int, progress: EpochProgress) -> list[int]:
        return [shard for shard in self._unknown(rank, progress) if shard not in self._shared]


def samples_in(pieces: Iterable[Piece]) -> int:
    """The number of samples in these pieces."""
    return sum(piece.stop - piece.start for piece in pieces)


def cut(pieces: list[Piece], count: int) -> list[Piece]:
    """Take the first `count` samples off a list, or all that there are."""
    taken = []
    while count > 0 and pieces:
        shard, start, stop = pieces[0]
        end = min(stop, start + count)
        taken.append(Piece(shard, start, end))
        count -= end - start
        if end == stop:
            del pieces[0]
        else:
            pieces[0] = Piece(shard, end, stop)
    return taken
