"""torchrun's log files and error files in restart mode, under a real driver."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.process.running import NO_STANDBYS, QUICK_WORKERS, SCRIPTS, edriver, running


def folder_with(script: str, path: Path) -> Path:
    shutil.copy(SCRIPTS / script, path)
    return path


def test_streams_go_to_files_by_host_attempt_and_local_rank(tmp_path: Path) -> None:
    flags = ["-H", "localhost:2,127.0.0.2:1", "-np", "3", "--log-dir", "logs", "-r", "3", "-t", "0:1"]
    command = [sys.executable, "plain.py"]
    with running([*flags, *command], folder_with("plain.py", tmp_path), {"STEPS": "1000000", **QUICK_WORKERS}) as run:
        run_id = run.id
        run.line(r"^\[0\]<stdout>:rank 0 of 3 pid .* after 0 failures")
        run.line(r"^\[2\]<stdout>:rank 2 passed step 5")
        os.kill(run.pids()[2], signal.SIGKILL)
        run.line(r"worker \d \(rank 2, 127.0.0.2:0\) was killed by SIGKILL")
        run.line(r"^\[2\]<stdout>:rank 2 of 3 pid .* after 1 failures")
        (tmp_path / "stop").touch()
        assert run.end() == 0, run.text
        assert "]<stderr>:" not in run.text
        assert "[1]<stdout>:" not in run.text
    here, there = (tmp_path / "logs" / f"{run_id}_{host}" for host in ("localhost", "127.0.0.2"))
    for folder, local_rank, rank in ((here, 0, 0), (here, 1, 1), (there, 0, 2)):
        for attempt in (0, 1):
            streams = folder / f"attempt_{attempt}" / str(local_rank)
            said = (streams / "stdout.log").read_text()
            assert f"rank {rank} of 3 pid" in said
            assert f"after {attempt} failures" in said
            assert (streams / "stderr.log").exists()
    assert f"rank {1} is done" in (here / "attempt_1" / "1" / "stdout.log").read_text()


def test_output_of_filtered_ranks_is_not_shown(tmp_path: Path) -> None:
    flags = ["-np", "2", "--local-ranks-filter", "0", *NO_STANDBYS]
    with running([*flags, sys.executable, "plain.py"], folder_with("plain.py", tmp_path), QUICK_WORKERS) as run:
        assert run.end() == 0, run.text
        assert "[0]<stdout>:rank 0 is done" in run.text
        assert "rank 1" not in run.text


@pytest.mark.long_except("child")
@pytest.mark.parametrize(
    ("how", "first", "said"),
    [
        pytest.param("abort", "worker 2 .* was killed by SIGABRT after it had recorded", "and gone", id="abort"),
        pytest.param("child", "worker 2 .* exited with code 1 after it had recorded", "of the child", id="child"),
        pytest.param("lives-on", "worker 2 .* raised an exception", "the first", id="stopped-by-a-later-failure"),
    ],
)
def test_the_error_file_tells_what_ended_a_process_that_says_nothing(
    tmp_path: Path, how: str, first: str, said: str
) -> None:
    flags = ["-np", "2", "--max-restarts", "0", "--records", "records", "--log-dir", "logs", *NO_STANDBYS]
    command = [sys.executable, "recorded.py"]
    with running([*flags, *command], folder_with("recorded.py", tmp_path), {"HOW": how, **QUICK_WORKERS}) as run:
        run_id = run.id
        assert run.end() == 1
        run.line(rf"^edriver: failed: {first}")
        report = run.text[run.text.index("edriver: failed: ") :]
        assert f"edriver:   ValueError: {said}\n" in report
        assert run.gone()
    copy = tmp_path / "logs" / f"{run_id}_localhost" / "attempt_0" / "1" / "error.json"
    assert json.loads(copy.read_text())["message"]["message"] == f"ValueError: {said}"
    output = tmp_path / "report.html"
    done = edriver("report", str(tmp_path / "records" / run_id), "--output", str(output))
    assert f"  ValueError: {said}\n" in done.stdout, done.stderr
    assert f"  ValueError: {said}\n" in output.read_text()
    assert "mode" in done.stdout


def test_an_error_file_that_is_torn_says_nothing(tmp_path: Path) -> None:
    flags = ["-np", "2", "--max-restarts", "0", *NO_STANDBYS, sys.executable, "recorded.py"]
    with running(flags, folder_with("recorded.py", tmp_path), {"HOW": "torn", **QUICK_WORKERS}) as run:
        assert run.end() == 1
        run.line(r"^edriver: failed: worker 2 \(rank 1, localhost:1\) exited with code 7$")
        assert "ValueError" not in run.text


@pytest.mark.long
def test_status_shows_the_mode_and_the_latest_failure(tmp_path: Path) -> None:
    with running(
        ["-np", "2", sys.executable, "recorded.py"],
        folder_with("recorded.py", tmp_path),
        {"HOW": "abort", **QUICK_WORKERS},
    ) as run:
        run.line("round 1.1 ended: worker 2")
        run.line("round 1.2: 2 workers")
        done = edriver("status", "--run", run.id)
        first, *others = done.stdout.splitlines()
        assert ", restart mode: round 1.2" in first
        (failure,) = [line for line in others if line.startswith("last failure")]
        assert re.match(r"last failure, \d+ s ago: worker 2 \(rank 1, localhost:1\) was killed by SIGABRT", failure)
        assert failure.endswith(": ValueError: and gone")
        (tmp_path / "stop").touch()
        assert run.end() == 0, run.text
