"""Checkpoints in memory of scripts that shard by a library: each recipe of the docs, through the kill of a rank."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests import needs
from tests.process.running import running

SCRIPTS = Path(__file__).with_name("scripts")
CPU = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}

pytestmark = [pytest.mark.libraries, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    "script",
    [
        "accelerate_fsdp2.py",
        "deepspeed_zero1.py",
        "lightning_fsdp2.py",
        pytest.param("torchtitan_fsdp2.py", marks=pytest.mark.needs(needs.TORCHTITAN)),
    ],
)
def test_it_goes_on_from_memory_to_the_same_end(script: str, tmp_path: Path) -> None:
    for name in ("recipe.py", script):
        shutil.copy(SCRIPTS / name, tmp_path)
    command = ["-np", "3", "-H", "localhost:2,127.0.0.2:1", sys.executable, script, "20"]
    (tmp_path / "pause").touch()
    with running(command, tmp_path, CPU) as run:
        run.line("made step 13$")
        os.kill(run.pids()[1], signal.SIGKILL)
        run.line(
            "round 1.2: 3 workers on localhost, 127.0.0.2, to load the checkpoint in memory of step 10; 3 steps lost"
        )
        for rank in range(3):
            run.line(f"rank {rank} of 3 pid .* begins at step 10$")
        (tmp_path / "pause").unlink()
        assert run.end() == 0, run.text
        assert "is not the same on ranks" not in run.text
        killed = re.findall(r"rank \d ends at step 20 with (.*)", run.text)
    shutil.rmtree(tmp_path / "checkpoints")
    with running(command, tmp_path, CPU) as run:
        assert run.end() == 0, run.text
        whole = re.findall(r"rank \d ends at step 20 with (.*)", run.text)
    assert len(killed) == len(whole) == 3
    assert set(killed) == set(whole)
