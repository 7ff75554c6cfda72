"""The last resort of a sharded model, under a real driver: a position loses all its workers, and the run goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.made_checkpoints import whole_steps
from tests.process.resuming import kill
from tests.process.running import SCRIPTS, Run, edriver, running
from tests.waiting import until

TRAIN = [sys.executable, str(SCRIPTS / "sharded_elastic.py")]
HOSTS = ["-H", "localhost:2,127.0.0.2:2"]
HSDP = ["-np", "4", "--min-np", "2", "--replica-size", "2", *HOSTS]
ONE_REPLICA = ["-np", "4", "--min-np", "2", "--replica-size", "all", *HOSTS]
NO_MEMORY = ["--checkpoint-memory", "4K"]


def number(text: str) -> int:
    """A number that edriver has printed: 1160 as "1,160"."""
    return int(text.replace(",", ""))


def lose_position_1(run: Run, step: int) -> None:
    """Kill all that hold it, once all have passed this step."""
    for rank in range(4):
        run.line(rf"rank {rank} passed step {step}")
    pids = run.pids()
    for rank in (1, 3):
        os.kill(pids[rank], signal.SIGKILL)


def goes_on(run: Run, begun: re.Match[str], place: str, most_lost: int) -> None:
    """The next round continues from that step, from that place."""
    step = number(begun[1])
    lost = run.line(rf"not all positions of the state are held: it is loaded from {place}; (\d+) steps? lost")
    after = next(at for at, line in enumerate(run.lines) if begun[0] in line)
    assert int(run.line(r"rank 1 of \d pid \d+ at step (\d+)", after)[1]) == step
    assert number(lost[1]) <= most_lost
    run.line(rf"rank 0 passed step {step + 15 - step % 5}", after)


def test_a_position_loses_all_its_workers_and_the_run_goes_on_from_the_newest_checkpoint(tmp_path: Path) -> None:
    """Without memory for checkpoints, workers write them to disk."""
    folder = tmp_path / "checkpoints"
    environ = {"CHECKPOINT": str(folder), "STEPS": "100000", "EVERY": "10"}
    with running([*HSDP, *NO_MEMORY, *TRAIN], tmp_path, environ) as run:
        lose_position_1(run, 35)
        begun = run.line(r"round \d+\.\d+: \d workers, .* on .*, from the checkpoint of step ([\d,]+)")
        goes_on(run, begun, "disk", 40)
        assert "is not kept in memory: this rank's part takes" in run.text
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
    newest = max(whole_steps(folder))
    with running(["-np", "1", "--replica-size", "1", *TRAIN], tmp_path, {**environ, "STEPS": str(newest + 10)}) as run:
        run.line(rf"1 worker on .*, from the checkpoint of step {newest:,}$")
        run.line(rf"rank 0 of 1 pid \d+ at step {newest}$")
        assert run.end() == 0
    command = [sys.executable, "-m", "edriver", "checkpoint", "inspect", str(folder), "--verify"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"\b{newest + 10}\b", said), said
    assert "optimizer.state.0.weight.exp_avg" in said, said


IN_MEMORY = r"round \d+\.\d+: \d workers.* on .*, to load the checkpoint in memory of step ([\d,]+)"


@pytest.mark.long
@pytest.mark.parametrize("flags", [HSDP, ONE_REPLICA], ids=["two-replicas", "one-replica"])
def test_a_checkpoint_in_memory_is_steps_old_and_goes_to_disk_when_asked_for(tmp_path: Path, flags: list[str]) -> None:
    folder = tmp_path / "checkpoints"
    environ = {"CHECKPOINT": str(folder), "STEPS": "100000", "EVERY": "100000", "EVERY_MEMORY": "5"}
    with running([*flags, "--worker-lease", "300", *TRAIN], tmp_path, environ) as run:
        run.line("rank 0 passed step 20")
        pid = run.pids()[0]
        os.kill(pid, signal.SIGSTOP)  # so no checkpoint of this round can meet the request
        asked = edriver("checkpoint", "save", "--run", run.id)
        assert "rank 0 writes a checkpoint at its next boundary" in asked.stdout
        lose_position_1(run, 20)
        os.kill(pid, signal.SIGCONT)
        begun = run.line(IN_MEMORY)
        goes_on(run, begun, "memory", 20)
        assert until(lambda: whole_steps(folder))[-1] > number(begun[1])
        status = edriver("status", "--run", run.id).stdout
        assert re.search(r"in memory", status), status
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone()
    found = whole_steps(folder)
    assert found[0] < found[-1], "the one that was asked for, and the newest, when the run ended"
    if flags == HSDP:  # any number of workers takes it over
        size = {"STEPS": str(found[-1] + 10)}
        with running(["-np", "3", "--replica-size", "all", *TRAIN], tmp_path, {**environ, **size}) as run:
            run.line(rf"3 workers.* on .*, from the checkpoint of step {found[-1]:,}$")
            assert run.end() == 0, run.text


@pytest.mark.long
def test_a_host_is_lost_with_the_last_worker_of_a_position_elsewhere(tmp_path: Path) -> None:
    """The host that stays has copies of what was in the other one's memory."""
    environ = {"CHECKPOINT": str(tmp_path / "checkpoints"), "STEPS": "100000", "EVERY": "100000"}
    with running([*HSDP, *TRAIN], tmp_path, environ) as run:
        for rank in range(4):
            run.line(rf"rank {rank} passed step 30")
        os.kill(run.agent_of("127.0.0.2"), signal.SIGKILL)
        os.kill(run.pids()[1], signal.SIGKILL)
        goes_on(run, run.line(IN_MEMORY), "memory", 30)


