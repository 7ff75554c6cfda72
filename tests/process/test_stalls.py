"""Workers that live but make no progress, under a real driver: found, reported, and replaced."""

from __future__ import annotations

import os
import re
import signal
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


def test_a_worker_that_hangs_in_the_script_is_reported_and_killed(tmp_path: Path) -> None:
    with running([*FLAGS, "--stall-timeout", "3", *STALL], tmp_path, {"STALL": "python"}) as run:
        run.line("stalls: python")
        pids = run.pids()
        run.line(
            r"round 1\.1 ended: worker 2 \(rank 1, localhost:1\) has made no progress for \d+ s \(step\), "
            r"at .*stall\.py:22, in load_data$"
        )
        recovers(run, pids[0])
        assert re.search(
            r"its threads are at\nedriver: thread MainThread:\n(.*\n)*?.*in load_data\n.*wait\(\)", run.text
        )


def test_a_worker_whose_interpreter_is_locked_is_reported_and_killed(tmp_path: Path) -> None:
    """It lives but answers no request: the limit of its phase applies, not the lease."""
    with running([*FLAGS, "--stall-timeout", "step=8", *STALL], tmp_path, {"STALL": "native"}) as run:
        run.line("stalls: native")
        pids = run.pids()
        ended = r"round 1\.1 ended: worker 2 \(rank 1, localhost:1\) has made no progress for (\d+) s \(step\)"
        assert int(run.line(ended)[1]) >= 8
        recovers(run, pids[0])
        assert re.search(r"\[1\]<stderr>:  File \".*stall.py\", line \d+ in stall\n", run.text)


@pytest.mark.long
def test_a_phase_that_may_last_longer(tmp_path: Path) -> None:
    flags = ["--stall-timeout", "2", "--stall-timeout", "eval=60"]
    with running([*FLAGS, *flags, *STALL], tmp_path, {"STALL": "eval", "SECONDS": "8"}) as run:
        assert run.end() == 0, run.text
        assert "round 1.1 ended" not in run.text
        assert "rank 1 is done" in run.text


@pytest.mark.long
def test_a_phase_that_lasts_too_long(tmp_path: Path) -> None:
    flags = ["--stall-timeout", "60", "--stall-timeout", "save=2"]
    with running([*FLAGS, *flags, *STALL], tmp_path, {"STALL": "save", "SECONDS": "3600"}) as run:
        run.line("stalls: save")
        pids = run.pids()
        run.line(r"has made no progress for [234] s \(save\)")
        recovers(run, pids[0])


LONG_CALL = [sys.executable, str(SCRIPTS / "long_call.py")]
SAMPLES = 18


def took_each_once(run: Run, samples: int = SAMPLES) -> bool:
    """Whether each of the samples was counted exactly once, by whichever rank."""
    return sorted(map(int, re.findall(r"took (\d+)", run.text))) == list(range(samples))


@pytest.mark.parametrize(
    ("call", "phase", "seconds"),
    [
        ("sleeps", "step", "12"),
        ("sleeps", "eval", "12"),
        pytest.param("computes", "eval", "20", marks=pytest.mark.long),  # keeps a core for each rank
    ],
)
def test_a_long_call_of_every_rank_that_keeps_the_interpreters_lock(
    tmp_path: Path, call: str, phase: str, seconds: str
) -> None:
    """More than a lease of it: no rank is taken for dead, and what the script declares holds."""
    environ = {"CALL": call, "PHASE": phase, "RANKS": "2", "SECONDS": seconds, "SAMPLES": f"{SAMPLES}"}
    flags = ["--stall-timeout", "step=5" if phase == "eval" else "step=60", "--stall-timeout", "eval=120"]
    with running([*FLAGS, *flags, *LONG_CALL], tmp_path, environ) as run:
        assert run.end() == 0, run.text
        assert "ended:" not in run.text
        assert run.text.count("is done") == len(re.findall(r"pid \d+ at step", run.text)) == 2
        assert took_each_once(run), run.text
        assert "Thread 0x" not in run.text, "a healthy worker was asked where it stands"


@pytest.mark.long
def test_a_loss_while_the_others_are_in_a_long_call(tmp_path: Path) -> None:
    """They learn of it when the call is over, long after a lease, and go on in the same processes; nothing is lost."""
    samples = 3 * 3 + 2 * 5  # three steps of three ranks and five of two, since the lost one is not replaced
    environ = {
        "CALL": "sleeps",
        "PHASE": "eval",
        "SECONDS": "13",
        "SAMPLES": f"{samples}",
        "RANKS": "3",
        "CALLERS": "2",
    }
    never = ["--blacklist-cooldown-range", "3600", "3600"]
    with running(["-np", "3", "--min-np", "2", *never, *LONG_CALL], tmp_path, environ) as run:
        run.line("rank 0 calls")
        run.line("rank 1 calls")
        run.line("rank 2 waits")  # and has printed what it took before
        pids = run.pids()
        os.kill(pids[2], signal.SIGKILL)
        run.line(rf"rank 0 of 2 pid {pids[0]} at step 3")
        run.line(rf"rank 1 of 2 pid {pids[1]} at step 3")
        assert run.end() == 0, run.text
        assert "did not answer" not in run.text
        assert set(run.pids().values()) == set(pids.values()), "a worker was replaced"
        assert took_each_once(run, samples), run.text


def test_a_resize_while_every_rank_is_in_a_long_call(tmp_path: Path) -> None:
    """The answer to the notice comes when the call is over, and the change is made then."""
    samples = 1000  # more than two ranks go through before they hear of the notice
    environ = {"CALL": "sleeps", "PHASE": "eval", "RANKS": "2", "SECONDS": "12", "SAMPLES": f"{samples}"}
    hosts = Hosts(tmp_path, "localhost:2")
    flags = ["--host-discovery-script", str(hosts.script), "-np", "2", "--min-np", "1"]
    with running([*flags, *LONG_CALL], tmp_path, environ) as run:
        run.line("rank 0 calls")
        run.line("rank 1 calls")
        pids = run.pids()
        hosts.are("localhost:1")
        run.line(rf"rank 0 of 1 pid {pids[0]} at step ")
        assert run.end() == 0, run.text
        assert "did not answer" not in run.text
        assert took_each_once(run, samples), run.text
