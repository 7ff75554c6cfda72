"""Whether the training thread stands still in a collective: it waits for other members, which may never come.

No worker can know that: whether another has made its last step is known to the driver. So it reports when a wait has
lasted for a while, and when it is over. Nothing is looked at but what a sign of life costs anyway while steps are made.

The thread stands still if it is asleep inside torch and no other thread of the process uses a processor, as Gloo's do
while data comes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Final

from edriver.worker.watch.stuck import IDLE_CPU_SECONDS, in_collective, state_of

BLOCKED_REPORT_DELAY: Final = 2.5
"""Seconds of standing still after which it is reported. Two looks, or three."""

MAX_IDLE_CPU_FRACTION: Final = 0.03
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
        self._reported = False
        self._mark()
        self._since = self._seen

    def look(self, progress: Hashable) -> float | None:
        """Look once.

        Args:
            progress: changes whenever the worker has made progress.

        Returns:
            the seconds for which the thread has been blocked in a collective, once they reach BLOCKED_REPORT_DELAY; 0
            when a reported thread continues; None without news.
        """
        before, self._progress = self._progress, progress
        still = progress == before and self._still()
        self._mark()
        if not still:
            self._since = self._seen
            reported, self._reported = self._reported, False
            return 0.0 if reported else None
        if self._reported or self._seen - self._since < BLOCKED_REPORT_DELAY:
            return None
        self._reported = True
        return self._seen - self._since

    def _mark(self) -> None:
        self._seen = self._clock()
        self._thread_used = time.clock_gettime(self._processor_clock)
        self._all_used = self._used()

    def _still(self) -> bool:
        """Whether it has stood still since the last look."""
        if not in_collective(self._ident) or state_of(self._stat) not in "SD":
            return False
        if time.clock_gettime(self._processor_clock) - self._thread_used > IDLE_CPU_SECONDS:
            return False
        share = MAX_IDLE_CPU_FRACTION * (self._clock() - self._seen)
        return self._used() - self._all_used <= share + IDLE_CPU_SECONDS
