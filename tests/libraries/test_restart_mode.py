"""Scripts of several libraries survive the loss of a worker without a line that speaks of edriver."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.process.running import running

SCRIPTS = Path(__file__).with_name("scripts")

pytestmark = [pytest.mark.libraries, pytest.mark.timeout(900)]


@pytest.mark.parametrize("script", ["hf_trainer.py", "accelerate_loop.py", "lightning_module.py", "nanogpt.py"])
def test_it_goes_on_from_its_newest_checkpoint(script: str, tmp_path: Path) -> None:
    for name in ("dies.py", script):
        shutil.copy(SCRIPTS / name, tmp_path)
    assert "edriver" not in (tmp_path / script).read_text()
    with running(["-np", "2", sys.executable, script], tmp_path, {"CUDA_VISIBLE_DEVICES": ""}) as run:
        assert run.end() == 0, run.text
        assert f"restart mode ({script} does not call edriver.run)" in run.text
        for rank in range(2):
            run.line(rf"rank {rank} begins at step 0$")
        run.line(r"round 1.1 ended: worker 2 \(rank 1, localhost:1\) was killed by SIGKILL")
        for rank in range(2):
            run.line(rf"rank {rank} begins at step 4$")  # step 8 was not reached
            run.line(rf"rank {rank} is done at step 12$")
        assert run.lines[-3].startswith("edriver: done: 2 rounds, 1 failure survived")
        assert run.gone()
