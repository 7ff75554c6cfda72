"""Which shards a host holds, in which buffers, and who gets memory. Pure: no clock, lock, file or process.

The rules that hold, whatever is asked:

* A committed shard that is to be kept keeps its buffer, and before the first order to keep, all are kept.
* A buffer is given to a writer only if nothing can still write into it or read from it: its writer before has ended or
  is the same process, no Fetch reads from it, and every process that has opened it has ended or reserves memory itself.
  A process that is stopped has not ended.
* What a process has reserved and not committed is given up when it reserves again: it writes one shard at a time.
* The buffers together never exceed the limit.

A new buffer costs its first writer the time in which the kernel zeroes it, some ten times that of the copy itself. So
each process that writes is to find one that is free and has been written to: `spare` says which is to be made for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from edriver.model.ids import NO_ROUND, RoundId
from edriver.model.memory_checkpoint import CheckpointId, Refusal, Shard

PAGE: Final = 4096
"""Bytes; a buffer is whole pages."""


class ShardKey(NamedTuple):
    """Names a shard: of which checkpoint, and of which of its ranks."""

    checkpoint: CheckpointId
    rank: int


def key_of(shard: Shard) -> ShardKey:
    """The name of a shard."""
    return ShardKey(shard.checkpoint, shard.rank)


class Grant(NamedTuple):
    """Memory for a shard.

    Attributes:
        buffer: its number. Numbers are never used again.
        new: its length, if it is to be made; 0: it exists.
        released: buffers that do not exist any more; their memory is to be given back before any is made.
    """

    buffer: int
    new: int = 0
    released: tuple[int, ...] = ()


class NotReservedError(Exception):
    """A process has committed what it has no memory for."""


@dataclass(slots=True)
class _Buffer:
    """Memory.

    Attributes:
        capacity: bytes.
        writer: the process that may still write into it; None: nothing can.
        reserved: the shard that is being written into it.
        shard: the shard that is in it. With neither it is free.
        pins: number of Fetch calls, and of those that make it, that use it now.
        readers: processes that have opened it.
        warming: whether it is being written to for the first time, and given to nobody meanwhile.
    """

    capacity: int
    writer: int | None
    reserved: ShardKey | None = None
    shard: Shard | None = None
    pins: int = 0
    readers: set[int] = field(default_factory=set)
    warming: bool = False

    @property
    def is_free(self) -> bool:
        return self.reserved is None and self.shard is None


class ShardMemory:
    """What a host holds.

    Args:
        limit: bytes of memory that may be used.
        ended: whether a process can do nothing any more. Processes are numbered, and no number is used again.
    """

    def __init__(self, limit: int, ended: Callable[[int], bool]) -> None:
        self.limit = limit
        self._ended = ended
        self._buffers: dict[int, _Buffer] = {}
        self._made = 0
        self._latest = NO_ROUND
        self._ordered = False
        self._newest: CheckpointId | None = None
        self._kept: frozenset[CheckpointId] = frozenset()

    @property
    def used(self) -> int:
        """Bytes of memory that is used."""
        return sum(buffer.capacity for buffer in self._buffers.values())

    def shards(self) -> list[Shard]:
        """The committed shards, in order."""
        return sorted((b.shard for b in self._buffers.values() if b.shard), key=key_of)

    def processes(self) -> set[int]:
        """The processes whose end matters."""
        return {b.writer for b in self._buffers.values() if b.writer is not None}.union(
            *(b.readers for b in self._buffers.values())
        )

    def reserve(self, key: ShardKey, length: int, process: int) -> Grant | Refusal:
        """Give a process memory for a shard of this length at most."""
        self._see(key.checkpoint.round_id)
        for buffer in self._buffers.values():
            buffer.readers.discard(process)
            if buffer.writer == process:
                buffer.reserved = None
        if self._is_outdated(key.checkpoint) and not self.holds(key):
            return Refusal.OUTDATED
        return self._give(key, length, process)

    def receive(self, key: ShardKey, length: int) -> Grant | Refusal:
        """Give this server itself memory for a copy. `give_up` it if it cannot be made."""
        self._see(key.checkpoint.round_id)
        return self._give(key, length, None)

    def spare(self) -> Grant | None:
        """A buffer to make and write to before a process asks for it; None: none is missing, or there is no room.

        Nobody gets it before `warmed`. If its room is needed before that, it is released.
        """
        owned: dict[int, list[_Buffer]] = {}
        for buffer in self._buffers.values():
            if buffer.writer is not None and not self._ended(buffer.writer):
                owned.setdefault(buffer.writer, []).append(buffer)
        without = [max(b.capacity for b in mine) for mine in owned.values() if not any(b.is_free for b in mine)]
        spares = sorted(b.capacity for b in self._buffers.values() if b.writer is None and b.is_free)
        for capacity in sorted(without):
            if found := next((each for each in spares if each >= capacity), 0):
                spares.remove(found)
            elif self.used + capacity <= self.limit:
                self._made += 1
                self._buffers[self._made] = _Buffer(capacity, None, warming=True)
                return Grant(self._made, capacity)
        return None

    def warmed(self, buffer: int) -> None:
        """A spare buffer has been written to."""
        if buffer in self._buffers:
            self._buffers[buffer].warming = False

    def give_up(self, buffer: int) -> None:
        """A copy that was begun is not made."""
        self._buffers[buffer].reserved = None

    def forget_buffer(self, buffer: int) -> None:
        """A new buffer could not be made."""
        del self._buffers[buffer]

    def commit(self, shard: Shard) -> None:
        """A process has written a shard completely.

        Raises:
            NotReservedError: no memory was given for it, or not so much, or the process has given it up since.
        """
        writers = (b for b in self._buffers.values() if b.writer is not None and b.reserved == key_of(shard))
        buffer = next(writers, None)
        if buffer is None:
            raise NotReservedError("no memory is reserved for this shard")
        if shard.nbytes > buffer.capacity:
            raise NotReservedError(f"the shard has {shard.nbytes} bytes, its memory has {buffer.capacity}")
        self._complete(buffer, replace(shard, copy=False))

    def commit_copy(self, buffer: int, shard: Shard) -> None:
        """A copy has been received completely, into a buffer of `receive`."""
        self._complete(self._buffers[buffer], replace(shard, copy=True))

    def keep(self, newest: CheckpointId | None, kept: Iterable[CheckpointId]) -> None:
        """Forget all other checkpoints, except what is newer than `newest` and of the latest round."""
        self._ordered, self._newest = True, newest
        self._kept = frozenset(kept) | ({newest} if newest else set())
        self._latest = max(self._latest, *(checkpoint.round_id for checkpoint in self._kept), NO_ROUND)
        self._forget()

    def holds(self, key: ShardKey) -> bool:
        """Whether a shard is here, complete."""
        return any(b.shard is not None and key_of(b.shard) == key for b in self._buffers.values())

    def find(self, key: ShardKey, layout: bytes) -> tuple[int, int] | None:
        """The buffer and the length of a shard that is complete."""
        for number, buffer in self._buffers.items():
            if buffer.shard is not None and key_of(buffer.shard) == key and buffer.shard.layout == layout:
                return number, buffer.shard.nbytes
        return None

    def opened(self, buffer: int, process: int) -> None:
        """A process reads from a buffer, until it has ended or reserves memory."""
        self._buffers[buffer].readers.add(process)

    def pin(self, buffer: int) -> None:
        """Give this buffer to no writer until as many `unpin` calls."""
        self._buffers[buffer].pins += 1

    def unpin(self, buffer: int) -> None:
        """Undo one `pin`."""
        self._buffers[buffer].pins -= 1

    def _see(self, round_id: RoundId) -> None:
        if round_id > self._latest:
            self._latest = round_id
            self._forget()

    def _is_outdated(self, checkpoint: CheckpointId) -> bool:
        """Whether the rule of `keep` would forget a shard of it at once."""
        if checkpoint in self._kept:
            return False
        return checkpoint.round_id < self._latest or (self._newest is not None and checkpoint <= self._newest)

    def _complete(self, buffer: _Buffer, shard: Shard) -> None:
        buffer.reserved, buffer.shard = None, shard
        self._forget()

    def _forget(self) -> None:
        if not self._ordered:
            return
        for buffer in self._buffers.values():
            if buffer.shard is not None and self._is_outdated(buffer.shard.checkpoint):
                buffer.shard = None

    def _give(self, key: ShardKey, length: int, process: int | None) -> Grant | Refusal:
        self._forget_the_ended()
        if self.holds(key):
            return Refusal.COMMITTED
        capacity = max(1, -(-length // PAGE)) * PAGE
        if capacity > self.limit:
            return Refusal.TOO_LARGE
        if any(buffer.reserved == key for buffer in self._buffers.values()):
            return Refusal.BUSY  # another process writes it, or a copy is being received
        grant = self._found(capacity, process)
        if grant is None:
            return Refusal.BUSY
        if grant.new:
            self._buffers[grant.buffer] = _Buffer(grant.new, process)
        buffer = self._buffers[grant.buffer]
        buffer.writer, buffer.reserved = process, key
        return grant

    def _found(self, capacity: int, process: int | None) -> Grant | None:
        idle = {number: b for number, b in self._buffers.items() if b.is_free and not b.pins and not b.readers}
        fitting = [
            (b.writer != process, b.capacity, number)
            for number, b in idle.items()
            if b.capacity >= capacity and b.writer in (None, process) and not b.warming
        ]
        if fitting:
            return Grant(min(fitting)[-1])
        released: list[int] = []
        room = self.limit - self.used
        # Those of processes that live come last: they may have them mapped, and would be given them again.
        for number, buffer in sorted(idle.items(), key=lambda item: (item[1].writer is not None, -item[1].capacity)):
            if room >= capacity:
                break
            released.append(number)
            room += buffer.capacity
        if room < capacity:
            return None
        for number in released:
            del self._buffers[number]
        self._made += 1
        return Grant(self._made, capacity, tuple(released))

    def _forget_the_ended(self) -> None:
        """What a process has reserved and not committed is lost with it."""
        for buffer in self._buffers.values():
            buffer.readers = {reader for reader in buffer.readers if not self._ended(reader)}
            if buffer.writer is not None and self._ended(buffer.writer):
                buffer.writer = buffer.reserved = None
