"""Checkpoints in memory that hosts write to disk: behind training, at the end of a run, and what the next run finds."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.made_checkpoints import whole_steps
from tests.process.resuming import kill
from tests.process.running import SCRIPTS, Run, edriver, running
from tests.waiting import until

pytestmark = pytest.mark.long  # eight processes that import all that FSDP needs

TWO_HOSTS = ["-np", "4", "--min-np", "2", "-H", "localhost:2,127.0.0.2:2", sys.executable, "sharded.py", "checkpoints"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(SCRIPTS / "sharded.py", tmp_path)
    return tmp_path


def digests(run: Run) -> set[str]:
    """What the ranks have ended with."""
    return set(re.findall(r"rank \d ends at step \d+ with (\w+)", run.text))


def _checkpoint_save(run: Run) -> str:
    done = edriver("checkpoint", "save", "--run", run.id)
    return done.stdout + done.stderr


def undisturbed(folder: Path, steps: int) -> set[str]:
    with running([*TWO_HOSTS[:-1], "elsewhere"], folder, {"STEPS": str(steps), "EVERY_DISK": "1000000"}) as run:
        assert run.end() == 0, run.text
        return digests(run)


def test_after_the_loss_of_driver_and_hosts_the_next_run_goes_on_from_disk(folder: Path) -> None:
    environ = {"STEPS": "1000000", "PAUSE": "0.05", "EVERY_DISK": "20"}
    with running(TWO_HOSTS, folder, environ) as run:
        run.line("rank 0 of 4 pid .* begins at step 0")
        until(lambda: whole_steps(folder / "checkpoints"), "a checkpoint on disk")
        saved = re.search(r"the checkpoint of step ([\d,]+) (goes to|is on) disk", save := _checkpoint_save(run))
        assert saved, save
        step = int(saved[1].replace(",", ""))
        until(lambda: max(whole_steps(folder / "checkpoints")) >= step, f"step {step} on disk")
        assert re.search(r"that of step [\d,]+, .* old, is on disk", edriver("status", "--run", run.id).stdout)
        lost = run.left_behind()
        for pid in (run.process.pid, *(int(each.partition(":")[0]) for each in lost)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.process.wait()
    step = max(whole_steps(folder / "checkpoints"))
    with running(TWO_HOSTS, folder, {"STEPS": str(step + 30), "EVERY_DISK": "20"}) as run:
        run.line(f"rank 3 of 4 pid .* begins at step {step}$")
        assert run.end() == 0, run.text
        found = digests(run)
    assert found == undisturbed(folder, step + 30)


def test_the_newest_is_on_disk_when_a_run_has_ended_and_the_next_one_begins_there_with_fewer_workers(
    folder: Path,
) -> None:
    environ = {"STEPS": "40", "EVERY_DISK": "1000000"}
    with running(TWO_HOSTS, folder, environ) as run:
        run.line("edriver: writing the checkpoint of step 40 from memory to disk")
        assert run.end() == 0, run.text
        assert run.gone()
    assert whole_steps(folder / "checkpoints") == [40]
    with running([*TWO_HOSTS[:1], "2", *TWO_HOSTS[4:]], folder, {**environ, "STEPS": "45"}) as run:
        run.line("rank 1 of 2 pid .* begins at step 40$")
        assert run.end() == 0, run.text


@pytest.mark.parametrize("hosts", ["localhost:2", "localhost:1,127.0.0.2:1"])
def test_a_run_whose_driver_never_comes_back_writes_what_is_in_memory(folder: Path, hosts: str) -> None:
    command = ["-np", "2", "-H", hosts, "--driver-timeout", "5", sys.executable, "sharded.py", "checkpoints"]
    with running(command, folder, {"STEPS": "1000000", "PAUSE": "0.1", "EVERY_DISK": "1000000"}) as run:
        made = int(run.line(r"rank 0 made step (\d*[1-9]5)$")[1])
        kill(run)
        assert run.gone(), run.left_behind()
    step = max(whole_steps(folder / "checkpoints"))
    assert step >= made - (5 if hosts == "localhost:2" else 15), "a copy may be one save behind"
    with running(["-np", "2", *command[2:]], folder, {"STEPS": str(step + 5), "EVERY_DISK": "1000000"}) as run:
        run.line(f"rank 1 of 2 pid .* begins at step {step}$")
        assert run.end() == 0, run.text


def test_a_disk_that_cannot_be_written_to_is_said_and_training_goes_on(folder: Path) -> None:
    (folder / "checkpoints").write_text("a file where the folder should be")
    environ = {"STEPS": "1000000", "PAUSE": "0.02", "EVERY_DISK": "20", "STOP": str(folder / "stop")}
    with running(TWO_HOSTS, folder, environ) as run:
        run.line("cannot write a checkpoint from memory to disk: .*checkpoints: ")
        run.line("rank 0 made step", after=len(run.lines))
        (folder / "stop").touch()
        run.line(r"the newest checkpoint, of step \d+, is lost with this run: .*checkpoints: ")
        assert run.end() == 0, run.text
