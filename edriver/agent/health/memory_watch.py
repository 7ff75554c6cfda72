"""Whether the kernel has killed a process because memory ran out: it sends SIGKILL, and counts that in its cgroup; in
/proc/vmstat for the whole machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path
from typing import Final, NamedTuple

from edriver.system.cgroups import CGROUP_ROOT, MemoryGroup, kills_in, memory_groups
from edriver.system.proc_stat import PROC_ROOT, kernel_text
from edriver.v1 import cause_pb2

END_BOUND: Final = 10.0
"""Seconds that a process may take to end once the kernel has counted that it kills it: its memory is given back first.
A kill that is older was of another process."""

LOOK_INTERVAL: Final = END_BOUND / 4
"""Seconds between two looks, at least: each reads two files, one of them of a hundred lines and more."""


class _Counts(NamedTuple):
    """What one look has found.

    Attributes:
        cgroup: the text of the process's /proc/PID/cgroup.
        groups: its cgroup and those above it that count kills.
        here: the kills in its cgroup,
        machine: and on the machine; None where the kernel does not say.
    """

    cgroup: str = ""
    groups: tuple[MemoryGroup, ...] = ()
    here: int | None = None
    machine: int | None = None


class MemoryWatch:
    """Keeps the count of one process's cgroup, so that a kill because memory ran out can be distinguished from any
    other.

    Args:
        pid: the process.
        proc: where the kernel's files about processes are,
        root: and those about cgroups.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        pid: int,
        proc: Path = PROC_ROOT,
        root: Path = CGROUP_ROOT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cgroup = proc / str(pid) / "cgroup"
        self._machine = proc / "vmstat"
        self._root = root
        self._clock = clock
        self._changed_at: float | None = None
        self._look_at = -math.inf
        self._known = _Counts()
        self._known = self._counts()

    def sample(self) -> None:
        """Note the counts, if that is due; to be called while the process is there. It may be moved to another cgroup
        meanwhile.

        A change counts once it has lasted for END_BOUND: the process may be about to end of what was counted, and the
        kernel takes it out of its cgroup before it can be reaped.
        """
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_INTERVAL
        found = self._counts()
        if found == self._known:
            self._changed_at = None
        elif self._changed_at is None:
            self._changed_at = now
        elif now >= self._changed_at + END_BOUND:
            self._known = found
            self._changed_at = None

    def _counts(self) -> _Counts:
        """Look again. The kernel counts each kill for the machine, and then for its cgroup: as long as the machine's
        count stays the same, that of the cgroup does, too, and is not read.
        """
        known = self._known
        machine = kills_in(self._machine)
        cgroup = known.cgroup
        with suppress(OSError):  # it has just ended
            cgroup = kernel_text(self._cgroup)
        if machine is not None and (cgroup, machine) == (known.cgroup, known.machine):
            return known
        groups = counting_groups(cgroup, self._root)
        return _Counts(cgroup, groups, kills_of(groups), machine)

    def verdict(self) -> cause_pb2.Cause | None:
        """Why the process, which SIGKILL has ended, was killed; None if it was not the kernel that did it."""
        groups = self._known.groups
        if _more(kills_of(groups), self._known.here):
            return cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_OUT_OF_MEMORY, memory_limit=lowest_limit(groups))
        if _more(kills_in(self._machine), self._known.machine):
            return cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_MAYBE_OUT_OF_MEMORY)
        return None


def counting_groups(text: str, root: Path) -> tuple[MemoryGroup, ...]:
    """The lowest of memory_groups that counts kills, and those above it; empty: none does."""
    return tuple(dropwhile(lambda group: group.kills() is None, memory_groups(text, root)))


def kills_of(groups: tuple[MemoryGroup, ...]) -> int | None:
    """The number of processes of the lowest of these groups that the kernel has killed; None if it does not say."""
    return groups[0].kills() if groups else None


def lowest_limit(groups: tuple[MemoryGroup, ...]) -> int | None:
    """The lowest limit of these groups, in bytes; None without a limit."""
    return min((limit for group in groups if (limit := group.limit()) is not None), default=None)


def _more(now: int | None, before: int | None) -> bool:
    return now is not None and before is not None and now > before
