"""The progress of an epoch: three integers determine which samples are done, whatever happened to the workers.

Within a round, rank r of W takes the positions r, r + W, r + 2W, ... of the R samples that remain, where
position j is sample `base + j mod R` of the epoch's order, up to ceil(R / W) * W positions: every rank
gets equally many. At a boundary all ranks have recorded the same count n, so what is done is exactly the
first base + W * n samples of that order. No communication is needed to survive a loss, and a billion
samples cost no more than ten.

Only the last row of an epoch is padded: its free places repeat samples from the start of what remained.

Where all workers together take steps of a fixed size (micro_batches.py), `record_step` counts the samples of a step, in
place of each rank's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

SKIP_ADVICE: Final = (
    "A batch that is skipped counts as done: record it in the sampler as well, before `continue`, on all ranks alike. "
    "If only one rank has nothing to learn from a batch, let it take the step anyway, with its loss multiplied by 0"
)
"""What a loop that skips batches has to do."""


class CursorState(NamedTuple):
    """The position that a commit keeps and a sync sends; the same on all ranks.

    Attributes:
        epoch: the current epoch.
        seed: the shuffle's seed.
        offset: the number of samples of the epoch's order that are done, 0 to its length.
    """

    epoch: int
    seed: int
    offset: int


@dataclass(slots=True)
class Cursor:
    """One rank's place in an epoch over `length` samples.

    Attributes:
        length: the number of samples in the dataset.
        seed: the shuffle's seed.
        epoch: the current epoch.
        base: the number of samples done when this round was entered; only `enter`, `set_epoch` and `load` change it.
        recorded: n, the number of samples that this rank has recorded since.
        in_steps: the number of samples of all ranks that `record_step` has counted since.
        rank: this worker's rank in the round.
        size: the number of workers in the round.
    """

    length: int
    seed: int = 0
    epoch: int = 0
    base: int = 0
    recorded: int = 0
    in_steps: int = 0
    rank: int = 0
    size: int = 1

    @property
    def remaining(self) -> int:
        """R: the number of samples left in the epoch when this round was entered."""
        return self.length - self.base

    @property
    def share(self) -> int:
        """The number of samples that each rank takes in this round: ceil(R / W)."""
        return -(-(self.length - self.base) // self.size)

    @property
    def offset(self) -> int:
        """The number of samples of the epoch's order that are done at a boundary."""
        return min(self.length, self.base + self.in_steps + self.size * self.recorded)

    def position(self, k: int) -> int:
        """Which place of the epoch's order this rank's k-th sample of the round has, 0 <= k < share."""
        return self.base + (self.rank + k * self.size) % (self.length - self.base)

    def batch(self, batch_idx: int, batch_size: int) -> range:
        """Which of this rank's samples (values of k) a batch of the round has; the last may be short."""
        start = min(batch_idx * batch_size, self.share)
        return range(start, min(start + batch_size, self.share))

    def record(self, count: int) -> None:
        """Count this rank's next `count` samples as done.

        Raises:
            ValueError: there are not that many left for this rank in this round.
        """
        if not 0 <= count <= self.share - self.recorded:
            raise ValueError(
                f"cannot record {count} more samples: {self.recorded} of this rank's {self.share} samples "
                f"of epoch {self.epoch} are recorded in this round; call set_epoch at the start of every "
                "epoch"
            )
        self.recorded += count

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Count batch `batch_idx` of this round as done.

        Args:
            batch_idx: counted from 0 since the round was entered or the epoch was set.
            batch_size: the loader's batch size; for a short last batch also its length.

        Raises:
            ValueError: this is not the next batch.
        """
        left = self.share - self.recorded
        if left > 0 and batch_size > 0:
            if batch_idx * batch_size == self.recorded:
                self.recorded += min(batch_size, left)
                return
            if batch_size == left and self._ends_short(batch_idx, batch_size):
                self.recorded = self.share
                return
        raise ValueError(
            f"batch {batch_idx} of size {batch_size} is not the next one: {self._skipped(batch_idx, batch_size)}"
            f"{self.recorded} of this rank's {self.share} samples of epoch {self.epoch} are recorded in this round; "
            "record every batch once, in order, counting from 0 in each round and each epoch, with the loader's batch "
            "size, and call set_epoch at the start of every epoch"
        )

    def _skipped(self, batch_idx: int, batch_size: int) -> str:
        """Which batches were skipped, and what to do about it, if that is why a batch is not the next one."""
        whole = batch_size > 0 and self.recorded % batch_size == 0
        if not whole or self.recorded == self.share or batch_idx * batch_size <= self.recorded:
            return ""
        first, last = self.recorded // batch_size, batch_idx - 1
        what = f"batch {first} was" if first == last else f"batches {first} to {last} were"
        return f"{what} skipped and not recorded. {SKIP_ADVICE}. So far, "

    def _ends_short(self, batch_idx: int, batch_size: int) -> bool:
        """Whether what is recorded may be `batch_idx` equal batches that are longer than this one."""
        return batch_idx > 0 and self.recorded % batch_idx == 0 and batch_size < self.recorded // batch_idx

    def record_step(self, samples: int) -> None:
        """Count the next samples of the epoch's order as done, by whichever ranks."""
        assert 0 <= samples <= self.length - self.offset, f"{samples} samples after {self.offset} of {self.length}"
        self.in_steps += samples

    def next_positions(self, count: int) -> Iterable[int]:
        """The places of this rank's next `count` samples, fewer where fewer are left."""
        return map(self.position, range(self.recorded, min(self.recorded + count, self.share)))

    def enter(self, rank: int, size: int) -> None:
        """Enter a round: what is done stays done, and what remains is split again."""
        assert 0 <= rank < size, f"rank {rank} of {size}"
        self.base = self.offset
        self.recorded = self.in_steps = 0
        self.rank = rank
        self.size = size

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch; the one that is under way continues as it is."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.base = self.recorded = self.in_steps = 0

    def state(self) -> CursorState:
        """What is done so far; at a boundary the same on all ranks."""
        return CursorState(self.epoch, self.seed, self.offset)

    def load(self, state: CursorState) -> None:
        """Go to what another cursor's `state` returned; rank and size stay.

        Raises:
            ValueError: the state is of a longer dataset than this one.
        """
        if not 0 <= state.offset <= self.length:
            raise ValueError(
                f"the sampler's state has {state.offset} samples done, and the dataset has {self.length}: "
                "all workers must have the same dataset"
            )
        self.epoch, self.seed, self.base = state
        self.recorded = self.in_steps = 0
