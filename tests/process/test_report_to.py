"""`--report-to wandb`, with a stand-in for the package: it has one run, whichever process is rank 0, or the driver."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.process.resuming import Resumed, environ_of, kill
from tests.process.running import ROOT, SCRIPTS, Hosts, running
from tests.waiting import until

TRAIN = ["--report-to", "wandb", sys.executable, str(SCRIPTS / "train.py")]
LIBRARIES = str(SCRIPTS.parent / "pretended_libraries")


def environ(folder: Path, **variables: str) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, [str(ROOT), LIBRARIES, os.environ.get("PYTHONPATH")]))
    return {
        **environ_of(folder, EPOCHS="40000"),
        "PYTHONPATH": paths,
        "WANDB_CALLS": str(folder / "calls"),
        **variables,
    }


def calls(folder: Path, of: str) -> list[dict[str, Any]]:
    """Those of one function so far."""
    path = folder / "calls"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [each for each in found if each["call"] == of]


def logged(folder: Path, name: str) -> list[tuple[int, float]]:
    """The values of this name, each with its step."""
    values = [call["values"] for call in calls(folder, "log")]
    return [(each["edriver/step"], each[name]) for each in values if name in each]


def test_it_is_one_run_when_rank_0_is_lost(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:2", "127.0.0.1:1")
    flags = ["-np", "3", "--min-np", "2", "--network-interface", "lo", "--host-discovery-script", str(hosts.script)]
    with running([*flags, "--name", "trial", *TRAIN], tmp_path, environ(tmp_path)) as run:
        run.line("edriver: wandb: https://wandb.test/runs/1")
        run.line("rank 0 passed step 10")
        until(lambda: logged(tmp_path, "loss"), "the loss is logged")
        os.kill(run.pids()[0], signal.SIGKILL)
        lost = run.line(r"round 1\.\d+ ended: worker \d \(rank 0, ").string
        run.line(r"round 1\.\d+: 3 workers", run.lines.index(lost))
        until(lambda: logged(tmp_path, "edriver/interruption_seconds"), "the interruption is logged")
        step = logged(tmp_path, "edriver/interruption_seconds")[0][0]
        until(lambda: logged(tmp_path, "loss")[-1][0] > step, "the next rank 0's values are logged")
        until(lambda: logged(tmp_path, "edriver/workers")[-1][1] == 3, "the third worker is back")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()
    (begun,) = calls(tmp_path, "init")
    assert {name: begun[name] for name in ("id", "name", "resume")} == {
        "id": run.id,
        "name": "trial",
        "resume": "allow",
    }
    assert {call["pid"] for call in calls(tmp_path, "log")} == {begun["pid"]}
    assert begun["pid"] not in run.pids().values()
    assert 2 in [workers for _, workers in logged(tmp_path, "edriver/workers")]
    assert calls(tmp_path, "summary")[0]["values"]["edriver/end"] == "stopped"
    assert calls(tmp_path, "summary")[0]["values"]["edriver/failures"] == 1
    assert len(calls(tmp_path, "finish")) == 1


@pytest.mark.long
def test_the_next_driver_goes_on_with_it(tmp_path: Path) -> None:
    with running(["-np", "2", *TRAIN], tmp_path, environ(tmp_path)) as run:
        until(lambda: logged(tmp_path, "loss"), "the loss is logged")
        kill(run)
        before = len(calls(tmp_path, "log"))
        resumed = Resumed(run, tmp_path, environ=environ(tmp_path))
        resumed.line("edriver: wandb: https://wandb.test/runs/1")
        until(lambda: len(calls(tmp_path, "log")) > before + 1, "the run is logged again")
        resumed.process.send_signal(signal.SIGINT)
        assert resumed.end() == 130, resumed.text
        assert run.gone(), run.left_behind()
    first, second = calls(tmp_path, "init")
    assert first["id"] == second["id"] == run.id
    assert first["pid"] != second["pid"]
    assert logged(tmp_path, "edriver/round")[0] == (0, 1)
    later = [call["values"] for call in calls(tmp_path, "log") if call["pid"] == second["pid"]]
    assert min(values["edriver/step"] for values in later) > 0  # nothing from the beginning is logged twice


def test_training_goes_on_without_it(tmp_path: Path) -> None:
    more = {"WANDB_BROKEN": "1", "EPOCHS": "1"}
    with running(["-np", "2", *TRAIN], tmp_path, environ(tmp_path, **more)) as run:
        run.line("edriver: wandb: failed: ConnectionError: the server does not answer")
        assert run.end() == 0
        assert run.gone(), run.left_behind()
    assert not calls(tmp_path, "init")
