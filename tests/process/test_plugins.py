"""Launchers and sources of hosts that another package brings: the one of the how-to, installed as pip would."""

from __future__ import annotations

import os
import re
import signal
import tomllib
from pathlib import Path

import pytest

from tests.process.dialling import TRAIN
from tests.process.running import ROOT, edriver, running

HOW_TO = (ROOT / "docs" / "how-to" / "add-a-launcher.md").read_text()

SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do echo "srun $1" >>"$SRUN_SAW"; shift; done
exec "$@"
"""
"""Runs the step here."""


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", HOW_TO, re.DOTALL)
    return str(found)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """What makes the package of the how-to an installed one, and puts stand-ins for Slurm on PATH."""
    site, programs = tmp_path / "site", tmp_path / "bin"
    info = site / "edriver_srun-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "edriver_srun.py").write_text(block("python"))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: edriver-srun\nVersion: 1.0\n")
    groups = tomllib.loads(block("toml"))["project"]["entry-points"]
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    programs.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/sh\necho node-a\necho node-b\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return {
        "PYTHONPATH": f"{site}{os.pathsep}{ROOT}",
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "SRUN_SAW": str(tmp_path / "saw"),
        "EPOCHS": "20000",
    }


def test_the_launcher_and_the_source_of_the_how_to_train(tmp_path: Path, environ: dict[str, str]) -> None:
    with running(["-np", "2", "--discovery", "allocation", "--launcher", "srun", *TRAIN], tmp_path, environ) as run:
        run.line("rank 1 passed step 5")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()
    saw = (tmp_path / "saw").read_text().splitlines()
    assert {"srun --nodelist=node-a", "srun --nodelist=node-b", "srun --overlap"} <= set(saw)


def test_the_launcher_of_the_how_to_reports_why_it_fails(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "bin" / "srun").unlink()
    line = ["-np", "1", "--start-timeout", "2", "--discovery", "allocation", "--launcher", "srun", *TRAIN]
    with running(line, tmp_path, environ) as run:
        run.line("there is no srun here: start edriver inside a Slurm allocation")
        assert run.end() == 1


def test_a_name_that_is_not_there_is_answered_with_those_that_are(environ: dict[str, str]) -> None:
    ended = edriver("-np", "1", "--launcher", "pbs", "true", environ=environ)
    assert ended.returncode == 2
    assert "--launcher: 'pbs' is not installed, only dial-in, local, slurm, srun, ssh" in ended.stderr


def test_the_local_launcher_starts_hosts_of_any_name_here(tmp_path: Path) -> None:
    line = ["-np", "2", "--discovery", "list=a,b", "--launcher", "local", *TRAIN]
    with running(line, tmp_path, {"EPOCHS": "20000"}) as run:
        run.line("rank 1 passed step 5")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()
