"""Saves the state of a script into memory, and loads it: what `Checkpoints` does in edriver's restart mode."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan

from edriver.model.memory_checkpoint import DiskTarget
from edriver.worker.checkpoints.memory.device_copies import DeviceCopies
from edriver.worker.checkpoints.memory.place import MemoryPlace
from edriver.worker.checkpoints.memory.plans import FIRST_TIMEOUT, PREFIX, PlanExchange, Skipped
from edriver.worker.checkpoints.memory.replicas import Difference, buffer_addresses, fingerprints
from edriver.worker.checkpoints.memory.schedule import MAX_INTERVAL, Announced, DiskSchedule, Schedule
from edriver.worker.checkpoints.memory.server_link import ServerLostError
from edriver.worker.checkpoints.memory.shard import DueForDisk, ShardError
from edriver.worker.checkpoints.memory.shard_io import CheckpointRead, ShardWrite, said, say_skipped
from edriver.worker.checkpoints.memory.state_planners import CheckedLoadPlanner, MadePlan, StatePlanner, named
from edriver.worker.checkpoints.pickles import ForgedError, opened, sealed
from edriver.worker.errors import CheckpointError

logger = logging.getLogger("edriver.worker")

ANSWER_TIMEOUT: Final = 600.0
"""Seconds for which ranks wait while rank 0 reads a checkpoint on disk to see whether it is damaged."""

MAX_NAMED: Final = 5
"""Names of what ranks have differently that a warning has."""

_SCHEDULES: Final = f"{PREFIX}/schedules"

_DIFFERENCE: Final = (
    "the state's %s %s not the same on ranks 0 and %d, and checkpoints keep rank 0's, for all ranks. If each rank "
    "needs what it has, give it another name in the state on each rank, such as f'loader{rank}'"
)


class MemorySaver:
    """One rank's.

    Args:
        place: this process's.
        store: the round's, torch's.
        every: see Schedule.
        first_timeout: see PlanExchange.
        clock: seconds, monotonic.
        device: copies what lies on a GPU.
        disk: where on disk checkpoints belong, and which go there; None: they stay in memory.
    """

    def __init__(
        self,
        place: MemoryPlace,
        store: Any,
        every: int | timedelta | None,
        first_timeout: float = FIRST_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
        device: DeviceCopies | None = None,
        disk: tuple[DiskTarget, DiskSchedule] | None = None,
    ) -> None:
        self._device = DeviceCopies() if device is None else device
        self._place = place
        self._store = store
        self._schedule = Schedule(every)
        self._disk = disk if place.assignment.rank == 0 else None
        self._announced = self._asked = 0
        self._clock = clock
        self._last: tuple[int, float] | None = None
        mine = place.assignment
        self._plans = PlanExchange(store, mine.rank, mine.size, mine.secret, first_timeout)
        self._watched: Mapping[str, Any] = {}
        self._made: MadePlan | None = None
        self._difference: Difference | None = None
        self.due = self._schedule.due

    def watch(self, state: Mapping[str, Any]) -> None:
        """Learn which objects have what is about to be saved, as the script gave them."""
        self._device.watch(state)
        self._watched = state

    def wait(self) -> None:
        """Wait until what was saved last is committed."""
        self._device.wait()

    def save(self, step: int, state: Callable[[], Mapping[str, Any]]) -> bool:
        """Save a step that is due; returns False, once it has been said why, if that is not possible.

        What lies on a GPU is copied, and the shard committed, while the training goes on.

        Args:
            step: the step.
            state: makes what DCP saves.

        Raises:
            CheckpointError: the state cannot be saved by any means.
        """
        began = self._clock()
        values = state()
        saved = False
        try:
            self._take_announced()
            saved = self._save(step, values, began)
        except (dist.DistError, ForgedError) as error:  # of the store: the round is about to end
            say_skipped(step, "store", str(error))
        self._schedule.advance(step)
        self._announce(step, began)
        return saved

    def _save(self, step: int, state: Mapping[str, Any], began: float) -> bool:
        planner = StatePlanner(self._made)
        planner.set_up_planner(dict(state), is_coordinator=self._place.assignment.rank == 0)
        plan = planner.create_local_plan()
        self._made = planner.made
        share = self._plans.share(plan, lambda: self._fingerprints(planner, plan))
        if isinstance(share, Skipped):
            say_skipped(step, *share)
            return False
        if share.difference is not None and share.difference != self._difference:
            self._difference = share.difference
            keys, rank = share.difference
            logger.warning(_DIFFERENCE, named(keys, MAX_NAMED), "is" if len(keys) == 1 else "are", rank)
        self._device.wait()  # one at a time
        disk = self._disk_target(step)
        write = ShardWrite(self._place, step, share.shard, planner, self._device, disk)
        try:
            written = write.begin(share.metadata)
            seconds = self._clock() - began
            if written and write.is_under_way:
                self._device.then(lambda: write.end(share.layout, share.metadata, seconds))
            elif written:
                written = write.end(share.layout, share.metadata, seconds)
        except ShardError as error:
            say_skipped(step, "plan", str(error))
            return False
        if written:
            said().over()
            if disk is not None and self._disk is not None:
                self._disk[1].last = disk[1]
        return written

    def _fingerprints(self, planner: StatePlanner, plan: SavePlan) -> dict[str, bytes]:
        """Made when a plan is sent, and not at each save: a model may have thousands of buffers."""
        return fingerprints(planner.state_dict, plan, buffer_addresses(iter(self._watched.values())))

    def _disk_target(self, step: int) -> tuple[DiskTarget, DueForDisk] | None:
        if self._disk is None:
            return None
        target, schedule = self._disk
        last = schedule.after(step)
        return replace(target, due=last != schedule.last), last

    def load(self, target_of: Callable[[Metadata], dict[str, Any]]) -> dict[str, Any]:
        """Load the checkpoint from which the round starts.

        Args:
            target_of: makes the state to load into, as DCP takes it, for the checkpoint's metadata.

        Returns:
            That state.

        Raises:
            CheckpointError: it cannot be read, or does not fit the state.
        """
        source = self._place.started_from
        assert source is not None, "there is one"
        read = CheckpointRead(self._place, source)
        planner = CheckedLoadPlanner()
        try:
            metadata = read.metadata()
            state = target_of(metadata)
            planner.set_up_planner(state, metadata, is_coordinator=self._place.assignment.rank == 0)
            plan = planner.finish_plan(planner.create_global_plan([planner.create_local_plan()])[0])
            read.read(plan, planner, metadata, metadata.storage_data)
            if self._disk is not None and (last := read.last_due()) is not None:
                self._disk[1].go_on(last)
            return state
        except (ShardError, ServerLostError) as error:
            raise CheckpointError(
                f"the checkpoint of step {source.checkpoint.step} in memory cannot be read: {error}"
            ) from error

    def from_rank_zero(self, ask: Callable[[], Any]) -> Any:
        """Have rank 0 find something out; returns that on all ranks, without a collective.

        Raises:
            CheckpointError: rank 0 does not answer.
        """
        self._asked += 1
        key, secret = f"{PREFIX}/answer/{self._asked}", self._place.assignment.secret
        try:
            if self._place.assignment.rank == 0:
                found = ask()
                self._store.set(key, sealed(found, secret, key))
                return found
            self._store.wait([key], timedelta(seconds=ANSWER_TIMEOUT))
            return opened(self._store.get(key), secret, key)
        except (RuntimeError, ForgedError) as error:
            raise CheckpointError(f"rank 0 does not say which checkpoint on disk to load: {error}") from error

    def _take_announced(self) -> None:
        if not self._schedule.is_announced or self._place.assignment.rank == 0:
            return
        number = self._store.add(_SCHEDULES, 0)
        if number > self._announced:
            self._announced = number
            base, _, interval = self._store.get(f"{_SCHEDULES}/{number}").decode().partition(" ")
            if base.isdecimal() and interval.isdecimal() and 1 <= int(interval) <= MAX_INTERVAL:
                self._schedule.take(Announced(int(base), int(interval)))

    def _announce(self, step: int, began: float) -> None:
        if not self._schedule.is_announced or self._place.assignment.rank != 0:
            return
        now, last = self._clock(), self._last
        self._last = step, now
        if last is None:
            return
        announced = self._schedule.announcement((began - last[1]) / (step - last[0]), now - began)
        if announced is not None:
            self._schedule.take(announced)
            number = self._announced = self._announced + 1
            with contextlib.suppress(dist.DistError):  # the next save says so
                self._store.set(f"{_SCHEDULES}/{number}", f"{announced.base} {announced.interval}")
                self._store.add(_SCHEDULES, 1)
