"""Where in the user's script something was called, for messages that name the place."""

from __future__ import annotations

import inspect
import os
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path, PurePath
from types import FrameType
from typing import Any, Final

from edriver.worker.backend.interpreter import callers

PACKAGE_ROOT: Final = str(Path(__file__).parents[2])
"""Where edriver's own files are."""

MAX_PLACE_LENGTH: Final = 200
"""Characters of a place in the script."""

_LIBRARIES: Final = (*(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")), "<")
_PACKAGES: Final = ("site-packages", "dist-packages")


@cache
def _is_script(filename: str) -> bool:
    """Whether a file is the user's: none of Python's, of an installed package's or of edriver's."""
    if filename.startswith((*_LIBRARIES, f"{PACKAGE_ROOT}{os.sep}")):
        return False
    return set(_PACKAGES).isdisjoint(PurePath(filename).parts)


def place_of(frame: FrameType | None) -> str:
    """The innermost line of the user's script, as FILE:LINE (FUNCTION); empty if the stack has no such line."""
    for at in callers(frame) if frame is not None else ():
        code = at.f_code
        if _is_script(code.co_filename):
            return f"{Path(code.co_filename).name}:{at.f_lineno} ({code.co_name})"[:MAX_PLACE_LENGTH]
    return ""


def script_line(error: BaseException) -> str:
    """The innermost line of the user's script in an exception's traceback, in its form; empty if none is there.

    Nothing is read from a file for it: the others wait for this worker.
    """
    found, at = "", error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        if _is_script(code.co_filename):
            found = f'  File "{code.co_filename}", line {at.tb_lineno}, in {code.co_name}'
        at = at.tb_next
    return found


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
