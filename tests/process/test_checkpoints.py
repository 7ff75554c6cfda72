"""The last resort on disk, under a real driver: all workers die, and the run goes on from the newest checkpoint."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

from edriver.checkpoints.folder import CheckpointFolder
from tests.process.running import SCRIPTS, running

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]


def steps_on_disk(folder: Path) -> int:
    newest = CheckpointFolder(str(folder)).newest()
    return 0 if newest is None else newest.steps


def test_all_workers_die_at_once_and_the_run_goes_on_from_disk(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    environ = {"CHECKPOINT": str(folder), "STEPS": "60", "EPOCHS": "2"}
    with running(["-np", "2", "--min-np", "1", *TRAIN], tmp_path, environ) as run:
        run.line(r"rank 0 passed step 30")
        run.line(r"rank 1 passed step 30")
        for pid in run.pids().values():
            os.kill(pid, signal.SIGKILL)
        begun = run.line(r"round \d+\.\d+: \d workers? on .*, from the checkpoint of step (\d+)")
        lost = run.line(r"no worker holds the state: it is loaded from disk; (\d+) steps? lost")
        after = next(at for at, line in enumerate(run.lines) if begun[0] in line)
        resumed = run.line(r"rank 0 of \d pid \d+ at step (\d+)", after)
        assert int(resumed[1]) == int(begun[1])
        assert int(begun[1]) >= 10
        assert int(lost[1]) >= 0
        assert run.end() == 0
    assert "is done: trained to step" in run.text


def test_the_next_run_goes_on_where_the_last_one_was(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    environ = {"CHECKPOINT": str(folder), "STEPS": "25", "EPOCHS": "1"}
    for epochs in ("1", "2"):
        with running(["-np", "1", *TRAIN], tmp_path, {**environ, "EPOCHS": epochs}) as run:
            assert run.end() == 0
            begun = re.search(r"from the checkpoint of step (\d+)", run.text)
            assert (begun is None) == (epochs == "1")
            assert steps_on_disk(folder) == {"1": 20, "2": 50}[epochs]
            assert re.search(rf"at step {'0' if begun is None else '20'}$", run.text, re.MULTILINE)
