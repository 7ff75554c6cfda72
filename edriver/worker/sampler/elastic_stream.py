"""The elastic stream: shards of unknown length, each sample once per epoch through any sequence of resizes and losses.

`stream_schedule.py` defines how the workers share it, `stream_loader.py` how it is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from torch.utils.data import default_collate

from edriver.model.ids import RoundId
from edriver.model.plan import Assignment
from edriver.worker import context
from edriver.worker.sampler.sample_share import SampleDimensions
from edriver.worker.sampler.step_schedule import StepSchedule, position_of_state, state_of
from edriver.worker.sampler.stream_loader import StreamLoader
from edriver.worker.sampler.stream_reader import ShardReading
from edriver.worker.sampler.stream_schedule import EpochSchedule, Position, StreamSettings
from edriver.worker.sampler.stream_shards import EpochProgress, shard_order

logger = logging.getLogger("edriver.worker")


class ElasticStream:
    """Splits a sequence of shards among the workers, and records which samples are done.

    Pass it to the state (`TorchState(..., stream=stream)`), which commits and syncs it; call `set_epoch` at the
    start of every epoch, and pass a boundary after every step:

        stream = edriver.ElasticStream(files, read)
        state = edriver.TorchState(model, optimizer, stream=stream, epoch=0)
        ...
        stream.set_epoch(state.epoch)
        for batch in stream.loader(batch_size=32, num_workers=2):
            step(batch)
            state.commit()

    One worker trains on each sample of an epoch, once: a batch counts as done from the boundary on that follows it;
    samples that were only read ahead do not count. All workers make the same number of steps. The lengths of the
    shards need not be known.

    Args:
        shards: the shards to read, such as file names; the same on all workers. They are opened in the workers,
            or in the processes of their loaders.
        read: a function from a shard to an iterable of its samples, the same ones in the same order each time. If the
            iterable has `state_dict` and `load_state_dict` (with a JSON-serializable state), reading resumes by them;
            else the samples that are done are read again and skipped.
        shuffle: whether an epoch starts the shards in an order drawn from (seed, epoch). The samples of a shard keep
            their order.
        seed: the seed of that order; the same on all workers.

    Raises:
        ValueError: there are no shards.
    """

    def __init__(
        self, shards: Sequence[Any], read: Callable[[Any], Iterable[Any]], *, shuffle: bool = True, seed: int = 0
    ) -> None:
        if not len(shards):
            raise ValueError("an ElasticStream needs at least one shard, but got none")
        self.shards = shards
        self.shuffle = shuffle
        self._read = read
        self._seed = seed
        self._epoch = 0
        self._position = Position.of(EpochProgress(len(shards)))  # where the schedule, if there is one, began
        self._schedule: EpochSchedule | None = None
        self._round: RoundId | None = None
        self._warned = False

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self._epoch

    @property
    def seed(self) -> int:
        """The shuffle's seed."""
        return self._seed

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch with all shards; does nothing if that epoch is the current one.

        If the loader of the previous epoch was not iterated to its end, a warning is logged once.
        """
        if epoch == self._epoch:
            return
        schedule = self._schedule
        if schedule is not None and not schedule.exhausted and not self._warned and context.assignment().rank == 0:
            self._warned = True
            logger.warning(
                "epoch %d of the stream ends unfinished, after %d samples: the rest is skipped. Iterate all of the "
                "loader, and call set_epoch when it is done",
                self._epoch,
                schedule.progress().samples_done(),
            )
        self._epoch = epoch
        self._position = Position.of(EpochProgress(len(self.shards)))
        self._schedule = None

    def loader(
        self,
        batch_size: int,
        *,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **options: Any,
    ) -> StreamLoader:
        """Return a loader of this worker's batches; each iteration continues at the epoch's current position.

        When fewer samples are left than all workers together take in a step, each worker gets one last, smaller batch,
        of the same size on all workers: if the samples cannot be split evenly, some are repeated, fewer than there are
        workers.

        Args:
            batch_size: the number of samples in a batch of each worker; the same on all workers.
            drop_last: leave out that last batch. The number of samples skipped is logged at the end of the epoch.
            collate_fn: makes a batch of a list of samples, in the process that reads them; as for DataLoader.
            options: options of torch's DataLoader: num_workers, prefetch_factor, pin_memory, timeout, worker_init_fn,
                multiprocessing_context. With persistent_workers=True the loader's processes live as long as the loader:
                create it outside of the function that edriver.run wraps, and they continue in the next round.

        Raises:
            ValueError: batch_size is not positive, or an option would change which samples are chosen.
        """
        if batch_size < 1:
            raise ValueError(f"a batch has at least one sample, and batch_size is {batch_size}")
        collate = default_collate if collate_fn is None else collate_fn
        reading = ShardReading(self.shards, self._read, collate)

        def begin() -> EpochSchedule:
            return self._begin(batch_size, drop_last)

        def begin_steps(micro_batches: int, shares: Sequence[Sequence[int]]) -> StepSchedule:
            return self._begin_steps(batch_size, drop_last, micro_batches, shares)

        return StreamLoader(reading, self, batch_size, begin, begin_steps, self._check, collate, options)

    def state_dict(self) -> dict[str, Any]:
        """The progress as plain values; the same on all ranks at a boundary."""
        return {"epoch": self._epoch, "seed": self._seed, **state_of(self._reached())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`.

        Raises:
            ValueError: the state belongs to a stream with another number of shards.
            KeyError: it is not the state of an ElasticStream.
        """
        self._position = position_of_state(state_dict, len(self.shards))
        self._epoch, self._seed = state_dict["epoch"], state_dict["seed"]
        self._schedule = None

    def kept(self) -> tuple[int, int, Position]:
        """The values that a boundary keeps: epoch, seed, and what never changes once it is made."""
        return self._epoch, self._seed, self._reached()

    def bring_back(self, kept: tuple[int, int, Position]) -> None:
        """Go back to what `kept` returned."""
        self._epoch, self._seed, self._position = kept
        self._schedule = None

    def reset(self) -> None:
        """Split the remaining samples among the current round's workers; called at the start of every round.

        Raises:
            RuntimeError: this worker has no rank yet.
        """
        self._position = self._reached()
        self._schedule = None
        self._round = context.assignment().round_id

    def __len__(self) -> int:
        """Refuse: iterate the stream's loader instead.

        Raises:
            TypeError: always.
        """
        self._refuse()

    def __iter__(self) -> NoReturn:
        """Refuse: iterate the stream's loader instead.

        Raises:
            TypeError: always.
        """
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise TypeError(
            "an ElasticStream is not a dataset for a DataLoader, whose processes would not know which samples are "
            "done: "
            "iterate stream.loader(batch_size=...), which takes a DataLoader's arguments"
        )

    def samples_done(self) -> tuple[int, int]:
        """The epoch, and the number of its samples that all workers together have done."""
        return self._epoch, self._reached().progress().samples_done()

    def _reached(self) -> Position:
        return self._position if self._schedule is None else self._schedule.position

    def _begin(self, batch_size: int, drop_last: bool) -> EpochSchedule:
        """A new course through the remaining samples, in which each worker has batches."""
        order, place = self._order_here()
        settings = self._settings(batch_size, drop_last, 0)
        dimensions = context.current.part(SampleDimensions)
        shares = [dimensions.share(rank, place.size) for rank in range(place.size)]
        own = shares[place.rank]
        self._schedule = EpochSchedule(
            self._position.progress(), order, own.rank, own.size, settings, [share.rank for share in shares]
        )
        return self._schedule

    def _begin_steps(
        self, batch_size: int, drop_last: bool, micro_batches: int, shares: Sequence[Sequence[int]]
    ) -> StepSchedule:
        """The course that the epoch has in these steps, taken up if it has one."""
        order, place = self._order_here()
        settings = self._settings(batch_size, drop_last, micro_batches)
        schedule = self._schedule = StepSchedule(self._position, order, place.rank, shares, settings)
        return schedule

    def _order_here(self) -> tuple[list[int], Assignment]:
        """The epoch's order and this worker's place, for a schedule from the position that is reached.

        Raises:
            RuntimeError: the round is over.
        """
        place = context.assignment()
        if self._round is None:
            self._round = place.round_id
        if self._round != place.round_id:
            raise RuntimeError(
                f"this stream belongs to round {self._round}, which is over, so it would repeat and miss samples: give "
                "it to the state, as in TorchState(..., stream=stream), or make it inside the training function"
            )
        self._position = self._reached()
        return shard_order(len(self.shards), self.shuffle, self._seed, self._epoch), place

    def _settings(self, batch_size: int, drop_last: bool, micro_batches: int) -> StreamSettings:
        shards = len(self.shards)
        return StreamSettings(self._epoch, self._seed, self.shuffle, shards, batch_size, drop_last, micro_batches)

    def _check(self, schedule: EpochSchedule) -> None:
        """Check, before each batch of an iteration but the first, that the iteration is still valid.

        Raises:
            RuntimeError: the stream has begun another iteration, epoch or round since.
        """
        if schedule is not self._schedule:
            raise RuntimeError(
                "this iteration of the stream's loader is over, because another iteration, an epoch or a round has "
                "begun. Start a new one"
            )
