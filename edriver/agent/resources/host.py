"""What the whole host uses: the machine, or the container that the agent is in, where that has a limit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from edriver.agent.resources.limits import cpu_limit, memory_limit
from edriver.system.cgroups import CGROUP_ROOT
from edriver.system.proc_stat import PROC_ROOT, kernel_text

NETWORK_ROOT: Final = Path("/sys/class/net")


class HostReading(NamedTuple):
    """A host at one moment.

    Attributes:
        cpu_seconds: processor time that has been used.
        cpu_limit: cores that may be used.
        memory: bytes in use,
        memory_limit: of so many.
        received: bytes from the network,
        sent: and to it.
    """

    cpu_seconds: float
    cpu_limit: float
    memory: int
    memory_limit: int
    received: int
    sent: int


class HostUsageReader:
    """Reads what the host uses.

    Args:
        proc: where proc(5) is mounted,
        cgroups: cgroups(7),
        network: and the interfaces.
    """

    def __init__(self, proc: Path = PROC_ROOT, cgroups: Path = CGROUP_ROOT, network: Path = NETWORK_ROOT) -> None:
        self._cgroup = proc / "self" / "cgroup"
        self._cgroups = cgroups
        self._network = network
        self._interfaces: dict[str, bool] = {}  # whether each counts

    def read(self) -> HostReading:
        """What it uses now. Limits may have changed meanwhile: they are read, too."""
        try:
            groups = kernel_text(self._cgroup)
        except OSError:
            groups = ""
        return HostReading(*self._processors(groups), *self._memory(groups), *self._traffic())

    def _processors(self, groups: str) -> tuple[float, float]:
        usable = os.sched_getaffinity(0)
        quota = cpu_limit(groups, self._cgroups)
        if quota is not None and quota.maximum < len(usable) and (used := quota.used()) is not None:
            return used, quota.maximum
        if len(usable) == os.cpu_count():
            return _busy(psutil.cpu_times()), float(len(usable))
        times = psutil.cpu_times(percpu=True)
        return sum(_busy(times[number]) for number in usable if number < len(times)), float(len(usable))

    def _memory(self, groups: str) -> tuple[int, int]:
        machine = psutil.virtual_memory()
        limit = memory_limit(groups, self._cgroups)
        if limit is not None and limit.maximum < machine.total and (used := limit.used()) is not None:
            return int(used), int(limit.maximum)
        return machine.total - machine.available, machine.total

    def _traffic(self) -> tuple[int, int]:
        counters = psutil.net_io_counters(pernic=True)
        if counters.keys() != self._interfaces.keys():
            self._interfaces = interfaces_that_count(self._network, list(counters))
        counted = [counters[name] for name, counts in self._interfaces.items() if counts]
        return sum(each.bytes_recv for each in counted), sum(each.bytes_sent for each in counted)


def _busy(times: Any) -> float:
    """The seconds that were worked in psutil.cpu_times()."""
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def interfaces_that_count(root: Path, names: list[str]) -> dict[str, bool]:
    """Whether each network interface counts, so that no byte is counted twice.

    Interfaces of devices count. If there are none, as in a container, those count that are not built on another one (as
    a bridge, a bond and a VLAN are). Loopback never counts.

    Args:
        root: /sys/class/net.
        names: the names of the interfaces.
    """
    devices = {name for name in names if (root / name / "device").exists()}
    lowest = {name for name in names if name != "lo" and not any((root / name).glob("lower_*"))}
    return {name: name in (devices or lowest) for name in names}
