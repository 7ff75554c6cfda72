"""Replicas of 2 shards x tensor parallelism of 2, under a real driver: a loss costs no step."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.process.running import SCRIPTS, Printing, running

SCRIPT = [sys.executable, str(SCRIPTS / "replica_mesh.py")]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the positions of an undisturbed replica end with."""
    flags = ["-np", "4", "-H", "localhost:4", "--replica-size", "4"]
    with running([*flags, *SCRIPT], tmp_path_factory.mktemp("quiet"), {"SIZE": "4"}) as run:
        assert run.end() == 0, run.text
        found = digests(run, 4)
        assert len(set(found)) == 4
        return found


def digests(run: Printing, size: int) -> list[str]:
    """What the ranks of a run's last round have ended with."""
    return [run.line(rf"rank {rank} ends at step 12 with (\w+)$")[1] for rank in range(size)]


def test_a_loss_costs_no_step(tmp_path: Path, expected: list[str]) -> None:
    """The other replica goes on; three survivors stay in their processes, and train again with a newcomer."""
    flags = ["-np", "8", "--min-np", "4", "-H", "localhost:4,127.0.0.2:4", "--replica-size", "4"]
    with running([*flags, *SCRIPT], tmp_path, {"SIZE": "8", "VICTIM": "6 3"}) as run:
        victim = int(run.line(r"rank 6 waits in step 3 pid (\d+)")[1])
        pids = run.pids()
        assert pids[6] == victim
        os.kill(victim, signal.SIGKILL)
        for rank in range(4):
            run.line(rf"rank {rank} of 4 pid {pids[rank]} at step 3, 1x2x2$")
        for rank in (0, 1, 2, 3, 4, 5, 7):
            run.line(rf"rank {rank} of 8 pid {pids[rank]} at step 8, 2x2x2$")
        assert run.end() == 0, run.text
        assert digests(run, 8) == expected * 2
        assert run.gone()
    for step in range(8, 12):
        drawn = {
            int(rank): sample
            for rank, sample in re.findall(rf"rank (\d) of 8 draws (\d+) for step {step}$", run.text, re.MULTILINE)
        }
        assert [drawn[rank] for rank in range(0, 8, 2)] == [drawn[rank] for rank in range(1, 8, 2)], "along tensor"
        assert len(set(drawn.values())) == 4
    first = min(map(int, re.findall(r"of 8 draws (\d+) for step 8$", run.text, re.MULTILINE)))
    assert first == 3 * 4 + 5 * 2, "each was drawn once: 3 steps were of 8 workers, then 5 of 4"
