"""`edriver runs`: real runs, one that goes on and some that have ended, started from a real git repository."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs
from tests.process.running import BOUND, ROOT, SCRIPTS, running
from tests.strict_json import strict

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]


def edriver(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
    command = [sys.executable, "-m", "edriver", *words]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=BOUND)


def listed(folder: Path) -> list[list[str]]:
    """The first three columns of each run that was started from this folder: other programs may have some as well."""
    rows = [line.split()[:3] for line in edriver(folder, "runs").stdout.splitlines()[1:]]
    return [row for row in rows if (folder / "state" / "edriver" / row[0]).exists()]


@pytest.mark.long
def test_those_that_go_on_and_those_that_have_ended(tmp_path: Path) -> None:
    assert edriver(tmp_path, "runs", "--tag", "lr=1").stdout == "there are no runs with such tags\n"
    name = f"second-{os.getpid()}"  # no other run has it, also not one of a test beside this one
    failed = edriver(tmp_path, "-np", "1", "--tag", "lr=1", "false")
    first = failed.stderr.split(":")[1].split()[1]
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), "EPOCHS": "40000"}
    with running(["--no-journal", "-np", "2", "--name", name, *TRAIN], tmp_path, state) as run:
        run.line("rank 1 passed step 5")
        second = run.id
        assert listed(tmp_path) == [[second, name, "running"], [first, "-", "failed"]]
        for named in (second, name):
            told = edriver(tmp_path, "status", "--run", named).stdout
            assert told.startswith(f"run {second} ({name}), ")
            assert f" on {socket.gethostname()}\n" in told
        assert "passed step" in edriver(tmp_path, "logs", "--run", name).stdout
        assert edriver(tmp_path, "resize", "2", "--run", name).stdout.startswith(f"run {second}: ")
        mistyped = edriver(tmp_path, "stop", "--run", name.replace("second", "secnod"))
        assert f": did you mean {name}?" in mistyped.stderr
        run.process.send_signal(signal.SIGKILL)
        run.end()
    assert f"\nedriver-{second}.html\n" in edriver(tmp_path, "report", name).stdout
    assert f"run {name} has ended: edriver report {name} shows how" in edriver(tmp_path, "stack", "--run", name).stderr
    assert listed(tmp_path) == [[second, name, "lost"], [first, "-", "failed"]]
    (known,) = strict(edriver(tmp_path, "runs", "--json", "--tag", "lr=1").stdout)
    assert (known["run_id"], known["tags"], known["goodput"]) == (first, {"lr": "1"}, None)


@pytest.mark.needs(needs.GIT)
def test_the_commit_is_recorded(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        names = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", *names, *words], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=BOUND
        ).stdout.strip()

    git("init")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "one")
    commit = git("rev-parse", "HEAD")
    assert started_from(tmp_path) == {"commit": commit, "changed": False}
    (tmp_path / "file").write_text("2")
    assert started_from(tmp_path) == {"commit": commit, "changed": True}
    latest = strict(edriver(tmp_path, "runs", "--json").stdout)[0]
    assert latest["commit"] == commit
    assert f"{commit}, with changes\n" in edriver(tmp_path, "report", latest["run_id"]).stdout


def started_from(folder: Path) -> object:
    """What the records of a run that is started there say of its commit."""
    run_id = edriver(folder, "-np", "1", "false").stderr.split(":")[1].split()[1]
    about = json.loads((folder / "state" / "edriver" / run_id / "run.json").read_text())
    origin = about["origin"]
    assert (origin["host"], origin["directory"]) == (socket.gethostname(), str(folder))
    assert {"commit": origin["commit"], "changed": origin["changed"]} == about["git"]
    return about["git"]
