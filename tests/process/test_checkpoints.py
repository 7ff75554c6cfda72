"""The last resort on disk, under a real driver: all workers die, and the run goes on from the newest checkpoint."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from edriver.checkpoint_folder.folder import CheckpointFolder
from tests.process.resuming import Resumed, assert_every_step_once, environ_of, kill, steps_of
from tests.process.running import SCRIPTS, Run, edriver, running, wait_for_exit
from tests.waiting import until

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]


def steps_on_disk(folder: Path) -> int:
    newest = CheckpointFolder(str(folder)).newest()
    return 0 if newest is None else newest.steps


def test_all_workers_die_at_once_and_the_run_goes_on_from_disk(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    environ = {"CHECKPOINT": str(folder), "STEPS": "60", "EPOCHS": "2"}
    with running(["-np", "2", "--min-np", "1", *TRAIN], tmp_path, environ) as run:
        run.line(r"rank 0 passed step 30")
        run.line(r"rank 1 passed step 30")
        for pid in run.pids().values():
            os.kill(pid, signal.SIGKILL)
        begun = run.line(r"round \d+\.\d+: \d workers? on .*, from the checkpoint of step (\d+)")
        lost = run.line(r"no worker holds the state: it is loaded from disk; (\d+) steps? lost")
        after = next(at for at, line in enumerate(run.lines) if begun[0] in line)
        resumed = run.line(r"rank 0 of \d pid \d+ at step (\d+)", after)
        assert int(resumed[1]) == int(begun[1])
        assert int(begun[1]) >= 10
        assert int(lost[1]) >= 0
        assert run.end() == 0
    assert "is done: trained to step" in run.text


@pytest.mark.long_except("rank-0-lost")
@pytest.mark.parametrize("lost", [None, 0, 1], ids=["none-lost", "rank-0-lost", "rank-1-lost"])
def test_a_run_whose_driver_never_comes_back_is_kept_on_disk(tmp_path: Path, lost: int | None) -> None:
    folder, reports = tmp_path / "checkpoints", tmp_path / "reports"
    environ = environ_of(tmp_path, CHECKPOINT=str(folder), EVERY="1000000", EPOCHS="40000")
    with running(["-np", "2", "--min-np", "1", "--driver-timeout", "5", *TRAIN], tmp_path, environ) as run:
        run.line("rank 1 passed step 10")
        pids = run.pids()
        kill(run)
        if lost is not None:
            os.kill(pids[lost], signal.SIGKILL)
        for pid in pids.values():
            assert wait_for_exit(pid)
        assert run.gone(), run.left_behind()
    assert_every_step_once(reports)
    # If one is killed, what rank 0 has written down may be a step behind the boundary that counts, or ahead of it.
    assert abs(steps_on_disk(folder) - steps_of(reports)[-1]) <= (lost is not None)
    assert len(CheckpointFolder(str(folder)).found()) == 1
    with running(["-np", "1", *TRAIN], tmp_path, {**environ, "REPORTS": "none"}) as run:
        run.line(rf"from the checkpoint of step {steps_on_disk(folder)}$")
        run.line(f"at step {steps_on_disk(folder)}$")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130


def test_the_next_run_goes_on_where_the_last_one_was(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    environ = {"CHECKPOINT": str(folder), "STEPS": "25", "EPOCHS": "1"}
    for epochs in ("1", "2"):
        with running(["-np", "1", *TRAIN], tmp_path, {**environ, "EPOCHS": epochs}) as run:
            assert run.end() == 0
            begun = re.search(r"from the checkpoint of step (\d+)", run.text)
            assert (begun is None) == (epochs == "1")
            assert steps_on_disk(folder) == {"1": 20, "2": 50}[epochs]
            assert re.search(rf"at step {'0' if begun is None else '20'}$", run.text, re.MULTILINE)


@pytest.mark.long
def test_a_second_run_in_the_same_folder_is_refused_and_the_first_goes_on_with_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    environ = {"CHECKPOINT": str(folder), "EPOCHS": "40000"}
    with running(["-np", "1", *TRAIN], tmp_path, environ) as first:
        first.line("rank 0 passed step 30")
        with running(["-np", "1", *TRAIN], tmp_path, {**environ, "EVERY": "1"}) as second:
            assert second.end() != 0
        (pid,) = first.pids().values()
        owner = rf"run {first.id} \(rank 0 of round 1\.1, pid {pid} on localhost\)"
        assert re.search(rf"edriver: .* {folder} is in use by another run: {owner}", second.text), second.text
        os.kill(pid, signal.SIGKILL)
        first.line(r"round 1\.2: 1 worker on localhost, from the checkpoint of step \d+")
        first.line("rank 0 passed step", len(first.lines))
        first.process.send_signal(signal.SIGINT)
        assert first.end() == 130
    newest = CheckpointFolder(str(folder)).newest()
    assert newest is not None
    assert newest.manifest is not None
    assert newest.manifest.run_id == first.id


THREE = ["-np", "3", "--min-np", "1", "-H", "localhost:2,127.0.0.2:1", "--worker-lease", "300", *TRAIN]


def ask_before_rank_0_can_begin(run: Run, environ: dict[str, str]) -> int:
    """Ask for a checkpoint while rank 0 stands still: whatever becomes of the request, it has not begun one. Returns
    its pid.
    """
    for rank in range(3):
        run.line(f"rank {rank} passed step 10")
    pid = run.pids()[0]
    os.kill(pid, signal.SIGSTOP)
    asked = edriver("checkpoint", "save", "--run", run.id, environ={"XDG_STATE_HOME": environ["XDG_STATE_HOME"]})
    assert "rank 0 writes a checkpoint at its next boundary" in asked.stdout, asked.stderr
    return pid


@pytest.mark.long
def test_a_checkpoint_that_was_asked_for_is_written_once_though_rank_0_is_killed_before(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    environ = environ_of(tmp_path, CHECKPOINT=str(folder), EVERY="1000000", EPOCHS="40000")
    with running(THREE, tmp_path, environ) as run:
        pid = ask_before_rank_0_can_begin(run, environ)
        assert steps_on_disk(folder) == 0
        os.kill(pid, signal.SIGKILL)
        assert until(lambda: steps_on_disk(folder)) >= 10
        begun = run.line(r"round 1\.[2-9]: 3 workers")[0]
        run.line("rank 0 passed step", next(at for at, line in enumerate(run.lines) if begun in line))
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
    assert len(CheckpointFolder(str(folder)).found()) == 1, "the next round with all of them asks for no further one"
    assert "has asked for" not in run.text


def test_the_driver_that_takes_a_run_over_knows_of_the_request(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    environ = environ_of(tmp_path, CHECKPOINT=str(folder), EVERY="1000000", EPOCHS="40000")
    with running(THREE, tmp_path, environ) as run:
        pid = ask_before_rank_0_can_begin(run, environ)
        kill(run)
        os.kill(pid, signal.SIGKILL)
        resumed = Resumed(run, tmp_path)
        assert until(lambda: steps_on_disk(folder)) >= 10
        resumed.process.send_signal(signal.SIGINT)
        assert resumed.end() == 130, resumed.text


@pytest.mark.long
def test_a_run_that_ends_before_says_that_the_checkpoint_is_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    environ = environ_of(tmp_path, CHECKPOINT=str(folder), EVERY="1000000", EPOCHS="40000")
    with running(THREE, tmp_path, environ) as run:
        pid = ask_before_rank_0_can_begin(run, environ)
        run.process.send_signal(signal.SIGINT)
        run.line("the run ends before the checkpoint that .* has asked for is on disk")
        os.kill(pid, signal.SIGKILL)
        assert run.end() == 130
    assert steps_on_disk(folder) == 0
