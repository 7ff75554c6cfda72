"""The processes that write and read shards, held by pidfds: a number that a process of the kernel's has had is used
again, and a process that has exited may have threads that have not (pidfd_open(2) is readable once all have).
"""

from __future__ import annotations

import itertools
import os
import select
from collections.abc import Collection


class PidfdTable:
    """Tells processes apart, and says which have ended. Not safe for threads."""

    def __init__(self) -> None:
        """None yet."""
        self._descriptors: dict[int, int] = {}
        self._by_pid: dict[int, int] = {}
        self._numbers = itertools.count(1)

    def register(self, pid: int) -> int:
        """Open a pidfd of a process, or find the one that is open; returns its number here, which is never another's.

        Raises:
            OSError: there is no such process, or no descriptor is left.
        """
        known = self._by_pid.get(pid)
        if known is not None and not self.ended(known):
            return known
        descriptor = os.pidfd_open(pid)
        self._let_go(pid)
        number = self._by_pid[pid] = next(self._numbers)
        self._descriptors[number] = descriptor
        return number

    def ended(self, number: int) -> bool:
        """Whether all threads of a process have ended."""
        descriptor = self._descriptors.get(number)
        if descriptor is None:
            return True
        look = select.poll()
        look.register(descriptor, select.POLLIN)
        return bool(look.poll(0))

    def forget(self, needed: Collection[int]) -> None:
        """Let go of processes that have ended, and of those that nothing depends on."""
        for pid, number in list(self._by_pid.items()):
            if number not in needed or self.ended(number):
                self._let_go(pid)

    def _let_go(self, pid: int) -> None:
        number = self._by_pid.pop(pid, None)
        if number is not None:
            os.close(self._descriptors.pop(number))
