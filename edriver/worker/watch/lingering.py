"""A process that does not end although its script has: the interpreter waits for threads that are no daemons."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Final

LINGERS_AFTER: Final = 4.0
"""Seconds that threads may take to end once the script has, before they are named."""


class EndWatch:
    """Looks at a process again and again, and names once what keeps it from ending.

    Args:
        main: the main thread.
        clock: seconds, monotonic.
    """

    def __init__(self, main: threading.Thread, clock: Callable[[], float] = time.monotonic) -> None:
        self._main = main
        self._clock = clock
        self._since: float | None = None
        self._told = False

    def look(self) -> str | None:
        """Which threads the interpreter waits for, with their stacks, once it has for LINGERS_AFTER; else None."""
        if self._told or not self._script_has_ended():
            return None
        now = self._clock()
        if self._since is None:
            self._since = now
        left = [t for t in threading.enumerate() if not t.daemon and t is not self._main and t.is_alive()]
        if now - self._since < LINGERS_AFTER or not left:
            return None
        self._told = True
        names = ", ".join(thread.name for thread in left)
        frames = sys._current_frames()
        stacks = (
            f"thread {thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
            for thread in left
            if thread.ident in frames
        )
        return f"the script has ended, and this process waits for its thread {names}, which is no daemon\n" + "\n".join(
            stacks
        )

    def _script_has_ended(self) -> bool:
        """Whether the main thread does nothing but wait for the others: its outermost frame is threading's."""
        frame = sys._current_frames().get(self._main.ident or 0)
        if frame is None:
            return not self._main.is_alive()
        while frame.f_back is not None:
            frame = frame.f_back
        return frame.f_code.co_name == "_shutdown" and frame.f_code.co_filename == threading.__file__
