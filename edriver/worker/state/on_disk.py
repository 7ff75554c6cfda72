"""A TorchState's checkpoints: when they are due, what of the state they hold, and how the state takes one over.

All workers count steps and follow the same schedule (multiples of `every`, in steps or on the wall clock), so another
rank 0 continues where the last one was.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Protocol

from edriver.model.ids import NO_ROUND, RoundId, Version
from edriver.model.plan import Assignment
from edriver.worker import context
from edriver.worker.checkpoints.contents import readable_form
from edriver.worker.checkpoints.hyperparameters import differences
from edriver.worker.checkpoints.shard_planners import ShardPlace
from edriver.worker.checkpoints.state_checkpoints import Contents, StateCheckpoints, TrainingPosition
from edriver.worker.copies.random_states import RandomStates
from edriver.worker.copies.snapshot import Loan
from edriver.worker.errors import CheckpointError
from edriver.worker.state.handlers import StateHandler

logger = logging.getLogger("edriver.worker")


class Checkpointed(Protocol):
    """The part of a state that checkpoints use.

    Attributes:
        steps_made: the number of steps that the live state has made, in all runs; kept, restored and synced with it.
    """

    steps_made: int

    def committed_parts(self) -> tuple[dict[str, Any], RandomStates, Loan]:
        """The last commit: its tree, the states of the random number generators, and its tensors, lent."""

    def shards_in(self, tree: dict[str, Any]) -> Mapping[int, ShardPlace]:
        """The places of those tensors of a tree of which this worker has shards, by the tensors' ids.

        Args:
            tree: of a commit, with this worker's shards, or of a checkpoint, with whole tensors.
        """

    def take_over(self, tree: dict[str, Any], random: dict[str, Any]) -> None:
        """Bring the state to a checkpoint's.

        Raises:
            ValueError: it is of another state.
        """


class StateOnDisk:
    """See `state.OnDisk`.

    Args:
        state: the state.
        handlers: of its values, by name.
        location: a path or a URL.
        every: see CheckpointSchedule.
        keep: number of whole checkpoints to keep.
        clock: seconds since the epoch.

    Attributes:
        state: the state.
        checkpoints: those in the folder.
        schedule: when they are due.
    """

    def __init__(
        self,
        state: Checkpointed,
        handlers: Mapping[str, StateHandler],
        location: str | os.PathLike[str],
        every: timedelta | int,
        keep: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.state = state
        self._handlers = handlers
        self._location = os.fspath(location)
        self.checkpoints = StateCheckpoints(
            self._location,
            keep,
            lost=context.current.lost_members.has,
            on_disk=context.current.save_requests.written,
        )
        self.schedule = CheckpointSchedule(every, clock)
        self._round: RoundId = NO_ROUND
        self._begun_with = 0
        self._trained = 0
        self._loaded: int | None = None

    def begin(self, round_id: RoundId) -> None:
        """Own the folder: this worker is rank 0 of the round.

        Raises:
            CheckpointError: another run that lives owns it.
        """
        self.checkpoints.own(round_id, wait=not self._trained)

    def count_step(self) -> bool:
        """Count a step; returns whether this worker should write a checkpoint of it."""
        if (place := self.counted()) is None:
            return False
        due = self.schedule.due(self.state.steps_made)
        if place.rank != 0 or not (due or context.current.save_requests.wanted(place.round_id)):
            return False
        if self.checkpoints.busy:
            if due:
                self.checkpoints.skipped()
            return False  # what was asked for is begun once that one is written
        return True

    def counted(self) -> Assignment | None:
        """Count a step; returns this worker's place in its round, if it is in one."""
        state, place = self.state, current_place()
        if place is not None:
            if place.round_id != self._round:
                self._round, self._begun_with = place.round_id, state.steps_made
            state.steps_made += 1
            self._trained = state.steps_made
        return place

    def write(self) -> None:
        """Begin to write the last commit."""
        self.write_part(0, (0,))

    def write_part(self, part: int, writers: tuple[int, ...], *, ends_run: bool = False) -> None:
        """The same, or a part of it; see TrainingPosition."""
        state, place = self.state, context.assignment()
        tree, random, loan = state.committed_parts()
        contents = self.contents(tree, random.kept())
        version = Version(self._round, state.steps_made - self._begun_with)
        run_id = os.environ.get("EDRIVER_RUN_ID", "")
        request = context.current.save_requests.begin() if place.rank == 0 else 0
        where = TrainingPosition(
            place.round_id, state.steps_made, str(version), run_id, place.size, part, writers, ends_run, request
        )
        self.checkpoints.write(where, contents, loan.wait, loan.give_back)

    def contents(self, tree: dict[str, Any], random: dict[str, Any]) -> Contents:
        """What a checkpoint is to hold of a tree of the state."""
        readable = readable_form(tree, lambda name, part: self._handlers[name].readable(part))
        return Contents(readable, tree, random, self.state.shards_in(tree))

    def write_last(self, chosen: bool) -> None:
        """Begin to write the last commit, if that is for this worker to do, and the newest whole checkpoint is of
        another step.
        """
        if not chosen:
            return
        self.checkpoints.wait()
        if self.checkpoints.newest_steps() != self.state.steps_made:
            self.write()

    def newest_steps(self) -> int:
        """The steps of the newest whole checkpoint, if it is ahead of the state; else 0.

        Raises:
            CheckpointError: another run that lives owns the folder.
        """
        self.checkpoints.look()
        # A checkpoint that was loaded in a round that broke before it was synced is to be loaded again.
        steps = self.checkpoints.newest_steps()
        return steps if steps > self._trained else 0

    def load(self) -> None:
        """Take over the newest whole checkpoint."""
        self.load_named("")

    def load_named(self, name: str) -> None:
        """The same, or that of this name."""
        try:
            manifest, tree, random = self.checkpoints.load(self.state.shards_in, name)
        except ValueError as error:
            raise self.of_another_state(name, error) from error
        self.take_over(manifest.steps, tree, random)

    def take_over(self, step: int, tree: dict[str, Any], random: dict[str, Any]) -> None:
        """Bring the state to what has been loaded."""
        differing = differences({name: handler.value for name, handler in self._handlers.items()}, tree)
        try:
            self.state.take_over(tree, random)
        except ValueError as error:
            raise self.of_another_state(f"the checkpoint of step {step}", error) from error
        self._loaded = self.state.steps_made
        if differing:
            logger.warning(
                "edriver: the checkpoint of step %d has values that differ from those that the script has set, and "
                "replaces them: %s. To continue with the script's values, set them in the function that edriver.run "
                "calls",
                step,
                "; ".join(differing),
            )

    def of_another_state(self, which: str, error: ValueError) -> CheckpointError:
        return CheckpointError(
            f"{which} in {self._location} belongs to another state: {error}. To start from the beginning, give "
            "checkpoint= another folder"
        )

    def returned(self) -> None:
        """The training function has returned: say so if it had nothing to do after a load."""
        if self._loaded is not None and self.state.steps_made == self._loaded:
            logger.warning(
                "edriver: there was nothing left to do: the training function returned without a step, from the "
                "checkpoint "
                "of step %d in %s. Have it train for longer, or give checkpoint= another folder to start from the "
                "beginning",
                self._loaded,
                self._location,
            )


