"""The lock that a worker holds while it lives: real processes, real deaths."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edriver.system.life_lock import LifeLock

HOLDER = """
import os, pathlib, sys
from edriver.system.life_lock import LifeLock
lock = LifeLock(pathlib.Path(sys.argv[1]))
lock.hold()
if sys.argv[2] == "fork" and os.fork() == 0:
    os._exit(0)
print("held", flush=True)
sys.stdin.readline()
"""
BOUND = 300.0


class Holder:
    """A process that holds the lock, and a thread that waits for its end."""

    def __init__(self, folder: Path, what: str = "") -> None:
        path = folder / "w.life"
        self.lock = LifeLock.create(path)
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path), what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "held\n"
        self.answers: list[bool] = []
        self.waiting = threading.Thread(target=lambda: self.answers.append(self.lock.wait_for_end()), daemon=True)
        self.waiting.start()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, None], ids=["kill", "crash", "exit"])
def test_any_end_is_seen(tmp_path: Path, how: signal.Signals | None) -> None:
    holder = Holder(tmp_path)
    try:
        if how is None:
            assert holder.process.stdin is not None
            holder.process.stdin.write("\n")
            holder.process.stdin.flush()
        else:
            holder.process.send_signal(how)
        holder.waiting.join(BOUND)
        assert holder.answers == [True]
    finally:
        holder.end()


def test_a_forked_childs_end_is_not_taken_for_the_holders(tmp_path: Path) -> None:
    holder = Holder(tmp_path, "fork")  # the child has ended, or is about to
    try:
        holder.process.send_signal(signal.SIGSTOP)
        assert holder.waiting.is_alive()
        assert holder.answers == []
    finally:
        holder.end()
    holder.waiting.join(BOUND)
    assert holder.answers == [True]


def test_waiting_for_the_end_of_a_lock_that_was_never_held_returns_false(tmp_path: Path) -> None:
    assert not LifeLock.create(tmp_path / "w.life").wait_for_end()


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"w\.life"):
        LifeLock(tmp_path / "w.life")
