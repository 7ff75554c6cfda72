"""The shortest way of a checkpoint through a real run: into memory, over the loss of a rank, and on to disk."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

from edriver.checkpoint_folder.folder import CheckpointFolder
from tests.process.resuming import Resumed
from tests.process.running import QUICK_WORKERS, SCRIPTS, edriver, running
from tests.waiting import until

THREE = ["-np", "3", "-H", "localhost:2,127.0.0.2:1", sys.executable, "kept.py", "40"]


def test_a_restart_goes_on_from_memory_to_the_same_end_and_the_next_run_from_disk(tmp_path: Path) -> None:
    shutil.copy(SCRIPTS / "kept.py", tmp_path)
    (tmp_path / "pause").touch()
    with running([*THREE, "23"], tmp_path, QUICK_WORKERS) as run:
        run.line("made step 23$")
        os.kill(run.pids()[1], signal.SIGKILL)
        run.line("round 1.2: 3 workers on localhost, 127.0.0.2, from the checkpoint in memory of step 20; 3 steps lost")
        for rank in range(3):
            run.line(f"rank {rank} of 3 pid .* begins at step 20$")
        (tmp_path / "pause").unlink()
        assert run.end() == 0, run.text
        ends = set(re.findall(r"rank \d ends at step 40 with (.*)", run.text))
    assert [found.steps for found in CheckpointFolder(str(tmp_path / "checkpoints")).found() if found.whole] == [40]
    with running([*THREE[:-1], "45", "23"], tmp_path, QUICK_WORKERS) as run:
        run.line("rank 2 of 3 pid .* begins at step 40$")
        assert run.end() == 0, run.text
    shutil.rmtree(tmp_path / "checkpoints")
    with running([*THREE, "23"], tmp_path, QUICK_WORKERS) as run:
        assert run.end() == 0, run.text
        assert set(re.findall(r"rank \d ends at step 40 with (.*)", run.text)) == ends


def test_a_run_that_has_lost_all_hosts_and_its_driver_is_resumed_from_disk(tmp_path: Path) -> None:
    shutil.copy(SCRIPTS / "kept.py", tmp_path)
    (tmp_path / "pause").touch()
    environ = {**QUICK_WORKERS, "XDG_STATE_HOME": str(tmp_path / "state")}
    with running([*THREE, "23"], tmp_path, environ) as run:
        run.line("made step 23$")
        saved = edriver("checkpoint", "save", "--run", run.id, environ={"XDG_STATE_HOME": environ["XDG_STATE_HOME"]})
        assert "the checkpoint of step 20 goes to disk now" in saved.stdout, saved.stderr
        folder = CheckpointFolder(str(tmp_path / "checkpoints"))
        until(lambda: [found.steps for found in folder.found() if found.whole] == [20], folder.found)
        for pid in (run.process.pid, *(int(each.partition(":")[0]) for each in run.left_behind())):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.process.wait()
        (tmp_path / "pause").unlink()
        resumed = Resumed(run, tmp_path, environ=environ)
        for rank in range(3):
            resumed.line(f"rank {rank} of 3 pid .* begins at step 20$")
        assert resumed.end() == 0, resumed.text
        assert len(set(re.findall(r"rank \d ends at step 40 with (.*)", resumed.text))) == 1
