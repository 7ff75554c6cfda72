"""How a worker's process ends, and what of it does not: exit hooks, shells around the script, programs after it."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from tests.process.running import SCRIPTS, running

pytestmark = pytest.mark.timeout(180)

ENDING = [sys.executable, str(SCRIPTS / "ending.py")]
SHORT = ["-np", "1", "--exit-timeout", "2"]
"""A bound that what the scripts do at their end, 4 s, exceeds."""


@pytest.mark.long_except("prints")
@pytest.mark.parametrize("way", ["prints", "computes"])
def test_exit_hooks_that_show_life_take_their_time(tmp_path: Path, way: str) -> None:
    with running([*SHORT, *ENDING], tmp_path, {"AT_EXIT": way}) as run:
        run.line("<stdout>:ended")
        assert run.end() == 0, run.text


def test_an_exit_hook_that_hangs_fails_the_run_by_its_own_bound(tmp_path: Path) -> None:
    with running([*SHORT, *ENDING], tmp_path, {"AT_EXIT": "hangs"}) as run:
        run.line(r"worker 1 .* did not exit after its script had ended: .* for 2 s \(--exit-timeout\)")
        assert run.end() == 1
        assert "did not answer" not in run.text
        assert run.gone(), run.left_behind()


@pytest.mark.long
def test_a_shell_that_goes_on_after_a_script_that_ended_well(tmp_path: Path) -> None:
    with running([*SHORT, "sh", "-c", f"{shlex.join(ENDING)}; sleep 3600"], tmp_path) as run:
        run.line("its command kept running for 2 s after the script had succeeded")
        assert run.end() == 0, run.text
        assert run.gone(), run.left_behind()


def test_a_shell_that_goes_on_after_a_script_that_raised(tmp_path: Path) -> None:
    environ = {"RAISE_AFTER": "1"}
    with running([*SHORT, "sh", "-c", f"{shlex.join(ENDING)}; sleep 3600"], tmp_path, environ) as run:
        assert run.end() == 1
        assert "did not exit after its script had ended" in run.text


@pytest.mark.long
def test_a_slot_whose_process_outlives_its_python_is_filled_again(tmp_path: Path) -> None:
    """Behind a shell that goes on, and as another program by exec: both are ended after a worker's grace."""
    train = shlex.join([sys.executable, str(SCRIPTS / "train.py")])
    script = f"case $EDRIVER_WORKER_ID in 2) {train}; sleep 3600;; *) exec {train};; esac"
    environ = {"EPOCHS": "2000", "PAUSE": "0.2", "EXEC": "2"}
    with running(["-np", "3", "--min-np", "1", "sh", "-c", script], tmp_path, environ) as run:
        run.line(r"rank 1 of 2 pid \d+ at step [89]")  # rank 2 has become `sleep`
        os.kill(run.pids()[1], signal.SIGKILL)
        run.line("rank 0 of 1")
        run.line("rank 2 of 3", after=len(run.lines))
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()
