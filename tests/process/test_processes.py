"""Processes alone: what is reported to the guard, and when; and how the guard handles invalid input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from edriver.agent.workers.processes import Processes
from edriver.system import guard_main
from edriver.system.guard import Guard
from tests.process.running import BOUND


class RecordingGuard(Guard):
    """Records its calls, and whether the process still held its pid at each."""

    def __init__(self) -> None:
        super().__init__()
        self.reported: list[tuple[str, int, bool]] = []

    def watch(self, group: int) -> None:
        self.reported.append(("watch", group, self._exists(group)))

    def forget(self, group: int) -> None:
        self.reported.append(("forget", group, self._exists(group)))

    def _exists(self, pid: int) -> bool:
        return Path("/proc", str(pid)).exists()


def test_the_guard_forgets_a_group_before_its_number_is_free() -> None:
    guard = RecordingGuard()
    exits: list[tuple[int, int]] = []
    processes = Processes(lambda pid, code: exits.append((pid, code)), guard)
    pid, stdout, stderr = processes.start(["/bin/sh", "-c", "echo hello; exit 5"], os.environ)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    processes.reap()
    assert guard.reported == [("watch", pid, True), ("forget", pid, True)]
    assert exits == [(pid, 5)]
    assert not Path("/proc", str(pid)).exists()
    assert os.read(stdout, 100) == b"hello\n"
    os.close(stdout)
    os.close(stderr)


def test_a_guard_that_receives_invalid_input_still_kills_what_is_on_its_list() -> None:
    with subprocess.Popen(["sleep", "3600"], start_new_session=True) as sleeper:
        lines = b"+\n+ten\n\xff\n+%d\n-\n" % sleeper.pid
        guard = [sys.executable, "-I", "-S", guard_main.__file__, "", "", ""]
        ended = subprocess.run(guard, input=lines, stderr=subprocess.PIPE, start_new_session=True)
        try:
            assert (ended.returncode, ended.stderr) == (0, b"")
            assert sleeper.wait(timeout=BOUND) == -signal.SIGKILL
        finally:
            sleeper.kill()
