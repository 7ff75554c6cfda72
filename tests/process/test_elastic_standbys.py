"""Standbys in elastic mode: a worker that is lost is replaced by a process that has imported everything before."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.process.running import QUICK_WORKERS, SCRIPTS, Hosts, Run, edriver, running, wait_for_exit
from tests.process.standby_processes import host_of, standbys

JOB = [sys.executable, str(SCRIPTS / "begins.py"), "--lr", "3"]
TWO_HOSTS = ["-np", "3", "--min-np", "1", "-H", "localhost:2,127.0.0.2:1"]
COUNTED = r"after epoch (\d+): each at least (\d+) times, (\d+) more in all"
LIBRARY = "import os\nMODE = os.environ.get('LIBRARY_MODE')\n"

INITIALIZES = f"""\
{LIBRARY}
import ctypes, sys

if "edriver.worker.elastic_standby" in sys.orig_argv:

    class CDLL(ctypes.CDLL):
        def __init__(self, name, *words, **more):
            if name == "libcuda.so.1":
                self.cuDeviceGetCount = lambda *_: 0
            else:
                super().__init__(name, *words, **more)

    ctypes.CDLL = CDLL
"""
"""An installed library that initializes CUDA as it is imported, as far as the standby can see."""


def job_environ(folder: Path, library: str = LIBRARY) -> dict[str, str]:
    """Of a run: stand-ins for what is slow to import, a library that is installed, and two GPUs to choose from."""
    installed = folder / "site-packages"
    installed.mkdir()
    (installed / "an_installed_library.py").write_text(library)
    path = os.pathsep.join([str(installed), QUICK_WORKERS["PYTHONPATH"]])
    return {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "5,7"}


def all_train(run: Run, size: int, after: int = 0) -> None:
    for rank in range(size):
        run.line(f"rank {rank} of {size} pid ", after)


def oom_score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def test_a_standby_takes_the_place_of_a_lost_worker_again_and_again(tmp_path: Path) -> None:
    with running([*TWO_HOSTS, *JOB], tmp_path, job_environ(tmp_path)) as run:
        all_train(run, 3)
        usual = oom_score(run.process.pid)
        worker = 3
        for _ in range(2):  # twice in one slot
            (standby,) = standbys(run, {"localhost": 1, "127.0.0.2": 1})["127.0.0.2"]
            assert oom_score(standby) == 1000
            after, worker = len(run.lines), worker + 1
            (pid,) = (pid for pid in run.pids().values() if host_of(pid) == "127.0.0.2")
            os.kill(pid, signal.SIGKILL)
            begun = run.line(
                rf"worker {worker} begins in slot 0 on 127.0.0.2 with GPU 5 pid (\d+) as __main__ of", after
            )
            assert int(begun[1]) == standby
            assert begun.string.endswith("begins.py ['--lr', '3']; the library is fast")
            back = run.line(rf"rank 2 of 3 pid {standby} at step (\d+)", after)
            assert int(back[1]) > 0
            assert oom_score(standby) == usual
        epoch, least, more = map(int, run.line(COUNTED, after=len(run.lines)).groups())
        assert least == epoch + 1, "each sample in each epoch"
        assert more <= 8, "the last row of an epoch is filled up with two, where one of four rounds has ended before"
        assert len(re.findall("begins in slot", run.text)) == 5, "no standby has run the script"
        (tmp_path / "END").touch()
        assert run.end() == 0
        assert run.gone(), run.left_behind()


def test_a_standby_becomes_the_worker_of_any_slot_with_its_gpu_and_status_counts_it(tmp_path: Path) -> None:
    with running(["-np", "2", "-H", "localhost:2", *JOB], tmp_path, job_environ(tmp_path)) as run:
        all_train(run, 2)
        for slot, gpu in ((1, 7), (0, 5)):
            (standby,) = standbys(run, {"localhost": 1})["localhost"]
            assert re.search(r"^host localhost .*, 1 standby$", edriver("status", "--run", run.id).stdout, re.MULTILINE)
            after = len(run.lines)
            rank = next(rank for rank, pid in run.pids().items() if slot_of(run, pid) == slot)
            os.kill(run.pids()[rank], signal.SIGKILL)
            run.line(rf"begins in slot {slot} on localhost with GPU {gpu} pid {standby} ", after)
            run.line(rf"rank \d of 2 pid {standby} ", after)


def slot_of(run: Run, pid: int) -> int:
    return int(run.line(rf"begins in slot (\d) on \S+ with GPU \d pid {pid} ")[1])


@pytest.mark.long
def test_standbys_come_and_go_with_the_slots_of_their_host(tmp_path: Path) -> None:
    """The spare host has one, which becomes the worker for which a slot elsewhere is drained."""
    hosts = Hosts(tmp_path, "localhost:2", "127.0.0.2:1", "127.0.0.3:1")
    flags = ["-np", "3", "--max-np", "3", "--host-discovery-script", str(hosts.script)]
    with running([*flags, *JOB], tmp_path, job_environ(tmp_path)) as run:
        all_train(run, 3)
        names = {"localhost", "127.0.0.2", "127.0.0.3"}
        found = standbys(run, dict.fromkeys(names, 1))
        used = {host_of(pid) for pid in run.pids().values()}
        (spare,) = names - used
        left = next(host for host in used if host != "localhost")
        assert edriver("drain", left, "--run", run.id).returncode == 0
        assert wait_for_exit(found[left][0])
        run.line(rf"begins in slot 0 on {spare} with GPU 5 pid {found[spare][0]} .*; the library is fast")
        run.line(rf"rank 2 of 3 pid {found[spare][0]} ")
        standbys(run, {"localhost": 1, spare: 1})
        assert edriver("undrain", left, "--run", run.id).returncode == 0
        again = standbys(run, dict.fromkeys(names, 1))[left]
        hosts.are("localhost:2", f"{spare}:1")
        assert wait_for_exit(again[0])
        (tmp_path / "END").touch()
        assert run.end() == 0
        assert run.gone(), run.left_behind()


@pytest.mark.long
def test_without_standbys_or_where_one_is_of_no_use_a_replacement_starts_cold(tmp_path: Path) -> None:
    """In this standby CUDA is initialized: it would see the GPU of one slot only."""
    with running([*TWO_HOSTS, *JOB], tmp_path, job_environ(tmp_path, INITIALIZES)) as run:
        all_train(run, 3)
        run.line("there are no standbys: a library initializes CUDA as it is imported")
        after = len(run.lines)
        os.kill(run.pids()[2], signal.SIGKILL)
        run.line(r"worker 4 begins", after)
        all_train(run, 3, after)
        assert not any("elastic_standby" in line for line in run.left_behind())


@pytest.mark.long
def test_an_exception_of_a_script_that_a_standby_runs_is_shown_as_any(tmp_path: Path) -> None:
    flags = ["-np", "2", "-H", "localhost:2", "--reset-limit", "1"]
    with running([*flags, *JOB], tmp_path, job_environ(tmp_path)) as run:
        all_train(run, 2)
        (standby,) = standbys(run, {"localhost": 1})["localhost"]
        after = len(run.lines)
        os.kill(run.pids()[1], signal.SIGKILL)
        run.line(rf"rank 1 of 2 pid {standby} ", after)
        (tmp_path / "FAIL").touch()
        assert run.end() == 1
        failed = run.text.partition("Traceback (most recent call last):\n")[2]
        first = failed.partition("\n")[0]
        assert f'File "{SCRIPTS / "begins.py"}", line ' in first, run.text
        assert ", in <module>" in first
        assert "ValueError: the script's own mistake" in failed
        assert "elastic_standby.py" not in failed
        assert run.gone(), run.left_behind()
