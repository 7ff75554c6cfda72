"""Stack traces of a worker whose interpreter does not respond, because native code holds the GIL.

A signal handler in C (faulthandler of the standard library) writes the stack of each thread, whichever thread holds the
lock: by one signal to standard error, where people see it, and by another one to a file, for those who have asked. A
process that was stopped says nothing, until it is continued.

One that crashes writes to the same file where its threads are: its agent reads that once the process has ended.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from edriver.system.private_files import open_private

DUMP_SIGNAL: Final = signal.SIGRTMIN + 9
"""By which a worker is asked to write to its standard error: one that no script, batch system or library is known to
use."""

FILE_SIGNAL: Final = signal.SIGRTMIN + 10
"""By which it is asked to write to its file."""


CRASH_SIGNALS: Final = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)
"""Those at which faulthandler writes."""


def enable(socket: Path) -> None:
    """Have this process answer, and write where it is if it crashes.

    Args:
        socket: where its notification service listens; the file lies beside it.
    """
    with suppress(AttributeError, ValueError):  # standard error was closed, or is not a file
        faulthandler.register(DUMP_SIGNAL, sys.__stderr__, all_threads=True)  # type: ignore[arg-type]
    descriptor = open_private(file_beside(socket), os.O_APPEND)  # for good: faulthandler keeps nothing but its number
    faulthandler.register(FILE_SIGNAL, descriptor, all_threads=True)
    if not faulthandler.is_enabled():  # else the user has chosen where a crash is to be seen
        faulthandler.enable(descriptor, all_threads=True)


def ask(pid: int, group: int, number: int = DUMP_SIGNAL) -> None:
    """Have a process write its stack traces.

    Args:
        pid: the process, which has called `enable`.
        group: its process group. If it is not that, the number belongs to another process by now.
        number: the signal.
    """
    with suppress(OSError):  # it has ended
        if os.getpgid(pid) == group:
            os.kill(pid, number)


def file_beside(socket: Path) -> Path:
    """The file of a worker whose notification service listens there."""
    return socket.with_suffix(".stacks")
