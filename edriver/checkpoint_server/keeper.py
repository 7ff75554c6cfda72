"""What the host holds, for all threads of the server: the accounting (shards.py), the memory, and the processes behind
one lock. Nothing that takes long happens under it: bytes are read, written, hashed and given back outside.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from edriver.checkpoint_server.memory import Memory, give_back
from edriver.checkpoint_server.pidfds import PidfdTable
from edriver.checkpoint_server.shards import Grant, ShardKey, ShardMemory, key_of
from edriver.model.memory_checkpoint import CheckpointId, DiskReport, Refusal, Shard

MAX_TROUBLE_LENGTH: Final = 1000
"""Characters of the sentence that says what cannot be done."""

_ZEROS: Final = bytes(1 << 20)


class Held(NamedTuple):
    """What the host holds at one moment.

    Attributes:
        shards: the complete ones.
        used: bytes of memory that are used,
        limit: and that may be.
        trouble: why a copy that was ordered cannot be made; empty: none has failed.
        disk: how far the last write to disk is; None: there was none.
    """

    shards: tuple[Shard, ...]
    used: int
    limit: int
    trouble: str
    disk: DiskReport | None


class Keeper:
    """Holds a host's shards. Safe for threads.

    Args:
        limit: bytes of memory that may be used.
    """

    def __init__(self, limit: int) -> None:
        self._changed = threading.Condition()
        self._changes = 0
        self._processes = PidfdTable()
        self._memory = Memory()
        self._shards = ShardMemory(limit, self._processes.ended)
        self._trouble = ""
        self._disk: DiskReport | None = None

    def reserve(self, key: ShardKey, length: int, pid: int) -> str | Refusal:
        """The path of memory into which a process may write a shard of this length at most.

        Raises:
            OSError: there is no such process.
        """
        with self._change():
            decision = self._shards.reserve(key, length, self._processes.register(pid))
            found, released = self._carried_out(decision)
            path = found if isinstance(found, Refusal) else self._memory.path(found)
            self._processes.forget(self._shards.processes())
        for descriptor in released:
            give_back(descriptor)
        return path

    def commit(self, shard: Shard) -> None:
        """A process has written a shard.

        Raises:
            NotReservedError: it has no memory for it.
        """
        with self._change():
            self._shards.commit(shard)

    def open(self, key: ShardKey, layout: bytes, pid: int) -> tuple[str, int] | None:
        """The path and the length of a shard, for a process to read until it reserves memory or ends; None: not here.

        Raises:
            OSError: there is no such process.
        """
        with self._changed:
            found = self._shards.find(key, layout)
            if found is None:
                return None
            buffer, length = found
            self._shards.opened(buffer, self._processes.register(pid))
            return self._memory.path(buffer), length

    @contextmanager
    def reading(self, key: ShardKey, layout: bytes) -> Iterator[tuple[int, int] | None]:
        """The descriptor and the length of a shard, which does not change within; None: it is not here."""
        with self._changed:
            found = self._shards.find(key, layout)
            if found is not None:
                self._shards.pin(found[0])
        if found is None:
            yield None
            return
        buffer, length = found
        try:
            yield self._memory.descriptor(buffer), length
        finally:
            with self._changed:
                self._shards.unpin(buffer)

    def keep(self, newest: CheckpointId | None, kept: Collection[CheckpointId]) -> None:
        """Forget all checkpoints but these, and those of the latest round that are newer than `newest`."""
        with self._change():
            self._shards.keep(newest, kept)

    def holds(self, key: ShardKey) -> bool:
        """Whether a shard is here, complete."""
        with self._changed:
            return self._shards.holds(key)

    @contextmanager
    def receiving(self, shard: Shard) -> Iterator[int | Refusal]:
        """The descriptor of memory for a copy, which counts if nothing is raised within; or why there is none."""
        with self._change():
            decision = self._shards.receive(key_of(shard), shard.nbytes)
            found, released = self._carried_out(decision)
            place = found if isinstance(found, Refusal) else self._memory.descriptor(found)
        for descriptor in released:
            give_back(descriptor)
        if isinstance(found, Refusal):
            yield found
            return
        try:
            yield place
        except BaseException:
            with self._change():
                self._shards.give_up(found)
            raise
        with self._change():
            self._shards.commit_copy(found, shard)

    def prepare_spares(self) -> None:
        """Make the buffers that processes will ask for next, and write to them."""
        while True:
            with self._changed:  # nothing has changed unless one is made
                made = self._shards.spare()
                found = Refusal.BUSY if made is None else self._carried_out(made)[0]
                if made is None or isinstance(found, Refusal):
                    return
                descriptor = self._memory.descriptor(found)
            with suppress(OSError):  # it has been released, or there is no memory: its writer will notice
                for offset in range(0, made.new, len(_ZEROS)):
                    write_all(descriptor, _ZEROS[: made.new - offset], offset)
            with self._change():
                self._shards.warmed(found)

    def say(self, trouble: str) -> None:
        """Say why a copy cannot be made; empty: nothing is wrong."""
        with self._change():
            self._trouble = trouble

    def say_disk(self, report: DiskReport) -> None:
        """Say how far a write to disk is."""
        with self._change():
            self._disk = report

    def held(self) -> Held:
        """What is here now."""
        with self._changed:
            return Held(tuple(self._shards.shards()), self._shards.used, self._shards.limit, self._trouble, self._disk)

    def wait_for_change(self, seen: int) -> int:
        """Wait until something may have changed since this number was returned (-1: at once). Returns the next one."""
        with self._changed:
            self._changed.wait_for(lambda: self._changes != seen)
            return self._changes

    def wake(self) -> None:
        """End all waits for a change."""
        with self._change():
            pass

    @contextmanager
    def _change(self) -> Iterator[None]:
        with self._changed:
            yield
            self._changes += 1
            self._changed.notify_all()

    def _carried_out(self, decision: Grant | Refusal) -> tuple[int | Refusal, list[int]]:
        """The buffer that was given, and the descriptors of memory to be given back."""
        if isinstance(decision, Refusal):
            return decision, []
        released = [self._memory.take(buffer) for buffer in decision.released]
        if decision.new:
            try:
                self._memory.make(decision.buffer, decision.new)
            except OSError:
                self._shards.forget_buffer(decision.buffer)
                return Refusal.BUSY, released
        return decision.buffer, released


def sentence(text: str) -> str:
    """A text, some of which comes from elsewhere, as the trouble that a host reports: one printable line of bounded
    length.
    """
    return "".join(each if each.isprintable() else "?" for each in text[:MAX_TROUBLE_LENGTH])


def write_all(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of it there.

    Raises:
        OSError: that cannot be done.
    """
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
