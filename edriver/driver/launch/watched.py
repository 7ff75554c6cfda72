"""A child process whose end is noticed at once, and whose lines on standard error are passed on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

from edriver.system.child import Child

MAX_LINE_BYTES: Final = 8192

MAX_STDERR_LINES: Final = 20
"""Lines of a child's standard error that its owner keeps for the reason of its end."""


@contextlib.contextmanager
def standard_input(content: bytes) -> Iterator[BinaryIO]:
    """A file in memory, for a child to read as its standard input: a join config holds secrets."""
    with os.fdopen(os.memfd_create("standard input"), "w+b") as file:
        file.write(content)
        file.seek(0)
        yield file


class WatchedProcess:
    """Watches a child process in the running event loop.

    Args:
        process: the process; if its standard error is a pipe, that is read.
        on_end: called once with its exit code, after its last line.
        on_line: called with each line.

    Attributes:
        gone: set when it has been reaped.

    Raises:
        OSError: no descriptor is free; the process has been killed and reaped.
    """

    def __init__(
        self,
        process: Child,
        on_end: Callable[[int], None],
        on_line: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.gone = asyncio.Event()
        self._process = process
        self._on_end = on_end
        self._on_line = on_line
        self._unread = b""
        process.watch(self._reap)
        if process.stderr is not None:
            os.set_blocking(process.stderr.fileno(), False)
            asyncio.get_running_loop().add_reader(process.stderr, self._listen)

    def kill(self) -> None:
        """Kill it with its process group."""
        self._process.signal_group(signal.SIGKILL)

    def _reap(self) -> None:
        code = self._process.reap()  # and kill the rest of its group: ssh's proxy may not have noticed
        if self._process.stderr is not None:
            self._listen()
            asyncio.get_running_loop().remove_reader(self._process.stderr)
            self._process.stderr.close()
        self.gone.set()
        self._on_end(code)

    def _listen(self) -> None:
        """Read what is available of standard error."""
        assert self._process.stderr is not None
        while True:
            try:
                data = os.read(self._process.stderr.fileno(), MAX_LINE_BYTES)
            except BlockingIOError:
                return
            if not data:
                asyncio.get_running_loop().remove_reader(self._process.stderr)
            *lines, rest = (self._unread + data).split(b"\n")
            if not data or len(rest) > MAX_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            self._unread = rest
            for line in filter(None, (line.decode(errors="replace").strip() for line in lines)):
                self._on_line(line)
            if not data:
                return
