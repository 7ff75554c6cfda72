"""Processes alone: what is reported to the guard, and when; and how the guard handles invalid input."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edriver.agent.workers import processes as processes_module
from edriver.agent.workers.processes import Processes, become_subreaper
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


HELPER = "setsid sh -c 'trap \"\" TERM HUP; sleep 3600 & echo $$ $!; wait' & sleep 3600; exit 3"
"""Leaves a process in a session of its own, which has a child itself."""


async def left_by(command: str, others: int = 0) -> tuple[list[int], list[int]]:
    """What a worker has left, of which of it there is nothing when its exit is reported; and what others have left."""
    guard, exits = RecordingGuard(), asyncio.Event()
    gone: list[bool] = []

    def exited(pid: int, code: int) -> None:
        if pid == worker:
            gone.extend(not Path("/proc", str(helper)).exists() for helper in helpers)
            exits.set()

    processes = Processes(exited, guard)
    become_subreaper()
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, processes.reap)
    try:
        kept: list[int] = []
        for _ in range(others):
            _, stdout, _ = processes.start(["/bin/sh", "-c", command], os.environ)
            kept += await numbers(stdout)
        worker, stdout, _ = processes.start(["/bin/sh", "-c", command], os.environ)
        helpers = await numbers(stdout)
        os.kill(worker, signal.SIGKILL)
        async with asyncio.timeout(BOUND):
            await exits.wait()
        assert gone == [True] * len(helpers)
        return helpers, [pid for pid in kept if guard._exists(pid)]
    finally:
        assert await processes.close(BOUND)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)


async def numbers(stdout: int) -> list[int]:
    """The numbers in the first line."""
    os.set_blocking(stdout, True)
    with open(stdout) as stream:  # noqa: ASYNC230  a descriptor
        return [int(word) for word in (await asyncio.to_thread(stream.readline)).split()]


def test_what_a_worker_has_left_in_another_session_is_gone_when_its_exit_is_reported() -> None:
    helpers, _ = asyncio.run(left_by(HELPER))
    assert len(helpers) == 2


def test_what_another_worker_has_started_is_left_alone() -> None:
    daemon = (
        "(setsid sh -c 'echo $$; exec sleep 3600' &); sleep 3600; exit 3"  # its parent is gone at once: it is an orphan
    )
    _, kept = asyncio.run(left_by(daemon, others=2))
    assert len(kept) == 2


def test_an_exit_waits_for_what_is_exiting_though_its_environment_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that exits gives its memory back first, its environment with it."""
    looks, reported_after, seen = [False, True, True], list[int](), asyncio.Event()
    monkeypatch.setattr(processes_module, "own_children", lambda: {os.getpid()})
    monkeypatch.setattr(processes_module, "_is_marked", lambda pid, mark: False)
    monkeypatch.setattr(processes_module, "_is_exiting", lambda pid: looks.pop())
    monkeypatch.setattr(os, "kill", lambda pid, number: None)

    def exited(pid: int, code: int) -> None:
        reported_after.append(len(looks))
        seen.set()

    async def one() -> None:
        processes = Processes(exited, RecordingGuard())
        pid, *_ = processes.start(["/bin/sh", "-c", "exit 5"], os.environ)
        await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        processes.reap()
        async with asyncio.timeout(BOUND):
            await seen.wait()

    asyncio.run(one())
    assert reported_after == [0]


def test_a_process_that_cannot_be_killed_does_not_hold_up_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes_module, "ORPHANS_TIMEOUT", 0.0)
    monkeypatch.setattr(processes_module, "own_children", lambda: {os.getpid()})
    monkeypatch.setattr(processes_module, "_is_marked", lambda pid, mark: True)
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    exits: list[int] = []

    async def one() -> None:
        processes = Processes(lambda pid, code: exits.append(code), RecordingGuard())
        pid, *_ = processes.start(["/bin/sh", "-c", "exit 5"], os.environ)
        await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        processes.reap()

    asyncio.run(one())
    assert exits == [5]
