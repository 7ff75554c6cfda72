"""Processes that workers have started, and that the kernel has killed because memory ran out: data loaders, for
example.

Of a worker's own process its exit says so (memory_watch.py). An agent cannot see how a worker's children end, so one
counts as killed that has ended just when the kernel has counted a kill.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from edriver.agent.health.memory_watch import END_BOUND, counting_groups, kills_of, lowest_limit
from edriver.system.cgroups import CGROUP_ROOT, MemoryGroup, kills_in
from edriver.system.proc_stat import PROC_ROOT, kernel_text
from edriver.v1 import agent_pb2


class KillCount:
    """Counts the processes that the kernel has killed for lack of memory: in this process's cgroup or, if the cgroup
    does not count them, on the machine.

    Args:
        proc: where proc(5) is mounted.
        root: where cgroups(7) are mounted.

    Attributes:
        groups: the cgroup and those above it; empty: the machine's kills are counted.
    """

    def __init__(self, proc: Path = PROC_ROOT, root: Path = CGROUP_ROOT) -> None:
        self._machine = proc / "vmstat"
        self.groups: tuple[MemoryGroup, ...] = ()
        with suppress(OSError):  # a kernel without cgroups
            self.groups = counting_groups(kernel_text(proc / str(os.getpid()) / "cgroup"), root)

    def now(self) -> int:
        """So far; 0 if the kernel does not say."""
        return (kills_of(self.groups) if self.groups else kills_in(self._machine)) or 0

    def limit(self) -> int | None:
        """Bytes that the cgroup may use; None: it has no limit, or is not known."""
        return lowest_limit(self.groups)


class MemoryKills:
    """Reports each kill once.

    Args:
        send: sends the reports.
        ended: those of some processes that have ended.
        count: the kernel's count.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        send: Callable[[agent_pb2.MemoryKill], None],
        ended: Callable[[Collection[int]], Collection[int]],
        count: KillCount | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._ended = ended
        self._count = count or KillCount()
        self._clock = clock
        self._first = self._seen = self._count.now()
        self._unexplained = 0
        self._explain_by = 0.0
        self._processes: dict[int, tuple[int, int]] = {}

    @property
    def total(self) -> int:
        """Kills since the beginning."""
        return self._seen - self._first

    def note(self, processes: Mapping[int, tuple[int, int]]) -> None:
        """What workers have started.

        Args:
            processes: by their ids: the worker, and bytes in memory.
        """
        self._processes = dict(processes)

    def check(self, workers: Mapping[int, Collection[int]], suspect: int = 0) -> None:
        """Check for a kill, and report it.

        Args:
            workers: the current workers, each with its processes: the command's, and the one that trains.
            suspect: a worker that has just failed, perhaps by a kill; 0: no worker.
        """
        count, now = self._count.now(), self._clock()
        if count > self._seen:
            self._unexplained += count - self._seen
            self._explain_by = now + END_BOUND  # it is counted first, and ends once its memory is given back
        self._seen = count
        if not self._unexplained:
            return
        if now >= self._explain_by:  # the killed process belonged to none of the workers
            self._unexplained = 0
            return
        own = {pid: worker_id for worker_id, pids in workers.items() for pid in pids if pid}
        failed = {own[pid] for pid in self._ended(own)}  # their exits tell, and take what they have started with them
        started = {
            pid: nbytes
            for pid, (worker_id, nbytes) in self._processes.items()
            if worker_id in workers and worker_id not in failed and pid not in own
        }
        for pid in sorted(self._ended(started), key=started.__getitem__, reverse=True)[: self._unexplained]:
            worker_id, _ = self._processes.pop(pid)
            self._report(worker_id, pid)
            suspect = 0 if worker_id == suspect else suspect
        if self._unexplained and suspect:
            # It has ended, and with it all that it had started; or what was killed had been started a moment ago.
            of_it = [pid for pid, (worker_id, _) in self._processes.items() if worker_id == suspect and pid not in own]
            self._report(suspect, of_it[0] if suspect in failed and len(of_it) == 1 else 0)

    def explained(self) -> None:
        """A worker's exit has reported one."""
        self._unexplained = max(0, self._unexplained + self._count.now() - self._seen - 1)
        self._seen = self._count.now()
        self._explain_by = self._clock() + END_BOUND

    def _report(self, worker_id: int, pid: int) -> None:
        self._unexplained -= 1
        kill = agent_pb2.MemoryKill(
            worker_id=worker_id, pid=pid, memory_limit=self._count.limit(), uncertain=not self._count.groups
        )
        self._send(kill)
