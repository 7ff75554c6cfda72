"""Whether the training thread stands still in a collective: it waits for other members, which may never come.

No worker can know that: whether another has made its last step is known to the driver. So it is said when a wait has
lasted for a while, and when it is over. Nothing is looked at but what a sign of life costs anyway while steps are made.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Final

from edriver.worker.watch.stuck import IDLE_SECONDS, in_collective, state_of

BLOCKED_AFTER: Final = 2.5
"""Seconds of standing still after which it is reported. Two looks, or three."""

BUSY_SHARE: Final = 0.03
"""The part of a processor that this process's other threads may use while the training thread waits: more, and data may
be on its way, which Gloo's threads receive."""


class BlockedWatch:
    """Looks at the training thread again and again.

    Args:
        thread: the training thread, which has been started.
        clock: seconds, monotonic.
        used: processor time of this process, without the thread that asks.
    """

    def __init__(
        self,
        thread: threading.Thread,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = lambda: time.process_time() - time.thread_time(),
    ) -> None:
        assert thread.ident is not None
        self._ident = thread.ident
        self._stat = Path(f"/proc/self/task/{thread.native_id}/stat")
        self._clock = clock
        self._used = used
        self._processor_clock = time.pthread_getcpuclockid(thread.ident)
        self._progress: Hashable = None
        self._told = False
        self._mark()
        self._since = self._seen

    def look(self, progress: Hashable) -> float | None:
        """Look once.

        Args:
            progress: changes whenever the worker has made progress.

        Returns:
            seconds for which the thread has stood still in a collective, once they are BLOCKED_AFTER; 0, when one of
            which that was said goes on; None: there is nothing new.
        """
        before, self._progress = self._progress, progress
        still = progress == before and self._still()
        self._mark()
        if not still:
            self._since = self._seen
            told, self._told = self._told, False
            return 0.0 if told else None
        if self._told or self._seen - self._since < BLOCKED_AFTER:
            return None
        self._told = True
        return self._seen - self._since

    def _mark(self) -> None:
        self._seen = self._clock()
        self._thread_used = time.clock_gettime(self._processor_clock)
        self._all_used = self._used()

    def _still(self) -> bool:
        """Whether it has stood still since the last look."""
        if not in_collective(self._ident) or state_of(self._stat) not in "SD":
            return False
        if time.clock_gettime(self._processor_clock) - self._thread_used > IDLE_SECONDS:
            return False
        share = BUSY_SHARE * (self._clock() - self._seen)
        return self._used() - self._all_used <= share + IDLE_SECONDS
