"""The limits of the cgroups that this process is in, versions 1 and 2, and what is used of them: those of a container.

Files: cpu.max, cpu.stat, memory.max, memory.current and memory.stat of version 2 (the kernel's
admin-guide/cgroup-v2.rst); cpu.cfs_quota_us and cpu.cfs_period_us, cpuacct.usage, memory.limit_in_bytes,
memory.usage_in_bytes and memory.stat of version 1 (scheduler/sched-bwc.rst, admin-guide/cgroup-v1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from edriver.system.proc_stat import kernel_text

CGROUP_ROOT: Final = Path("/sys/fs/cgroup")

UNLIMITED_BYTES: Final = 1 << 60
"""What version 1 writes where there is no limit is about 2^63, rounded to pages."""


class Limit(NamedTuple):
    """A limit, and what reads how much of it is used.

    Attributes:
        most: cores, or bytes.
        used: seconds of processor time so far, or bytes now; None: the kernel does not say.
    """

    most: float
    used: Callable[[], float | None]


def cpu_limit(text: str, root: Path = CGROUP_ROOT) -> Limit | None:
    """The lowest quota of processor time; None: there is none.

    Args:
        text: of /proc/self/cgroup (cgroups(7)).
        root: where the hierarchies are mounted.
    """
    found: list[Limit] = []
    for folder in _folders(text, root, ""):
        quota, _, period = _words(folder / "cpu.max")
        if quota.isdecimal() and period.isdecimal() and int(period):
            found.append(Limit(int(quota) / int(period), partial(_used_in_v2, folder / "cpu.stat")))
    usage = next(
        (file for folder in _folders(text, root, "cpuacct") if (file := folder / "cpuacct.usage").exists()), None
    )
    for folder in _folders(text, root, "cpu"):
        quota_us, period_us = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota_us and period_us and quota_us > 0:
            found.append(Limit(quota_us / period_us, partial(_used_in_v1, usage)))
    return min(found, key=lambda limit: limit.most, default=None)


def memory_limit(text: str, root: Path = CGROUP_ROOT) -> Limit | None:
    """The lowest limit of memory; None: there is none. Used is what counts against it, without files not in use.

    Args:
        text: of /proc/self/cgroup (cgroups(7)).
        root: where the hierarchies are mounted.
    """
    found = []
    for controller, most, used, idle in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for folder in _folders(text, root, controller):
            limit = _number(folder / most)
            if limit is not None and limit < UNLIMITED_BYTES:
                found.append(Limit(limit, partial(_memory_used, folder, used, idle)))
    return min(found, key=lambda limit: limit.most, default=None)


def _folders(text: str, root: Path, controller: str) -> Iterator[Path]:
    """The folders of a controller's cgroup and of those above it, from the lowest up; of "", those of version 2."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (number == "0" and not controllers) if not controller else controller in controllers.split(","):
            mounts = [root / controllers, root / controller] if controller else [root, root / "unified"]
            mount = next((mount for mount in mounts if mount.is_dir()), root)
            # In a container without a cgroup namespace of its own, the path is the host's, the mount the container's.
            folder = mount / path.lstrip("/")
            if not folder.is_dir() or ".." in folder.parts:
                folder = mount
            while folder != mount:
                yield folder
                folder = folder.parent
            yield mount


def _words(file: Path) -> tuple[str, str, str]:
    with suppress(OSError):
        first, space, second = kernel_text(file).strip().partition(" ")
        return first, space, second
    return "", "", ""


def _number(file: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int(kernel_text(file))
    return None


def _used_in_v1(file: Path | None) -> float | None:
    nanoseconds = None if file is None else _number(file)
    return None if nanoseconds is None else nanoseconds * 1e-9


def _named(file: Path, name: str) -> int | None:
    """A number in a file of lines `name number`."""
    with suppress(OSError, ValueError):
        for line in kernel_text(file).splitlines():
            if line.startswith(f"{name} "):
                return int(line.partition(" ")[2])
    return None


def _used_in_v2(file: Path) -> float | None:
    microseconds = _named(file, "usage_usec")
    return None if microseconds is None else microseconds * 1e-6


def _memory_used(folder: Path, used: str, idle: str) -> float | None:
    total = _number(folder / used)
    return None if total is None else max(0, total - (_named(folder / "memory.stat", idle) or 0))
