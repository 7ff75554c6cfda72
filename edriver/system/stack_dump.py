"""Having a worker say where it stands although its interpreter does not respond, because native code keeps its lock.

A signal handler in C (faulthandler of the standard library) writes the stack of each thread to standard error,
whichever thread holds the lock. A process that was stopped says nothing, until it is continued.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from contextlib import suppress

DUMP_SIGNAL = signal.SIGRTMIN + 9
"""By which a worker is asked: one that no script, batch system or library is known to use."""


def enable() -> None:
    """Have this process answer."""
    with suppress(AttributeError, ValueError):  # standard error was closed, or is no file
        faulthandler.register(DUMP_SIGNAL, sys.__stderr__, all_threads=True)  # type: ignore[arg-type]


def ask(pid: int, group: int) -> None:
    """Have a process say where it stands.

    Args:
        pid: the process, which has called `enable`.
        group: its process group. If it is not that, the number belongs to another process by now.
    """
    with suppress(OSError):  # it has ended
        if os.getpgid(pid) == group:
            os.kill(pid, DUMP_SIGNAL)
