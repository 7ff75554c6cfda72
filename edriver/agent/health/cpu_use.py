"""Whether a process computes, as the kernel sees it: the sign of life of a process whose service has ended."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from edriver.system.proc_stat import (
    OWN_TIME_FIELDS,
    PARENT_FIELD,
    REAPED_TIME_FIELDS,
    stat_fields,
    ticks,
)

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
    return ticks(fields, OWN_TIME_FIELDS) / os.sysconf("SC_CLK_TCK")


def family_seconds(pid: int) -> float:
    """The time used so far by a process and all its descendants: an upload may be a separate command."""
    used: dict[int, float] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):  # noqa: PTH208  paths of all processes would take as long again
        if name.isdecimal():
            try:
                fields = stat_fields(Path("/proc", name, "stat"))
            except OSError:
                continue  # closed meanwhile
            children[int(fields[PARENT_FIELD])].append(int(name))
            used[int(name)] = ticks(fields, OWN_TIME_FIELDS + REAPED_TIME_FIELDS) / os.sysconf("SC_CLK_TCK")
    total, left = 0.0, [pid]
    while left:
        member = left.pop()
        total += used.get(member, 0.0)
        left += children[member]
    return total


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

    @property
    def over(self) -> bool:
        """Whether a window has just ended."""
        return self._clock() - self._since >= self._window

    def was_busy(self) -> bool:
        """Whether a window has just ended in which it worked."""
        if not self.over:
            return False
        now = self._clock()
        used = self._used()
        worked = used - self._before >= MIN_CPU_FRACTION * (now - self._since)
        self._since, self._before = now, used
        return worked
