"""A sharded model under a real driver: a loss costs no step, and all end with the bits of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.process.resuming import Resumed, kill
from tests.process.running import SCRIPTS, Hosts, Printing, Run, edriver, running

HSDP = [sys.executable, str(SCRIPTS / "hsdp.py")]
FLAGS = ["-np", "4", "--min-np", "2", "-H", "localhost:2,127.0.0.2:2", "--replica-size", "2"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the positions of an undisturbed run end with."""
    with running([*FLAGS, *HSDP], tmp_path_factory.mktemp("quiet"), {"SIZE": "4"}) as run:
        assert run.end() == 0, run.text
        first, second, *others = digests(run)
        assert first != second
        assert others == [first, second]
        return [first, second]


def digests(run: Printing) -> list[str]:
    """What the four ranks of a run's last round have ended with."""
    return [run.line(rf"rank {rank} ends at step 16 with (\w+)$")[1] for rank in range(4)]


def steps_lost(folder: Path, run: Run) -> list[int]:
    """How many steps each round has lost, by what the run has recorded."""
    lines = (folder / "state" / "edriver" / run.id / "events.jsonl").read_text().splitlines()
    rounds = {event["round"]["round_id"]["n"]: event["round"] for event in map(json.loads, lines) if "round" in event}
    return [int(found["steps_lost"]) for found in rounds.values()]


@pytest.mark.long_except("forward")
@pytest.mark.parametrize("place", ["forward", "backward", "optimizer"])
def test_a_loss_costs_no_step(tmp_path: Path, expected: list[str], place: str) -> None:
    """The other replica goes on; the survivor stays in its process, and trains again with the newcomer."""
    environ = {"SIZE": "4", "VICTIM": f"3 {place} 5", "XDG_STATE_HOME": str(tmp_path / "state")}
    with running([*FLAGS, *HSDP], tmp_path, environ) as run:
        victim = int(run.line(r"rank 3 waits in step 5 pid (\d+)")[1])
        pids = run.pids()
        assert pids[3] == victim
        os.kill(victim, signal.SIGKILL)
        for rank in range(2):
            run.line(rf"rank {rank} of 2 pid {pids[rank]} at step [56], 1x2$")
        run.line(r"worker 5 makes its model ahead of its first round$")
        run.line(r"worker 5 warms up as rank 1 of 2$")
        for rank in range(3):
            run.line(rf"rank {rank} of 4 pid {pids[rank]} at step 10, 2x2$")
        assert run.end() == 0, run.text
        assert digests(run) == expected * 2
        assert steps_lost(tmp_path, run) == [0, 0, 0]
        assert run.gone()


@pytest.mark.long_except("one-of-each-replica")
@pytest.mark.parametrize(
    ("ranks", "how"),
    [
        pytest.param((0, 3), signal.SIGKILL, id="one-of-each-replica"),
        pytest.param((3,), signal.SIGSTOP, id="one-that-is-stopped"),
    ],
)
def test_halves_and_stopped_workers(
    tmp_path: Path, expected: list[str], ranks: tuple[int, ...], how: signal.Signals
) -> None:
    """Two halves make a whole replica; who is stopped for good is killed once others hold the state."""
    environ = {"SIZE": "4", "VICTIM": "3 optimizer 5", "XDG_STATE_HOME": str(tmp_path / "state")}
    with running([*FLAGS, *HSDP], tmp_path, environ) as run:
        run.line(r"rank 3 waits in step 5 pid (\d+)")
        pids = run.pids()
        for rank in ranks:
            os.kill(pids[rank], how)
        left = [pids[rank] for rank in range(4) if rank not in ranks]
        for pid in left:
            run.line(rf"rank \d of 2 pid {pid} at step [56], 1x2$" if len(left) == 2 else rf"of 4 pid {pid} at step 10")
        assert run.end() == 0, run.text
        assert digests(run) == expected * 2
        assert set(steps_lost(tmp_path, run)) == {0}
        assert run.gone()


@pytest.mark.long
def test_a_loss_while_there_is_no_driver(tmp_path: Path, expected: list[str]) -> None:
    """The others stand in a step of a round that nobody ends, until the next driver does."""
    environ = {"SIZE": "4", "VICTIM": "3 backward 5", "XDG_STATE_HOME": str(tmp_path / "state")}
    with running([*FLAGS, *HSDP], tmp_path, environ) as run:
        victim = int(run.line(r"rank 3 waits in step 5 pid (\d+)")[1])
        pids = run.pids()
        assert run.id
        kill(run)
        os.kill(victim, signal.SIGKILL)
        resumed = Resumed(run, tmp_path)
        for rank in range(3):
            resumed.line(rf"rank {rank} of 4 pid {pids[rank]} at step 10, 2x2$")
        assert resumed.end() == 0, resumed.text
        assert digests(resumed) == expected * 2
        assert set(steps_lost(tmp_path, run)) == {0}
        assert run.gone()


def test_the_loss_of_all_workers_of_a_position_ends_the_run(tmp_path: Path) -> None:
    environ = {"SIZE": "4", "VICTIM": "3 optimizer 5"}
    with running([*FLAGS, *HSDP], tmp_path, environ) as run:
        run.line(r"rank 3 waits in step 5 pid (\d+)")
        pids = run.pids()
        for rank in (1, 3):
            os.kill(pids[rank], signal.SIGKILL)
        run.line("all workers that held the newest state of these positions in a replica are lost: 1")
        assert run.end() == 1, run.text
        assert run.gone()


@pytest.mark.long
def test_a_drained_slot_of_the_only_replica(tmp_path: Path, expected: list[str]) -> None:
    """Its worker, the only holder of a position, sends its shards to the one that takes its place, and leaves."""
    hosts = Hosts(tmp_path, "localhost:2")
    environ = {"SIZE": "4", "XDG_STATE_HOME": str(tmp_path / "state")}
    flags = ["-np", "2", "--max-np", "4", "--replica-size", "2", "--host-discovery-script", str(hosts.script)]
    with running([*flags, *HSDP], tmp_path, environ) as run:
        for rank in range(2):
            run.line(f"rank {rank} of 2 pid")
        pids = run.pids()
        assert edriver("resize", "2", "--run", run.id).returncode == 0
        hosts.are("localhost:2", "127.0.0.2:2")
        run.line("discovery: added 127.0.0.2:2")
        assert edriver("drain", "localhost:0", "--run", run.id).returncode == 0
        run.line(r"^edriver: round 1\.3: 2 workers, 1 replica of 2, on ")  # 1.2 hands state over
        run.line(rf"rank 1 of 2 pid {pids[1]} at step 10, 1x2$")
        run.line(rf"rank 0 of 2 pid (?!{pids[0]} )\d+ at step 10, 1x2$")
        assert edriver("undrain", "localhost:0", "--run", run.id).returncode == 0
        assert edriver("resize", "4", "--run", run.id).returncode == 0
        assert run.end() == 0, run.text
        assert digests(run) == expected * 2
        assert set(steps_lost(tmp_path, run)) == {0}
        assert run.gone()
