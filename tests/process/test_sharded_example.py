"""examples/charlm/train_hsdp.py under edriver: a replica is lost in the middle, and the model is trained to its end."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.process.running import ROOT, running

SCRIPT = ROOT / "examples/charlm/train_hsdp.py"
STEPS = 60


@pytest.mark.long
def test_a_sharded_model_is_trained_to_its_end_through_a_kill(tmp_path: Path) -> None:
    sizes = ["-np", "4", "--min-np", "2", "--replica-size", "2"]
    options = ["--steps", f"{STEPS}", "--batch-size", "2", "--log", "log.jsonl"]
    with running([*sizes, sys.executable, str(SCRIPT), *options], tmp_path) as run:
        victim = int(run.line(r"rank 3 of 4 is process (\d+)")[1])
        first = run.line(r"rank 0 of 4 is process (\d+)")[1]
        run.line(r"step 20 loss .* \(4 workers\)")
        os.kill(victim, signal.SIGKILL)
        run.line(rf"rank 0 of 2 is process {first}$")
        assert run.end() == 0, run.text
        assert "def " in run.text
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in records if "step" in record]
    assert len(steps) == len(set(steps))
    assert max(steps) == STEPS - 1
