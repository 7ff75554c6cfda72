"""Mistakes of scripts that cost no worker: each is said at once, and once, with its line."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.process.running import SCRIPTS, Run, edriver, running
from tests.waiting import until

CARELESS = [sys.executable, str(SCRIPTS / "careless.py")]
FLAGS = ["-np", "3", "--min-np", "1", "-H", "localhost:2,127.0.0.1:1"]


def said(run: Run, words: str) -> int:
    """How often the driver has printed this."""
    return len(re.findall(rf"^edriver: .*{words}", run.text, re.MULTILINE))


def status(run: Run) -> str:
    return edriver("status", "--run", run.id).stdout


def test_a_loop_without_a_boundary(tmp_path: Path) -> None:
    """It is said after ten steps, after a loss, and at the end; a replacement joins the next round that is formed."""
    with running([*FLAGS, *CARELESS], tmp_path, {"MISTAKE": "no-boundary"}) as run:
        made = r"has made 10 steps without a boundary \(careless\.py:\d+ \(take_step\)\): "
        run.line(rf"edriver: worker \d \(rank 0, .*\) {made}")
        shown = status(run)
        assert "steps are not counted, because the script passes no boundary" in shown
        assert "number of lost steps not known" in shown
        assert "warning: worker" in shown
        os.kill(run.pids()[2], signal.SIGKILL)
        lost = run.line(
            r"round 1\.2: 2 workers on .*; (\d+) steps lost: all of the last round, because the script passes no "
            r"boundary: call state\.check_host_updates\(\)"
        )
        assert int(lost[1]) >= 10
        until(lambda: re.search(r"^worker 4 \(.*\) waiting", status(run), re.MULTILINE), lambda: status(run))
        assert f"{lost[1]} steps lost" in status(run)
        printed = len(run.lines)
        os.kill(run.pids()[1], signal.SIGKILL)
        run.line(r"round 1\.3: 2 workers on ", printed)
        run.line("rank 0 of 2 has made a step", printed)
        (tmp_path / "end").touch()
        assert run.end() == 0, run.text
        run.line(
            r"edriver: worker \d \(rank 0, .*\) has returned from its training function after \d+ steps without a "
            r"boundary \(careless\.py:\d+ \(train\)\): "
        )
        assert said(run, "has made 10 steps without a boundary") == 1


def test_a_value_that_is_not_a_number(tmp_path: Path) -> None:
    with running([*FLAGS, *CARELESS], tmp_path, {"MISTAKE": "not-finite"}) as run:
        found = run.line(
            r"edriver: (worker \d \(rank 1, .*\) reported loss = nan \(step 3, careless\.py:\d+ \(train\)\))$"
        )
        shown = status(run)
        assert f"warning: {found[1]}" in shown
        assert "loss nan" not in shown, "rank 0's is a number"
        (tmp_path / "end").touch()
        assert run.end() == 0, run.text
        assert said(run, "reported loss") == 1
        assert "no boundary" not in run.text
        assert "same samples" not in run.text, "it has a sampler, and evaluates on all ranks"


@pytest.mark.parametrize(
    ("mistake", "advice"),
    [
        ("no-sampler", r"DataLoader\(dataset, sampler=edriver\.ElasticSampler\(dataset\), \.\.\.\)"),
        ("weighted", r"generator=torch\.Generator\(\)\.manual_seed\(edriver\.worker_seed\(\)\)"),
    ],
)
def test_ranks_that_train_on_the_same_samples(tmp_path: Path, mistake: str, advice: str) -> None:
    with running([*FLAGS, *CARELESS], tmp_path, {"MISTAKE": mistake}) as run:
        found = run.line(
            r"edriver: (worker \d \(rank [01], .*\) trains on the same samples as worker \d \(rank [01], .*\): the "
            rf"data loader at careless\.py:\d+ \(batches\) hands out the same batches on both, .*{advice})$"
        )
        assert f"warning: {found[1]}" in status(run)
        (tmp_path / "end").touch()
        assert run.end() == 0, run.text
        assert said(run, "trains on the same samples") == 1
