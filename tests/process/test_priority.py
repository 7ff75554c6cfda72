"""Priorities: which session of processes gets the processor first."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edriver.agent.workers import priority
from tests.needs import AUTOGROUPS, lack


def niceness(pid: int) -> int:
    found = re.search(r"nice (-?\d+)", Path(f"/proc/{pid}/autogroup").read_text())
    assert found is not None
    return int(found[1])


@pytest.fixture
def session() -> Iterator[int]:
    """A process in a session of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    yield process.pid
    process.kill()
    process.communicate()


def test_a_session_goes_behind_others_and_comes_back(session: int) -> None:
    if not priority.lower(session, priority.BOOT_NICENESS):
        lack(AUTOGROUPS)
    assert niceness(session) == priority.BOOT_NICENESS
    priority.restore(session)
    assert niceness(session) == priority.DEFAULT_NICENESS


def test_a_process_that_has_ended_is_skipped() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert not priority.lower(process.pid, priority.ENDED_NICENESS)
    priority.restore(process.pid)


def test_a_change_that_the_kernel_refuses_as_too_early_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [BlockingIOError(), BlockingIOError(), None]
    written = []

    def write(pid: int, level: int) -> None:
        written.append((pid, level))
        if answer := answers.pop(0):
            raise answer

    monkeypatch.setattr(priority, "_write", write)
    monkeypatch.setattr(priority._WRITE_RETRIES, "sleep", lambda seconds: None)
    priority.restore(7)
    assert written == [(7, priority.DEFAULT_NICENESS)] * 3
