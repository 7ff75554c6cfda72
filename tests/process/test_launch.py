"""`edriver.launch` with real runs: what comes back, what is raised, and that nothing is left."""

from __future__ import annotations

import json
import linecache
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import edriver
from edriver.calls.parcels import ParcelError
from tests.process.running import BOUND, NO_STANDBYS, QUICK_WORKERS

PATIENT = ["--start-timeout", f"{BOUND:g}", *NO_STANDBYS]


@pytest.fixture(autouse=True)
def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUICK_WORKERS.items():
        monkeypatch.setenv(name, value)


def left_folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("edriver-call-*"))


def test_each_worker_returns_what_it_has_computed_with_the_others() -> None:
    secret = 20

    def add(number: int, *, times: int) -> tuple[int, int, float]:
        import torch

        total = torch.full((1,), float(edriver.rank()))
        torch.distributed.all_reduce(total)
        return edriver.rank(), edriver.size(), float(total) + number * times + secret

    before = left_folders()
    assert edriver.launch(add, (2,), {"times": 3}, np=3, flags=PATIENT) == [(rank, 3, 29.0) for rank in range(3)]
    assert left_folders() == before


def test_a_function_that_does_not_train_pays_for_no_first_step() -> None:
    def imported() -> bool:
        import sys

        return "torch._dynamo" in sys.modules  # takes a second

    assert edriver.launch(imported, np=1, flags=PATIENT) == [False]


def test_what_a_rank_raises_is_raised_here_with_its_traceback() -> None:
    def fail() -> None:
        if edriver.rank() == 1:
            raise LookupError("no such sample", 7)

    with pytest.raises(LookupError) as caught:
        edriver.launch(fail, np=2, flags=PATIENT)
    assert caught.value.args == ("no such sample", 7)
    assert "of rank 1:" in str(caught.value.__cause__)
    assert "in fail" in str(caught.value.__cause__)


CELL = """
def share(count):
    return 12 / count  # of a cell

def train(count):
    return share(count)
"""


def test_a_traceback_has_the_lines_of_a_cell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A cell is in no file, as a script of the caller's need not be on other hosts."""
    (tmp_path / "hosts").write_text("localhost:2\n127.0.0.2:1\n")
    name = "/tmp/ipykernel_7/1234.py"
    monkeypatch.setitem(linecache.cache, name, (len(CELL), None, CELL.splitlines(keepends=True), name))
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CELL, name, "exec"), names)
    for each in ("share", "train"):
        monkeypatch.setattr(sys.modules["__main__"], each, names[each], raising=False)
    with pytest.raises(ZeroDivisionError) as caught:
        edriver.launch(names["train"], (0,), np=3, hostfile=tmp_path / "hosts", network_interface="lo", flags=PATIENT)
    shown = (
        f'  File "{name}", line 6, in train\n    return share(count)\n'
        f'  File "{name}", line 3, in share\n    return 12 / count  # of a cell\n'
    )
    text = str(caught.value.__cause__)
    assert f"of rank 0:\nTraceback (most recent call last):\n{shown}" in text.replace("           ^^^^^^^^^^^^\n", "")
    printed = capfd.readouterr().out.splitlines()
    assert "[0]<stderr>:    return 12 / count  # of a cell" in printed
    assert not [line for line in printed if line.startswith("edriver:") and "return 12" in line]  # only once


@pytest.mark.long
def test_a_run_has_the_functions_name_and_the_driver_says_two_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def count() -> int:
        print("counts")
        return edriver.rank()

    assert edriver.launch(count, np=2, flags=[*PATIENT, "--records", str(tmp_path)]) == [0, 1]
    said = [line for line in capfd.readouterr().out.splitlines() if line.startswith("edriver: ")]
    (folder,) = tmp_path.iterdir()
    assert said[0] == f"edriver: run {folder.name}: 2 workers of count"
    assert said[1].startswith("edriver: done: 1 round, ")
    assert len(said) == 2
    assert json.loads((folder / "run.json").read_text())["name"] == "count"
    edriver.launch(count, np=1, flags=[*PATIENT, "--records", str(tmp_path), "--name", "mine"])
    assert {json.loads(path.read_text())["name"] for path in tmp_path.glob("*/run.json")} == {"count", "mine"}


def test_a_notebook_shows_how_far_training_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("edriver.calls.launch.progress_display", lambda: shown.append)

    def train(steps: int) -> bool:
        state = edriver.ObjectState(step=0)

        @edriver.run
        def loop(state: Any) -> None:
            while state.step < steps:
                state.step += 1
                state.report(loss=1 / state.step)
                state.commit()

        loop(state)
        return "EDRIVER_CALL_PROGRESS" in os.environ

    assert edriver.launch(train, (50,), np=2, flags=PATIENT) == [False, False]
    assert re.fullmatch(r"step 50  .* steps/s  2 workers  loss 0\.02", shown[-1])
    assert "steps/s" not in capfd.readouterr().out


def test_an_exception_that_cannot_be_pickled_comes_as_text() -> None:
    def fail() -> None:
        class Odd(Exception):  # noqa: N818
            def __reduce__(self) -> Any:
                raise TypeError

        raise Odd("strange")

    with pytest.raises(edriver.LaunchError, match="rank 0 raised") as caught:
        edriver.launch(fail, np=1, flags=PATIENT)
    assert "Odd: strange" in str(caught.value.__cause__)


