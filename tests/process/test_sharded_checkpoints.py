"""The last resort of a sharded model, under a real driver: a position loses all its workers, and the run goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from edriver.checkpoint_folder.folder import CheckpointFolder
from tests.process.running import SCRIPTS, running

TRAIN = [sys.executable, str(SCRIPTS / "sharded_elastic.py")]
HOSTS = ["-np", "4", "--min-np", "2", "--replica-size", "2", "-H", "localhost:2,127.0.0.2:2"]


def steps_on_disk(folder: Path) -> list[int]:
    return [found.steps for found in CheckpointFolder(str(folder)).found() if found.whole]


def test_a_position_loses_all_its_workers_and_the_run_goes_on_from_the_newest_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    environ = {"CHECKPOINT": str(folder), "STEPS": "100000", "EVERY": "10"}
    with running([*HOSTS, *TRAIN], tmp_path, environ) as run:
        for rank in range(4):
            run.line(rf"rank {rank} passed step 35")
        pids = run.pids()
        for rank in (1, 3):
            os.kill(pids[rank], signal.SIGKILL)
        begun = run.line(r"round \d+\.\d+: \d workers, .* on .*, from the checkpoint of step (\d+)")
        lost = run.line(r"not all positions of the state are held: it is loaded from disk; (\d+) steps? lost")
        after = next(at for at, line in enumerate(run.lines) if begun[0] in line)
        assert int(run.line(r"rank 1 of \d pid \d+ at step (\d+)", after)[1]) == int(begun[1]) >= 20
        assert int(lost[1]) <= 40
        run.line(rf"rank 0 passed step {int(begun[1]) + 15}", after)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
    newest = max(steps_on_disk(folder))
    with running(["-np", "1", "--replica-size", "1", *TRAIN], tmp_path, {**environ, "STEPS": str(newest + 10)}) as run:
        run.line(rf"1 worker on .*, from the checkpoint of step {newest}$")
        run.line(rf"rank 0 of 1 pid \d+ at step {newest}$")
        assert run.end() == 0
    command = [sys.executable, "-m", "edriver", "checkpoint", "inspect", str(folder), "--verify"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"\b{newest + 10}\b", said), said
    assert "optimizer.state.0.weight.exp_avg" in said, said
