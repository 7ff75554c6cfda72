"""Where in the user's script something was called, for messages that name the place."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

PACKAGE_ROOT: Final = str(Path(__file__).parents[2])
"""Where edriver's own files are."""


def calling_location() -> str:
    """The innermost line of the calling thread's stack that is not edriver's own: FILE:LINE."""
    frame = inspect.currentframe()
    assert frame is not None, "CPython has frames"
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE_ROOT):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def nested_run(function: Callable[..., Any]) -> RuntimeError:
    """The error of a script that enters `edriver.run` while it is in one."""
    name = getattr(function, "__qualname__", function)
    return RuntimeError(
        f"edriver.run was entered again, with {name} at {calling_location()}, inside a "
        "function that it runs: a process is in one round at a time. Call the inner function without edriver.run"
    )
