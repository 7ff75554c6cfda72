"""Callers that connect to a worker's ports and send nothing: no worker is lost, and the next round is built."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.attacks.silent_callers import strangers
from tests.process.running import SCRIPTS, Run
from tests.process.sites import site

pytestmark = pytest.mark.timeout(180)

LIMIT = 1024
FLAGS = ["-np", "2", "--min-np", "1", "-H", "host1:1,host2:1"]
TRAIN = [sys.executable, str(SCRIPTS / "train.py")]
LIMITED = ["sh", "-c", f'ulimit -Sn {LIMIT} && ulimit -Hn {LIMIT} && exec "$@"', "sh", *TRAIN]


def step(run: Run, rank: int = 0) -> int:
    """The last step that this rank has printed."""
    text = f"rank {rank} passed step "
    return max((int(line.rpartition(text)[2]) for line in run.lines if text in line), default=0)


def goes_on(run: Run, steps: int = 50) -> None:
    """Wait for steps that are made from now on."""
    last = step(run)
    run.line(rf"rank 0 passed step {(last // 5) * 5 + steps}$")


def lose_rank_1(run: Run) -> None:
    """Kill a worker, and wait until a round has been built without it and another with its replacement."""
    here = len(run.lines)
    os.kill(run.pids()[1], signal.SIGKILL)
    run.line(r"rank 0 of 1 .* at step [1-9]", here)
    run.line(r"rank 1 of 2 .* at step [1-9]", here)


def started(run: Run) -> dict[int, int]:
    run.line("rank 1 passed step 5")
    run.line("rank 0 passed step 5")
    return run.pids()


def test_more_idle_connections_than_descriptors_cost_no_worker(tmp_path: Path) -> None:
    with site(tmp_path) as there, there.running([*FLAGS, *LIMITED], tmp_path, {"EPOCHS": "4000"}) as run:
        workers = started(run)
        with strangers(there.hosts[0], workers[0], 1100), strangers(there.hosts[0], workers[1], 1100):
            goes_on(run)
            assert run.pids() == workers
            assert "exited" not in run.text
            lose_rank_1(run)
            assert run.pids()[0] == workers[0]
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130


@pytest.mark.long
def test_strangers_who_come_and_go_do_not_keep_members_from_the_next_round(tmp_path: Path) -> None:
    with site(tmp_path) as there, there.running([*FLAGS, *TRAIN], tmp_path, {"EPOCHS": "4000"}) as run:
        workers = started(run)
        # Eleven seconds: later than the store turns strangers out.
        with strangers(there.hosts[0], workers[0], 250, churn=11.0), strangers(there.hosts[0], workers[0], 250):
            lose_rank_1(run)
            goes_on(run, steps=10)
            assert run.pids()[0] == workers[0]
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