def current_place() -> Assignment | None:
    """This worker's place; None: it is in no round, under a driver."""
    if context.in_round() or "EDRIVER_WORKER_ID" not in os.environ:
        return context.assignment()
    return None


class CheckpointSchedule:
    """One checkpoint an interval. All workers follow it, so that another rank 0 continues where the last one was.

    Args:
        every: a number of steps: after each that divides by it. Or a time: at the first step of each such stretch of
            the wall clock, counted from the epoch, but not at a worker's first step.
        clock: seconds since the epoch.

    Raises:
        ValueError: the interval is not positive.
        TypeError: it is neither a number of steps nor a time.
    """

    def __init__(self, every: timedelta | int, clock: Callable[[], float]) -> None:
        given: object = every
        if isinstance(given, bool) or not isinstance(given, timedelta | int):
            raise TypeError(f"every= takes a number of steps or a datetime.timedelta, but got {every!r}")
        if (every.total_seconds() if isinstance(every, timedelta) else every) <= 0:
            raise ValueError(f"every= takes a positive number of steps or a positive time, but got {every!r}")
        self._every = every
        self._clock = clock
        self._stretch: float | None = None

    def due(self, steps: int) -> bool:
        """Whether one is due at this step. To be asked at each step, in order."""
        if isinstance(self._every, int):
            return steps % self._every == 0
        before, self._stretch = self._stretch, self._clock() // self._every.total_seconds()
        return before is not None and before != self._stretch
