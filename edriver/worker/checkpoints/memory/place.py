"""This process's place in the round whose checkpoints go into memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edriver.model.memory_checkpoint import CheckpointId, MemoryCheckpoint
from edriver.model.plan import Assignment
from edriver.worker import context
from edriver.worker.checkpoints.memory.mapped import Mappings
from edriver.worker.checkpoints.memory.server_link import CheckpointMemory, ServerLink, ShardName
from edriver.worker.errors import CheckpointError

FORKED: Final = (
    "this process was forked from the one that trains, whose connections it cannot use: save and load in the process "
    "that trains, and send it what is to be saved"
)


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """Where a process's shards go, and where the checkpoint is from which its round starts.

    Attributes:
        assignment: the process's place in its round.
        memory: that of the run's hosts.
        mappings: into which this process writes.
        started_from: the newest whole checkpoint when the round began; None: there was none.
        part: the number of this process's shard, and that of all shards; None: each rank has one.
    """

    assignment: Assignment
    memory: CheckpointMemory
    mappings: Mappings
    started_from: MemoryCheckpoint | None
    part: tuple[int, int] | None = None

    @property
    def rank(self) -> int:
        """The number of this process's shard."""
        return self.assignment.rank if self.part is None else self.part[0]

    def checkpoint(self, step: int) -> CheckpointId:
        """The checkpoint of this round that holds a step."""
        size = self.assignment.size if self.part is None else self.part[1]
        return CheckpointId(self.assignment.round_id, step, size)

    def shard(self, step: int, layout: bytes) -> ShardName:
        """This process's shard of it."""
        return ShardName(self.checkpoint(step), self.rank, layout)


class CurrentMemory:
    """This process's way to the memory: made when it is first asked for, which has the agent start its server."""

    def __init__(self) -> None:
        self._server: tuple[CheckpointMemory, Mappings] | None = None
        self._place: MemoryPlace | None = None
        self._is_loaded = False

    def server(self) -> tuple[CheckpointMemory, Mappings] | None:
        """The memory, and what this process has mapped of it; None: it is no worker, or its agent has no server."""
        socket = os.environ.get("EDRIVER_CHECKPOINTS")
        if self._server is None and socket:
            context.current.need_checkpoint_server()
            tls = os.environ.get("EDRIVER_TLS_FOLDER")
            self._server = ServerLink(socket, Path(tls) if tls else None), Mappings()
        return self._server

    def place(self) -> MemoryPlace | None:
        """The place; None: this process is not a worker in restart mode, or its agent keeps no checkpoints.

        Raises:
            CheckpointError: this process was forked from a worker.
        """
        member = context.current.restart_member
        if member is not None and not member.is_here:
            raise CheckpointError(FORKED)
        if self._place is None and member is not None and (server := self.server()) is not None:
            self._place = MemoryPlace(member.assignment, *server, member.assignment.memory_checkpoint)
        return self._place

    def loads(self) -> None:
        """The script loads, or has found that there is nothing to load."""
        self._is_loaded = True

    @property
    def unloaded(self) -> MemoryCheckpoint | None:
        """The checkpoint from which the round starts, if the script has not asked for it."""
        return None if self._place is None or self._is_loaded else self._place.started_from


def current_place() -> MemoryPlace | None:
    """This process's place among those that save checkpoints in memory: CurrentMemory.place of the worker context."""
    return context.current.part(CurrentMemory).place()
