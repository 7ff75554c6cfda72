"""Running a script as the interpreter would: its arguments, its folder on the path, its traceback without ours."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Final

_OUR_FILES: Final = (os.path.dirname(__file__) + os.sep, "<frozen runpy>")  # noqa: PTH120  frames have text


def run_script(words: Sequence[str]) -> None:
    """Run a script in this thread; what it raises, SystemExit included, is the caller's.

    Args:
        words: the script's file and its arguments; or `-m`, a module's name and its arguments.
    """
    if words[0] == "-m":
        name = words[1]
        sys.argv[:] = words[1:]
        _be_first_on_path(os.getcwd())  # noqa: PTH109
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = words
        _be_first_on_path(os.path.dirname(os.path.realpath(words[0])))  # noqa: PTH120
        runpy.run_path(words[0], run_name="__main__")


def own_traceback(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback from the script's first frame on; unchanged if it has no frame of the script."""
    frame = traceback
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_OUR_FILES):
        frame = frame.tb_next
    return frame or traceback


def _be_first_on_path(folder: str) -> None:
    if not sys.flags.safe_path:  # with it, the interpreter does not add the script's folder
        sys.path[0] = folder
