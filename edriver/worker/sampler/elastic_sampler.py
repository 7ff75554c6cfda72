"""The elastic sampler: an epoch visits every sample once, through any sequence of resizes and losses.

The rules are `edriver.worker.sampler.cursor`'s; this file adds the shuffle and torch's Sampler interface, with
Horovod's names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from edriver.model.ids import RoundId
from edriver.model.plan import Assignment
from edriver.worker import context
from edriver.worker.reports import SamplesDone
from edriver.worker.sampler.cursor import SKIP_ADVICE, Cursor, CursorState
from edriver.worker.sampler.loaders import refuse_second_sharding, watch_distributed_samplers
from edriver.worker.sampler.permutation import Permutation
from edriver.worker.sampler.sample_share import sample_share
from edriver.worker.watch.script_reports import ScriptReports

logger = logging.getLogger("edriver.worker")

LOOK_AHEAD = 4096
"""So many of a rank's next samples are looked through for one that was recorded too early."""

CHUNK_INDICES = 16384
"""The number of indices computed at a time: an epoch's indices are never all in memory."""


class ElasticSampler(Sampler[int]):
    """Gives each worker its share of an epoch, and records the progress in three integers.

    Pass it to the state (`TorchState(..., sampler=sampler)`), which commits it, syncs it and re-splits it at the
    start of each round; call `set_epoch` at the start of every epoch and `record_batch` after
    every step, before the boundary:

        sampler.set_epoch(state.epoch)
        for batch_idx, batch in enumerate(loader):
            step(batch)
            sampler.record_batch(batch_idx, batch_size)
            state.commit()

    Every worker gets the same number of samples: at the end of an epoch some are repeated to fill the last row. Workers
    that compute a step together (tensor, pipeline or context parallelism in a ShardedState) get the same samples.
    A completed epoch yields nothing. Iterating, or peeking at a batch, does not change the sampler; each iteration
    starts where this round (or an epoch that began within it) started.

    Args:
        dataset: the dataset to sample; its length must be constant and the same on all workers.
        shuffle: whether the order is a permutation drawn from (seed, epoch) instead of 0, 1, 2, ...
        seed: the seed of the permutation; the same on all workers.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self._length = len(dataset)
        self._cursor = Cursor(self._length, seed)
        # None until it is split: a sampler is often created before this worker's first round, when it has no
        # rank yet.
        self._split_for: RoundId | None = None
        self._iterated = False
        self._batch_size = 1
        self._warned = False
        self._complains = False  # only rank 0 warns
        self._dealt: Callable[[], Iterable[Sequence[int]]] | None = None
        watch_distributed_samplers()

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self._cursor.epoch

    @property
    def seed(self) -> int:
        """The shuffle's seed."""
        return self._cursor.seed

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch with a new order; does nothing if that epoch is the current one.

        The samples that a loader with drop_last left over count as skipped. If more of the previous epoch is open, or
        if it was iterated but never recorded, a warning is logged once.
        """
        if epoch != self._cursor.epoch:
            self._say_what_is_left()
            self._iterated = False
        self._cursor.set_epoch(epoch)

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Count a batch as done.

        Args:
            batch_idx: the number of the batch, as `enumerate(loader)` yields it.
            batch_size: the loader's batch size; a shorter last batch is recognised.

        Raises:
            ValueError: this is not the next batch: record each batch once, in order.
            RuntimeError: the batch is of a GlobalBatch.
        """
        if self._dealt is not None:
            raise RuntimeError(
                "the steps of a GlobalBatch record themselves, so that this batch would count twice: leave the call of "
                "record_batch out"
            )
        self._placed().record_batch(batch_idx, batch_size)
        context.current.part(ScriptReports).batch_recorded()
        self._batch_size = batch_size

    def record_indices(self, indices: Iterable[int]) -> None:
        """Count samples as done.

        Args:
            indices: this rank's next dataset indices, in the order in which the sampler yielded them.

        Raises:
            ValueError: they are not this rank's next indices.
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

    def progress(self) -> tuple[int, int]:
        """The number of samples of the epoch that are done, and the number of all."""
        cursor = self._placed()
        return cursor.offset, cursor.length

    def deal(self, places: Callable[[], Iterable[Sequence[int]]]) -> None:
        """Until the round's end yield the samples at these places of the epoch's order, for `record_step` to count.

        Args:
            places: called for each iteration; yields some at a time, when the ones before are used up.
        """
        self._placed()
        self._dealt = places

    def record_step(self, samples: int) -> None:
        """Count so many samples as done, the next ones of the epoch's order, by whichever ranks."""
        self._placed().record_step(samples)
        context.current.part(ScriptReports).batch_recorded()

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The dataset indices of one batch of this rank in this round; the last batch may be short."""
        cursor = self._placed()
        return self._indices([cursor.position(k) for k in cursor.batch(batch_idx, batch_size)])

    def state_dict(self) -> dict[str, int]:
        """The progress so far: epoch, seed and offset, the same on all ranks at a boundary."""
        return self._cursor.state()._asdict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`, and split the remaining samples among this round's workers.

        Raises:
            ValueError: the state belongs to a longer dataset.
            KeyError: it is not the state of an ElasticSampler.
        """
        self._cursor.load(CursorState(state_dict["epoch"], state_dict["seed"], state_dict["offset"]))
        self._split_for = None

    def samples_done(self) -> SamplesDone:
        """The epoch's progress over all workers, as far as this rank has recorded it."""
        return SamplesDone(self._cursor.epoch, self._cursor.offset, self._cursor.length)

    def reset(self) -> None:
        """Split the remaining samples among the current round's workers; called at the start of every round.

        Raises:
            ValueError: the dataset's length has changed.
            RuntimeError: this worker has no rank yet.
        """
        if len(self.dataset) != self._length:
            raise ValueError(
                f"the dataset had {self._length} samples when the sampler was made and has {len(self.dataset)} now: "
                "its length must not change during training"
            )
        place = self._place()
        self._dealt = None
        share = sample_share(place)
        self._cursor.enter(share.rank, share.size)
        self._complains = place.rank == 0
        self._split_for = place.round_id

    def __len__(self) -> int:
        """The number of samples that this rank takes in this round."""
        return self._placed().share

    def __iter__(self) -> Iterator[int]:
        """The dataset indices of this rank in this round, from the round's start."""
        cursor = self._placed()
        refuse_second_sharding()
        self._iterated = True
        if self._dealt is not None:
            return _dealt(self._dealt(), self._shuffle())
        # All values are read now: an abandoned loader may still draw from this iterator after a reset.
        return _chunks(cursor.base, cursor.remaining, cursor.rank, cursor.size, cursor.share, self._shuffle())

    def _place(self) -> Assignment:
        """This worker's place in the current round."""
        return context.assignment()

    def _say_what_is_left(self) -> None:
        cursor = self._cursor
        if not self._iterated or self._warned or not self._complains or self._dealt is not None:
            return
        if cursor.share - cursor.recorded < self._batch_size:
            return
        self._warned = True
        if cursor.offset == 0:
            what = f"all of epoch {cursor.epoch} was iterated and none of it recorded: a failure would repeat all of it"
        else:
            left = cursor.length - cursor.offset
            what = f"epoch {cursor.epoch} ends with {left} of its {cursor.length} samples not done: they are skipped"
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


def _int64(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device="cpu")


def _chunks(base: int, remaining: int, rank: int, size: int, share: int, shuffle: Permutation | None) -> Iterator[int]:
    for first in range(0, share, CHUNK_INDICES):
        k = torch.arange(first, min(first + CHUNK_INDICES, share), device="cpu")
        positions = base + (rank + k * size) % remaining
        yield from (positions if shuffle is None else shuffle.order(positions)).tolist()


def _dealt(places: Iterable[Sequence[int]], shuffle: Permutation | None) -> Iterator[int]:
    for some in places:
        yield from (some if shuffle is None else shuffle.order(_int64(some)).tolist())
