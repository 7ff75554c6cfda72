"""Checkpoints in memory as torch.distributed.checkpoint's storage: what `dcp.save` and `dcp.load` are given.

All ranks of the round save together, and each writes its shard in `write_data`. Rank 0's has the metadata, which is
known in `finish`, when all others have been committed: so its shard is committed there, the last of all.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import secrets
from typing import Any, Final, NamedTuple

from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from edriver.worker import context
from edriver.worker.checkpoints import pickles
from edriver.worker.checkpoints.memory.place import CurrentMemory, MemoryPlace, current_place
from edriver.worker.checkpoints.memory.server_link import ServerLostError
from edriver.worker.checkpoints.memory.shard import ShardError, ShardLayout, StoredAt
from edriver.worker.checkpoints.memory.shard_io import CheckpointRead, ShardWrite, of_all, said
from edriver.worker.errors import CheckpointError

logger = logging.getLogger("edriver.worker")

LAYOUT_BYTES: Final = 16

_NO_MEMORY: Final = (
    "this process keeps no checkpoints in memory: it is not a worker of an edriver run in restart mode. Elsewhere, use "
    "edriver.checkpoints.Checkpoints, which writes to disk there"
)
_ROOM: Final = 64 * 1024
_ROOM_FOR_ITEM: Final = 256


class _Global(NamedTuple):
    """What the coordinator adds to each rank's plan: see Shard.layout; bytes to keep free for the metadata."""

    rank: int
    layout: bytes
    room: int


class MemoryWriter(StorageWriter):
    """Writes a checkpoint into the memory of the run's hosts.

        dcp.save(state_dict, checkpoint_id=step, storage_writer=edriver.checkpoints.MemoryWriter())

    `checkpoint_id` is the step: a number, or a path that ends with one. All ranks of the round take part. `dcp.save`
    returns when each has copied its part; if there is no memory for it, that is said once, and training continues
    without this checkpoint. It works with `dcp.async_save` as well, which copies the state once more.

    Raises:
        CheckpointError: this process is not a worker of an edriver run in restart mode.
    """

    def __init__(self) -> None:
        self._place = _place_or_error()
        self._step: int | None = None
        self._write: ShardWrite | None = None
        self._layout = b""
        self._stored: dict[MetadataIndex, StoredAt] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | int | None = None) -> None:
        """Begin a checkpoint.

        Raises:
            ValueError: its ID is neither a number nor ends with one.
        """
        self._write = None
        if checkpoint_id is not None:
            self._step = parse_step(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Check that it is known which step is saved.

        Raises:
            ValueError: no step was given.
        """
        del is_coordinator, args, kwargs
        if self._step is None:
            raise ValueError("give dcp.save the step as checkpoint_id=")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Mark the plan with its rank, for prepare_global_plan."""
        return dataclasses.replace(plan, storage_data=self._place.assignment.rank)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Lay out the shards of all ranks; each plan gets what its rank must know of that.

        Raises:
            CheckpointError: the plans are not those of all ranks of the round.
        """
        if not all(plan.usable for plan in plans):
            raise CheckpointError("MemoryWriter takes no planner with enable_plan_caching=True: leave that out")
        ranks = [plan.storage_data for plan in plans]
        size = self._place.assignment.size
        if sorted(ranks) != list(range(size)):
            raise CheckpointError(
                f"a checkpoint in memory is saved by all {size} ranks of the round together, each once; this call has "
                f"those of {ranks}"
            )
        self._stored = of_all((rank, ShardLayout.of(plan.items)) for rank, plan in zip(ranks, plans, strict=True))
        # A plan has all that its part of the metadata has, but for the places.
        room = _ROOM + len(pickles.packed(plans)) + _ROOM_FOR_ITEM * sum(len(plan.items) for plan in plans)
        layout = secrets.token_bytes(LAYOUT_BYTES)
        return [
            dataclasses.replace(plan, storage_data=_Global(rank, layout, 0 if rank else room))
            for rank, plan in zip(ranks, plans, strict=True)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's shard into shared memory. The result's storage_data is whether there was room for it."""
        assert self._step is not None, "set_up_storage_writer has seen to it"
        rank, layout, room = plan.storage_data
        self._layout = layout
        write = ShardWrite(self._place, self._step, ShardLayout.of(plan.items), planner)
        written = write.begin(room=room) and (rank == 0 or write.end(layout))
        self._write = write if written else None
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(MetadataIndex(""), 0, written)])  # of the shard, which is one thing
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit rank 0's shard with the metadata of all, if all ranks have written theirs.

        Raises:
            CheckpointError: this is not rank 0.
        """
        if self._place.assignment.rank != 0:
            raise CheckpointError("MemoryWriter needs rank 0 as the coordinator of dcp.save")
        if self._write is None or not all(result.storage_data for each in results for result in each):
            return  # it has been said why, by the rank that has no memory
        metadata = dataclasses.replace(metadata, storage_data=self._stored)
        if self._write.end(self._layout, pickles.packed(metadata)):
            said().over()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Do nothing: it is asked of classes that torch is to choose from."""
        del checkpoint_id
        return False


