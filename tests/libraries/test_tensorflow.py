"""TensorFlow in restart mode: its own strategy finds the members of each round, and goes on from its own checkpoint."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.process.running import running

SCRIPT = Path(__file__).with_name("scripts") / "tensorflow_mirrored.py"

pytestmark = [pytest.mark.libraries, pytest.mark.timeout(600)]


def test_a_killed_worker_is_replaced_and_the_cluster_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path)
    with running(
        ["-np", "2", sys.executable, SCRIPT.name], tmp_path, {"EPOCHS": "3000", "CUDA_VISIBLE_DEVICES": ""}
    ) as run:
        run.line(r"restart mode \(tensorflow_mirrored.py does not call edriver.run\)")
        run.line(r"rank 1 of 2 pid \d+ ends epoch 2, weight 3$")
        ended = len(run.lines)
        os.kill(run.pids()[1], signal.SIGKILL)
        again = run.line(r"rank 0 of 2 pid \d+ ends epoch (\d+), weight", after=ended)
        assert int(again[1]) >= 2, "it goes on, and does not start over"
        assert run.end() == 0, run.text
        assert "ends epoch 2999, weight 3000" in run.text
        assert "rank 1 is done" in run.text
