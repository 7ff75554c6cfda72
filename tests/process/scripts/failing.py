"""Tests that fail while something of theirs runs, and one that comes after: see test_interrupted.py."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.process.running import SOON, Run, wait_for_exit

WAITS = ["sh", "-c", "trap '' TERM HUP; echo started; sleep 3600"]

LEFT = Path(os.environ["LEFT"])
"""Where the process ids of what runs are written."""


def test_with_a_child() -> None:
    started = subprocess.Popen(WAITS, stdout=subprocess.PIPE, start_new_session=True)
    assert started.stdout is not None
    started.stdout.readline()
    LEFT.write_text(str(started.pid))
    raise AssertionError


def test_with_a_run(tmp_path: Path) -> None:
    run = Run(["-np", "1", *WAITS], tmp_path)
    run.line("<stdout>:started")
    LEFT.write_text(" ".join(text.partition(":")[0] for text in run.left_behind()))
    raise AssertionError


def test_that_comes_after() -> None:
    pids = [int(word) for word in LEFT.read_text().split()]
    assert pids
    assert all(wait_for_exit(pid, SOON) for pid in pids)
