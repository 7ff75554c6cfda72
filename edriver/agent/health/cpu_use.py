"""Whether a process computes, as the kernel sees it: the sign of life of a process whose service has ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from edriver.system.proc_stat import SYSTEM_TIME_FIELD, USER_TIME_FIELD, stat_fields

CPU_WINDOW = 10.0
"""Seconds for which the use of a processor is counted before it is judged."""

MIN_CPU_FRACTION = 0.01
"""The part of one processor from which on a process works. Idle threads that look around now and then use less."""


def processor_seconds(pid: int) -> float:
    """What a process has used of processors so far (proc(5): utime and stime in /proc/PID/stat); 0 if it is gone."""
    try:
        fields = stat_fields(Path(f"/proc/{pid}/stat"))
    except OSError:
        return 0.0
    return (int(fields[USER_TIME_FIELD]) + int(fields[SYSTEM_TIME_FIELD])) / os.sysconf("SC_CLK_TCK")


class CpuUseWatch:
    """Measures a process's processor time, one window after the other.

    Args:
        used: seconds of processors that it has used so far.
        clock: seconds that only grow.
        window: seconds.
    """

    def __init__(self, used: Callable[[], float], clock: Callable[[], float], window: float = CPU_WINDOW) -> None:
        self._used = used
        self._clock = clock
        self._window = window
        self._since = clock()
        self._before = used()

    def was_busy(self) -> bool:
        """Whether a window has just ended in which it worked."""
        now = self._clock()
        if now - self._since < self._window:
            return False
        used = self._used()
        worked = used - self._before >= MIN_CPU_FRACTION * (now - self._since)
        self._since, self._before = now, used
        return worked
