"""The elastic sampler: an epoch visits every sample once, through any sequence of resizes and losses.

The rules are `edriver.worker.sampler.cursor`'s; this file adds the shuffle and torch's Sampler interface, with
Horovod's names.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from edriver.model.ids import RoundId
from edriver.worker import topology
from edriver.worker.assignment import Assignment
from edriver.worker.reports import SamplesDone
from edriver.worker.sampler.cursor import SKIP_ADVICE, Cursor, CursorState
from edriver.worker.sampler.loaders import refuse_second_sharding, watch_distributed_samplers
from edriver.worker.sampler.permutation import Permutation

logger = logging.getLogger("edriver.worker")

LOOK_AHEAD = 4096
"""So many of a rank's next samples are looked through for one that was recorded too early."""

CHUNK_INDICES = 16384
"""How many indices are worked out at a time: an epoch's indices are never all in memory."""


class ElasticSampler(Sampler[int]):
    """Gives each worker its share of an epoch, and remembers with three integers what is done.

    Give it to the state (`TorchState(..., sampler=sampler)`), so that it is committed, synced and, at the
    start of each round, re-split; call `set_epoch` at the start of every epoch and `record_batch` after
    every step, before the boundary:

        sampler.set_epoch(state.epoch)
        for batch_idx, batch in enumerate(loader):
            step(batch)
            sampler.record_batch(batch_idx, batch_size)
            state.commit()

    Every worker gets equally many samples: at the end of an epoch some are repeated to fill the last row.
    An epoch that is done yields nothing. Iterating, or peeking at a batch, changes nothing; each iteration
    starts where this round (or the epoch, within it) started.

    Args:
        dataset: what is sampled; its length must stay the same and be the same on all workers.
        shuffle: whether the order is a permutation drawn from (seed, epoch) instead of 0, 1, 2, ...
        seed: the shuffle's seed, the same on all workers.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self._length = len(dataset)
        self._cursor = Cursor(self._length, seed)
        # None until it is split: a sampler is often made before this worker's first round, when it has no
        # rank yet.
        self._split_for: RoundId | None = None
        self._iterated = False
        self._batch_size = 1
        self._warned = False
        watch_distributed_samplers()

    @property
    def epoch(self) -> int:
        """The epoch that is under way."""
        return self._cursor.epoch

    @property
    def seed(self) -> int:
        """The shuffle's seed."""
        return self._cursor.seed

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch with a new order; does nothing where that epoch is already under way.

        What a loader with drop_last left over of the epoch before is not owed. Of one that is left with more open, or
        that was iterated and never recorded, a warning is logged, once.
        """
        if epoch != self._cursor.epoch:
            self._say_what_is_left()
            self._iterated = False
        self._cursor.set_epoch(epoch)

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Count a batch as done.

        Args:
            batch_idx: the batch's number as `enumerate(loader)` gives it.
            batch_size: the loader's; a last batch that is shorter is recognised.

        Raises:
            ValueError: this is not the batch that comes next: batches are recorded once each, in order.
        """
        self._placed().record_batch(batch_idx, batch_size)
        self._batch_size = batch_size

    def record_indices(self, indices: Iterable[int]) -> None:
        """Count these samples as done.

        Args:
            indices: this rank's next indices into the dataset, in the order in which they were given out.

        Raises:
            ValueError: they are not this rank's next ones.
        """
        given = [int(index) for index in indices]
        cursor = self._placed()
        due = self._indices(list(cursor.next_positions(len(given))))
        if given != due:
            at = next((i for i, pair in enumerate(zip(given, due, strict=False)) if pair[0] != pair[1]), len(due))
            expected = f"{due[at]} comes next" if at < len(due) else "nothing is left for this rank"
            if at < len(due) and given[at] in self._indices(list(cursor.next_positions(LOOK_AHEAD))):
                expected += f", and was skipped. {SKIP_ADVICE}"
            raise ValueError(
                f"index {given[at]} cannot be recorded: after {cursor.recorded + at} of this rank's "
                f"{cursor.share} samples of epoch {cursor.epoch} in this round, {expected}; record the "
                "indices in the order in which the sampler gave them out, each once"
            )
        cursor.record(len(given))

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The dataset indices of one batch of this rank in this round; the last batch may be short."""
        cursor = self._placed()
        return self._indices([cursor.position(k) for k in cursor.batch(batch_idx, batch_size)])

    def state_dict(self) -> dict[str, int]:
        """What is done so far: epoch, seed and offset, the same on all ranks at a boundary."""
        return self._cursor.state()._asdict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to what `state_dict` returned, and split what remains among this round's workers.

        Raises:
            ValueError: the state is of a longer dataset.
            KeyError: it is not an ElasticSampler's state.
        """
        self._cursor.load(CursorState(state_dict["epoch"], state_dict["seed"], state_dict["offset"]))
        self._split_for = None

    def samples_done(self) -> SamplesDone:
        """The progress of the epoch, of all workers together, as far as this rank has recorded."""
        return SamplesDone(self._cursor.epoch, self._cursor.offset, self._cursor.length)

    def reset(self) -> None:
        """Split what remains among the current round's workers: called at the start of every round.

        Raises:
            ValueError: the dataset's length has changed.
            RuntimeError: this worker has no rank yet.
        """
        if len(self.dataset) != self._length:
            raise ValueError(
                f"the dataset had {self._length} samples when the sampler was made and has "
                f"{len(self.dataset)} now: its length must not change while training goes on"
            )
        place = self._place()
        self._cursor.enter(place.rank, place.size)
        self._split_for = place.round_id

    def __len__(self) -> int:
        """How many samples this rank takes in this round."""
        return self._placed().share

    def __iter__(self) -> Iterator[int]:
        """The dataset indices of this rank in this round, from the round's start."""
        cursor = self._placed()
        refuse_second_sharding()
        self._iterated = True
        # All values are taken now: a loader that was abandoned may still draw from this iterator after a
        # reset.
        return _chunks(cursor.base, cursor.remaining, cursor.rank, cursor.size, cursor.share, self._shuffle())

    def _place(self) -> Assignment:
        """This worker's place in the current round."""
        return topology.current()

    def _say_what_is_left(self) -> None:
        cursor = self._cursor
        if not self._iterated or self._warned or cursor.rank != 0 or cursor.share - cursor.recorded < self._batch_size:
            return
        self._warned = True
        if cursor.offset == 0:
            what = (
                f"all of epoch {cursor.epoch} was iterated and nothing of it recorded: a failure would repeat all of it"
            )
        else:
            left = cursor.length - cursor.offset
            what = f"epoch {cursor.epoch} is left with {left} of its {cursor.length} samples not done: they are skipped"
        logger.warning(
            "%s. Iterate all of the loader, call sampler.record_batch after each step, and set_epoch when it is done",
            what,
        )

    def _placed(self) -> Cursor:
        """The cursor, split for the current round."""
        if self._split_for is None:
            self.reset()
        elif self._split_for != self._place().round_id:
            raise RuntimeError(
                f"this sampler is split for round {self._split_for}, which is over, so it would repeat and "
                "miss samples: give it to the state, as in TorchState(..., sampler=sampler), or make it "
                "inside the training function"
            )
        return self._cursor

    def _indices(self, positions: list[int]) -> list[int]:
        shuffle = self._shuffle()
        return positions if shuffle is None else shuffle.order(_int64(positions)).tolist()

    def _shuffle(self) -> Permutation | None:
        """The epoch's permutation; None means 0, 1, 2, ..."""
        if not self.shuffle or not self._cursor.length:
            return None
        return Permutation(self._cursor.length, self._cursor.seed, self._cursor.epoch)


def _int64(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device="cpu")


def _chunks(base: int, remaining: int, rank: int, size: int, share: int, shuffle: Permutation | None) -> Iterator[int]:
    for first in range(0, share, CHUNK_INDICES):
        k = torch.arange(first, min(first + CHUNK_INDICES, share), device="cpu")
        positions = base + (rank + k * size) % remaining
        yield from (positions if shuffle is None else shuffle.order(positions)).tolist()