@pytest.mark.long
def test_two_of_three_hosts_are_lost_at_once(tmp_path: Path) -> None:
    """One of them had the only copy of the other one's part: the run goes back to what is on disk."""
    folder = tmp_path / "checkpoints"
    environ = {"CHECKPOINT": str(folder), "STEPS": "100000", "EVERY": "100000"}
    hosts = ["-H", "localhost:1,127.0.0.2:1,127.0.0.3:1"]
    with running(["-np", "3", "--min-np", "1", "--replica-size", "all", *hosts, *TRAIN], tmp_path, environ) as run:
        for rank in range(3):
            run.line(rf"rank {rank} passed step 10")
        assert "rank 0 writes a checkpoint" in edriver("checkpoint", "save", "--run", run.id).stdout
        until(lambda: whole_steps(folder))
        for host in ("127.0.0.2", "127.0.0.3"):
            os.kill(run.agent_of(host), signal.SIGKILL)
        begun = run.line(r"round 1\.\d+: .* on .*, from the checkpoint of step ([\d,]+)")
        assert number(begun[1]) >= 5
        run.line("of the state are held: it is loaded from disk")
        at = next(at for at, line in enumerate(run.lines) if begun[0] in line)
        run.line(rf"rank 0 passed step {number(begun[1]) + 15 - number(begun[1]) % 5}", at)


@pytest.mark.long
@pytest.mark.parametrize("flags", [HSDP, ONE_REPLICA], ids=["two-replicas", "one-replica"])
def test_a_run_whose_driver_never_comes_back_writes_a_last_checkpoint(tmp_path: Path, flags: list[str]) -> None:
    """All workers have stopped at one boundary, and each position writes its part of it."""
    folder = tmp_path / "checkpoints"
    environ = {"CHECKPOINT": str(folder), "STEPS": "100000", "EVERY": "100000"}
    with running([*flags, *NO_MEMORY, "--driver-timeout", "5", *TRAIN], tmp_path, environ) as run:
        for rank in range(4):
            run.line(rf"rank {rank} passed step 10")
        kill(run)
        assert run.gone(), run.left_behind()
        passed = max(int(step) for step in re.findall(r"rank 0 passed step (\d+)", run.text))
    (step,) = whole_steps(folder)
    assert step >= passed
