"""Processes by themselves: what the guard is told, and when."""

from __future__ import annotations

import os
from pathlib import Path

from edriver.agent.workers.processes import Processes
from edriver.system.guard import Guard


class RecordingGuard(Guard):
    """Notes what it is told, and whether the process still holds its number then."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, int, bool]] = []

    def watch(self, group: int) -> None:
        self.told.append(("watch", group, self._exists(group)))

    def forget(self, group: int) -> None:
        self.told.append(("forget", group, self._exists(group)))

    def _exists(self, pid: int) -> bool:
        return Path("/proc", str(pid)).exists()


def test_the_guard_forgets_a_group_before_its_number_is_free() -> None:
    guard = RecordingGuard()
    exits: list[tuple[int, int]] = []
    processes = Processes(lambda pid, code: exits.append((pid, code)), guard)
    pid, stdout, stderr = processes.start(["/bin/sh", "-c", "echo hello; exit 5"], os.environ)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    processes.reap()
    assert guard.told == [("watch", pid, True), ("forget", pid, True)]
    assert exits == [(pid, 5)]
    assert not Path("/proc", str(pid)).exists()
    assert os.read(stdout, 100) == b"hello\n"
    os.close(stdout)
    os.close(stderr)
