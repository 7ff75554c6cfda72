"""scripts/venv.sh, with interpreters that pretend."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "venv.sh"

OLD = """#!/bin/sh
case $1 in
    --version) echo Python 3.10.13 ;;
    *) exit 1 ;;
esac
"""

NEW = """#!/bin/sh
case "$*" in
    "-m venv "*) mkdir -p .venv/bin; cp "$0" .venv/bin/python; echo made ;;
    "-m pip --version") [ -e .venv/pip ] ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """With the script, in a folder with a space, and both interpreters."""
    folder = tmp_path / "a checkout"
    (folder / "scripts").mkdir(parents=True)
    shutil.copy(SCRIPT, folder / "scripts")
    for name, source in (("old", OLD), ("new", NEW)):
        (folder / name).write_text(source)
        (folder / name).chmod(0o755)
    return folder


def make(checkout: Path, python: str) -> subprocess.CompletedProcess[str]:
    command = [checkout / "scripts" / "venv.sh"]
    return subprocess.run(command, env={"PATH": "/usr/bin:/bin", "PYTHON": python}, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("python", "what"), [("./old", "is Python 3.10.13"), ("./away", "is not here")], ids=["too-old", "away"]
)
def test_an_interpreter_that_will_not_do_is_refused_with_the_way_out(checkout: Path, python: str, what: str) -> None:
    done = make(checkout, python)
    assert done.returncode == 1
    assert done.stderr == (
        f"edriver needs Python 3.11 or newer, and {python} {what}: name another, as in  make test PYTHON=python3.12\n"
    )
    assert not (checkout / ".venv").exists()


def test_one_that_works_stays_and_one_that_does_not_is_made_anew(checkout: Path) -> None:
    """It works once there is a pip in it: where that failed, the next command goes on from there."""
    assert make(checkout, "./new").stdout == "made\n"
    assert make(checkout, "./new").stdout == "made\n"
    (checkout / ".venv" / "pip").touch()
    assert make(checkout, "./new").stdout == ""
    assert make(checkout, "./old").stdout == ""
    shutil.copy(checkout / "old", checkout / ".venv" / "bin" / "python")
    assert make(checkout, "./new").stdout == "made\n"
