"""Which samples of a stream are done: intervals of each shard, whose length is known once it has been read to its end.

Samples are named by their place in their shard. All workers hold the same `EpochProgress` at a boundary; it takes
memory for the shards that have been begun alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class Piece(NamedTuple):
    """Samples of one shard that follow each other: start, ..., stop - 1."""

    shard: int
    start: int
    stop: int


class ReadRange(NamedTuple):
    """The part of a shard that a worker reads.

    Several workers may share a shard: they take chunks of it in turn.

    Attributes:
        shard: the shard's number.
        start: the first sample of the part.
        stop: the end of the part; None: the end of the shard, wherever that is.
        anchor: the start of the first chunk.
        chunk: the number of samples in a chunk.
        member: this worker takes the chunks whose number is `member` modulo `members`.
        members: the number of workers that share the shard.
    """

    shard: int
    start: int
    stop: int | None
    anchor: int = 0
    chunk: int = 1
    member: int = 0
    members: int = 1

    def runs(self) -> Iterator[Piece]:
        """This worker's runs of consecutive samples, in order; the last one is open if there is no stop."""
        if self.members == 1 and self.stop is not None:
            yield Piece(self.shard, self.start, self.stop)
            return
        at = self.start
        while self.stop is None or at < self.stop:
            number = (at - self.anchor) // self.chunk
            end = self.anchor + (number + 1) * self.chunk
            end = end if self.stop is None else min(end, self.stop)
            if number % self.members == self.member:
                yield Piece(self.shard, at, end)
            at = end


class EpochProgress:
    """The progress of an epoch.

    Args:
        shards: the number of shards.

    Attributes:
        lengths: the lengths, in samples, of the shards that have been read to their end.
        readers: where to resume reading a shard: the number of the next sample, and the reader's state_dict at that
            point, as JSON.
    """

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.lengths: dict[int, int] = {}
        self.readers: dict[int, tuple[int, str]] = {}
        self._done: dict[int, list[tuple[int, int]]] = {}

    def copy(self) -> EpochProgress:
        """Another one that says the same."""
        other = EpochProgress(self.shards)
        other.lengths, other.readers = dict(self.lengths), dict(self.readers)
        other._done = {shard: list(intervals) for shard, intervals in self._done.items()}
        return other

    def take(self, piece: Piece) -> None:
        """Count these samples as done."""
        merged = []
        start, stop = piece.start, piece.stop
        for low, high in self._done.get(piece.shard, ()):
            if high < start or stop < low:
                merged.append((low, high))
            else:
                start, stop = min(start, low), max(stop, high)
        self._done[piece.shard] = sorted([*merged, (start, stop)])

    def learn(self, shard: int, length: int) -> None:
        """Take note that a shard has been read to its end.

        Raises:
            ValueError: it had another length before.
        """
        done = self._done.get(shard, [(0, 0)])[-1][1]
        if self.lengths.setdefault(shard, length) != length or length < done:
            raise ValueError(
                f"shard {shard} had {max(done, self.lengths[shard])} samples or more, but has {length} now: each time "
                "that a shard is read, on whichever worker, it must have the same samples in the same order"
            )

    def left(self, shard: int) -> list[tuple[int, int | None]]:
        """The parts of a shard that are not done, as (start, stop) in order; the last stop is None if unknown."""
        gaps: list[tuple[int, int | None]] = []
        at = 0
        for low, high in self._done.get(shard, ()):
            if at < low:
                gaps.append((at, low))
            at = high
        end = self.lengths.get(shard)
        if end is None or at < end:
            gaps.append((at, end))
        return gaps

    def left_of(self, piece: Piece) -> Iterator[Piece]:
        """What of a piece is not done."""
        for low, high in self.left(piece.shard):
            start, stop = max(low, piece.start), piece.stop if high is None else min(high, piece.stop)
            if start < stop:
                yield Piece(piece.shard, start, stop)

    def open_shards(self, order: Iterable[int]) -> list[int]:
        """Those of which samples are left, or may be."""
        return [shard for shard in order if shard not in self.lengths or self.left(shard)]

    def samples_done(self) -> int:
        """The number of samples done."""
        return sum(high - low for intervals in self._done.values() for low, high in intervals)

    def state(self) -> dict[str, Any]:
        """This as plain values: which shards are finished, and how far others have been read."""
        finished = sorted(shard for shard in {*self._done, *self.lengths} if not self.left(shard))
        begun = {*self._done, *self.lengths, *self.readers}.difference(finished)
        return {
            "shards": self.shards,
            "finished": [number for shard in finished for number in (shard, self.lengths[shard])],
            "begun": {
                shard: {
                    "done": [number for interval in self._done.get(shard, ()) for number in interval],
                    "length": self.lengths.get(shard),
                    "reader": list(self.readers.get(shard, ())),
                }
                for shard in sorted(begun)
            },
        }

    @classmethod
    def of_state(cls, state: dict[str, Any], shards: int) -> EpochProgress:
        """What `state` returned.

        Raises:
            ValueError: there were more or fewer shards.
        """
        if state["shards"] != shards:
            raise ValueError(
                f"the stream's state has {state['shards']} shards, but there are {shards} here: all workers must "
                "have the same shards"
            )
        progress = cls(shards)
        for shard, length in _pairs(state["finished"]):
            progress.lengths[shard] = length
            if length:
                progress._done[shard] = [(0, length)]
        for shard, begun in state["begun"].items():
            if begun["done"]:
                progress._done[int(shard)] = _pairs(begun["done"])
            if begun["length"] is not None:
                progress.lengths[int(shard)] = begun["length"]
            if begun["reader"]:
                progress.readers[int(shard)] = (begun["reader"][0], begun["reader"][1])
        return progress


def _pairs(numbers: list[int]) -> list[tuple[int, int]]:
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def shard_order(shards: int, shuffle: bool, seed: int, epoch: int) -> list[int]:
    """The order in which an epoch begins its shards: the same in every process."""
    if not shuffle:
        return list(range(shards))
    return sorted(range(shards), key=lambda shard: hashlib.blake2b(f"{seed} {epoch} {shard}".encode()).digest())
