"""A ShardedState's checkpoints: one worker of each position has a part of each, all of the same boundary.

Which boundaries those are, and whether the parts go into the memory of the workers' hosts or straight to disk, the
members agree on in the seals before them. From memory, hosts write to disk behind training; a part goes to disk itself
where a worker's host cannot hold it.

For disk, all members commit at that boundary, also those that write nothing: a state that is torn goes back to its last
commit, and all positions need one of the same boundary. What goes into memory is copied from the live state, so there
no commit is needed.

From disk, the first source chooses the checkpoint, compares its digests, and sends its name to the others. What is
written has no number of shards in it, so states that are sharded and states that are not load what the other wrote.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist

from edriver.model.ids import NO_ROUND, RoundId
from edriver.model.plan import Assignment
from edriver.model.stall_limits import Phase
from edriver.worker import context
from edriver.worker.checkpoints.memory.state_parts import Part, StateParts
from edriver.worker.checkpoints.owned_folder import absolute
from edriver.worker.checkpoints.state_checkpoints import planned
from edriver.worker.copies.random_states import RandomStates
from edriver.worker.errors import CheckpointError
from edriver.worker.state.handlers import StateHandler
from edriver.worker.state.on_disk import Checkpointed, CheckpointSchedule, StateOnDisk, current_place
from edriver.worker.state.state import CommitSchedule
from edriver.worker.state.wishes import Wishes
from edriver.worker.training_phase import phase

logger = logging.getLogger("edriver.worker")

UNTIMED_SAVES: Final = 2
"""Saves at the beginning of a process that find new memory, which takes longer: they say nothing of those to come."""


class Sharded(Checkpointed, Protocol):
    """The part of a sharded state that checkpoints use."""

    def live_tree(self) -> dict[str, Any]:
        """The state as it is, as a tree that refers to the live tensors."""

    def live_objects(self) -> dict[str, Any]:
        """The model and its optimizer, by name."""


class ShardedCheckpoints(StateOnDisk):
    """See `state.OnDisk`.

    Args:
        state: the state.
        handlers: of its values, by name.
        location: a path or a URL.
        every: the interval between checkpoints on disk: see CheckpointSchedule.
        keep: number of whole checkpoints to keep on disk.
        every_memory: the interval between those in memory; None: as often as takes COMMIT_SHARE of the time.
        clock: seconds since the epoch.
        parts: this worker's, in memory.
    """

    def __init__(
        self,
        state: Sharded,
        handlers: Mapping[str, StateHandler],
        location: str | os.PathLike[str],
        every: timedelta | int,
        keep: int,
        every_memory: timedelta | int | None = None,
        clock: Callable[[], float] = time.time,
        parts: StateParts | None = None,
    ) -> None:
        super().__init__(state, handlers, location, every, keep, clock)
        self._sharded = state
        self._parts = StateParts(absolute(os.fspath(location)), keep) if parts is None else parts
        self._pace = CommitSchedule()
        self._memory_schedule = None if every_memory is None else CheckpointSchedule(every_memory, clock)
        self._has_memory = False
        self._saves = 0
        self._wanted = Wishes()  # of rank 0, until there is a checkpoint
        self._due_at: tuple[RoundId, int] = NO_ROUND, 0
        self._agreed = Wishes()

    def enter(self) -> None:
        """A round begins: have this host's server started."""
        self._has_memory = self._parts.begin()

    # ---- when

    def wish(self) -> Wishes:
        """What this worker wishes for before the seal of a step."""
        place = current_place()
        if place is None:
            return Wishes()
        step = self.state.steps_made + 1
        for_disk, in_memory = self.schedule.due(step), self._due_in_memory(step)
        if place.rank == 0:
            for_disk = context.current.save_requests.wanted(place.round_id) or for_disk
            wanted = self._wanted
            self._wanted = Wishes(
                checkpoint=wanted.checkpoint or for_disk or in_memory, for_disk=wanted.for_disk or for_disk
            )
        busy = self.checkpoints.busy or self._parts.is_busy
        no_memory = assigned_part(place) is not None and (not self._has_memory or self._parts.has_no_room)
        mine = self._wanted if place.rank == 0 else Wishes()
        return mine._replace(busy=busy, no_memory=no_memory)

    def _due_in_memory(self, step: int) -> bool:
        if not self._has_memory:
            return False
        return self._pace.due() if self._memory_schedule is None else self._memory_schedule.due(step)

    def agreed(self, wish: Wishes) -> None:
        """What the members have agreed on in the seal."""
        place = context.assignment()
        if wish.no_memory and not wish.for_disk:
            self._wanted = Wishes()
        elif wish.checkpoint and not wish.busy:
            self._due_at, self._agreed = (place.round_id, self.state.steps_made + 1), wish
            self._wanted = Wishes()
        elif wish.checkpoint and wish.no_memory and place.rank == 0:
            if not context.current.save_requests.wanted(place.round_id):
                self.checkpoints.skipped()
            self._wanted = Wishes()

    def count_step(self) -> bool:
        """Count a step, and save it into memory if that is due; returns whether members commit it for disk."""
        place = self.counted()
        if place is None or self._due_at != (place.round_id, self.state.steps_made):
            return False
        if self._agreed.no_memory:
            return True
        if self._agreed.for_disk and place.rank == 0:
            context.current.save_requests.begin()  # the driver sees by itself when hosts have written it
        if (part := assigned_part(place)) is not None:
            self._save(place, part)
        return False

    # ---- writing

    def _save(self, place: Assignment, part: Part) -> None:
        random = RandomStates()
        random.keep()
        with phase(Phase.COMMIT):
            contents = self.contents(self._sharded.live_tree(), random.kept())
            seconds = self._parts.save(
                place,
                self.state.steps_made,
                part,
                planned(contents, part.number),
                self._sharded.live_objects(),
                self._agreed.for_disk,
            )
        self._saves += 1
        if self._saves > UNTIMED_SAVES:
            self._pace.made(seconds)

    def write(self, *, ends_run: bool = False) -> None:
        """Begin to write this worker's part of the last commit to disk, if it has one."""
        place = context.assignment()
        if (part := assigned_part(place)) is not None:
            self.write_part(part.number, writer_ranks(place), ends_run=ends_run)

    def write_last(self, chosen: bool) -> None:
        """Begin to write this worker's part of the last commit, unless the newest whole checkpoint is of that step.

        All workers have stopped at one boundary, for none passes the next one without the others.
        """
        del chosen
        self._parts.wait()
        self.checkpoints.wait()
        if self.checkpoints.newest_steps() != self.state.steps_made:
            self.write(ends_run=True)

    # ---- loading

    def load_chosen(self, place: Assignment) -> None:
        """Have workers take over the checkpoint from which a round begins: the sources of all positions, or, where all
        are one replica, all. All members call this. Where one of them cannot read its part from memory, all load the
        newest checkpoint on disk, if there is one.

        Raises:
            CheckpointError: there is none that can be loaded.
            RuntimeError: a member is lost.
        """
        from edriver.worker.sync.sync import send_along

        loading = place.sources if place.sharding is None else tuple(range(place.size))
        first = place.sources[0]
        if place.memory_checkpoint is not None:
            if self._load_from_memory(place, place.rank in loading):
                return
            if place.rank == first:
                logger.warning(
                    "edriver: not all workers can read the checkpoint of step %d in memory: the newest one on disk is "
                    "loaded in its place",
                    place.memory_checkpoint.checkpoint.step,
                )
        name = self.checkpoints.choose() if place.rank == first else ""
        name = send_along((first, *(rank for rank in loading if rank != first)), name, place) or name
        if place.rank in loading:
            self.load_named(name)

    def _load_from_memory(self, place: Assignment, loads: bool) -> bool:
        """Have all workers that load take over the checkpoint in memory; returns False if not all can read it."""
        part = assigned_part(place) or Part(place.position, place.replica_size)
        found, can_read = None, True
        if loads:
            try:
                found = self._parts.load(place, part, self.state.shards_in)
            except ValueError as error:
                raise self.of_another_state("the checkpoint in memory", error) from error
            except CheckpointError as error:
                logger.warning("edriver: %s", error)
                can_read = False
        if not holds_for_all(can_read):
            return False
        if found is not None:
            self.take_over(*found)
        return True


def holds_for_all(here: bool) -> bool:
    """Whether something holds for all members of the round. A collective.

    Raises:
        RuntimeError: a member is lost.
    """
    flag = torch.tensor([here], dtype=torch.uint8, device="cpu")
    if dist.is_initialized():
        dist.all_reduce(flag, dist.ReduceOp.MIN)
    return bool(flag)


def assigned_part(place: Assignment) -> Part | None:
    """The part of a checkpoint that a worker has; None: another one of its position has it."""
    writers = writer_ranks(place)
    return Part(writers.index(place.rank), len(writers)) if place.rank in writers else None


def writer_ranks(place: Assignment) -> tuple[int, ...]:
    """The ranks that write a checkpoint's parts, in their order: spread over the replicas, and so over hosts."""
    if place.sharding is not None:
        return tuple(range(place.size))
    size = place.replica_size
    return tuple(position % place.replicas * size + position for position in range(size))
