"""A child process of the driver: its end is noticed at once, and what it says on standard error is passed on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Final

LONGEST_LINE: Final = 8192


class Child:
    """A process that leads a session of its own.

    Args:
        process: the process; if its standard error is a pipe, that is read.
        on_end: told its exit code, once, after its last line.
        on_line: told each line.

    Attributes:
        gone: set when it has been reaped.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        on_end: Callable[[int], None],
        on_line: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.gone = asyncio.Event()
        self._process = process
        self._on_end = on_end
        self._on_line = on_line
        self._unread = b""
        self._descriptor = os.pidfd_open(process.pid)
        loop = asyncio.get_running_loop()
        if process.stderr is not None:
            os.set_blocking(process.stderr.fileno(), False)
            loop.add_reader(process.stderr, self._listen)
        loop.add_reader(self._descriptor, self._reap)

    def kill(self) -> None:
        """Kill it with its process group."""
        if not self.gone.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own

    def _reap(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # ssh's proxy may not have noticed
        code = self._process.wait()  # it has exited: this does not wait
        if self._process.stderr is not None:
            self._listen()
            loop.remove_reader(self._process.stderr)
            self._process.stderr.close()
        self.gone.set()
        self._on_end(code)

    def _listen(self) -> None:
        """Take in what has come on standard error."""
        assert self._process.stderr is not None
        while True:
            try:
                data = os.read(self._process.stderr.fileno(), LONGEST_LINE)
            except BlockingIOError:
                return
            if not data:
                asyncio.get_running_loop().remove_reader(self._process.stderr)
            *lines, rest = (self._unread + data).split(b"\n")
            if not data or len(rest) > LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            self._unread = rest
            for line in filter(None, (line.decode(errors="replace").strip() for line in lines)):
                self._on_line(line)
            if not data:
                return
