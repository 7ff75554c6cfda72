"""Whether a thread is stuck in a collective: severing frees nearly all of them, and a few that nothing frees.

Gloo never wakes a send that met a closed connection before its own thread did (see sever.py). Such a thread stands
inside torch, asleep, and uses no processor time; one that computes does, and one that waits for a processor is not
asleep.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

IDLE_SECONDS = 0.005
"""Processor time that a thread may use and still count as doing nothing."""


class StuckWatch:
    """Looks at one thread again and again, and says when it has not stirred for a while.

    Args:
        thread: the thread, which has been started.
        bound: seconds of standing still that are enough.
        clock: seconds, monotonic.
    """

    def __init__(self, thread: threading.Thread, bound: float, clock: Callable[[], float] = time.monotonic) -> None:
        assert thread.ident is not None
        self._ident = thread.ident
        self._stat = Path(f"/proc/self/task/{thread.native_id}/stat")
        self._processor_clock = time.pthread_getcpuclockid(thread.ident)
        self._bound = bound
        self._clock = clock
        self._since = clock()
        self._used = time.clock_gettime(self._processor_clock)

    def stuck(self) -> bool:
        """Whether it has stood still inside a collective at every look for the whole bound."""
        now, used = self._clock(), time.clock_gettime(self._processor_clock)
        if used - self._used > IDLE_SECONDS or not self._asleep() or not self._in_collective():
            self._since, self._used = now, used
            return False
        return now - self._since >= self._bound

    def _asleep(self) -> bool:
        return self._stat.read_text().rpartition(")")[2].split()[0] in "SD"

    def _in_collective(self) -> bool:
        """Whether its innermost Python frame is one of torch's that wait for peers, or our relay's."""
        frame = sys._current_frames().get(self._ident)
        parts = () if frame is None else Path(frame.f_code.co_filename).parts
        return parts[-2:] == ("worker", "relay.py") or (
            "torch" in parts and not {"distributed", "autograd", "nn", "cuda"}.isdisjoint(parts)
        )
