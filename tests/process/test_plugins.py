"""Launchers, sources of hosts and brokers that other packages bring: those of the how-to, installed as pip would."""

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


def block(language: str, package: int) -> str:
    """A block of the how-to: of the launcher's package, the first one, or of the broker's."""
    return str(re.findall(rf"```{language}\n(.*?)```", HOW_TO, re.DOTALL)[package])


def install(site: Path, package: int) -> None:
    groups = tomllib.loads(block("toml", package))["project"]["entry-points"]
    name = next(iter(next(iter(groups.values())).values())).partition(":")[0]
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{name}.py").write_text(block("python", package))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """What makes the packages of the how-to installed ones, and puts stand-ins for Slurm on PATH."""
    site, programs = tmp_path / "site", tmp_path / "bin"
    for package in range(2):
        install(site, package)
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
    environ["PATH"] = str(tmp_path / "bin")  # this machine may have Slurm
    line = ["-np", "1", "--start-timeout", "2", "--discovery", "allocation", "--launcher", "srun", *TRAIN]
    with running(line, tmp_path, environ) as run:
        run.line("srun was not found: start edriver inside a Slurm allocation")
        assert run.end() == 1


def test_a_name_that_is_not_there_is_answered_with_those_that_are(environ: dict[str, str]) -> None:
    ended = edriver("-np", "1", "--launcher", "pbs", "true", environ=environ)
    assert ended.returncode == 2
    assert "--launcher: 'pbs' is not installed, only dial-in, kubernetes, local, ray, slurm, srun, ssh" in ended.stderr


def test_the_broker_of_the_how_to_asks_for_hosts_and_gives_them_back(tmp_path: Path, environ: dict[str, str]) -> None:
    log = tmp_path / "jobs.log"
    dial_in = [
        "--hosts-dial-in",
        "--credentials",
        str(tmp_path / "run.json"),
        "--broker",
        f"farm={log}",
        "--idle-timeout",
        "0",
    ]
    with running(["-np", "1", "--max-np", "2", *dial_in, *TRAIN], tmp_path, environ) as run:
        run.line("rank 1 passed step 5")
        run_id = run.id
        assert edriver("resize", "--run", run_id, "1", environ=environ).returncode == 0
        run.line("removed farm-")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()
    lines = log.read_text().splitlines()
    assert lines[:2] == ["submitted farm-1", "submitted farm-2"]
    assert sorted(lines[2:]) == ["cancelled farm-1", "cancelled farm-2"], "it is asked for no more than the run can use"


def test_the_local_launcher_starts_hosts_of_any_name_here(tmp_path: Path) -> None:
    line = ["-np", "2", "--discovery", "list=a,b", "--launcher", "local", *TRAIN]
    with running(line, tmp_path, {"EPOCHS": "20000"}) as run:
        run.line("rank 1 passed step 5")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()
