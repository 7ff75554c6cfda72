"""A driver that is killed, and another one that takes its run over: no worker is restarted, and no step is lost."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from edriver.common.release import VERSION
from edriver.system.record_folder import JOURNAL_FILE
from tests.process.resuming import TRAIN, Resumed, assert_every_step_once, environ_of, kill, wait_for_steps
from tests.process.running import ROOT, SCRIPTS, Printing, Run, running, wait_for_exit
from tests.process.sites import site
from tests.waiting import until

EAGER = (sys.executable, str(SCRIPTS / "eager_snapshots.py"))
"""Before a driver's command line: it takes a snapshot after each event."""


@pytest.mark.long_except("from-events")
@pytest.mark.parametrize("through", [(), EAGER], ids=["from-events", "from-snapshots"])
def test_workers_train_on_without_a_driver_and_go_on_with_the_next(tmp_path: Path, through: Sequence[str]) -> None:
    environ = environ_of(tmp_path, EPOCHS="40000")
    with running(["-np", "2", "--min-np", "1", *TRAIN], tmp_path, environ, through) as run:
        run.line("rank 1 passed step 5")
        pids = run.pids()
        kill(run)
        wait_for_steps(tmp_path / "reports", 20)
        resumed = Resumed(run, tmp_path, through=through)
        resumed.line("another driver has taken over, number 2 of this run")
        resumed.line("rank 0 passed step")
        os.kill(pids[1], signal.SIGKILL)
        resumed.line(r"round 1\.1 ended: worker 2 \(rank 1, localhost:1\) ")
        resumed.line(r"round 2\.\d+: 2 workers on localhost")
        resumed.line(f"rank 0 of 2 pid {pids[0]} at step ")  # it was never restarted
        resumed.process.send_signal(signal.SIGINT)
        assert resumed.end() == 130, resumed.text
        assert run.gone(), run.left_behind()
    assert_every_step_once(tmp_path / "reports")
    assert list(tmp_path.glob(f"state/edriver/*/{JOURNAL_FILE}*")) == []  # the run is over


@pytest.mark.long
def test_a_worker_that_dies_while_there_is_no_driver(tmp_path: Path) -> None:
    with running(["-np", "2", "--min-np", "1", *TRAIN], tmp_path, environ_of(tmp_path, STEPS="60")) as run:
        run.line("rank 1 passed step 5")
        pids = run.pids()
        kill(run)
        os.kill(pids[1], signal.SIGKILL)
        assert wait_for_exit(pids[1])
        resumed = Resumed(run, tmp_path)
        resumed.line(r"worker 2 \(rank 1, localhost:1\) was killed by SIGKILL")
        assert resumed.end() == 0, resumed.text
        assert run.gone(), run.left_behind()
    assert f"pid {pids[0]} is done" in resumed.text
    assert_every_step_once(tmp_path / "reports")


@pytest.mark.long_except("from-snapshots")
@pytest.mark.parametrize("through", [(), EAGER], ids=["from-events", "from-snapshots"])
def test_drivers_are_killed_one_after_the_other(tmp_path: Path, through: Sequence[str]) -> None:
    """In whatever phase: while workers boot, too."""
    with running(["-np", "2", "--min-np", "1", *TRAIN], tmp_path, environ_of(tmp_path), through) as run:
        run.line("waiting: 0 of 2 workers are ready")
        kill(run)
        for number in range(2, 7):
            resumed = Resumed(run, tmp_path, through=through)
            resumed.line(f"another driver has taken over, number {number} of this run")
            time.sleep(0.4 * (number - 2))  # the moment of the kill: each in another phase
            resumed.process.kill()
            resumed.process.wait()
        resumed = Resumed(run, tmp_path)
        assert resumed.end() == 0, resumed.text
        assert run.gone(), run.left_behind()
    assert_every_step_once(tmp_path / "reports")


def test_hosts_over_ssh(tmp_path: Path) -> None:
    """Their ssh connections have ended with the driver, and the agents have its address."""
    flags = ["-np", "2", "--min-np", "1", "-H", "host1:1,host2:1"]
    with site(tmp_path) as there, there.running([*flags, *TRAIN], tmp_path, environ_of(tmp_path, STEPS="60")) as run:
        run.line("rank 1 passed step 5")
        pids = run.pids()
        kill(run)
        wait_for_steps(tmp_path / "reports", 20)
        os.kill(pids[1], signal.SIGKILL)
        resumed = Resumed(run, tmp_path, through=["ip", "netns", "exec", there.hosts[0].namespace])
        resumed.line(r"worker \d \(rank 1, host2:0\) was killed by SIGKILL")
        assert resumed.end() == 0, resumed.text
        assert run.gone(), run.left_behind()
    assert f"pid {pids[0]} is done" in resumed.text
    assert_every_step_once(tmp_path / "reports")


