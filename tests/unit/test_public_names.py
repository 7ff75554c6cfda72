"""`import edriver`: every public name resolves, is documented, and is known to type checkers."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import edriver

NAMES = [name for name in edriver.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_resolves_and_is_documented(name: str) -> None:
    thing = getattr(edriver, name)
    assert thing.__name__ == name
    assert thing.__module__.startswith("edriver.")
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
    seen = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(NAMES)


def test_there_is_a_version() -> None:
    assert edriver.__version__.count(".") == 2
    assert "__version__" in edriver.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'edriver' has no attribute 'Trainer'"):
        _ = edriver.Trainer


def test_dir_lists_the_names_that_are_not_imported_yet() -> None:
    program = "import edriver, sys; print(*dir(edriver)); sys.exit('torch' in sys.modules)"
    listed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert set(NAMES) <= set(listed.stdout.split())
