"""`edriver logs` of real runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.running import BOUND, ROOT, SCRIPTS, running

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]


def edriver(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edriver", *words]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=BOUND)


def test_the_last_words_of_a_worker_that_was_killed(tmp_path: Path) -> None:
    with running(["-np", "2", "--min-np", "1", *TRAIN], tmp_path, {"EPOCHS": "40000"}) as run:
        run.line("rank 1 passed step 10")
        run.line("rank 0 passed step 10")  # else its line may be one that the kill has cost
        dead = run.pids()[1]
        os.kill(dead, signal.SIGKILL)
        run.line("was killed by SIGKILL")
        run.line("rank 0 passed step 40")
        printed = edriver("logs", "localhost:1", "--run", run.id)
        assert printed.returncode == 0, printed.stderr
        lines = printed.stdout.splitlines()
        assert f"rank 1 of 2 pid {dead} at step 0" in lines
        assert "rank 1 passed step 10" in lines
        assert not [line for line in lines if line.startswith("rank 0 of 2")]
        both = edriver("logs", "--run", run.id).stdout
        assert "[1]<stdout>:rank 1 passed step 10\n" in both
        assert "[0]<stdout>:rank 0 passed step 10\n" in both
        last = edriver("logs", "0", "-n", "2", "--run", run.id).stdout.splitlines()
        assert len(last) == 2
        nothing = edriver("logs", "7", "--run", run.id)
        assert (nothing.returncode, nothing.stdout) == (1, "")
        there = f"edriver: run {run.id}: there is no such worker: the run has localhost:0 (rank "
        assert nothing.stderr.startswith(there)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130


def test_they_are_followed_to_the_end(tmp_path: Path) -> None:
    with running(["-np", "1", *TRAIN], tmp_path, {"PAUSE": "0.1"}) as run:  # until `edriver logs` has started
        run.line("rank 0 of 1")
        followed = edriver("logs", "0", "--follow", "--run", run.id)
        assert run.end() == 0
    assert followed.returncode == 0, followed.stderr
    assert followed.stdout.splitlines()[-1].endswith("is done: trained to step 120")


@pytest.mark.long
def test_a_run_that_keeps_none_says_so_and_a_reader_that_goes_ends_it_quietly(tmp_path: Path) -> None:
    with running(["-np", "1", "--no-logs", *TRAIN], tmp_path, {"EPOCHS": "40000"}) as run:
        run.line("rank 0 passed step 5")
        refused = edriver("logs", "--run", run.id)
        assert refused.returncode == 1
        assert refused.stderr.endswith("this run does not keep the output of its workers (--no-logs)\n")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
    with running(["-np", "1", *TRAIN], tmp_path, {"EPOCHS": "40000"}) as run:
        run.line("rank 0 passed step 5")
        cut = subprocess.run(
            f"'{sys.executable}' -m edriver logs -f --run {run.id} | head -n 1",
            shell=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=BOUND,
        )
        assert (cut.returncode, cut.stderr) == (0, "")
        assert cut.stdout.startswith("[")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130


@pytest.mark.long
def test_what_a_worker_printed_before_it_died_is_there_after_the_end_of_the_run(tmp_path: Path) -> None:
    environ = {"EPOCHS": "40000", "XDG_STATE_HOME": str(tmp_path / "state")}
    with running(["-np", "3", "--min-np", "1", "-H", "localhost:2,127.0.0.1:1", *TRAIN], tmp_path, environ) as run:
        for rank in range(3):
            run.line(f"rank {rank} passed step 10")
        dead, alone = run.pids()[1], run.pids()[2]
        os.kill(dead, signal.SIGKILL)
        run.line(f"rank . of 3 pid (?!{dead}|{alone})")  # its replacement
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
    output = tmp_path / "state" / "edriver" / run.id / "output"
    assert {path.stat().st_mode & 0o777 for path in output.iterdir()} == {0o600}
    printed = ended(tmp_path, "1", "--run", run.id)
    assert (printed.returncode, printed.stderr) == (0, "")
    assert f"rank 1 of 3 pid {dead} at step 0" in printed.stdout.splitlines()
    assert "rank 1 passed step 10" in printed.stdout.splitlines()
    assert "rank 0" not in printed.stdout
    everything = ended(tmp_path, "-f", "--run", str(output.parent)).stdout
    own = [line for line in run.lines if not line.startswith("edriver: ")]
    assert sorted(everything.splitlines()) == sorted(own)
    assert ended(tmp_path, "127.0.0.1:0", "--run", run.id).stdout.count(f"rank 2 of 3 pid {alone} at step 0") == 1
    assert ended(tmp_path, "--tail", "2", "--run", run.id).stdout.splitlines() == everything.splitlines()[-2:]
    nothing = ended(tmp_path, "7", "--run", run.id)
    assert (nothing.returncode, nothing.stderr) == (0, "edriver: 7 has written nothing that was kept\n")


@pytest.mark.long
def test_a_run_whose_driver_was_killed_has_the_output_that_had_arrived(tmp_path: Path) -> None:
    environ = {"EPOCHS": "40000", "XDG_STATE_HOME": str(tmp_path / "state")}
    hosts = ["-np", "3", "-H", "localhost:2,127.0.0.1:1"]
    with running(["--no-journal", *hosts, *TRAIN], tmp_path, environ) as run:
        for rank in range(3):
            run.line(f"rank {rank} passed step 10")
        run.line("rank . passed step 40")
        run.process.kill()
        run.end()
    for rank in range(3):
        assert "passed step 10\n" in ended(tmp_path, str(rank), "--run", run.id).stdout


def test_a_run_can_keep_no_output_in_its_records(tmp_path: Path) -> None:
    environ = {"EPOCHS": "1", "XDG_STATE_HOME": str(tmp_path / "state")}
    with running(["-np", "1", "--no-logs", *TRAIN], tmp_path, environ) as run:
        assert run.end() == 0
    refused = ended(tmp_path, "--run", run.id)
    assert refused.returncode == 1
    assert "do not have the output of its workers: it wrote none, or ran with --no-logs" in refused.stderr
    assert ended(tmp_path, "--run", "nowhere").stderr.startswith(
        "edriver: no run nowhere is in progress, and there are no records of a run 'nowhere'"
    )


def ended(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`edriver logs` of a run that has ended, with records in this folder."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
    command = [sys.executable, "-m", "edriver", "logs", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=BOUND)