@pytest.mark.long_except("machine")
@pytest.mark.parametrize("lost", ["driver", "machine"])
def test_another_machine_that_has_the_folder_takes_over(tmp_path: Path, lost: str) -> None:
    """Hosts find it at the second of the driver's addresses. A machine that is lost says nothing of it."""
    with site(tmp_path, count=3) as there:
        first, other = there.hosts[0], there.hosts[3]
        addresses = f"{first.address}:7000,{other.address}:7000"
        flags = ["-np", "2", "--min-np", "1", "-H", "host1:1,host2:1", "--port", "7000"]
        flags += ["--driver-addresses", addresses]
        with there.running([*flags, *TRAIN], tmp_path, environ_of(tmp_path, STEPS="60")) as run:
            run.line("rank 1 passed step 5")
            pids = run.pids()
            if lost == "machine":
                first.cut()
            kill(run)
            wait_for_steps(tmp_path / "reports", 20)
            os.kill(pids[1], signal.SIGKILL)
            through = ["ip", "netns", "exec", other.namespace, "unshare", "--uts", "--"]
            named = ["sh", "-c", 'hostname another && exec "$@"', "sh"]
            resumed = Resumed(run, tmp_path, through=[*through, *named])
            resumed.line("another driver has taken over, number 2 of this run")
            resumed.line(r"worker \d \(rank 1, host2:0\) was killed by SIGKILL")
            assert resumed.end() == 0, resumed.text
            assert run.gone(), run.left_behind()
        assert f"pid {pids[0]} is done" in resumed.text
    assert_every_step_once(tmp_path / "reports")


def _harm(path: Path) -> None:
    """Damage what a journal holds: its snapshot, or else its events."""
    with closing(sqlite3.connect(path)) as database, database:
        if not database.execute("UPDATE snapshot SET state = x'00'").rowcount:
            database.execute("UPDATE entries SET event = x'00' WHERE n = 2")


def _dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [*database.iterdump()]


def _execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)


def test_a_journal_that_is_refused_is_left_as_it_is_and_so_is_its_run(tmp_path: Path) -> None:
    """One that is damaged, and one with an order that this release's core does not give."""
    with running(["-np", "1", *TRAIN], tmp_path, environ_of(tmp_path)) as run:
        run.line("rank 0 passed step 5")
        kill(run)
        (path,) = tmp_path.glob(f"state/edriver/*/{JOURNAL_FILE}")
        whole = path.with_name("whole")
        _execute(path, f"VACUUM INTO '{whole}'")
        _harm(path)
        assert _refusal(run, tmp_path, path) == (
            f"edriver resume: the journal {path} is damaged (...), so the run cannot be resumed: its hosts end their "
            "workers after --driver-timeout. Remove the journal, and the same command line starts a new run"
        )
        whole.chmod(0o600)
        whole.replace(path)
        _execute(path, "INSERT INTO orders (what) VALUES ('StopAt 0123456789abcdef')")
        assert _refusal(run, tmp_path, path) == (
            f"edriver resume: the run of the journal {path} cannot be taken over: edriver {VERSION} would have ordered "
            f"nothing where edriver {VERSION} ordered StopAt, and the agents have already followed that order. Resume "
            f"the run with edriver {VERSION} (...), which saves the run's state; then kill that driver, and {VERSION} "
            "can take over"
        )
        _execute(path, "DELETE FROM orders WHERE what LIKE 'StopAt %'")
        resumed = Resumed(run, tmp_path)
        resumed.line("another driver has taken over, number 2 of this run")
        assert resumed.end() == 0, resumed.text
    assert_every_step_once(tmp_path / "reports")


def _refusal(run: Run, folder: Path, journal: Path) -> str:
    """What a driver says that does not take the run over, without what is in brackets; the journal stays as it was."""
    before = _dump(journal)
    refused = Resumed(run, folder)
    assert refused.end() == 1
    assert _dump(journal) == before
    return re.sub(r"\((?:[^()]|\([^()]*\))*\)", "(...)", refused.text.strip())


def test_a_run_has_one_driver(tmp_path: Path) -> None:
    with running(["-np", "1", *TRAIN], tmp_path, environ_of(tmp_path)) as run:
        run.line("rank 0 passed step 5")
        second = Resumed(run, tmp_path)
        assert second.end() == 1
        assert "edriver resume: the driver of this run lives" in second.text
        run.process.send_signal(signal.SIGSTOP)
        stopped = Resumed(run, tmp_path)
        assert stopped.end() == 1
        run.process.send_signal(signal.SIGCONT)
        run.line("rank 0 passed step 20")


@pytest.mark.parametrize("words", [(), ("5d2f01aa",), ("elsewhere",)])
def test_what_cannot_be_resumed(tmp_path: Path, words: tuple[str, ...]) -> None:
    refused = Printing(
        [sys.executable, "-m", "edriver", "resume", *words],
        tmp_path,
        {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path / "state")},
    )
    assert refused.end() == 1
    assert re.fullmatch(r"edriver resume: no run .* can be resumed: .*", refused.text), refused.text


