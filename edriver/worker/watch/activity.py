"""What a training thread does, as its Python frames and the kernel tell it."""

from __future__ import annotations

import os
import sysconfig
from functools import cache
from pathlib import Path, PurePath
from types import FrameType
from typing import Final

from edriver.v1 import pace_pb2
from edriver.worker.backend.interpreter import callers
from edriver.worker.backend.torch_code import loads_data
from edriver.worker.watch.script_location import PACKAGE_ROOT
from edriver.worker.watch.stuck import file_waits_for_peers

MAX_FRAMES: Final = 60
"""Frames that are looked at, the innermost."""

MAX_PLACE_LENGTH: Final = 200
"""Characters of a place in the script."""

_OUR_LOADERS: Final = ("/worker/sampler/", "/integrations/datasets.py")
"""Files of edriver in which data is read."""

_LIBRARIES: Final = (*(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")), "<")
_PACKAGES: Final = ("site-packages", "dist-packages")

_waits_for_peers = cache(file_waits_for_peers)


@cache
def _loads_data(filename: str) -> bool:
    return loads_data(filename) or (
        filename.startswith(PACKAGE_ROOT) and any(part in filename for part in _OUR_LOADERS)
    )


@cache
def _is_script(filename: str) -> bool:
    """Whether a file is the user's: none of Python's, of an installed package's or of edriver's."""
    if filename.startswith((*_LIBRARIES, f"{PACKAGE_ROOT}{os.sep}")):
        return False
    return set(_PACKAGES).isdisjoint(PurePath(filename).parts)


def activity_of(frame: FrameType, asleep: bool) -> pace_pb2.WorkerActivity.ValueType:
    """What a thread does.

    Args:
        frame: its innermost Python frame.
        asleep: whether the thread sleeps (proc(5): S). One that computes in a collective's function does not wait: in
            the backward pass both happen there.
    """
    if asleep and _waits_for_peers(frame.f_code.co_filename):
        return pace_pb2.WORKER_ACTIVITY_WAITING
    if any(_loads_data(at.f_code.co_filename) for at in callers(frame, MAX_FRAMES)):
        return pace_pb2.WORKER_ACTIVITY_LOADING
    return pace_pb2.WORKER_ACTIVITY_COMPUTING


def may_wait(frame: FrameType) -> bool:
    """Whether it waits for other members if it is asleep."""
    return _waits_for_peers(frame.f_code.co_filename)


def place_of(frame: FrameType) -> str:
    """The innermost line of the user's script, as FILE:LINE (FUNCTION); empty if the stack has no such line."""
    for at in callers(frame):
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
