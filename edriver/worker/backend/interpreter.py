"""CPython: where threads stand, whether the interpreter is ending, objects that are never destroyed.

Checked with CPython 3.11 to 3.13. Does not import torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

_SHUTDOWN_FUNCTION: Final = "_shutdown"


def frames() -> dict[int, FrameType]:
    """The innermost frame of each thread, by the thread's ident.

    Interface: sys._current_frames, which CPython documents for specialized purposes and others need not have.
    Without it nothing is here: no worker reports itself as stuck, blocked or stalled, and reports have no stacks. Then
    collectives that hang end with the group's own timeout.
    """
    current = getattr(sys, "_current_frames", None)
    found: dict[int, FrameType] = {} if current is None else current()
    return found


def waits_for_threads(frame: FrameType) -> bool:
    """Whether the main thread, whose innermost frame this is, does nothing any more but wait for others to end.

    Interface: that its outermost frame is then threading._shutdown. Under another name this is always False: what keeps
    a process from ending is no longer named in the worker's output. Nothing else follows.
    """
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name == _SHUTDOWN_FUNCTION and frame.f_code.co_filename == threading.__file__


def ends_as_known() -> bool:
    """Whether threading has the function that `waits_for_threads` looks for."""
    return callable(getattr(threading, _SHUTDOWN_FUNCTION, None))


def never_destroy(kept: object) -> None:
    """Have an object outlive the interpreter: its destructor never runs.

    Interface: Py_IncRef of the C API, by ctypes; that an object with a reference too many is never destroyed is how
    CPython works. Elsewhere a forked child that ends by sys.exit would cut connections that it shares with its parent.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Pause the garbage collector.

    Thousands of new objects, none of them garbage, would make it look through all of torch again and again, 0.2 s each
    time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
