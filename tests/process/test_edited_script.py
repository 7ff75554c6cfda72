"""A script that is edited while it runs: what joins with other source trains, and is named."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.process.running import running

ELASTIC = """
import os
import time

import edriver
import loss

state = edriver.ObjectState(step=0)


@edriver.run
def train(state):
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} with loss {loss.SCALE}", flush=True)
    while True:
        state.step += 1
        state.commit()
        time.sleep(0.02)


train(state)
"""

RESTART = """
import os
import time

SCALE = 1
print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} pid {os.getpid()} with loss {SCALE}", flush=True)
time.sleep(3600)
"""


@pytest.mark.long_except("elastic")
@pytest.mark.parametrize(
    ("script", "mode", "edited"),
    [(ELASTIC, "elastic", "loss.py"), (RESTART, "restart", "script.py")],
    ids=["elastic", "restart"],
)
def test_source_that_was_edited_is_named(tmp_path: Path, script: str, mode: str, edited: str) -> None:
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "loss.py").write_text("SCALE = 1\n")
    with running(["-np", "2", "--mode", mode, sys.executable, "script.py"], tmp_path) as run:
        run.line("rank 0 of 2 .* with loss 1$")
        run.line("rank 1 of 2 .* with loss 1$")
        path = tmp_path / edited
        path.write_text(path.read_text().replace("SCALE = 1", "SCALE = 100"))
        os.kill(run.pids()[1], signal.SIGKILL)
        run.line("rank 1 of 2 .* with loss 100$")
        run.line(
            rf"edriver: worker \d+ \(.*\) runs a script that differs from the one that the run began with: "
            rf"{edited} \(changed at \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\)$"
        )
