"""A block: the batches that all workers hand out before they agree again.

Each worker has read ahead, and reports which samples it holds. From that all of them compute the same: what the batches
of each worker are, and how many steps the block has, which is as many as the worker has that can make the fewest. So
what is done after any number of steps is known to all without another message.

A block has at most 32 batches. The reports, which also say which shards have ended, travel through the round's store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edriver.worker.sampler.stream_plan import cut, samples_in
from edriver.worker.sampler.stream_shards import EpochProgress, Piece

MAX_STEPS = 32
"""Maximum number of batches per worker in a block: that many are held in memory, between two exchanges of reports."""


class BatchPart(NamedTuple):
    """What of a batch one lane has.

    Attributes:
        lane: which of the worker's readers holds these samples: 0 or, with DataLoader processes, one of them.
        pieces: the samples.
    """

    lane: int
    pieces: list[Piece]


Batch = list[BatchPart]
"""Of one worker. Nearly all have a single part: only where no lane has a whole batch left are they put together."""


def batches_of(lanes: Sequence[Sequence[Piece]], batch_size: int) -> list[Batch]:
    """The batches that a worker can make of what its lanes hold, MAX_STEPS at most; lanes take turns."""
    held = [list(pieces) for pieces in lanes]
    batches: list[Batch] = []
    turn = 0
    while len(batches) < MAX_STEPS:
        turns = [(turn + i) % len(held) for i in range(len(held))]
        whole = [lane for lane in turns if samples_in(held[lane]) >= batch_size]
        if whole:
            batches.append([BatchPart(whole[0], cut(held[whole[0]], batch_size))])
            turn = whole[0] + 1
            continue
        if sum(map(samples_in, held)) < batch_size:
            break
        batch: Batch = []
        missing = batch_size
        for lane in turns:
            if pieces := cut(held[lane], missing):
                batch.append(BatchPart(lane, pieces))
                missing -= samples_in(pieces)
        batches.append(batch)
    return batches


class Block:
    """Some steps of all workers.

    Args:
        before: the progress when the block began; not copied.
        batches: the batches of each worker, at least one for each step.
        steps: their number; None: as many as all workers have batches for. With more, some have none in the last ones.

    Attributes:
        steps: the number of steps.
    """

    def __init__(self, before: EpochProgress, batches: Sequence[Sequence[Batch]], steps: int | None = None) -> None:
        self.steps = min((len(mine) for mine in batches), default=0) if steps is None else steps
        self._before = before
        self._batches = batches
        self._reached = before.copy()
        self._at = 0

    def of(self, rank: int) -> Sequence[Batch]:
        """A worker's batches."""
        return self._batches[rank][: self.steps]

    def after(self, steps: int) -> EpochProgress:
        """What is done after this many steps of the block."""
        assert 0 <= steps <= self.steps
        if steps < self._at:
            self._reached, self._at = self._before.copy(), 0
        while self._at < steps:
            for mine in self._batches:
                for batch in mine[self._at : self._at + 1]:
                    for part in batch:
                        for piece in part.pieces:
                            self._reached.take(piece)
            self._at += 1
        return self._reached.copy()
