"""The course of an epoch in steps of a fixed number of samples, which does not depend on the number of workers. Pure.

A step has so many micro-batches, and each of them a *reader*: micro-batch n of every step is the next samples of reader
n. Readers share the stream's shards as the workers do where each has batches of its own (stream_schedule.py). A worker
has any number of readers, those whose micro-batches it computes.

So which samples a step has follows from the shards, their order, and the sizes of a step and a micro-batch. For that to
hold from one round to the next, the course is kept with the position; and what a reader reports depends on it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from edriver.worker.sampler.stream_block import MAX_STEPS, Batch, BatchPart, Block, batches_of
from edriver.worker.sampler.stream_plan import ShardPlan, cut
from edriver.worker.sampler.stream_schedule import Course, EpochSchedule, Position, ReadReport, StreamSettings
from edriver.worker.sampler.stream_shards import EpochProgress, Piece, ReadRange

MIN_AHEAD: Final = 2
"""Steps of a block, in the long run, even if these are more than MAX_STEPS micro-batches."""


class StepSchedule(EpochSchedule):
    """One worker's view of an epoch in steps.

    Args:
        position: the current one. If its course has these settings, that is taken up.
        order: the order of the shards in this epoch.
        rank: this worker's rank.
        readers: for each rank, those whose reports it sends; all of them together, some perhaps by several ranks.
        settings: see StreamSettings.
    """

    def __init__(
        self,
        position: Position,
        order: Sequence[int],
        rank: int,
        readers: Sequence[Sequence[int]],
        settings: StreamSettings,
    ) -> None:
        super().__init__(position.progress(), order, rank, settings.micro_batches, settings)
        self._readers = readers
        self.ahead = 1
        course = position.course
        if course is not None and course.settings == settings:
            self.block, self.steps, _ = position
            self._progress = self.block.after(self.block.steps)
            _, self._plan, self.ahead, self.finished, self.dropped = course

    @property
    def position(self) -> Position:
        """What is done, and the course."""
        course = Course(self.settings, self._plan, self.ahead, self.finished, self.dropped)
        return Position(self.block, self.steps, course)

    def micro_batches(self, step: int) -> list[list[Piece]]:
        """The samples of each micro-batch of a step of the block; only the epoch's last step may have fewer."""
        all_of_it = (self.block.of(reader) for reader in range(self.settings.micro_batches))
        return [mine[step][0].pieces for mine in all_of_it if step < len(mine)]

    def ranges(self, reader: int) -> list[ReadRange]:
        """What a reader is to hold, of `ahead` micro-batches, when the block has been handed out."""
        return [] if self.finished else self._plan.ranges(reader, self._progress)

    def agree(self, reports: Sequence[str]) -> None:
        """Begin the next block; one without steps is to be read ahead for again.

        Args:
            reports: what all workers have sent, in the order of their ranks.

        Raises:
            ValueError: the workers disagree about the stream, or about the length of a shard.
        """
        self._plan = self._plan.copy(self._progress)  # positions that were kept have the one before
        super().agree(reports)
        self.ahead = min(max(1, 2 * self.block.steps), max(MIN_AHEAD, MAX_STEPS // self.settings.micro_batches))

    def _batches(self, parsed: Sequence[ReadReport]) -> list[list[Batch]]:
        held: dict[int, list[Piece]] = {}
        for readers, report in zip(self._readers, parsed, strict=True):
            held.update(zip(readers, report.lanes, strict=True))
        return [batches_of([held[reader]], self.batch_size) for reader in range(self.settings.micro_batches)]

    def _read_rest(self, left: int) -> None:
        """Make the last step of what is left: whole micro-batches, the last one perhaps short."""
        progress, size = self._progress, self.batch_size
        pieces = [
            Piece(shard, start, stop)
            for shard in range(progress.shards)
            for start, stop in progress.left(shard)
            if stop is not None  # all lengths are known
        ]
        numbers = range(self.settings.micro_batches)
        batches = [[_batch(cut(pieces, size))] if number * size < left else [] for number in numbers]
        self.block, self.finished = Block(progress, batches, steps=1), True
        self._progress = self.block.after(1)


def state_of(position: Position) -> dict[str, Any]:
    """A position as plain values."""
    state, course = position.progress().state(), position.course
    if course is None:
        return state
    block = position.block
    left = [block.of(reader)[position.steps :] for reader in range(course.settings.micro_batches)]
    state["course"] = {
        "settings": list(course.settings),
        "plan": course.plan.state(),
        "ahead": course.ahead,
        "last": course.last,
        "dropped": course.dropped,
        "steps": block.steps - position.steps,
        "block": [[n for batch in mine for piece in batch[0].pieces for n in piece] for mine in left],
    }
    return state


def position_of_state(state: dict[str, Any], shards: int) -> Position:
    """What `state_of` returned.

    Raises:
        ValueError: there were more or fewer shards.
    """
    progress, course = EpochProgress.of_state(state, shards), state.get("course")
    if course is None:
        return Position.of(progress)
    settings = StreamSettings(*course["settings"])
    batches: list[list[Batch]] = []
    for numbers in course["block"]:
        pieces = [Piece(*numbers[at : at + 3]) for at in range(0, len(numbers), 3)]
        batches.append([])
        while pieces:
            batches[-1].append(_batch(cut(pieces, settings.batch_size)))
    plan = ShardPlan.of_state(course["plan"])
    agreed = Course(settings, plan, course["ahead"], course["last"], course["dropped"])
    return Position(Block(progress, batches, course["steps"]), 0, agreed)


def _batch(pieces: list[Piece]) -> Batch:
    return [BatchPart(0, pieces)]
