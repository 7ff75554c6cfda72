"""Which mode a command's script is for: read from its command line and its source, never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from edriver.driver.core.mode import Mode
from edriver.driver.training_script import PythonCommand, mode_of


@pytest.mark.parametrize(
    ("command", "found"),
    [
        pytest.param("python train.py --lr 3", (("python",), False, "train.py", ("--lr", "3")), id="script"),
        pytest.param("/opt/bin/python3.12 -u a.py", (("/opt/bin/python3.12", "-u"), False, "a.py", ()), id="flag"),
        pytest.param(
            "python -W error -X dev a.py", (("python", *["-W", "error", "-X", "dev"]), False, "a.py", ()), id="W"
        ),
        pytest.param("python -Werror a.py", (("python", "-Werror"), False, "a.py", ()), id="value-in-one-word"),
        pytest.param("python -m pkg.train -m x", (("python",), True, "pkg.train", ("-m", "x")), id="module"),
        pytest.param("python -um pkg.train", (("python", "-u"), True, "pkg.train", ()), id="module-in-a-cluster"),
        pytest.param("python -mpkg.train 1", (("python",), True, "pkg.train", ("1",)), id="module-in-one-word"),
        pytest.param("python -c print()", None, id="code"),
        pytest.param("python", None, id="nothing"),
        pytest.param("python -m", None, id="no-module"),
        pytest.param("python -", None, id="standard-input"),
        pytest.param("bash train.sh", None, id="another-program"),
        pytest.param("pythonic train.py", None, id="another-name"),
    ],
)
def test_a_command_is_taken_apart(command: str, found: tuple[object, ...] | None) -> None:
    taken = PythonCommand.of(command.split())
    assert (None if taken is None else (taken.interpreter, taken.module, taken.script, taken.arguments)) == found


@pytest.mark.parametrize(
    ("command", "worker"),
    [
        ("python -u train.py --lr 3", "python -u -m edriver.worker.restart train.py --lr 3"),
        ("python -m pkg.train 1", "python -m edriver.worker.restart -m pkg.train 1"),
    ],
)
def test_a_worker_in_restart_mode_runs_the_script_itself(command: str, worker: str) -> None:
    taken = PythonCommand.of(command.split())
    assert taken is not None
    assert " ".join(taken.in_restart_mode()) == worker


@pytest.mark.parametrize(
    ("source", "mode"),
    [
        pytest.param("import torch\n", Mode.RESTART, id="plain"),
        pytest.param("import edriver\n@edriver.run\ndef train(state): ...\n", Mode.ELASTIC, id="run"),
        pytest.param("def f():\n    from edriver import run, TorchState\n", Mode.ELASTIC, id="inside-a-function"),
        pytest.param("import edriver as e\ne.run(f)\n", Mode.ELASTIC, id="under-another-name"),
        pytest.param("import edriver.horovod as hvd\n", Mode.ELASTIC, id="a-module-of-it"),
        pytest.param("import edriver\ng(edriver)\n", Mode.ELASTIC, id="used-in-a-way-that-cannot-be-seen"),
        pytest.param("import edriver\nif edriver.checkpoint_requested(): ...\n", Mode.RESTART, id="checkpoint"),
        pytest.param("from edriver import checkpoint_requested\n", Mode.RESTART, id="checkpoint-by-name"),
        pytest.param("import helper\n", Mode.ELASTIC, id="through-a-module-beside-it"),
        pytest.param("from pkg import inner\n", Mode.ELASTIC, id="through-a-package-beside-it"),
        pytest.param("from . import inner, other\nimport plain\n", Mode.RESTART, id="beside-it-and-plain"),
        pytest.param("# import edriver\n'''import edriver'''\n", Mode.RESTART, id="in-a-comment"),
        pytest.param("def broken(:\n", Mode.ELASTIC, id="not-python"),
    ],
)
def test_a_script_that_uses_rounds_is_elastic(tmp_path: Path, source: str, mode: Mode) -> None:
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "helper.py").write_text("import edriver\nedriver.run\n")
    (tmp_path / "plain.py").write_text("import train\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "inner.py").write_text("import helper\n")
    assert mode_of(PythonCommand.of(["python", "train.py"]), tmp_path).mode is mode


def test_modules_are_found_where_the_command_runs(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__main__.py").write_text("import torch\n")
    (package / "train.py").write_text("import edriver\nedriver.run\n")
    assert mode_of(PythonCommand.of(["python", "-m", "pkg"]), tmp_path).mode is Mode.RESTART
    assert mode_of(PythonCommand.of(["python", "-m", "pkg.train"]), tmp_path).mode is Mode.ELASTIC
    assert mode_of(PythonCommand.of(["python", "-m", "installed"]), tmp_path).mode is Mode.ELASTIC
    elsewhere = tmp_path / "elsewhere"
    assert mode_of(PythonCommand.of(["python", "-m", "pkg"]), elsewhere).mode is Mode.ELASTIC
    assert mode_of(PythonCommand.of(["python", "-m", "pkg"]), elsewhere, [tmp_path]).mode is Mode.RESTART


def test_what_is_no_python_stays_elastic(tmp_path: Path) -> None:
    assert mode_of(None, tmp_path).mode is Mode.ELASTIC
