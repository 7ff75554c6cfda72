"""The buffers' memory: anonymous files (memfd_create(2)), which no limit of /dev/shm binds, and which are gone with the
last process that has them open or mapped.

A worker maps /proc/PID/fd/N of this process, which takes the rights of the same account. It may keep the mapping and
know it by that path, so no path ever comes to mean another buffer: descriptors are numbered upwards, and no number is
used twice.

This process maps nothing: it reads and writes with pread(2) and pwrite(2), which let other threads run, and does not
grow by what it holds. A buffer may be given back while another thread still writes to it: what it writes goes nowhere,
as no number comes to mean another file.
"""

from __future__ import annotations

import fcntl
import os
from typing import Final

FIRST_DESCRIPTOR: Final = 256
"""Above those that the rest of this process opens and closes."""


class Memory:
    """The memory of all buffers, by number. Not safe for threads."""

    def __init__(self) -> None:
        """None yet."""
        self._descriptors: dict[int, int] = {}
        self._next = FIRST_DESCRIPTOR

    def make(self, buffer: int, capacity: int) -> None:
        """Make a buffer of so many bytes.

        Raises:
            OSError: no memory or no descriptor is left.
        """
        made = os.memfd_create(f"edriver-checkpoint-{buffer}")
        try:
            os.ftruncate(made, capacity)
            descriptor = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, self._next)
        finally:
            os.close(made)
        self._next = descriptor + 1
        self._descriptors[buffer] = descriptor

    def take(self, buffer: int) -> int:
        """Forget a buffer; returns its descriptor, for `give_back`, which takes its time."""
        return self._descriptors.pop(buffer)

    def path(self, buffer: int) -> str:
        """What a process of this host and account maps."""
        return f"/proc/{os.getpid()}/fd/{self._descriptors[buffer]}"

    def descriptor(self, buffer: int) -> int:
        """The file, for reading and writing."""
        return self._descriptors[buffer]


def give_back(descriptor: int) -> None:
    """Give a buffer's memory back, even where it is still mapped: whoever touches it there is killed (SIGBUS)."""
    os.ftruncate(descriptor, 0)
    os.close(descriptor)
