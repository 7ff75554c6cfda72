"""A tether: the kernel kills a process group when the process that holds the other end has ended, in whatever way.

A guard does the same and can be killed, too. PR_SET_PDEATHSIG reaches one process and not its children, is forgotten at
a fork, and goes by the thread that started the process. So: the process gets one end of a pipe on which nothing is
ever written. When the last descriptor of the other end is closed, the kernel sends the signal that F_SETSIG has chosen
to the group that F_SETOWN has named (fcntl(2), "File descriptor signals"). It needs neither the interpreter nor any
cooperation of the process, and group numbers that are used again are no danger: the kernel notes the group itself.

It holds while a process of the group has the descriptor open, which an exec leaves open. It does not hold for processes
that have left the group, for a group of another user, or for a program that closes descriptors that it does not know.
"""

from __future__ import annotations

import fcntl
import os
import signal
from contextlib import suppress


class Tether:
    """One group's tether.

    Attributes:
        end: the descriptor that the group's first process has to inherit; -1 once it is tied.

    Raises:
        OSError: no descriptor is free.
    """

    def __init__(self) -> None:
        self.end, self._held = os.pipe()

    def tie(self, group: int) -> None:
        """Tie a process group to this process; its leader must have been started with `end`."""
        fcntl.fcntl(self.end, fcntl.F_SETSIG, signal.SIGKILL)
        with suppress(ProcessLookupError):  # it has ended already
            fcntl.fcntl(self.end, fcntl.F_SETOWN, -group)
        fcntl.fcntl(self.end, fcntl.F_SETFL, fcntl.fcntl(self.end, fcntl.F_GETFL) | os.O_ASYNC)
        os.close(self.end)
        self.end = -1

    def cut(self) -> None:
        """Release it: what is left of the group is killed."""
        for descriptor in (self.end, self._held):
            if descriptor >= 0:
                os.close(descriptor)
        self.end = self._held = -1
