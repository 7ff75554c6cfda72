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
    """A constant by its full name, as edriver.common.limits.SLOTS, or an item of one that is a mapping.

    Raises:
        UnknownConstantError: there is none of that name.
    """
    module, _, short = name.rpartition(".")
    found = constants(module).get(short)
    if found is None and module.rpartition(".")[2].isupper():
        whole = constant(module)
        if short in whole.value:
            return Constant(whole.value[short], whole.words)
    if found is None:
        raise UnknownConstantError(f"{name}: there is no such constant")
    return found


@cache
def constants(module: str) -> dict[str, Constant]:
    """The constants of a module by their names, in order; of a worker's module the literals alone."""
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    if not module.startswith("edriver.") or not path.exists():
        return {}
    body = ast.parse(path.read_text()).body
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
            if not module.startswith("edriver.worker."):
                found[name] = Constant(getattr(importlib.import_module(module), name), words)
    return found
