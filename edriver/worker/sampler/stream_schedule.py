"""The course of an epoch through one round: what to read, what the workers agree on, and the blocks that follow.

Every worker has its own `EpochSchedule`. All of them are given the same reports, so all agree.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from edriver.worker.sampler.stream_block import Batch, Block, batches_of
from edriver.worker.sampler.stream_plan import ShardPlan
from edriver.worker.sampler.stream_shards import EpochProgress, Piece, ReadRange


class StreamSettings(NamedTuple):
    """What must be the same on all workers, or they would train on different samples than others believe.

    Attributes:
        micro_batches: in each step, where all have the same number of samples; 0: each worker has a batch in each.
    """

    epoch: int
    seed: int
    shuffle: bool
    shards: int
    batch_size: int
    drop_last: bool
    micro_batches: int = 0


class ReadReport(NamedTuple):
    """A worker's report after it has read ahead.

    Attributes:
        settings: see StreamSettings.
        lanes: the samples that each of its lanes holds, in the order in which they are to be handed out.
        ended: shards of which it has seen the end, and their lengths.
        readers: where to take up reading shards: see EpochProgress.readers.
    """

    settings: StreamSettings
    lanes: list[list[Piece]]
    ended: dict[int, int]
    readers: dict[int, tuple[int, str]]

    def text(self) -> str:
        """As it is sent."""
        return json.dumps(
            [self.settings, self.lanes, list(self.ended.items()), [(s, *reader) for s, reader in self.readers.items()]],
            separators=(",", ":"),
        )

    @classmethod
    def of(cls, text: str) -> ReadReport:
        """What was sent."""
        settings, lanes, ended, readers = json.loads(text)
        return cls(
            StreamSettings(*settings),
            [[Piece(*piece) for piece in lane] for lane in lanes],
            dict(ended),
            {shard: (at, state) for shard, at, state in readers},
        )


class Position(NamedTuple):
    """A place in an epoch: what a boundary keeps. None of it changes once it is made.

    Attributes:
        block: a block,
        steps: and how many of its steps are done.
        course: how the epoch goes on, where that does not depend on the round (step_schedule.py).
    """

    block: Block
    steps: int
    course: Course | None = None

    @classmethod
    def of(cls, progress: EpochProgress) -> Position:
        """The one at which this is done; it is not copied."""
        return cls(Block(progress, []), 0)

    def progress(self) -> EpochProgress:
        """What is done."""
        return self.block.after(self.steps)


class Course(NamedTuple):
    """What readers have agreed on with a block.

    Attributes:
        settings: see StreamSettings.
        plan: who reads what next.
        ahead: the number of steps to read ahead for,
        last: or the block is the epoch's last one.
        dropped: the number of samples left after it.
    """

    settings: StreamSettings
    plan: ShardPlan
    ahead: int
    last: bool
    dropped: int


class EpochSchedule:
    """One worker's view of an epoch, from its current position to its end or to the end of the round.

    Args:
        progress: the progress of the epoch; not changed.
        order: the order of the shards in this epoch.
        rank: the number of this worker's share of the stream.
        size: the number of shares: of workers that have samples of their own, or of the readers of step_schedule.py.
        settings: see StreamSettings.
        shares: for each worker of the round the number of its share; None: all have their own.

    Attributes:
        settings: as given.
        block: the block whose batches are being yielded.
        steps: the number of batches of the block that were yielded.
        finished: whether the block is the last one.
        dropped: the number of samples left after the last block.
        exhausted: whether all batches were yielded.
    """

    def __init__(
        self,
        progress: EpochProgress,
        order: Sequence[int],
        rank: int,
        size: int,
        settings: StreamSettings,
        shares: Sequence[int] | None = None,
    ) -> None:
        self.settings = settings
        self._shares = shares
        self._rank = rank
        self._size = size
        self._progress = progress.copy()  # when the block has been handed out
        self._plan = ShardPlan(self._progress.open_shards(order), size, settings.batch_size)
        self._last_batch = 0  # samples in the epoch's last batch, once it is being read
        self.block = Block(self._progress, [[] for _ in range(size)])
        self.steps = 0
        self.finished = False
        self.dropped = 0
        self.exhausted = False

    def progress(self) -> EpochProgress:
        """What is done, with what has been handed out."""
        return self.position.progress()

    @property
    def position(self) -> Position:
        """Where that is, as a boundary keeps it."""
        return Position(self.block, self.steps)

    def to_read(self) -> list[ReadRange]:
        """What this worker is to hold when the block has been handed out."""
        if self._last_batch:
            return self._plan.padded(self._rank)
        return self._plan.ranges(self._rank, self._progress)

    def batches(self) -> Sequence[Batch]:
        """This worker's batches of the block."""
        return self.block.of(self._rank)

    def readers(self) -> dict[int, tuple[int, str]]:
        """Where to take up reading shards."""
        return self._progress.readers

    @property
    def batch_size(self) -> int:
        """Samples in the batches that are being read."""
        return self._last_batch or self.settings.batch_size

    def report(self, lanes: list[list[Piece]], ended: dict[int, int], readers: dict[int, tuple[int, str]]) -> str:
        """What this worker sends, once the block has been read ahead for."""
        new = {s: reader for s, reader in readers.items() if self._progress.readers.get(s) != tuple(reader)}
        return ReadReport(self.settings, lanes, ended, new).text()

    def agree(self, reports: Sequence[str]) -> None:
        """Begin the next block; one without steps is to be read ahead for again.

        Args:
            reports: what all workers have sent, in the order of their ranks.

        Raises:
            ValueError: the workers disagree about the stream, or about the length of a shard, or those with the same
                samples have read them in different ways.
        """
        assert self.steps == self.block.steps, "the block has not been handed out"
        of_ranks = [ReadReport.of(text) for text in reports]
        self._compare(of_ranks)
        parsed = self._one_of_each_share(of_ranks)
        progress = self._progress
        for report in parsed:
            for shard, length in report.ended.items():
                progress.learn(shard, length)
        everywhere = sorted((shard, *reader) for report in parsed for shard, reader in report.readers.items())
        # If several workers read a shard, the report of the one that is behind holds for all.
        progress.readers.update({shard: (at, state) for shard, at, state in reversed(everywhere)})
        for shard in [shard for shard in progress.readers if not progress.left(shard)]:
            del progress.readers[shard]
        self.block, self.steps = Block(progress, self._batches(parsed)), 0
        self._progress = self.block.after(self.block.steps)
        if self._last_batch:
            self.finished = True
        elif not self._plan.balance(self._progress) and not self.block.steps:
            self._redistribute()

    def _one_of_each_share(self, parsed: Sequence[ReadReport]) -> Sequence[ReadReport]:
        """The reports in the order of the shares; workers with the same share have to say the same."""
        if self._shares is None:
            return parsed
        first: dict[int, int] = {}
        for rank, share in enumerate(self._shares):
            other = first.setdefault(share, rank)
            if (parsed[rank].lanes, parsed[rank].ended) != (parsed[other].lanes, parsed[other].ended):
                raise ValueError(
                    f"ranks {other} and {rank} compute steps together, so they need the same samples, and have read "
                    "different ones of the stream: make the same loader on both, with the same num_workers, of readers "
                    "that yield the same samples everywhere"
                )
        return [parsed[first[share]] for share in sorted(first)]

    def _redistribute(self) -> None:
        """A worker has read all that it was to read, and has no whole batch."""
        progress = self._progress
        if self._plan.share(progress):
            return
        left = sum(stop - start for s in range(progress.shards) for start, stop in progress.left(s) if stop is not None)
        if left >= self._size * self.settings.batch_size:
            self._plan.move(progress, left // (self._size * self.settings.batch_size) * self.settings.batch_size)
        elif left and not self.settings.drop_last:
            self._read_rest(left)
        else:
            self.finished, self.dropped = True, left

    def _batches(self, parsed: Sequence[ReadReport]) -> list[list[Batch]]:
        """Those that each can make of what it holds."""
        return [batches_of(report.lanes, self.batch_size) for report in parsed]

    def _read_rest(self, left: int) -> None:
        """So few samples are left that not all get a whole batch of them."""
        self._last_batch = -(-left // self._size)
        self._plan.move(self._progress, self._last_batch)
        self._plan.pad(self._last_batch)

    def _compare(self, parsed: Sequence[ReadReport]) -> None:
        first = parsed[0].settings
        for rank, report in enumerate(parsed):
            for name, own, its in zip(StreamSettings._fields, report.settings, first, strict=True):
                if own != its:
                    raise ValueError(
                        f"rank {rank} iterates a stream with {name} {own!r}, and rank 0 one with {its!r}: all workers "
                        "must make the same stream and the same loader, and call set_epoch with the same epoch"
                    )
