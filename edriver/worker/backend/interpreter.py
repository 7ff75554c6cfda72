"""CPython: stacks of threads, whether the interpreter is ending, objects that are never destroyed, new processes.

Checked with CPython 3.11 to 3.13. Does not import torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import multiprocessing.spawn
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

_SHUTDOWN_FUNCTION: Final = "_shutdown"

_PREPARING_FUNCTION: Final = "get_preparation_data"


def frames() -> dict[int, FrameType]:
    """The innermost frame of each thread but the calling one, by the thread's ident.

    The caller's frame refers to the result, so including it would create a reference cycle, which would keep the
    training thread's variables alive until the next garbage collection. Among them is the DistributedDataParallel of
    an ended round, which would continue to reduce gradients in the next round's backward passes, over connections that
    are cut.

    Interface: sys._current_frames, which CPython documents for specialized purposes and other interpreters may lack.
    Without it the result is empty: no worker reports itself as stuck, blocked or stalled, reports have no stacks, and
    collectives that hang end with the group's timeout.
    """
    current = getattr(sys, "_current_frames", None)
    if current is None:
        return {}
    with without_collections():  # CPython pauses them itself from 3.11.5 on
        found: dict[int, FrameType] = current()
        found.pop(threading.get_ident(), None)
        return found


def knows_frames() -> bool:
    """Whether the interpreter has the function that `frames` calls."""
    return callable(getattr(sys, "_current_frames", None))


def callers(frame: FrameType, limit: int | None = None) -> list[FrameType]:
    """A frame and those that it was called from, the innermost first.

    Args:
        frame: of any thread.
        limit: of frames.

    Only so may the stack of another thread be walked. Until CPython 3.12, f_back may start a garbage collection, and
    a finalizer may let the other thread continue. It leaves the function whose frame f_back is about to describe, and
    f_back describes, and writes to, memory that another function uses by then.
    """
    with without_collections():
        found: list[FrameType] = []
        at: FrameType | None = frame
        while at is not None and (limit is None or len(found) < limit):
            found.append(at)
            at = at.f_back
        return found


def format_stack(frame: FrameType) -> str:
    """The lines that traceback.format_stack has of a frame, of any thread."""
    outermost_first = reversed(callers(frame))
    return "".join(traceback.StackSummary.extract((at, at.f_lineno) for at in outermost_first).format())


def waits_for_threads(frame: FrameType) -> bool:
    """Whether the main thread, whose innermost frame this is, only waits for other threads to end.

    Interface: that its outermost frame is then threading._shutdown. If CPython renames it, this is always False, and
    the worker's output no longer names what keeps a process from ending. There is no other effect.
    """
    code = callers(frame)[-1].f_code
    return code.co_name == _SHUTDOWN_FUNCTION and code.co_filename == threading.__file__


def ends_as_known() -> bool:
    """Whether threading has the function that `waits_for_threads` looks for."""
    return callable(getattr(threading, _SHUTDOWN_FUNCTION, None))


def never_destroy(kept: object) -> None:
    """Have an object outlive the interpreter: its destructor never runs.

    Interface: Py_IncRef of the C API, by ctypes; that an object with a reference too many is never destroyed is how
    CPython works. Elsewhere a forked child that ends by sys.exit would cut connections that it shares with its parent.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def before_new_process(check: Callable[[], object]) -> None:
    """Call this whenever multiprocessing is about to start a process by spawn or forkserver; what it raises comes out.

    Interface: multiprocessing.spawn.get_preparation_data, which both start methods call in the process that starts
    another. Without it nothing is called.
    """
    prepare = getattr(multiprocessing.spawn, _PREPARING_FUNCTION, None)
    if prepare is None:
        return

    def checked(name: str) -> dict[str, Any]:
        check()
        found: dict[str, Any] = prepare(name)
        return found

    setattr(multiprocessing.spawn, _PREPARING_FUNCTION, checked)


def prepares_as_known() -> bool:
    """Whether both start methods call the function that `before_new_process` replaces."""
    if not callable(getattr(multiprocessing.spawn, _PREPARING_FUNCTION, None)):
        return False
    starters = [importlib.import_module(f"multiprocessing.popen_{way}") for way in ("spawn_posix", "forkserver")]
    return all(_PREPARING_FUNCTION in starter.Popen._launch.__code__.co_names for starter in starters)


class _Collections:
    """Pauses of the garbage collector, which may overlap."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pauses = 0
        self._were_enabled = False
        os.register_at_fork(after_in_child=self._resume_in_child)

    def pause(self) -> None:
        with self._lock:
            if not self._pauses:
                self._were_enabled = gc.isenabled()
                gc.disable()
            self._pauses += 1

    def resume(self) -> None:
        with self._lock:
            if not self._pauses:
                return  # a child, forked in the pause
            self._pauses -= 1
            if not self._pauses and self._were_enabled:
                gc.enable()

    def _resume_in_child(self) -> None:
        """Another thread may have paused them, and a child has no such thread: a data loader would fill the memory."""
        self._lock = threading.RLock()
        if self._pauses:
            self._pauses = 0
            if self._were_enabled:
                gc.enable()


_collections: Final = _Collections()


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Pause the garbage collector, in all threads.

    Where thousands of new objects are made, none of them garbage, it would look through all of torch again and again,
    0.2 s each time.
    """
    _collections.pause()
    try:
        yield
    finally:
        _collections.resume()