def test_an_elastic_function_survives_the_loss_of_a_worker(tmp_path: Path) -> None:
    mark = tmp_path / "killed"

    def train(steps: int) -> tuple[int, int]:
        state = edriver.ObjectState(step=0)

        @edriver.run
        def loop(state: Any) -> int:
            while state.step < steps:
                if state.step == 5 and edriver.rank() == 1 and not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                state.step += 1
                state.commit()
            return int(state.step)

        return loop(state) or -1, edriver.size()

    found = edriver.launch(train, (10,), np=2, min_np=1, flags=PATIENT)
    assert mark.exists()
    assert found[0][0] == 10
    assert {size for _, size in found} == {len(found)}


@pytest.mark.long
def test_calls_of_other_hosts_go_through_an_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a host elsewhere; what is large goes in several pieces."""
    monkeypatch.setattr("edriver.calls.launch._are_here", lambda hosts: False)
    large = bytes(range(256)) * 40_000
    before = left_folders()

    def echo(data: bytes) -> tuple[int, bytes, bool]:
        return edriver.rank(), data[::-1], "EDRIVER_CALL_EXCHANGE" in os.environ

    found = edriver.launch(echo, (large,), np=2, hosts="localhost:2", flags=PATIENT)
    assert found == [(rank, large[::-1], True) for rank in range(2)]
    assert left_folders() == before


@pytest.mark.parametrize("way", ["hostfile", "host_discovery_script"])
def test_hosts_of_a_file_or_a_script(way: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost:2\n127.0.0.2:1\n")
    file = str(tmp_path / "hosts")
    given: dict[str, Any] = {way: file if way == "hostfile" else f"cat {shlex.quote(file)} | grep -v nothing"}

    def place() -> tuple[int, int, str]:
        return edriver.rank(), edriver.size(), os.environ["EDRIVER_HOST"]

    before = left_folders()
    found = edriver.launch(place, np=3, max_np=3, network_interface="lo", flags=PATIENT, **given)
    assert sorted(found) == [(rank, 3, host) for rank, host in enumerate(["localhost", "localhost", "127.0.0.2"])]
    assert left_folders() == before


def test_a_worker_for_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setenv("PET_MODULE", "1")  # a flag of the user's own command lines

    def device() -> tuple[int, str]:
        return edriver.size(), os.environ["CUDA_VISIBLE_DEVICES"]

    assert edriver.launch(device, np="auto", flags=PATIENT) == [(2, "4"), (2, "6")]


def test_a_run_that_ends_otherwise_says_how(capfd: pytest.CaptureFixture[str]) -> None:
    def end() -> None:
        os._exit(3)

    with pytest.raises(edriver.LaunchError, match="the run ended with exit code 1:"):
        edriver.launch(end, np=1, flags=PATIENT)
    assert "edriver: failed: worker 1 (rank 0, localhost:0) exited with code 3" in capfd.readouterr().out


def test_what_cannot_be_sent_is_refused_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParcelError, match="the function with its arguments cannot be pickled: TypeError"):
        edriver.launch(print, (sys.stdout.buffer,), np=1)
    monkeypatch.setattr("edriver.calls.parcels.MAX_PARCEL_BYTES", 1000)
    with pytest.raises(ParcelError, match=r"takes 1[0-9]{3} bytes: at most 1000 are allowed"):
        edriver.launch(print, (b"x" * 1000,), np=1)
    with pytest.raises(ValueError, match="np is 0"):
        edriver.launch(print, np=0)


SCRIPT = """
import os
import edriver

class Point:
    def __init__(self, x):
        self.x = x

def make(x):
    print("made in", os.getpid(), flush=True)
    return Point(x + edriver.rank())

print([point.x for point in edriver.launch(make, (5,), np=2, flags=["--start-timeout", "300"])])
print("end of the script")
"""


def script(text: str, tmp_path: Path) -> subprocess.Popen[str]:
    (tmp_path / "script.py").write_text(text)
    command = [sys.executable, str(tmp_path / "script.py")]
    environ = {**os.environ, "EDRIVER_TEST": "launch"}
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_script_needs_no_main_guard_and_its_classes_come_back(tmp_path: Path) -> None:
    printed, _ = script(SCRIPT, tmp_path).communicate(timeout=BOUND)
    assert "[5, 6]\nend of the script\n" in printed
    assert printed.count("end of the script") == 1
    assert printed.count("made in") == 2


ENDLESS = """
import time
import edriver

def wait():
    print("waits", flush=True)
    time.sleep(1000)

edriver.launch(wait, np=1, flags=["--start-timeout", "300"])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_does_not_outlive_its_caller(tmp_path: Path, number: signal.Signals) -> None:
    caller = script(ENDLESS, tmp_path)
    assert caller.stdout is not None
    for line in caller.stdout:
        if "waits" in line:
            break
    caller.send_signal(number)
    rest = caller.stdout.read()  # ends when the last process that holds the pipe does
    caller.stdout.close()
    assert caller.wait(BOUND) == (-number if number == signal.SIGKILL else 1) or "KeyboardInterrupt" in rest
