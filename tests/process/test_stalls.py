"""Workers that live and get nowhere, under a real driver: found, shown, and replaced."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.process.running import SCRIPTS, Hosts, Run, running

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
    """It answers nobody and lives: what holds is the limit of its phase, not the lease."""
    with running([*FLAGS, "--stall-timeout", "step=8", *STALL], tmp_path, {"STALL": "native"}) as run:
        run.line("stalls: native")
        pids = run.pids()
        ended = r"round 1\.1 ended: worker 2 \(rank 1, localhost:1\) has made no progress for (\d+) s \(step\)"
        assert int(run.line(ended)[1]) >= 8
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


LONG_CALL = [sys.executable, str(SCRIPTS / "long_call.py")]


@pytest.mark.parametrize(
    ("call", "phase"),
    [("sleeps", "step"), ("sleeps", "eval"), ("computes", "eval")],
)
def test_a_long_call_of_every_rank_that_keeps_the_interpreters_lock(tmp_path: Path, call: str, phase: str) -> None:
    """More than a lease of it: nobody is taken for dead, and what the script declares holds."""
    environ = {"CALL": call, "PHASE": phase, "RANKS": "2", "SECONDS": "12", "COUNT": str(6 * 10**8)}
    flags = ["--stall-timeout", "step=5" if phase == "eval" else "step=60", "--stall-timeout", "eval=120"]
    with running([*FLAGS, *flags, *LONG_CALL], tmp_path, environ) as run:
        assert run.end() == 0, run.text
        assert "ended:" not in run.text
        assert run.text.count("is done") == 2
        assert "Thread 0x" not in run.text, "a healthy worker was asked where it stands"


def test_a_resize_while_every_rank_is_in_a_long_call(tmp_path: Path) -> None:
    """The answer to the notice comes when the call is over, and the change is made then."""
    environ = {"CALL": "sleeps", "PHASE": "eval", "RANKS": "2", "SECONDS": "12"}
    hosts = Hosts(tmp_path, "localhost:2")
    flags = ["--host-discovery-script", str(hosts.script), "-np", "2", "--min-np", "1"]
    with running([*flags, *LONG_CALL], tmp_path, environ) as run:
        run.line("rank 0 calls")
        run.line("rank 1 calls")
        pids = run.pids()
        hosts.are("localhost:1")
        run.line(rf"rank 0 of 1 pid {pids[0]} at step [45]")
        assert run.end() == 0, run.text
        assert "did not answer" not in run.text
