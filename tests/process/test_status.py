"""`edriver status`, here and from elsewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.process.running import ROOT, SCRIPTS, Run, running

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]


def asked(*words: str, temporary: str | None = None) -> subprocess.CompletedProcess[str]:
    """`edriver status`; from where temporary files are elsewhere, if one is given."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)} | ({"TMPDIR": temporary} if temporary else {})
    command = [sys.executable, "-m", "edriver", "status", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)


def id_of(run: Run) -> str:
    return run.line(r"^edriver: run (\w+):")[1]


def test_a_run_on_this_machine_says_how_it_stands(tmp_path: Path) -> None:
    with running(["-np", "2", *TRAIN], tmp_path, {"EPOCHS": "400"}) as run:
        run.line("rank 1 passed step 5")
        done = asked("--run", id_of(run))
        assert (done.returncode, done.stderr) == (0, "")
        first, *others = done.stdout.splitlines()
        assert first.startswith(f"run {id_of(run)}, ")
        assert first.endswith(": round 1.1: 2 workers on localhost")
        assert others == [
            "host localhost (2 slots) is used",
            "worker 1 (localhost:0, rank 0) training",
            "worker 2 (localhost:1, rank 1) training",
        ]
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        over = asked("--run", id_of(run))
        assert over.returncode == 1
        assert over.stderr.startswith("edriver: ")


def test_an_onlooker_elsewhere_may_look_and_do_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "status.json"
    args = ["-np", "1", "--status-credentials", str(file), *TRAIN]
    with running(args, tmp_path, {"EPOCHS": "400"}) as run:
        run.line("rank 0 passed step 5")
        assert file.stat().st_mode & 0o777 == 0o600
        port = json.loads(file.read_bytes())["drivers"][0].rpartition(":")[2]
        here = ["--credentials", str(file), "--driver", f"127.0.0.1:{port}"]
        done = asked(*here)
        assert (done.returncode, done.stderr) == (0, "")
        assert "worker 1 (localhost:0, rank 0) training" in done.stdout

        refused = subprocess.run(
            [sys.executable, "-m", "edriver", "agent", *here],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert refused.returncode != 0
        assert "this token is for another service of the run" in refused.stderr

        stolen = tmp_path / "wrong.json"
        stolen.write_text(json.dumps({**json.loads(file.read_bytes()), "token": "guess"}))
        wrong = asked("--credentials", str(stolen), *here[2:])
        assert wrong.returncode == 1
        assert wrong.stderr == f"edriver: run {id_of(run)}: this run's token is wanted\n"

        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert not file.exists()
        over = asked("--credentials", str(file))
        assert over.stderr == f"edriver: --credentials {file}: No such file or directory\n"


def test_files_that_are_no_credentials(tmp_path: Path) -> None:
    file = tmp_path / "status.json"
    file.write_text("[]")
    assert "not an invitation of edriver's driver" in asked("--credentials", str(file)).stderr
    assert "give the --credentials" in asked("--driver", "a:1").stderr


def test_where_there_is_no_run(tmp_path: Path) -> None:
    done = asked("--run", "0000")
    assert done.returncode == 1
    assert done.stderr.startswith("edriver: ")
