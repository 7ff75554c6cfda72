"""Finds the standbys of a run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from edriver.client import Client, HostUsage, here
from tests.process.running import Run
from tests.waiting import until


def standbys(run: Run, ready: Mapping[str, int]) -> dict[str, list[int]]:
    """Wait until each host has so many that are ready; returns the process ids by host."""
    heard: dict[str, list[HostUsage]] = {}

    def look() -> dict[str, list[int]] | None:
        found = _waiting(run, ready)
        if {host: len(pids) for host, pids in found.items()} != ready:
            heard.clear()
            return None
        for host in client.status().hosts:
            samples = heard.setdefault(host.name, [])
            if not samples or samples[-1].cpu_seconds != host.usage.cpu_seconds:
                samples.append(host.usage)
        # Of the first two samples it is not certain that they were taken since.
        fresh = all(len(heard[host]) > 2 and heard[host][-1].standbys == count for host, count in ready.items())
        return found if fresh else None

    with Client(here(run.id)) as client:
        return until(look, lambda: "\n".join([str(client.status().hosts), *run.left_behind()]), bound=90.0)


def _waiting(run: Run, hosts: Iterable[str]) -> dict[str, list[int]]:
    """The processes of standbys that have not become workers, by host."""
    found: dict[str, list[int]] = {host: [] for host in hosts}
    for line in run.left_behind():
        pid = int(line.partition(":")[0])
        begun = any(re.search(rf"begins in slot .* pid {pid} ", line) for line in run.lines)
        if " -m edriver.worker.elastic_standby " in line and not begun:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                found[host_of(pid)].append(pid)
    return found


def host_of(pid: int) -> str:
    """The host of a process that edriver has started."""
    environ = Path(f"/proc/{pid}/environ").read_bytes()
    return next(word[len("EDRIVER_HOST=") :].decode() for word in environ.split(b"\0") if word[:13] == b"EDRIVER_HOST=")
