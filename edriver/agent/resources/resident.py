"""How much memory the processes of one worker take together.

A data loader's process shares most of its pages with the process that forked it. So of a worker's largest process all
pages in memory count, and of its others those that they have for themselves. The kernel tells these only by walking
through all of a process's pages (proc(5): smaps_rollup), so it is asked seldom.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from edriver.agent.resources.processes import ProcessStat
from edriver.system.proc_stat import PROC_ROOT, kernel_text

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

WALK_SHARE: Final = 0.002
"""The part of one core that walks through pages may take, in the long run,"""

WALK_CREDIT: Final = 0.1
"""and the seconds of it that may be taken at once: when data loaders have just been started."""

MAX_WALK_AGE: Final = 60.0
"""Seconds after which a process is walked through again, though its size has not changed,"""

NOTICEABLE_CHANGE: Final = 0.05
"""and the change of its size, as a part of it, after which it is."""


class _Walked(NamedTuple):
    """What a walk has found: when it was, pages in memory then, and pages that no other process had."""

    at: float
    start: int
    resident: int
    private: int


def private_pages(pid: int, root: Path = PROC_ROOT) -> int | None:
    """Pages in memory that a process shares with no other; None: the kernel does not say."""
    try:
        text = kernel_text(root / str(pid) / "smaps_rollup")
    except OSError:  # it has ended, is another user's, or the kernel is older than 4.14
        return None
    kilobytes = sum(
        int(line.split()[1]) for line in text.splitlines() if line.startswith(("Private_Clean", "Private_Dirty"))
    )
    return kilobytes * 1024 // PAGE_BYTES


class ResidentMemory:
    """The memory of workers' processes.

    Args:
        walk: counts a process's own pages; see private_pages.
        clock: seconds that only grow.
        cost: seconds of processor time that this thread has used.
    """

    def __init__(
        self,
        walk: Callable[[int], int | None] = private_pages,
        clock: Callable[[], float] = time.monotonic,
        cost: Callable[[], float] = time.thread_time,
    ) -> None:
        self._walk = walk
        self._clock = clock
        self._cost = cost
        self._walked: dict[int, _Walked] = {}
        self._credit = WALK_CREDIT
        self._credited = clock()

    def pages(self, workers: Iterable[Mapping[int, ProcessStat]]) -> list[int]:
        """Pages of each worker.

        Args:
            workers: the processes of each, by their ids.
        """
        now = self._clock()
        self._credit = min(WALK_CREDIT, self._credit + WALK_SHARE * (now - self._credited))
        self._credited = now
        totals, others = [], []
        for processes in workers:
            largest = max(processes.values(), key=lambda stat: stat.resident, default=None)
            totals.append(largest.resident if largest else 0)
            others.append([stat for stat in processes.values() if stat is not largest])
        there = {stat.pid: stat.start for of_one in others for stat in of_one}
        self._walked = {pid: walked for pid, walked in self._walked.items() if there.get(pid) == walked.start}
        due = sorted((stat for of_one in others for stat in of_one if self._is_due(stat, now)), key=self._age_key)
        for stat in due:
            if self._credit <= 0:
                break
            before = self._cost()
            private = self._walk(stat.pid)
            self._credit -= self._cost() - before
            self._walked[stat.pid] = _Walked(
                now, stat.start, stat.resident, stat.resident if private is None else private
            )
        return [total + sum(map(self._private, of_one)) for total, of_one in zip(totals, others, strict=True)]

    def _is_due(self, stat: ProcessStat, now: float) -> bool:
        walked = self._walked.get(stat.pid)
        if walked is None or now - walked.at >= MAX_WALK_AGE:
            return True
        return abs(stat.resident - walked.resident) > NOTICEABLE_CHANGE * walked.resident

    def _age_key(self, stat: ProcessStat) -> float:
        """Those that were never walked through come first, then those for which it is longest ago."""
        walked = self._walked.get(stat.pid)
        return walked.at if walked else 0.0

    def _private(self, stat: ProcessStat) -> int:
        """Since the last walk, what a process has grown by is its own."""
        walked = self._walked.get(stat.pid)
        if walked is None:
            return 0
        return min(stat.resident, max(0, walked.private + stat.resident - walked.resident))
