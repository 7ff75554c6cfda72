"""Which processes are a worker's: its command's, and what that has started, data loaders for example."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from edriver.system.proc_stat import (
    OWN_TIME_FIELDS,
    PARENT_FIELD,
    PROC_ROOT,
    REAPED_TIME_FIELDS,
    RESIDENT_FIELD,
    SESSION_FIELD,
    START_FIELD,
    STATE_FIELD,
    fields_of,
    ticks,
)

LOOKS_BETWEEN_FULL_ONES: Final = 30
"""The number of walks in which a process of no worker is skipped, because there may be thousands."""

ENDED_STATES: Final = "ZX"
"""Of a process that has ended, whether or not its parent has waited for it."""

STAT_BYTES: Final = 2048
"""More than /proc/PID/stat ever has."""


class ProcessStat(NamedTuple):
    """A process at one moment, as the kernel counts: in ticks and pages.

    Attributes:
        pid: its process ID.
        start: when it was started; process ID and start together are unique.
        parent: its parent's process ID.
        session: its session's ID.
        state: a letter; see proc_stat.STATE_FIELD.
        own: the processor time that it has used itself.
        reaped: the processor time of its ended children that it has waited for.
        resident: its pages in memory.
    """

    pid: int
    start: int
    parent: int
    session: int
    state: str
    own: int
    reaped: int
    resident: int


def process_stat(pid: int, root: str = str(PROC_ROOT)) -> ProcessStat | None:
    """The current state of a process; None if it does not exist."""
    try:
        descriptor = os.open(f"{root}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fields = fields_of(os.read(descriptor, STAT_BYTES).decode(errors="replace"))
    except OSError:  # it has ended meanwhile
        return None
    finally:
        os.close(descriptor)
    return ProcessStat(
        pid,
        int(fields[START_FIELD]),
        int(fields[PARENT_FIELD]),
        int(fields[SESSION_FIELD]),
        fields[STATE_FIELD],
        ticks(fields, OWN_TIME_FIELDS),
        ticks(fields, REAPED_TIME_FIELDS),
        max(0, int(fields[RESIDENT_FIELD])),
    )


class WorkerProcesses:
    """Finds the processes of workers, again and again. Each belongs to one worker, and to the same as long as it lives.

    A process is a worker's if it is in the worker's session, or its parent is the worker's; one that was seen as such
    stays it, also when its parents have ended.

    Args:
        root: where proc(5) is mounted.
    """

    def __init__(self, root: Path = PROC_ROOT) -> None:
        self._root = str(root)
        self._owners: dict[int, tuple[int, int]] = {}  # of each process: when it was started, and its worker's process
        self._foreign: set[int] = set()
        self._looks = 0

    def by_worker(self, workers: Collection[int]) -> dict[int, dict[int, ProcessStat]]:
        """The processes of each worker, by their ids; none for a worker that has ended.

        Args:
            workers: the process of each worker's command: each leads a session.
        """
        if self._looks % LOOKS_BETWEEN_FULL_ONES == 0:
            self._foreign.clear()
        self._looks += 1
        there = {int(name) for name in os.listdir(self._root) if name.isdecimal()}  # noqa: PTH208  a Path for each costs as much as all else
        self._foreign &= there
        self._foreign.difference_update(workers)
        stats = {}
        for pid in there - self._foreign:
            if (stat := process_stat(pid, self._root)) is not None:
                stats[pid] = stat
        owners: dict[int, int | None] = {pid: pid for pid in workers if pid in stats}
        found: dict[int, dict[int, ProcessStat]] = {pid: {} for pid in owners}
        for pid, stat in stats.items():
            owner = self._owner(stat, stats, owners)
            if owner is None:
                self._foreign.add(pid)
            else:
                found[owner][pid] = stat
        self._owners = {pid: (stat.start, owner) for owner, of in found.items() for pid, stat in of.items()}
        return found

    def _owner(self, stat: ProcessStat, stats: Mapping[int, ProcessStat], owners: dict[int, int | None]) -> int | None:
        """The worker that a process belongs to; None: to none. What is found out is noted in `owners`."""
        way: list[int] = []
        while stat.pid not in owners:
            way.append(stat.pid)
            owners[stat.pid] = None  # parents that are read at different moments may make a ring
            start, known = self._owners.get(stat.pid, (None, 0))
            above = known if start == stat.start else stat.session
            if owners.get(above) is not None:
                owners[stat.pid] = above
            elif (parent := stats.get(stat.parent)) is not None:
                stat = parent
            else:
                break
        owner = owners[stat.pid]
        for pid in way:
            owners[pid] = owner
        return owner


class ProcessorTime:
    """Adds up the processor time of one worker's processes; never decreases, and counts nothing twice.

    The time of a process is in its own count while it lives, and in its parent's count of children once the parent has
    waited for it.

    Attributes:
        ticks: the clock ticks so far.
    """

    def __init__(self) -> None:
        self.ticks = 0
        self._before: Mapping[int, ProcessStat] = {}

    def add(self, processes: Mapping[int, ProcessStat]) -> None:
        """These are the worker's processes now, by their ids."""
        before = self._before
        counted: dict[int, int] = {}  # of processes that have ended: by who has waited for them
        for old in before.values():
            if not _lives(old, processes):
                heir = old.parent
                while heir in before and not _lives(before[heir], processes):
                    heir = before[heir].parent
                counted[heir] = counted.get(heir, 0) + old.own + old.reaped
        for pid, now in processes.items():
            known = before.get(pid)
            own, reaped = (known.own, known.reaped) if known is not None and known.start == now.start else (0, 0)
            self.ticks += max(0, now.own - own) + max(0, now.reaped - reaped - counted.get(pid, 0))
        self._before = processes


def _lives(stat: ProcessStat, processes: Mapping[int, ProcessStat]) -> bool:
    now = processes.get(stat.pid)
    return now is not None and now.start == stat.start


def ended_among(processes: Collection[int], root: Path = PROC_ROOT) -> list[int]:
    """Those of some processes that have ended, whether or not their parents have waited for them."""
    stats = {pid: process_stat(pid, str(root)) for pid in processes}
    return [pid for pid, stat in stats.items() if stat is None or stat.state in ENDED_STATES]
