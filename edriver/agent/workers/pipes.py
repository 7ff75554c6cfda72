"""When the pipes of all workers here are read: what they write at about the same time is read at once."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Final

READ_PAUSE: Final = 0.25
"""Seconds for which pipes are left alone after they were read. Workers print at the same step: to be woken by each line
of each of them, and to send each, was most of what an agent cost."""

FULL_READ: Final = 4096
"""Bytes of one read after which no pause follows, so that a worker that writes much does not wait for a full pipe."""


class Pipes:
    """Reads those pipes that have something, then none for a while. A line that comes after that is read at once.

    Args:
        later: calls a function after so many seconds; None: the event loop does.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], object] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.call_later = later or self._loop.call_later
        self.time = self._loop.time
        self._ready = select.epoll()  # can itself be waited for: it is readable while one of its pipes is
        self._reads: dict[int, Callable[[], int]] = {}
        self._waits = False
        self._wait(True)

    def add(self, fd: int, read: Callable[[], int]) -> None:
        """Have a pipe read.

        Args:
            fd: its end to read.
            read: reads it once; returns the number of bytes.
        """
        self._reads[fd] = read
        self._ready.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Leave a pipe alone from now on; has no effect on one that is left alone already."""
        if self._reads.pop(fd, None):
            self._ready.unregister(fd)

    def _read(self) -> None:
        most = max((self._reads[fd]() for fd, _ in self._ready.poll(0) if fd in self._reads), default=0)
        pauses = 0 < most < FULL_READ
        self._wait(not pauses)
        if pauses:
            self.call_later(READ_PAUSE, self._read)  # pending output is read as soon as the pause ends

    def _wait(self, waits: bool) -> None:
        if waits and not self._waits:
            self._loop.add_reader(self._ready.fileno(), self._read)
        elif self._waits and not waits:
            self._loop.remove_reader(self._ready.fileno())
        self._waits = waits
