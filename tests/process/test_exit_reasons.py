"""Why a worker ended, where its agent can find out more than the exit code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.process.running import running

HOG = "x = bytearray(1500 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1"


def test_out_of_memory_is_reported_with_the_limit(tmp_path: Path, small_cgroup: Path) -> None:
    within = ["sh", "-c", f'echo $$ > {small_cgroup}/cgroup.procs; exec "$@"', "sh"]
    with running(["-np", "1", sys.executable, "-c", HOG], tmp_path, through=within) as run:
        assert run.end() == 1, run.text
        run.line(
            r"failed: worker 1 \(localhost:0\) was killed by the kernel: out of memory \(its cgroup's limit is 600 MiB"
        )
        assert "lost process" not in run.text


def test_a_kill_by_hand_is_no_want_of_memory(tmp_path: Path) -> None:
    with running(["-np", "1", "sh", "-c", "kill -9 $$"], tmp_path) as run:
        assert run.end() == 1, run.text
        run.line(r"failed: worker 1 \(localhost:0\) was killed by SIGKILL$")


@pytest.mark.parametrize(
    ("first_line", "mode", "why"),
    [
        pytest.param("#!/no/such/python", 0o755, "its interpreter does not exist; its first line is", id="interpreter"),
        pytest.param("no program", 0o755, "is neither a program for this machine nor a script", id="no-program"),
        pytest.param("#!/etc", 0o755, "may not be executed: its directories, its interpreter", id="not-permitted"),
    ],
)
def test_the_error_of_a_command_that_cannot_be_started_is_reported(
    tmp_path: Path, first_line: str, mode: int, why: str
) -> None:
    program = tmp_path / "train"
    program.write_text(f"{first_line}\n")
    program.chmod(mode)
    with running(["-np", "1", "./train"], tmp_path) as run:
        assert run.end() == 1, run.text
        run.line(rf"failed: worker 1 \(localhost:0\) could not be started: './train': {why}")
