"""Whether the kernel has killed a process for want of memory: it sends SIGKILL, and counts that in its cgroup.

Files: memory.events and memory.max of cgroup v2 (the kernel's admin-guide/cgroup-v2.rst), memory.oom_control and
memory.limit_in_bytes of v1 (admin-guide/cgroup-v1/memory.rst), and /proc/vmstat for the whole machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from edriver.system.proc_stat import kernel_text
from edriver.v1 import cause_pb2

END_BOUND: Final = 10.0
"""Seconds that a process may take to end once the kernel has counted that it kills it: its memory is given back first.
A kill that is older was of another process."""

LOOK_INTERVAL: Final = END_BOUND / 4
"""Seconds between two looks, at least: each reads four files, one of them of a hundred lines and more."""

UNLIMITED_BYTES: Final = 1 << 60
"""What v1 writes where there is no limit is about 2^63, rounded to pages."""


class MemoryGroup(NamedTuple):
    """A cgroup that has the memory controller.

    Attributes:
        folder: below the controller's mount.
        mount: the controller's mount.
        events: the file that counts kills,
        limit: and the one that has the limit.
    """

    folder: Path
    mount: Path
    events: str
    limit: str


def memory_groups(text: str, root: Path) -> Iterator[MemoryGroup]:
    """The cgroups that may have the memory controller, from the text of /proc/PID/cgroup (cgroups(7)).

    Args:
        text: a line `number:controllers:path` for each hierarchy; version 2 has number 0 and no controllers.
        root: where the hierarchies are mounted: /sys/fs/cgroup.
    """
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        # In a container without a namespace of its own for cgroups, the path is the host's, the mount the container's.
        inside = path.lstrip("/")
        if number == "0" and not controllers:
            yield MemoryGroup(root / inside, root, "memory.events", "memory.max")
            yield MemoryGroup(root, root, "memory.events", "memory.max")
        elif "memory" in controllers.split(","):
            mount = root / "memory"
            yield MemoryGroup(mount / inside, mount, "memory.oom_control", "memory.limit_in_bytes")
            yield MemoryGroup(mount, mount, "memory.oom_control", "memory.limit_in_bytes")


def oom_kills(text: str) -> int | None:
    """How many processes the kernel has killed, from one of its files that count them; None: it does not say."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return None


def limit_of(text: str) -> int | None:
    """The bytes of a limit, from memory.max or memory.limit_in_bytes; None: there is none."""
    value = text.strip()
    return int(value) if value.isdecimal() and int(value) < UNLIMITED_BYTES else None


class MemoryWatch:
    """Keeps the count of one process's cgroup, so that a kill for want of memory can be distinguished from any other.

    Args:
        pid: the process.
        proc: where the kernel's files about processes are,
        root: and those about cgroups.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        pid: int,
        proc: Path = Path("/proc"),
        root: Path = Path("/sys/fs/cgroup"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cgroup = proc / str(pid) / "cgroup"
        self._machine = proc / "vmstat"
        self._root = root
        self._clock = clock
        self._changed_at: float | None = None
        self._look_at = -math.inf
        self._group: MemoryGroup | None = None
        self._known: int | None = None
        self._known_of_machine: int | None = None
        self._note(self._counts())

    def look(self) -> None:
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
        if found == (self._group, self._known, self._known_of_machine):
            self._changed_at = None
        elif self._changed_at is None:
            self._changed_at = now
        elif now >= self._changed_at + END_BOUND:
            self._note(found)

    def _counts(self) -> tuple[MemoryGroup | None, int | None, int | None]:
        """Its cgroup, and the kills in that and on the machine."""
        group = self._group
        with suppress(OSError):  # it has just ended
            group = counting_group(kernel_text(self._cgroup), self._root)
        return group, kills_of(group), kills_in(self._machine)

    def _note(self, found: tuple[MemoryGroup | None, int | None, int | None]) -> None:
        self._group, self._known, self._known_of_machine = found
        self._changed_at = None

    def verdict(self) -> cause_pb2.Cause | None:
        """Why the process, which SIGKILL has ended, was killed; None if it was not the kernel that did it."""
        if self._group and _more(kills_of(self._group), self._known):
            return cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_OUT_OF_MEMORY, memory_limit=lowest_limit(self._group))
        if _more(kills_in(self._machine), self._known_of_machine):
            return cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_MAYBE_OUT_OF_MEMORY)
        return None


def counting_group(text: str, root: Path) -> MemoryGroup | None:
    """The first cgroup of memory_groups that counts kills; None: there is none."""
    return next((group for group in memory_groups(text, root) if kills_of(group) is not None), None)


def kills_of(group: MemoryGroup | None) -> int | None:
    """How many processes of a cgroup the kernel has killed; None: it does not say."""
    return None if group is None else kills_in(group.folder / group.events)


def lowest_limit(group: MemoryGroup) -> int | None:
    """The lowest limit of a cgroup and of those above it, in bytes; None: there is none."""
    found, folder = [], group.folder
    while folder.is_relative_to(group.mount):
        with suppress(OSError):
            found.append(limit_of(kernel_text(folder / group.limit)))
        folder = folder.parent
    return min((limit for limit in found if limit is not None), default=None)


def _more(now: int | None, before: int | None) -> bool:
    return now is not None and before is not None and now > before


def kills_in(file: Path) -> int | None:
    """How many processes the kernel has killed, as one of its files says; None: it does not."""
    try:
        return oom_kills(kernel_text(file))
    except OSError:
        return None
