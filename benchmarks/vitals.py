"""A process's resources at a moment, from /proc: memory, descriptors, threads; and which processes were not reaped."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

POOL = ("event_engine", "lifeguard")
"""What gRPC calls them."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """What a process holds.

    Attributes:
        memory: resident bytes.
        descriptors: how many are open.
        threads: how many there are, but for those of gRPC's pool, which come and go.
    """

    memory: int
    descriptors: int
    threads: int

    def least(self, other: Self) -> Vitals:
        """The less of either: what one of two looks does not find was there in passing."""
        return Vitals(
            min(self.memory, other.memory),
            min(self.descriptors, other.descriptors),
            min(self.threads, other.threads),
        )


def vitals_of(pid: int) -> Vitals:
    """See proc(5), /proc/PID/status and /proc/PID/fd.

    Raises:
        OSError: it is not there.
    """
    folder = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    if "VmRSS" not in status:
        raise ProcessLookupError(f"process {pid} has exited")
    memory = int(status["VmRSS"].split()[0]) * 1024
    threads = [(thread / "comm").read_text().strip() for thread in (folder / "task").iterdir()]
    return Vitals(memory, len(list((folder / "fd").iterdir())), sum(name not in POOL for name in threads))


def vitals_of_all(pids: Iterable[int]) -> dict[int, Vitals]:
    """Of those that are there: a child that was forked and has yet to become something else is soon gone."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            found[pid] = vitals_of(pid)
    return found


def zombies_of(parents: Collection[int]) -> set[int]:
    """The children of these processes that have exited and were not reaped."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                if state == "Z" and int(parent) in parents:
                    found.add(int(entry.name))
    return found
