"""Training under a real driver: what an operator sees when workers die and hosts come and go."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.process.running import BOUND, SCRIPTS, Hosts, running, wait_for_exit

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]


def test_a_lost_worker_is_replaced_and_the_others_keep_their_processes(tmp_path: Path) -> None:
    with running(["-np", "2", "--min-np", "1", *TRAIN], tmp_path, {"EPOCHS": "2000", "LOADERS": "1"}) as run:
        run.line("rank 1 passed step 5")
        run.line("rank 0 passed step 5")
        first = run.pids()
        os.kill(first[1], signal.SIGKILL)
        run.line(r"worker 2 \(rank 1, localhost:1\) (has ended|was killed by SIGKILL)")
        alone = run.line(rf"rank 0 of 1 pid {first[0]} at step (\d+)")
        joined = run.line(rf"rank 0 of 2 pid {first[0]} at step (\d+)", after=run.lines.index(alone.string) + 1)
        assert int(joined[1]) > int(alone[1]) >= 5
        other = run.line(rf"rank 1 of 2 pid (?!{first[1]})(\d+) at step {joined[1]}$")
        os.kill(first[0], signal.SIGKILL)
        run.line(rf"rank 0 of 1 pid {other[1]} at step")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone()


def test_hosts_come_and_go(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:1")
    flags = ["-np", "1", "--max-np", "3", "--host-discovery-script", str(hosts.script)]
    with running([*flags, *TRAIN], tmp_path, {"EPOCHS": "100", "STEPS": "200"}) as run:
        pid = run.line(r"rank 0 of 1 pid (\d+) at step 0")[1]
        run.line("rank 0 passed step 5")
        hosts.are("localhost:1", "127.0.0.2:2")
        grown = run.line(rf"rank 0 of 3 pid {pid} at step (\d+)")
        assert "failed" not in run.text
        assert "ended" not in run.text
        # Which of both is rank 0 later depends on whether they have joined in one round.
        left = "|".join(run.line(rf"rank {rank} of 3 pid (\d+) at step")[1] for rank in (1, 2))
        hosts.are("127.0.0.2:2")
        shrunk = run.line(rf"rank 0 of 2 pid ({left}) at step (\d+)", after=run.lines.index(grown.string))
        assert int(shrunk[2]) > int(grown[1])
        assert wait_for_exit(int(pid))
        assert "failed" not in run.text


def test_it_ends_well(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:1", "127.0.0.2:1")
    flags = ["-np", "2", "--host-discovery-script", str(hosts.script), "--output-filename", "out"]
    with running([*flags, *TRAIN], tmp_path) as run:
        assert run.end() == 0, run.text
        assert re.search(r"^\[1\]<stdout>:rank 1 of 2 pid \d+ is done: trained to step 60$", run.text, re.MULTILINE)
        assert run.lines[-3].startswith("edriver: done: 1 round")
        assert run.gone()
    files = sorted(path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*stdout"))
    assert len(files) == 2
    assert "is done" in (tmp_path / "out" / files[0]).read_text()


@pytest.mark.long
def test_several_runs_one_after_the_other(tmp_path: Path) -> None:
    environ = {"EPOCHS": "1", "STEPS": "20", "TWICE": "300"}
    with running(["-np", "2", "--min-np", "1", *TRAIN], tmp_path, environ) as run:
        run.line("rank 1 of 2 tunes from 0")
        os.kill(run.pids()[1], signal.SIGKILL)
        run.line(r"rank 0 of 1 tunes from \d+")
        run.line("rank -1 of -1 pid .* is done: None")  # the replacement skips what is over
        run.line(r"rank 1 of 2 tunes from [1-9]")
        assert run.end() == 0, run.text
        assert run.text.count("then: tuned") == 2


def test_an_exception_of_one_worker_does_not_end_the_others(tmp_path: Path) -> None:
    with running(["-np", "2", "--min-np", "1", *TRAIN], tmp_path, {"RAISE": "1"}) as run:
        run.line("ValueError: the script's own mistake")
        run.line(r"worker 2 \(rank 1, localhost:1\) raised an exception")
        run.line(r"rank 0 of 1 pid \d+ at step [89]")
        assert run.end() == 0, run.text


def test_an_exception_of_all_workers_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    with running(["-np", "2", "--min-np", "1", *TRAIN], tmp_path, {"RAISE": "all"}) as run:
        assert run.end() == 1
        report = run.text[run.text.index("edriver: failed") :]
        assert "all workers that held the state of the run are lost" in report
        assert report.index("raised an exception") < report.index("ValueError: the script's own mistake")
        assert run.gone()


def test_ctrl_c_in_one_worker_is_its_own(tmp_path: Path) -> None:
    """Said at once, before its process has ended and before the others can blame one another."""
    with running(["-np", "2", "--min-np", "1", *TRAIN], tmp_path, {"INTERRUPT": "1"}) as run:
        run.line(r"round 1.1 ended: worker 2 \(rank 1, localhost:1\) raised an exception")
        run.line(r"rank 0 of 1 pid \d+ at step [89]")
        assert run.end() == 0, run.text


@pytest.mark.long
def test_a_forked_child_that_exits_leaves_its_parent_connected(tmp_path: Path) -> None:
    environ = {"EPOCHS": "2000", "FORK": "all"}
    with running(["-np", "2", "--min-np", "1", *TRAIN], tmp_path, environ) as run:
        for rank in range(2):
            run.line(f"rank {rank} forked, 0")
        survivor, victim = run.pids()[0], run.pids()[1]
        os.kill(victim, signal.SIGKILL)
        run.line(f"rank 0 of 1 pid {survivor} at step")
        run.line(f"rank 0 of 2 pid {survivor} at step", after=len(run.lines))
        passed = len(run.lines)
        run.line("rank 1 passed step", after=passed)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert "is gone: this worker ends" not in run.text
        assert run.gone(), run.left_behind()


def test_leaving_early_is_not_success(tmp_path: Path) -> None:
    with running(["-np", "1", *TRAIN], tmp_path, {"EXIT": "all"}) as run:
        assert run.end() == 1
        assert "called sys.exit before training was done" in run.text
        assert "train.py" in run.line("SystemExit at (.*)")[1]


def test_a_hanging_subgroup_is_severed(tmp_path: Path) -> None:
    environ = {"SUBGROUP": "1", "HANG": "1"}
    with running(["-np", "3", "--min-np", "2", *TRAIN], tmp_path, environ) as run:
        run.line("rank 1 hangs")
        os.kill(run.pids()[1], signal.SIGKILL)
        run.line(r"rank 1 of 2 pid \d+ at step [89]")
        assert run.end() == 0, run.text


def test_a_stopped_worker_is_found_by_its_lease(tmp_path: Path) -> None:
    with running(["-np", "2", "--min-np", "1", *TRAIN], tmp_path, {"EPOCHS": "2000"}) as run:
        run.line("rank 0 passed step 5")
        pid = run.pids()[1]
        os.kill(pid, signal.SIGSTOP)
        run.line(r"worker 2 \(rank 1, localhost:1\) did not answer for 5 s")
        run.line(r"rank 0 of 1 pid \d+ at step")
        assert wait_for_exit(pid)


def test_a_death_after_run_fails_the_run_and_frees_the_others(tmp_path: Path) -> None:
    with running(["-np", "2", "--min-np", "1", *TRAIN], tmp_path, {"AFTER": "1", "EPOCHS": "1"}) as run:
        assert run.end() == 1
        assert "rank 0: the collective after run is severed" in run.text
        report = run.text[run.text.index("edriver: failed") :]
        assert "was killed by SIGABRT" in report


@pytest.mark.parametrize(
    ("signals", "code"),
    [
        pytest.param([signal.SIGINT], 130, id="Ctrl-C"),
        pytest.param([signal.SIGINT, signal.SIGINT], 130, id="Ctrl-C twice"),
        pytest.param([signal.SIGTERM], 143, id="SIGTERM"),
        pytest.param([signal.SIGKILL], -9, id="driver killed"),
    ],
)
def test_no_process_is_left(tmp_path: Path, signals: list[signal.Signals], code: int) -> None:
    with running(["--no-journal", "-np", "2", *TRAIN], tmp_path, {"EPOCHS": "100", "LOADERS": "1"}) as run:
        run.line("rank 1 passed step 5")
        assert len(run.left_behind()) >= 2 + 2 + 1  # workers, their loaders, the agent
        for number in signals:
            run.process.send_signal(number)
        assert run.end() == code
        assert run.gone(), run.left_behind()


def test_a_killed_agent_takes_its_workers_along_and_is_replaced(tmp_path: Path) -> None:
    hosts = "localhost:1,127.0.0.2:1"
    with running(
        ["-np", "2", "--min-np", "1", "-H", hosts, *TRAIN], tmp_path, {"EPOCHS": "2000", "LOADERS": "1"}
    ) as run:
        run.line("rank 1 passed step 5")
        worker = run.pids()[1]
        agent = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(agent, signal.SIGKILL)
        assert wait_for_exit(worker)
        run.line(r"rank 0 of 1 pid \d+ at step")
        run.line(r"rank 1 of 2 pid \d+ at step [1-9]")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()


def test_a_script_without_a_driver_is_a_world_of_one(tmp_path: Path) -> None:
    import subprocess

    environ = {k: v for k, v in os.environ.items() if not k.startswith("EDRIVER")}
    done = subprocess.run(
        TRAIN,
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": str(SCRIPTS.parents[2])},
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 1 pid" in done.stdout
    assert "is done: trained to step 120" in done.stdout
