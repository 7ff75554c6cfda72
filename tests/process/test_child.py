"""A child process of ours: its exit is noticed, its group is killed before it is reaped, and never after."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest

from edriver.system.child import Child

BOUND = 300.0
"""Seconds that a test waits for what must come."""


def seen_to_exit(child: Child) -> None:
    """Wait until it has exited; it is not reaped."""
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize(
    ("command", "code"), [pytest.param("exit 3", 3, id="code"), pytest.param("kill -9 $$", -9, id="signal")]
)
def test_an_exit_is_noticed_once_and_left_to_be_reaped(command: str, code: int) -> None:
    async def work() -> Child:
        child = Child(["sh", "-c", command])
        exited = asyncio.Event()
        child.watch(exited.set)
        async with asyncio.timeout(BOUND):
            await exited.wait()
        assert child.code is None
        return child

    child = asyncio.run(work())
    assert Path("/proc", str(child.pid)).exists()
    assert child.reap() == child.code == code
    assert not Path("/proc", str(child.pid)).exists()


def test_what_is_left_of_its_group_is_killed_when_it_is_reaped() -> None:
    child = Child(["sh", "-c", "sleep 1000 & exit 0"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        seen_to_exit(child)
        assert child.reap() == 0
        assert child.stdout.read() == b""  # the sleep held the other end


def test_a_group_is_not_signalled_once_its_number_may_be_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child(["true"])
    seen_to_exit(child)
    child.reap()
    signalled: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: signalled.append(group))
    child.signal_group(signal.SIGKILL)
    assert signalled == []


def test_a_child_that_cannot_be_watched_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_free(pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def work() -> Child:
        child = Child(["sleep", "1000"])
        with pytest.raises(OSError, match="Too many"):
            child.watch(lambda: None)
        return child

    monkeypatch.setattr(os, "pidfd_open", none_free)
    assert asyncio.run(work()).code == -signal.SIGKILL


def test_a_child_that_cannot_be_started_leaves_no_descriptor() -> None:
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(FileNotFoundError):
        Child(["/no/such/program"], tethered=True)
    # Fewer is no fault: the garbage collector closes what earlier tests left.
    assert set(Path("/proc/self/fd").iterdir()) <= before


def test_waiting_for_its_end_has_a_bound() -> None:
    child = Child(["sleep", "1000"])
    with pytest.raises(TimeoutError):
        child.wait(0.0)
    child.signal_group(signal.SIGKILL)
    child.wait(BOUND)
    assert child.code == -signal.SIGKILL
