"""Which mode a command's script is for: read from its command line and its source, never run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edriver.driver.config.training_script import PythonCommand, mode_of
from edriver.model.mode import Mode


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
        pytest.param("env A=1 python a.py", (("env", "A=1", "python"), False, "a.py", ()), id="env"),
        pytest.param(
            "nice -n 5 taskset -c 0 python3 -u a.py 1",
            (("nice", "-n", "5", "taskset", "-c", "0", "python3", "-u"), False, "a.py", ("1",)),
            id="programs-in-a-row",
        ),
        pytest.param("./wrap.sh python -m pkg", (("./wrap.sh", "python"), True, "pkg", ()), id="wrapper"),
        pytest.param(
            "conda run -n python python a.py",
            (("conda", "run", "-n", "python", "python"), False, "a.py", ()),
            id="conda",
        ),
        pytest.param("uv run python a.py", (("uv", "run", "python"), False, "a.py", ()), id="uv-python"),
        pytest.param("env python", None, id="nothing-behind-another-program"),
        pytest.param("torchrun --nproc-per-node 2 a.py", None, id="another-launcher"),
        pytest.param("sh train.sh a.py", None, id="a-script-as-an-argument"),
    ],
)
def test_a_command_is_taken_apart(command: str, found: tuple[object, ...] | None) -> None:
    taken = PythonCommand.of(command.split())
    assert (None if taken is None else (taken.interpreter, taken.module, taken.script, taken.arguments)) == found


@pytest.mark.parametrize(
    ("command", "worker"),
    [
        ("env A=1 python train.py", "env A=1 python -m edriver.worker.restart train.py"),
        ("./train.py 1", "python3 -u -m edriver.worker.restart ./train.py 1"),
        ("nice ./train.py", "nice python3 -u -m edriver.worker.restart ./train.py"),
        ("uv run train.py", "uv run python -m edriver.worker.restart train.py"),
        ("long-path", "{folder}/a b/python3 -m edriver.worker.restart {folder}/long-path"),
        ("python -u train.py --lr 3", "python -u -m edriver.worker.restart train.py --lr 3"),
        ("python -m pkg.train 1", "python -m edriver.worker.restart -m pkg.train 1"),
    ],
)
def test_a_worker_in_restart_mode_and_a_standby_run_the_script_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, worker: str
) -> None:
    write_program(tmp_path / "train.py", "#!/usr/bin/env -S python3 -u\nimport torch\n")
    write_program(
        tmp_path / "long-path", f"#!/bin/sh\n'''exec' \"{tmp_path}/a b/python3\" \"$0\" \"$@\"\n' '''\nimport torch\n"
    )
    (tmp_path / "a b").mkdir()
    write_program(tmp_path / "a b" / "python3", "")
    write_program(tmp_path / "python3", "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    taken = PythonCommand.of(command.split())
    assert taken is not None
    assert " ".join(taken.in_restart_mode()) == worker.format(folder=tmp_path)
    standby = worker.replace("edriver.worker.restart", "edriver.worker.elastic_standby")
    assert " ".join(taken.as_standby()) == standby.format(folder=tmp_path)


def test_what_has_an_environment_of_its_own_or_is_no_python_is_not_run_by_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text("# /// script\n# dependencies = ['torch']\n# ///\n")
    write_program(tmp_path / "train.sh", "#!/bin/sh\npython own.py\n")
    write_program(tmp_path / "binary", "\x7fELF")
    monkeypatch.chdir(tmp_path)
    for command in ("env A=1 torchrun own.py", "uv run own.py", "./train.sh", "./binary", "nice ./train.sh"):
        assert PythonCommand.of(command.split()) is None, command


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


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
        pytest.param(
            "import edriver\nfrom edriver.checkpoints import Checkpoints\n", Mode.RESTART, id="checkpoints-by-name"
        ),
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
    assert mode_of(["python", "train.py"], tmp_path).mode is mode


def test_modules_are_found_where_the_command_runs(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__main__.py").write_text("import torch\n")
    (package / "train.py").write_text("import edriver\nedriver.run\n")
    assert mode_of(["python", "-m", "pkg"], tmp_path).mode is Mode.RESTART
    assert mode_of(["python", "-m", "pkg.train"], tmp_path).mode is Mode.ELASTIC
    assert mode_of(["python", "-m", "installed"], tmp_path).mode is Mode.ELASTIC
    elsewhere = tmp_path / "elsewhere"
    assert mode_of(["python", "-m", "pkg"], elsewhere).mode is Mode.ELASTIC
    assert mode_of(["python", "-m", "pkg"], elsewhere, [tmp_path]).mode is Mode.RESTART


@pytest.mark.parametrize(
    ("inner", "editable", "mode", "reason"),
    [
        pytest.param("import torch\n", False, Mode.RESTART, "train does not call edriver.run", id="plain"),
        pytest.param("import edriver\nedriver.run\n", False, Mode.ELASTIC, "inner.py uses edriver", id="run"),
        pytest.param("import edriver\nedriver.run\n", True, Mode.ELASTIC, "inner.py uses edriver", id="editable"),
        pytest.param(None, False, Mode.ELASTIC, "the source of what train imports was not found here", id="not-found"),
    ],
)
def test_a_console_script_is_read_where_its_package_is_installed(
    tmp_path: Path, inner: str | None, editable: bool, mode: Mode, reason: str
) -> None:
    installed = tmp_path / "venv" / "lib" / "python3.12" / "site-packages"
    package = (tmp_path / "project" if editable else installed) / "pkg"
    installed.mkdir(parents=True)
    (tmp_path / "venv" / "bin").mkdir()
    if editable:
        (installed / "pkg.pth").write_text(f"import something\n{tmp_path / 'project'}\n")
    script = tmp_path / "venv" / "bin" / "train"
    write_program(script, "#!/usr/bin/python3\nimport sys\nfrom pkg.cli import main\nsys.exit(main())\n")
    if inner is not None:
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "cli.py").write_text("from pkg.inner import main\n")
        (package / "inner.py").write_text(inner)
    choice = mode_of([str(script), "--lr", "3"], tmp_path)
    assert (choice.mode, choice.reason.partition(";")[0]) == (mode, reason)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (
            "sh train.sh",
            "a Python script whose source could be read; a script that never calls edriver.run needs --mode restart",
        ),
        ("python away.py", "the source of away.py was not found here; .* needs --mode restart"),
        ("torchrun train.py", "torchrun starts processes itself: put edriver in its place"),
    ],
)
def test_where_no_source_can_be_read_the_way_out_is_said(tmp_path: Path, command: str, reason: str) -> None:
    choice = mode_of(command.split(), tmp_path)
    assert choice.mode is Mode.ELASTIC
    assert re.search(reason, str(choice))
