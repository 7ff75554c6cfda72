"""Workers that live and get nowhere, under a real driver: found, shown, and replaced."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.process.running import SCRIPTS, Run, running

STALL = [sys.executable, str(SCRIPTS / "stall.py")]
FLAGS = ["-np", "2", "--min-np", "1"]


def recovers(run: Run, survivor: int) -> None:
    """Wait until rank 0 has gone on from where it was, and the run is done."""
    run.line(rf"rank 0 of \d pid {survivor} at step 3")
    assert run.end() == 0, run.text
    assert run.gone(), run.left_behind()


def test_one_that_hangs_in_the_script_is_shown_and_killed(tmp_path: Path) -> None:
    with running([*FLAGS, "--stall-timeout", "3", *STALL], tmp_path, {"STALL": "python"}) as run:
        run.line("stalls: python")
        pids = run.pids()
        run.line(r"round 1\.1 ended: worker 2 \(rank 1, localhost:1\) has made no progress for [34] s \(step\)")
        recovers(run, pids[0])
        assert re.search(r"it stands at\nedriver: thread MainThread:\n(.*\n)*?.*in load_data\n.*wait\(\)", run.text)


def test_one_whose_interpreter_is_locked_is_shown_and_killed(tmp_path: Path) -> None:
    with running([*FLAGS, *STALL], tmp_path, {"STALL": "native"}) as run:
        run.line("stalls: native")
        pids = run.pids()
        run.line(r"round 1\.1 ended: worker 2 \(rank 1, localhost:1\) did not answer for 5 s")
        recovers(run, pids[0])
        assert re.search(r"\[1\]<stderr>:  File \".*stall.py\", line \d+ in stall\n", run.text)


def test_a_phase_that_may_last_longer(tmp_path: Path) -> None:
    flags = ["--stall-timeout", "2", "--stall-timeout", "eval=60"]
    with running([*FLAGS, *flags, *STALL], tmp_path, {"STALL": "eval", "SECONDS": "8"}) as run:
        assert run.end() == 0, run.text
        assert "round 1.1 ended" not in run.text
        assert "rank 1 is done" in run.text


def test_a_phase_that_lasts_too_long(tmp_path: Path) -> None:
    flags = ["--stall-timeout", "60", "--stall-timeout", "save=2"]
    with running([*FLAGS, *flags, *STALL], tmp_path, {"STALL": "save", "SECONDS": "3600"}) as run:
        run.line("stalls: save")
        pids = run.pids()
        run.line(r"has made no progress for [234] s \(save\)")
        recovers(run, pids[0])
