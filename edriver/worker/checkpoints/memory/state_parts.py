"""The checkpoints in memory of a state that is sharded over workers: each one's part of them, and loading.

A part goes into the memory of this worker's host as a shard does in restart mode (shard_io.py), from the live tensors,
at a boundary on which all members have agreed. The driver finds out when all parts are there, has them copied to
partner hosts, and written to disk. Nothing is exchanged to agree on a plan: which rows each part has follows from the
tensors' shapes, so part 0 describes all parts (parts_metadata.py), and a digest of these shapes is the layout
of which all parts have to be.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import WriteItem

from edriver.common.copied_environment import shared_interpreter
from edriver.model.memory_checkpoint import DiskTarget, Refusal
from edriver.model.plan import Assignment
from edriver.worker import context
from edriver.worker.checkpoints import files, pickles
from edriver.worker.checkpoints.contents import OUTLINE, filled
from edriver.worker.checkpoints.memory.device_copies import DeviceCopies
from edriver.worker.checkpoints.memory.parts_metadata import PartsMetadata, row_chunks
from edriver.worker.checkpoints.memory.place import CurrentMemory, MemoryPlace
from edriver.worker.checkpoints.memory.server_link import ServerLostError
from edriver.worker.checkpoints.memory.shard import ShardError, ShardLayout
from edriver.worker.checkpoints.memory.shard_io import CheckpointRead, ShardWrite, said, say_skipped
from edriver.worker.checkpoints.shard_planners import PartPlanner, ShardLoadPlanner, ShardPlace
from edriver.worker.errors import CheckpointError

logger = logging.getLogger("edriver.worker")

LAYOUT_BYTES: Final = 16
"""Length of Shard.layout."""


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of a checkpoint a worker writes: its number, and that of all parts."""

    number: int
    count: int


class StateParts:
    """This process's parts.

    Args:
        location: where on disk the checkpoints belong: an absolute path, or a URL.
        keep: the number of complete ones that stay there.
        device: copies what lies on a GPU.
        clock: seconds, monotonic.

    Attributes:
        has_no_room: whether this host's memory cannot have them, as a save of this round has shown.
    """

    def __init__(
        self,
        location: str,
        keep: int,
        device: DeviceCopies | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.has_no_room = False
        self._location = location
        self._keep = keep
        self._device = DeviceCopies() if device is None else device
        self._clock = clock

    @property
    def is_busy(self) -> bool:
        """Whether a part is still being written."""
        return self._device.is_busy

    def wait(self) -> None:
        """Wait until no part is being written."""
        self._device.wait()

    def begin(self) -> bool:
        """A round begins: have this host's server started; returns False if this process has none."""
        self.has_no_room = False
        return context.current.part(CurrentMemory).server() is not None

    def save(
        self,
        assignment: Assignment,
        step: int,
        part: Part,
        planner: PartPlanner,
        state: Mapping[str, Any],
        due_for_disk: bool,
    ) -> float:
        """Write a part. Tensors in host memory are copied now, the others while training goes on.

        Args:
            assignment: this worker's place in the round.
            step: of the checkpoint.
            part: which part.
            planner: of that part.
            state: the model and its optimizer, by name.
            due_for_disk: whether this checkpoint is to be written to disk.

        Returns:
            how long it has held up the training loop, seconds.
        """
        began = self._clock()
        place = self._place(assignment, part)
        if place is None:
            return 0.0
        self._device.watch(state)
        disk = DiskTarget(self._location, self._keep, shared_interpreter(), due_for_disk) if part.number == 0 else None
        try:
            items = planner.create_local_plan().items
            layout = layout_digest(planner, part)
            metadata = self._metadata_of(planner, items, part) if part.number == 0 else None
            write = ShardWrite(
                place, step, ShardLayout.of(items), planner, self._device, None if disk is None else (disk, None)
            )
            written = write.begin(metadata)
        except ShardError as error:
            self.has_no_room = True
            say_skipped(step, "plan", str(error))
            return self._clock() - began
        self.has_no_room |= not written and write.refusal not in (Refusal.BUSY, Refusal.COMMITTED, Refusal.OUTDATED)
        seconds = self._clock() - began
        if written:
            self._device.then(lambda: self._end(write, layout, metadata, seconds))
        return seconds

    def _end(self, write: ShardWrite, layout: bytes, metadata: bytes | None, seconds: float) -> None:
        if write.end(layout, metadata, seconds):
            said().over()
        else:
            self.has_no_room = True

    def _metadata_of(self, planner: PartPlanner, items: Sequence[WriteItem], part: Part) -> bytes:
        sharded = []
        for key, place, dtype in planner.sharded():
            if place.chunk != next(row_chunks(place.whole, part.count)):
                raise ShardError(f"{key} is not cut along its rows, as FSDP2 cuts it for {part.count} workers")
            sharded.append((key, place.whole, dtype))
        return pickles.packed(PartsMetadata(part.count, sharded, items[len(sharded) :], dict(planner.mappings)))

    def load(
        self,
        assignment: Assignment,
        part: Part,
        shards: Callable[[dict[str, Any]], Mapping[int, ShardPlace]],
    ) -> tuple[int, dict[str, Any], dict[str, Any]]:
        """Load the checkpoint in memory from which the round starts: its step, the state's tree, and the random states.

        Args:
            assignment: this worker's place in the round.
            part: which part of the next checkpoints this worker writes.
            shards: see StateCheckpoints.load.

        Raises:
            ValueError: `shards` has raised it.
            CheckpointError: it cannot be read.
        """
        place, source = self._place(assignment, part), assignment.memory_checkpoint
        assert source is not None, "there is one"
        step = source.checkpoint.step
        if place is None:
            raise CheckpointError(f"the checkpoint of step {step} in memory cannot be read: this worker has no server")
        try:
            read = CheckpointRead(place, source)
            metadata = read.metadata()
            entries = {key: files.manifest_entry(stored) for key, stored in metadata.state_dict_metadata.items()}
            tree, random = _read(read, metadata, {OUTLINE: None}, {})[OUTLINE]
            blank = files.blank(entries)
            key_of = {id(tensor): key for key, tensor in blank.items()}
            places = {key_of[of]: shard for of, shard in shards(filled(tree, blank)).items()}
            stored = _read(read, metadata, files.empty(entries, places), places)
        except (ShardError, ServerLostError, KeyError) as error:
            raise CheckpointError(f"the checkpoint of step {step} in memory cannot be read: {error}") from error
        logger.info("loaded the checkpoint of step %d from memory", step)
        return step, filled(tree, stored), random

    def _place(self, assignment: Assignment, part: Part) -> MemoryPlace | None:
        server = context.current.part(CurrentMemory).server()
        if server is None:
            return None
        return MemoryPlace(assignment, *server, assignment.memory_checkpoint, (part.number, part.count))


def _read(
    read: CheckpointRead, metadata: Metadata, contents: dict[str, Any], shards: Mapping[str, ShardPlace]
) -> dict[str, Any]:
    planner = ShardLoadPlanner(shards)
    planner.set_up_planner(contents, metadata, is_coordinator=True)
    plan = planner.finish_plan(planner.create_global_plan([planner.create_local_plan()])[0])
    read.read(plan, planner, metadata, metadata.storage_data)
    return contents


def layout_digest(planner: PartPlanner, part: Part) -> bytes:
    """A digest of what all parts have, equal on all workers that write one."""
    shapes = [(key, tuple(value.whole), str(dtype)) for key, value, dtype in planner.sharded()]
    return hashlib.blake2b(repr((part.count, shapes)).encode(), digest_size=LAYOUT_BYTES).digest()