class MemoryReader(StorageReader):
    """Reads the checkpoint in memory from which this round starts.

        reader = edriver.checkpoints.MemoryReader()
        if reader.step is not None:
            dcp.load(state_dict, storage_reader=reader)

    It is the newest that was whole when the round began, the same on all ranks. The number of ranks may be another than
    that which saved it.

    Attributes:
        step: its step; None: there is no checkpoint in memory.

    Raises:
        CheckpointError: this process is not a worker of an edriver run in restart mode.
    """

    def __init__(self) -> None:
        self._place = _place_or_error()
        context.current.part(CurrentMemory).loads()
        source = self._place.started_from
        self.step = None if source is None else source.checkpoint.step
        self._read = None if source is None else CheckpointRead(self._place, source)
        self._metadata: Metadata | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | int | None = None) -> None:
        """Read the metadata of the checkpoint, from rank 0's shard.

        Raises:
            CheckpointError: that is not the step that is there.
            ValueError: its ID is neither a number nor ends with one.
        """
        if checkpoint_id is not None and (step := parse_step(checkpoint_id)) != self.step:
            there = "no checkpoint is in memory" if self.step is None else f"the one in memory has step {self.step}"
            raise CheckpointError(f"step {step} cannot be loaded: {there}")

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read the checkpoint's metadata, from rank 0's shard.

        Raises:
            CheckpointError: there is no checkpoint in memory, or it cannot be read.
        """
        del args, kwargs
        if self._read is None:
            raise CheckpointError("there is no checkpoint in memory: look at MemoryReader().step before")
        try:
            self._metadata = self._read.metadata()
        except (ShardError, ServerLostError) as error:
            raise self._unreadable(error) from error
        return self._metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Take the metadata that read_metadata has returned."""
        del is_coordinator, args, kwargs
        self._metadata = metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan as it is: metadata says where each value lies."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what the plan names from the shards in memory, of this host or of others.

        Raises:
            CheckpointError: it cannot be read.
        """
        assert self._read is not None
        assert self._metadata is not None
        try:
            self._read.read(plan, planner, self._metadata, self._metadata.storage_data)
        except (ShardError, ServerLostError) as error:
            raise self._unreadable(error) from error
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Do nothing: it is asked of classes that torch is to choose from."""
        del checkpoint_id
        return False

    def _unreadable(self, error: Exception) -> CheckpointError:
        return CheckpointError(f"the checkpoint of step {self.step} in memory cannot be read: {error}")


def parse_step(checkpoint_id: str | os.PathLike[str] | int) -> int:
    """The step that a checkpoint ID of torch.distributed.checkpoint names.

    Raises:
        ValueError: it is neither a number nor ends with one.
    """
    if isinstance(checkpoint_id, int):
        step = checkpoint_id
    else:
        found = re.search(r"\d+$", os.fspath(checkpoint_id).rstrip("/"))
        step = int(found[0]) if found else -1
    if step < 0:
        raise ValueError(f"checkpoint_id= is the step, a number or a path that ends with one, not {checkpoint_id!r}")
    return step


def _place_or_error() -> MemoryPlace:
    place = current_place()
    if place is None:
        raise CheckpointError(_NO_MEMORY)
    return place
