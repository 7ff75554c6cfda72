"""The newest checkpoints, in memory and on disk, as observers see them. Decides nothing."""

from __future__ import annotations

from edriver.driver.core.disk_writes import Key
from edriver.driver.core.memory_checkpoints import MemoryCheckpoints
from edriver.v1 import status_pb2
from edriver.wire.conversion import duration, round_id_message, timestamp


class NewestCheckpoints:
    """Remembers since when which checkpoint has been the newest in each place."""

    def __init__(self) -> None:
        """There is none yet."""
        self._in_memory: tuple[Key | None, status_pb2.CheckpointStatus] = (None, status_pb2.CheckpointStatus())
        self._copied: tuple[Key | None, status_pb2.CheckpointStatus] = (None, status_pb2.CheckpointStatus())
        self._on_disk: tuple[Key | None, status_pb2.CheckpointStatus] = (None, status_pb2.CheckpointStatus())
        self._writing: tuple[Key | None, status_pb2.CheckpointStatus] = (None, status_pb2.CheckpointStatus())
        self._whole_since: dict[Key, float] = {}

    def note(self, memory: MemoryCheckpoints, now: float) -> None:
        """Look which are the newest; the time is in seconds since the epoch."""
        if memory.newest != self._in_memory[0]:
            self._in_memory = memory.newest, _status(memory, memory.newest, status_pb2.CHECKPOINT_PLACE_MEMORY, now)
            if memory.newest is not None:
                self._in_memory[1].save_time.CopyFrom(duration(memory.save_seconds(memory.newest)))
                under_way = {memory.copying, memory.disk.writing}
                self._whole_since = {key: since for key, since in self._whole_since.items() if key in under_way}
                self._whole_since[memory.newest] = now
        copied = memory.copied if memory.has_copies else None
        if copied != self._copied[0]:
            self._copied = copied, self._later(memory, copied, status_pb2.CHECKPOINT_PLACE_COPIES, now)
        if memory.disk.on_disk != self._on_disk[0]:
            on_disk = memory.disk.on_disk
            self._on_disk = on_disk, self._later(memory, on_disk, status_pb2.CHECKPOINT_PLACE_DISK, now)
        if memory.disk.writing != self._writing[0]:
            writing = memory.disk.writing
            self._writing = writing, _status(memory, writing, status_pb2.CHECKPOINT_PLACE_WRITING, now)

    def _later(
        self, memory: MemoryCheckpoints, key: Key | None, place: status_pb2.CheckpointPlace.ValueType, now: float
    ) -> status_pb2.CheckpointStatus:
        status = _status(memory, key, place, now)
        if key in self._whole_since:
            status.delay.CopyFrom(duration(max(0.0, now - self._whole_since[key])))
        return status

    def messages(self) -> list[status_pb2.CheckpointStatus]:
        """Those that there are."""
        return [status for key, status in (self._in_memory, self._copied, self._on_disk) if key is not None]

    def with_what_is_written(self) -> list[status_pb2.CheckpointStatus]:
        """Those that there are, and the one that is on its way to disk."""
        return [*self.messages(), *([self._writing[1]] if self._writing[0] is not None else [])]


def _status(
    memory: MemoryCheckpoints, key: Key | None, place: status_pb2.CheckpointPlace.ValueType, now: float
) -> status_pb2.CheckpointStatus:
    if key is None:
        return status_pb2.CheckpointStatus()
    return status_pb2.CheckpointStatus(
        place=place,
        step=key[0].step,
        round_id=round_id_message(key[0].round_id),
        bytes=memory.nbytes(key),
        time=timestamp(now),
    )
