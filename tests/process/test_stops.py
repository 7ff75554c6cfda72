"""Processes that are stopped for longer than their lease, under a real driver, and go on: nothing is lost by that."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.process.running import SCRIPTS, Run, running

pytestmark = pytest.mark.timeout(180)

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]
ENVIRON = {"STEPS": "100", "EPOCHS": "4", "PAUSE": "0.005"}
STOP = 12.0
"""Seconds: more than two leases."""


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """These processes do not run while the body does, in which they may be killed: what they survive, the test says."""
    with ExitStack() as open_processes:
        descriptors = [os.pidfd_open(pid) for pid in pids]
        for descriptor in descriptors:
            open_processes.callback(os.close, descriptor)
            signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
        try:
            yield
        finally:
            for descriptor in descriptors:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGCONT)


def parent_of(pid: int) -> int:
    """The process's parent: a worker's is its agent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def all_train(run: Run, size: int) -> dict[int, int]:
    """Wait until all ranks have made some steps; their pids by rank."""
    for rank in range(size):
        run.line(f"rank {rank} passed step 5")
    return run.pids()


def ends_well(run: Run, pids: dict[int, int]) -> None:
    """Wait for the end: these processes, and no others, have gone through the script, and each sample counted once."""
    assert run.end() == 0, run.text
    assert {int(pid) for pid in re.findall(r"pid (\d+) ", run.text)} == set(pids.values()), run.text
    done = re.findall(r"rank (\d) of \d pid (\d+) is done: trained to step (\d+)", run.text)
    assert {int(pid) for _, pid, _ in done} == set(pids.values()), run.text
    assert {int(steps) for _, _, steps in done} == {4 * 100 // len(pids)}
    assert run.gone(), run.left_behind()


def test_all_workers(tmp_path: Path) -> None:
    with running(["-np", "4", "--min-np", "1", *TRAIN], tmp_path, ENVIRON) as run:
        pids = all_train(run, 4)
        with stopped(list(pids.values())):
            run.line("left alone, because no other worker is known to hold the state: worker ")
            time.sleep(STOP - 6)  # it is the stop's length that counts
        ends_well(run, pids)


@pytest.mark.long
def test_the_only_worker(tmp_path: Path) -> None:
    """No other member waits for it: its round is not aborted."""
    with running(["-np", "1", *TRAIN], tmp_path, ENVIRON) as run:
        pids = all_train(run, 1)
        with stopped(list(pids.values())):
            run.line("left alone, because no other worker is known to hold the state: worker 1 ")
        ends_well(run, pids)
        assert "round 1.1 ended" not in run.text


def test_the_agent_of_the_only_host(tmp_path: Path) -> None:
    with running(["-np", "2", "--min-np", "1", *TRAIN], tmp_path, ENVIRON) as run:
        pids = all_train(run, 2)
        with stopped([parent_of(pids[0])]):
            run.line("left alone, .* cannot be reached: its agent has not answered for 5 s")
            time.sleep(STOP - 6)  # it is the stop's length that counts
        ends_well(run, pids)
        assert "round 1.1 ended" not in run.text


def test_one_worker_of_two_is_replaced_at_once(tmp_path: Path) -> None:
    """The other one shows that it holds the state: nothing is waited for."""
    with running(["-np", "2", "--min-np", "1", *TRAIN], tmp_path, {**ENVIRON, "EPOCHS": "2000"}) as run:
        pids = all_train(run, 2)
        with stopped([pids[1]]):
            run.line(r"round 1\.1 ended: worker 2 .* did not answer for 5 s")
            run.line(rf"rank 0 of 1 pid {pids[0]} at step")
        assert "left alone" not in run.text
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()


@pytest.mark.parametrize(
    ("seconds", "pause"),
    [
        pytest.param(8.0, "0.05", id="8s"),
        pytest.param(20.0, "0.05", id="20s"),  # the training is over before the driver wakes up
        pytest.param(50.0, "0.3", id="50s", marks=[pytest.mark.long, pytest.mark.timeout(600)]),
    ],
)
def test_the_driver(tmp_path: Path, seconds: float, pause: str) -> None:
    """Its agents wait for it, and the workers train on; the time in which it was stopped expires no lease."""
    environ = {**ENVIRON, "STEPS": "400", "EPOCHS": "1", "PAUSE": pause}
    with running(["-np", "2", "--min-np", "1", *TRAIN], tmp_path, environ) as run:
        pids = all_train(run, 2)
        with stopped([run.process.pid]):
            time.sleep(seconds)  # it is the stop's length that counts
        assert run.end() == 0, run.text
        assert "ended:" not in run.text
        assert "silent" not in run.text
        assert "round 1.2" not in run.text
        assert set(re.findall(r"pid (\d+) is done: trained to step 200", run.text)) == {str(p) for p in pids.values()}
        assert run.gone(), run.left_behind()


@pytest.mark.long
def test_a_worker_that_dies_while_the_driver_is_stopped(tmp_path: Path) -> None:
    """The driver learns of it when it resumes; the other worker goes on then."""
    with running(["-np", "2", "--min-np", "1", *TRAIN], tmp_path, {**ENVIRON, "EPOCHS": "2000"}) as run:
        pids = all_train(run, 2)
        with stopped([run.process.pid]):
            os.kill(pids[1], signal.SIGKILL)
            time.sleep(8)  # longer than any lease between agents and driver
        run.line(r"round 1\.1 ended: worker 2 ")
        run.line(rf"rank 0 of \d pid {pids[0]} at step")
        assert "did not answer" not in run.text
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()
