"""GlobalBatch under a real driver: through kills inside steps and a resize, each sample counts once in its step."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.process.running import SCRIPTS, Run, edriver, running

SCRIPT = [sys.executable, str(SCRIPTS / "global_batch.py")]
FLAGS = ["-np", "3", "--min-np", "1", "--max-np", "3", "-H", "localhost:2,127.0.0.2:1"]
MICRO_BATCHES = 12


def undisturbed(folder: Path, environ: dict[str, str]) -> list[float]:
    """The parameters that an undisturbed run ends with."""
    folder.mkdir()
    with running([*FLAGS, *SCRIPT], folder, environ) as run:
        assert run.end() == 0, run.text
        found: list[float] = ends(run, 3)[0]["parameters"]
        return found


def ends(run: Run, size: int) -> list[dict[str, Any]]:
    """What the ranks of a run's last round have ended with."""
    return [json.loads(run.line(rf"rank {rank} ends with (.*)$")[1]) for rank in range(size)]


def kill_in_step(run: Run, folder: Path, step: int, victims: list[int]) -> set[int]:
    """Once all three workers wait in a step, kill some of them; returns their pids."""
    words = ["waits" if rank in victims else "waits for a loss" for rank in range(3)]
    pids = [int(run.line(rf"^.*rank {rank} {words[rank]} in step {step} pid (\d+)$")[1]) for rank in range(3)]
    (folder / str(step)).touch()
    for rank in victims:
        os.kill(pids[rank], signal.SIGKILL)
    return {pids[rank] for rank in victims}


def computed(run: Run, step: int) -> list[tuple[int, str]]:
    """Which process has computed which samples of a step, for each time that one has computed a micro-batch."""
    found = (re.search(rf"pid (\d+) computes in step {step}: (.*)$", line) for line in run.lines)
    return [(int(match[1]), match[2]) for match in found if match]


@pytest.mark.long_except("sampler")
@pytest.mark.parametrize("source", [{}, {"STREAMED": "1"}], ids=["sampler", "stream"])
def test_each_sample_counts_once_through_kills_and_a_resize(tmp_path: Path, source: dict[str, str]) -> None:
    expected = undisturbed(tmp_path / "quiet", source)
    victims = {2: [2], 6: [0], 10: [0, 1]}
    environ = source | {"VICTIMS": json.dumps(victims), "SIZES": json.dumps({4: 3, 8: 3, 12: 3, 13: 2})}
    with running([*FLAGS, *SCRIPT], tmp_path, environ) as run:
        killed = {step: kill_in_step(run, tmp_path, step, ranks) for step, ranks in victims.items()}
        run.line(r"rank 0 of 3 pid \d+ at step 12$")
        assert edriver("resize", "2", "--run", run.id).returncode == 0
        assert run.end() == 0, run.text
        for found in ends(run, 2):
            assert found["parameters"] == pytest.approx(expected, rel=1e-9)
            assert found["counted"] == [pytest.approx([1.0] * 100)] * 3
        for step, pids in killed.items():  # what the others had computed counts, so none of it is computed again
            by_others = [samples for pid, samples in computed(run, step) if pid not in pids]
            assert len(by_others) == len(set(by_others)) == MICRO_BATCHES
        assert run.gone()