def test_the_same_command_line_starts_a_named_run_and_resumes_it(tmp_path: Path) -> None:
    named = ["--run", "nightly", "-np", "2", "--min-np", "1", *TRAIN]
    with running(named, tmp_path, environ_of(tmp_path)) as run:
        run.line("rank 1 passed step 5")
        pids = run.pids()
        with running(named, tmp_path, environ_of(tmp_path)) as second:
            assert second.end() == 2
            assert "edriver: --run: run nightly already has a driver" in second.text
        kill(run)
        with running(named, tmp_path, environ_of(tmp_path)) as again:
            again.line(f"run {run.id}: resumed by driver 2 of it")
            assert again.end() == 0, again.text
            assert again.gone(), again.left_behind()
        assert f"pid {pids[0]} is done" in again.text
        with running([*named[:2], "-np", "1", sys.executable, "-c", "pass"], tmp_path, environ_of(tmp_path)) as new:
            assert new.end() == 1  # the run of that name has ended: this is another one, of a script without a round
            assert new.id != run.id
        assert run.gone(), run.left_behind()
    assert_every_step_once(tmp_path / "reports")


def driver_of(supervisor: Run) -> int:
    """The process id of the driver that a supervisor runs."""
    children = Path(f"/proc/{supervisor.process.pid}/task/{supervisor.process.pid}/children")
    return int(until(lambda: children.read_text().split(), lambda: supervisor.text)[0])


def test_a_supervised_driver_is_started_again_whenever_it_is_killed(tmp_path: Path) -> None:
    with running(["--supervise", "-np", "2", "--min-np", "1", *TRAIN], tmp_path, environ_of(tmp_path)) as run:
        for number in range(2, 5):
            run.line("rank 1 passed step", after=len(run.lines))
            os.kill(driver_of(run), signal.SIGKILL)
            run.line("edriver: the driver was killed by SIGKILL: starting another one", after=number - 2)
            run.line(f"another driver has taken over, number {number} of this run")
        assert run.end() == 0, run.text
        assert run.gone(), run.left_behind()
    assert len(set(re.findall(r"pid (\d+) at step", run.text))) == 2  # no worker was restarted
    assert_every_step_once(tmp_path / "reports")


@pytest.mark.parametrize("started", [True, False], ids=["training", "starting"])
def test_a_supervisor_passes_on_what_ends_a_run(tmp_path: Path, started: bool) -> None:
    with running(["--supervise", "-np", "1", *TRAIN], tmp_path, environ_of(tmp_path)) as run:
        if started:
            run.line("rank 0 passed step 5")
        else:
            driver_of(run)
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 143, run.text
        assert run.gone(), run.left_behind()


STUBBORN = ["-np", "1", sys.executable, str(SCRIPTS / "stubborn.py")]


def killed_while_it_ends(folder: Path, *flags: str) -> Run:
    """A run whose driver has had its only worker end, and is killed before that has ended."""
    with running([*flags, *STUBBORN], folder, environ_of(folder)) as run:
        run.line("passed step 2$")
        run.process.send_signal(signal.SIGTERM)
        run.line("received SIGTERM")
        kill(run)
        return run


@pytest.mark.long
def test_the_command_line_of_a_run_whose_driver_was_killed_while_it_ended_begins_another_one(tmp_path: Path) -> None:
    run = killed_while_it_ends(tmp_path, "--run", "nightly")
    with running(["--run", "nightly", *STUBBORN], tmp_path, environ_of(tmp_path)) as again:
        again.line(f"run {run.id}: resumed by driver 2 of it")
        said = again.line("another run of this name begins: the last one had been asked to end")
        assert run.gone(), run.left_behind()
        begun = again.line(r"^edriver: run (\w+): 1 worker", after=again.lines.index(said.string))[1]
        assert begun != run.id
        again.line("passed step 2$", after=again.lines.index(said.string))


@pytest.mark.long
def test_who_asks_for_the_end_once_more_gets_no_other_run(tmp_path: Path) -> None:
    killed_while_it_ends(tmp_path, "--run", "nightly")
    with running(["--run", "nightly", *STUBBORN], tmp_path, environ_of(tmp_path)) as again:
        again.line("resumed by driver 2 of it")
        until(lambda: catches(again.process.pid, signal.SIGTERM), lambda: again.text)
        again.process.send_signal(signal.SIGTERM)
        assert again.end() == 1
        assert "another run of this name" not in again.text


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process handles a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)


@pytest.mark.long
def test_resume_alone_ends_a_run_that_had_been_asked_to_end(tmp_path: Path) -> None:
    run = killed_while_it_ends(tmp_path)
    resumed = Resumed(run, tmp_path)
    assert resumed.end() == 1
    assert "stopped: the driver received SIGTERM" in resumed.text
    assert "another run" not in resumed.text


@pytest.mark.long
def test_a_supervisor_begins_no_other_run_than_the_one_that_was_asked_to_end(tmp_path: Path) -> None:
    with running(["--supervise", "--run", "nightly", *STUBBORN], tmp_path, environ_of(tmp_path)) as run:
        run.line("passed step 2$")
        os.kill(driver_of(run), signal.SIGTERM)
        run.line("received SIGTERM")
        os.kill(driver_of(run), signal.SIGKILL)
        run.line("starting another one")
        assert run.end() == 1
        assert "another run of this name" not in run.text
        assert run.gone(), run.left_behind()
