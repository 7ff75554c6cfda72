"""`import edriver`: every public name resolves, is documented, and is known to type checkers."""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import edriver

ROOT = Path(edriver.__file__).parent
NAMES = [name for name in edriver.__all__ if name != "__version__"]
SUBMODULES = {"checkpoints", "client", "horovod", "integrations", "keras", "ray"}


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_resolves_and_is_documented(name: str) -> None:
    thing = getattr(edriver, name)
    assert thing.__name__ == name
    assert thing.__module__.split(".")[0] == "edriver"
    assert vars(thing)["__doc__"] if inspect.isclass(thing) else thing.__doc__, f"{name} has no text of its own"


@pytest.mark.parametrize("name", [name for name in NAMES if inspect.isclass(getattr(edriver, name))])
def test_public_methods_are_documented(name: str) -> None:
    thing = getattr(edriver, name)
    public = {key: value for key, value in inspect.getmembers(thing, inspect.isroutine) if not key.startswith("_")}
    silent = [key for key, value in public.items() if not inspect.getdoc(value)]
    assert not silent


def test_type_checkers_see_the_names_that_users_do() -> None:
    tree = ast.parse(Path(edriver.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    modules = {name: f"edriver.{module}" for name, module in edriver._MODULES.items()}
    assert seen == {**modules, **dict.fromkeys(SUBMODULES, "edriver")}


def test_dir_shows_what_is_public_and_nothing_else() -> None:
    """In a process that has imported the inside, too, and before any public name is used."""
    program = "import edriver.driver.run.session, edriver, sys; print(*dir(edriver)); sys.exit('torch' in sys.modules)"
    listed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert set(listed.stdout.split()) == {*edriver.__all__, *SUBMODULES}


def test_the_reference_has_every_public_name() -> None:
    page = (ROOT.parent / "docs" / "reference" / "python.md").read_text()
    shown = re.findall(r"^::: edriver\.(\w+)", page, re.MULTILINE)
    assert {*shown, "__version__"} == {*dir(edriver)}


@pytest.mark.parametrize("name", sorted(SUBMODULES - {"keras"}))
def test_a_submodule_is_imported_when_it_is_first_used(name: str) -> None:
    program = f"import edriver, sys; assert 'edriver.{name}' not in sys.modules; print(edriver.{name}.__name__)"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert printed.stdout == f"edriver.{name}\n"


@pytest.mark.skipif(importlib.util.find_spec("keras") is not None, reason="Keras is installed")
def test_a_submodule_whose_library_is_missing_says_so_and_does_not_stop_those_who_list_all() -> None:
    assert "keras" in dir(edriver)
    with pytest.raises(AttributeError, match=r"edriver\.keras cannot be imported: .*pip install keras"):
        _ = edriver.keras
    assert dict(inspect.getmembers(edriver)).keys() == {*dir(edriver)} - {"keras"}
    with pytest.raises(ImportError, match="pip install keras"):
        importlib.import_module("edriver.keras")


ERRORS = {
    "edriver": [
        "CheckpointError", "HostsUpdatedInterrupt", "LaunchError", "ParcelError", "PeerLostError",
        "SwallowedInterruptError",
    ],
    "edriver.client": ["RunError"],
    "edriver.horovod": ["HorovodInternalError", "HostsUpdatedInterrupt", "MismatchError"],
    "edriver.horovod.elastic": ["HorovodInternalError", "HostsUpdatedInterrupt"],
    "edriver.ray": ["LaunchError"],
}  # fmt: skip


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in ERRORS.items() for name in names])
def test_an_error_that_users_catch_is_public_and_its_traceback_names_where(module: str, name: str) -> None:
    error = getattr(importlib.import_module(module), name)
    public = importlib.import_module(error.__module__)
    assert error.__module__ in ERRORS
    assert getattr(public, error.__name__) is error


@pytest.mark.parametrize("name", NAMES)
def test_each_error_that_a_public_docstring_promises_is_public(name: str) -> None:
    thing = getattr(edriver, name)
    documented = [thing, *(value for key, value in inspect.getmembers(thing, inspect.isroutine) if key[0] != "_")]
    promised = {
        error
        for each in (documented if inspect.isclass(thing) else [thing])
        for error in re.findall(r"^ +(\w+(?:Error|Interrupt)):", inspect.getdoc(each) or "", re.MULTILINE)
    }
    assert promised - {*dir(builtins)} <= {*ERRORS["edriver"]}


def test_there_is_a_version() -> None:
    assert edriver.__version__.count(".") == 2
    assert "__version__" in edriver.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'edriver' has no attribute 'Trainer'"):
        _ = edriver.Trainer
