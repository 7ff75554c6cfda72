"""What those who move many bytes have in common: they let training go first, and none stands still without a bound.

gRPC bounds whole calls alone, which says nothing of one that may rightly take minutes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

BULK_NICENESS: Final = 5
"""By how much that of threads is raised that read, hash, send and receive: a third of a trainer's share where both want
a core (sched(7)). With a tenth, copies came tens of seconds late on a busy machine: too late for the next loss."""

STANDSTILL: Final = 20.0
"""Seconds in which the next message, of 1 MiB, must have been taken, or have come."""


def let_training_go_first() -> None:
    """Lower the priority of the calling thread: niceness belongs to threads (sched(7))."""
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + BULK_NICENESS)


class BoundedCall:
    """Cancels a call that makes no progress for some time, between entering and leaving this.

    Args:
        cancel: cancels it, from another thread.
        standstill: seconds.

    Attributes:
        is_over: whether it has been cancelled.
    """

    def __init__(self, cancel: Callable[[], object], standstill: float = STANDSTILL) -> None:
        self.is_over = False
        self._cancel = cancel
        self._standstill = standstill
        self._moved = False
        self._left = threading.Event()

    def moved(self) -> None:
        """It has made progress."""
        self._moved = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="edriver-bound", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._left.set()

    def _watch(self) -> None:
        while not self._left.wait(self._standstill):
            if not self._moved:
                self.is_over = True
                self._cancel()
                return
            self._moved = False
