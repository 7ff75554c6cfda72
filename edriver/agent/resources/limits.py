"""The limits of the cgroups that this process is in, and what is used of them: those of a container.

Files of the processor: cpu.max and cpu.stat of version 2 (the kernel's admin-guide/cgroup-v2.rst), cpu.cfs_quota_us,
cpu.cfs_period_us and cpuacct.usage of version 1 (scheduler/sched-bwc.rst, admin-guide/cgroup-v1/cpuacct.rst).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from edriver.system.cgroups import CGROUP_ROOT, cgroup_folders, line_in, memory_groups, number_in, pair_in


class Limit(NamedTuple):
    """A limit, and what reads how much of it is used.

    Attributes:
        maximum: cores, or bytes.
        used: seconds of processor time so far, or bytes now; None: the kernel does not say.
    """

    maximum: float
    used: Callable[[], float | None]


def cpu_limit(text: str, root: Path = CGROUP_ROOT) -> Limit | None:
    """The lowest quota of processor time; None without a quota.

    Args:
        text: the contents of /proc/self/cgroup (cgroups(7)).
        root: where the hierarchies are mounted.
    """
    found: list[Limit] = []
    for folder in cgroup_folders(text, root, ""):
        quota, period = pair_in(folder / "cpu.max")
        if quota.isdecimal() and period.isdecimal() and int(period):
            found.append(Limit(int(quota) / int(period), partial(_used_in_v2, folder / "cpu.stat")))
    accounted = (folder / "cpuacct.usage" for folder in cgroup_folders(text, root, "cpuacct"))
    usage = next((file for file in accounted if file.exists()), None)
    for folder in cgroup_folders(text, root, "cpu"):
        quota_us, period_us = number_in(folder / "cpu.cfs_quota_us"), number_in(folder / "cpu.cfs_period_us")
        if quota_us and period_us and quota_us > 0:
            found.append(Limit(quota_us / period_us, partial(_used_in_v1, usage)))
    return min(found, key=lambda limit: limit.maximum, default=None)


def memory_limit(text: str, root: Path = CGROUP_ROOT) -> Limit | None:
    """The lowest limit of memory; None without a limit. The used part excludes file cache that is not in use.

    Args:
        text: the contents of /proc/self/cgroup (cgroups(7)).
        root: where the hierarchies are mounted.
    """
    found = [Limit(most, group.used) for group in memory_groups(text, root) if (most := group.limit()) is not None]
    return min(found, key=lambda limit: limit.maximum, default=None)


def _used_in_v1(file: Path | None) -> float | None:
    nanoseconds = None if file is None else number_in(file)
    return None if nanoseconds is None else nanoseconds * 1e-9


def _used_in_v2(file: Path) -> float | None:
    microseconds = line_in(file, "usage_usec")
    return None if microseconds is None else microseconds * 1e-6
