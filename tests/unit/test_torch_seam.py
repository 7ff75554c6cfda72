"""What torch, CPython or grpc do not promise is used in edriver/worker/backend, and nowhere else beside a job."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import edriver

ROOT = Path(edriver.__file__).parent
ROOMS = ("worker", "agent", "system")
SEAM = ROOT / "worker" / "backend"
FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py") if SEAM not in path.parents)

PROMISED: Final = {"_exit", "_asdict", "_fields", "_replace", "_SSLMethod"}
"""Names that begin like private ones and are documented (os._exit, a named tuple's), or that only types use."""

UNDOCUMENTED: Final = {"get_preparation_data", "is_lazy"}
"""Names that do not begin like private ones, of which multiprocessing's and torch's documentation says nothing."""

OF_BASE_CLASSES: Final = {
    "_begun",
    "_capture",
    "_check",
    "_exposed",
    "_from_rank_0",
    "_give_up_ready",
    "_handlers",
    "_hold",
    "_load",
    "_looked_around",
    "_names",
    "_optimizer_remedy",
    "_outdated",
    "_parameters",
    "_random",
    "_rehearses",
    "_rounds",
    "_saved_modes",
    "_saved_random",
    "_schedule",
    "_side",
    "_steps",
    "_take_from_rank_0",
    "_too_large",
}
"""Of states, for the classes derived from them."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_private_of_others_is_used(path: Path) -> None:
    assert list(foreign(path.read_text())) == []


@pytest.mark.parametrize(
    "line",
    [
        "from torch._C import _distributed_c10d",
        "import torch._dynamo",
        "from torch.distributed.distributed_c10d import _world",
        "x = c10d._world.pg_map",
        "x = sys._current_frames()",
        "x = getattr(threading, '_shutdown')",
        "x = attrgetter('_version')",
        "import_module('torch._dynamo')",
        "x = Path('/proc/self/fdinfo')",
        "multiprocessing.spawn.get_preparation_data = checked",
        "from torch.nn.parameter import is_lazy",
    ],
)
def test_what_is_private_is_found(line: str) -> None:
    assert len(list(foreign(line))) == 1


def foreign(source: str) -> Iterator[str]:
    """The private names in a file that are not its own."""
    tree = ast.parse(source)
    own = PROMISED | OF_BASE_CLASSES | set(_own(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if _is_private(name) and name not in own:
                yield f"line {node.lineno}: {ast.unparse(node)}"
            case ast.Import(names=names) if any("._" in name.name for name in names):
                yield f"line {node.lineno}: {ast.unparse(node)}"
            case ast.ImportFrom(module=module, names=names) if "._" in f"{module}" or any(
                _is_private(name.name) for name in names
            ):
                yield f"line {node.lineno}: {ast.unparse(node)}"
            case ast.Call(args=args):
                for text in [a.value for a in args if isinstance(a, ast.Constant) and isinstance(a.value, str)]:
                    if (_is_private(text) and text not in own) or text.startswith("torch._") or "/fdinfo" in text:
                        yield f"line {node.lineno}: {ast.unparse(node)}"


def _own(tree: ast.AST) -> Iterator[str]:
    """What a file defines itself: functions, classes, variables, and attributes that it sets."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name(id="self" | "cls" | "lock")):
                yield name


def _is_private(name: str) -> bool:
    begins = name != "_" and name.startswith("_") and not name.startswith("__") and name.isidentifier()
    return begins or name in UNDOCUMENTED
