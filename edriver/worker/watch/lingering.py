"""A process that does not end although its script has: the interpreter waits for threads that are not daemons."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from edriver.text.printable import printable_line
from edriver.worker.backend.interpreter import format_stack, frames, waits_for_threads

LINGERING_REPORT_DELAY: Final = 4.0
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
        self._reported = False

    def look(self) -> str | None:
        """Which threads the interpreter waits for, with their stacks, once it has for LINGERING_REPORT_DELAY; else
        None.
        """
        if self._reported or not self._script_has_ended():
            return None
        now = self._clock()
        if self._since is None:
            self._since = now
        left = [t for t in threading.enumerate() if not t.daemon and t is not self._main and t.is_alive()]
        if now - self._since < LINGERING_REPORT_DELAY or not left:
            return None
        self._reported = True
        names = {thread.ident: printable_line(thread.name) for thread in left}
        at = frames()
        stacks = (f"thread {name}:\n{format_stack(at[ident])}" for ident, name in names.items() if ident in at)
        listed, text = ", ".join(names.values()), "\n".join(stacks)
        return f"the script has ended, and this process waits for its thread {listed}, which is not a daemon\n{text}"

    def _script_has_ended(self) -> bool:
        """Whether the main thread does nothing but wait for the others."""
        frame = frames().get(self._main.ident or 0)
        return not self._main.is_alive() if frame is None else waits_for_threads(frame)
