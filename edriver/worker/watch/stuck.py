"""Whether a thread is stuck in a collective: severing frees nearly all of them, and a few that nothing frees.

Gloo never wakes a send that met a closed connection before its own thread did (see sever.py). Such a thread stands
inside torch, asleep, and uses no processor time; one that computes does, and one that waits for a processor is not
asleep. Once all connections are closed nothing comes that could wake it but another thread of the process: Gloo's,
which has closed them, may be about to. If none of them computes, or would if it had a processor, a few looks are enough
to know.

A few looks are QUIET_CHECKS of them, at which the thread was asleep inside torch and no thread of the process used a
processor or waited for one. In any case it counts as stuck a second later (STUCK_BOUND in rounds/severing.py).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from edriver.system.proc_stat import STATE_FIELD, stat_fields
from edriver.worker.backend.interpreter import frames
from edriver.worker.backend.torch_code import waits_for_peers

IDLE_CPU_SECONDS = 0.005
"""Processor time that a thread may use and still count as doing nothing."""

QUIET_CHECKS = 4
"""Looks in a row that are enough where nothing is left that could wake the thread. Looks, not seconds: who looks has to
have the interpreter's lock, so that a thread that wakes and waits for it gets it between two of them."""


class StuckWatch:
    """Looks at one thread again and again, and says when it has not stirred for a while.

    Args:
        thread: the thread, which has been started.
        bound: seconds of standing still that are enough.
        clock: seconds, monotonic.
        others_want: tells whether another thread than the caller's wants a processor now.
        others_used: processor time of all threads but the caller's so far, in seconds.

    Attributes:
        ident: the thread's.
    """

    def __init__(
        self,
        thread: threading.Thread,
        bound: float,
        clock: Callable[[], float] = time.monotonic,
        others_want: Callable[[], bool] | None = None,
        others_used: Callable[[], float] | None = None,
    ) -> None:
        assert thread.ident is not None
        self.ident = thread.ident
        self._stat = Path(f"/proc/self/task/{thread.native_id}/stat")
        self._processor_clock = time.pthread_getcpuclockid(thread.ident)
        self._bound = bound
        self._clock = clock
        self._others_want = others_want or others_want_a_processor
        self._others_used = others_used or _used_by_others
        self._since = clock()
        self._used = time.clock_gettime(self._processor_clock)
        self._used_by_others = self._others_used()
        self._quiet_looks = 0

    def stuck(self, cut_off: bool = False) -> bool:
        """Whether it has stood still inside a collective at every look for the whole bound, or is cut off and quiet.

        Args:
            cut_off: whether none of the connections is left that a collective could wait for.
        """
        now, used, used_by_others = self._clock(), time.clock_gettime(self._processor_clock), self._others_used()
        quiet = cut_off and used_by_others - self._used_by_others <= IDLE_CPU_SECONDS and not self._others_want()
        self._used_by_others = used_by_others
        if used - self._used > IDLE_CPU_SECONDS or not self._asleep() or not in_collective(self.ident):
            self._since, self._used, self._quiet_looks = now, used, 0
            return False
        self._quiet_looks = self._quiet_looks + 1 if quiet else 0
        return now - self._since >= self._bound or self._quiet_looks >= QUIET_CHECKS

    def _asleep(self) -> bool:
        return state_of(self._stat) in "SD"


_OUR_WAITING_FILES: Final = ("/worker/sync/relay.py", "/horovod/collectives/handles.py", "/worker/group/store.py")
"""Where edriver itself waits for peers, in C++ or for a key of the round's store."""


def in_collective(ident: int) -> bool:
    """Whether a thread's innermost Python frame is a frame of torch, or of edriver, that waits for peers."""
    frame = frames().get(ident)
    return frame is not None and file_waits_for_peers(frame.f_code.co_filename)


def file_waits_for_peers(filename: str) -> bool:
    """Whether a function that was read from this file may wait for peers in C++ or for a key of the round's store."""
    return filename.endswith(_OUR_WAITING_FILES) or waits_for_peers(filename)


def others_want_a_processor() -> bool:
    """Whether any thread of this process but the one that asks runs, or would if it had a processor (proc(5): R).

    On a machine with too much to do, a thread that has work may have got none of it done for a tenth of a second.
    """
    own = str(threading.get_native_id())
    for task in list(os.scandir("/proc/self/task")):
        try:
            if task.name != own and state_of(Path(task.path, "stat")) == "R":
                return True
        except OSError:
            continue  # it has ended
    return False


def state_of(stat: Path) -> str:
    """The state of a thread or process, from its file `stat` (proc(5)): R runs, S sleeps."""
    return stat_fields(stat)[STATE_FIELD]


def _used_by_others() -> float:
    """Processor time of all threads of this process but the one that asks."""
    return time.process_time() - time.thread_time()
