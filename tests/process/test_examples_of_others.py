"""Scripts in the shape of Horovod's and torch's own documents, through kills and resizes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.process.running import QUICK_WORKERS, SCRIPTS, Hosts, running


@pytest.mark.long
def test_horovods_imagenet_example(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:2")
    flags = ["-np", "2", "--min-np", "1", "--max-np", "3", "--host-discovery-script", str(hosts.script)]
    job = [sys.executable, str(SCRIPTS / "horovod_imagenet.py")]
    with running([*flags, *job], tmp_path, {"EPOCHS": "100000"}) as run:
        run.line("rank 1 of 2 .* validated epoch 1$")
        first = run.pids()
        os.kill(first[1], signal.SIGKILL)
        alone = run.line(rf"rank 0 of 1 pid {first[0]} at epoch (\d+)")
        assert int(alone[1]) >= 2, "the commit at the end of an epoch was kept"
        back = run.line(r"rank 1 of 2 .* validated epoch \d+$", after=run.lines.index(alone.string))
        hosts.are("localhost:2", "127.0.0.2:1")
        run.line(r"rank 2 of 3 .* validated epoch \d+$", after=run.lines.index(back.string))
        (tmp_path / "stop").touch()
        assert run.end() == 0, run.text
        assert len(re.findall(r"rank \d is done", run.text)) == 3
    validated = re.findall(rf"rank 0 of \d pid {first[0]} validated epoch (\d+)", run.text)
    assert [*map(int, validated)] == [*range(len(validated))], "each epoch ended once"


@pytest.mark.long
def test_torchs_fault_tolerance_tutorial(tmp_path: Path) -> None:
    shutil.copy(SCRIPTS / "ddp_tutorial.py", tmp_path)
    with running(["-np", "2", sys.executable, "ddp_tutorial.py", "40", "10"], tmp_path, QUICK_WORKERS) as run:
        run.line(r"restart mode \(ddp_tutorial.py does not call edriver.run\)")
        run.line(r"\[0\]<stderr>:edriver: the script's group uses .*, because there is no store at localhost:1 ")
        run.line(r"\[Rank 0\] Epoch 12 ")
        victim = run.line(r"\[Rank 1\] Epoch 12 \| pid (\d+)")
        os.kill(int(victim[1]), signal.SIGKILL)
        run.line("Resuming training from snapshot at Epoch 10$")
        assert run.end() == 0, run.text
    epochs = [*map(int, re.findall(r"\[Rank 0\] Epoch (\d+)", run.text))]
    assert sorted(set(epochs)) == [*range(40)]
