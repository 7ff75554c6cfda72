"""Constants of edriver, read from the source: torch, which the worker's modules import, takes seconds."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]


class UnknownConstantError(Exception):
    """There is no such constant; the message names it."""


class Constant(NamedTuple):
    """A module's constant.

    Attributes:
        value: what it is.
        words: its docstring; empty: it has none.
    """

    value: Any
    words: str


def constant(name: str) -> Constant:
    """A constant by its full name, as edriver.model.limits.MAX_HOST_SLOTS; a class's default; or an item of a mapping.

    Raises:
        UnknownConstantError: there is none of that name.
    """
    module, _, short = name.rpartition(".")
    if (found := constants(module).get(short)) is not None:
        return found
    module, _, whole = module.rpartition(".")
    known = constants(module)
    if (found := known.get(f"{whole}.{short}")) is not None:
        return found
    if whole in known and short in known[whole].value:
        return Constant(known[whole].value[short], known[whole].words)
    raise UnknownConstantError(f"{name}: there is no such constant")


@cache
def constants(module: str) -> dict[str, Constant]:
    """The constants of a module by their names, in order, those of its classes as Class.name.

    Of a worker's module these are the literals alone.
    """
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    if not module.startswith("edriver.") or not path.exists():
        return {}
    tree = ast.parse(path.read_text())
    found = _of_body(tree.body, module)
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef):
            inside = _of_body(statement.body, None)
            found |= {f"{statement.name}.{name}": each for name, each in inside.items()}
    return found


def _of_body(body: list[ast.stmt], module: str | None) -> dict[str, Constant]:
    """The constants of a module or a class. Those that are no literals are there if the module may be imported."""
    found = {}
    for statement, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        words = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            words = " ".join(str(after.value.value).split())
        try:
            found[name] = Constant(ast.literal_eval(value), words)
        except ValueError:
            if module is not None and not module.startswith("edriver.worker."):
                found[name] = Constant(getattr(importlib.import_module(module), name), words)
    return found
