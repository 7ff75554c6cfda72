"""The socket on which workers announce that their notification service listens: one datagram each, worker_id and
process ID as text.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger("edriver.agent")

READY_SOCKET = "ready.sock"
"""Its name in the agent's folder."""

MAX_SOCKET_PATH_BYTES = 107
"""Longest path of a unix socket in bytes: sun_path less its final zero (unix(7))."""

LONGEST_SOCKET_NAME = "w18446744073709551615.store"
"""Of the sockets in an agent's folder; that of the last worker_id."""


def check_folder(folder: Path) -> None:
    """See that sockets can be made in an agent's folder.

    Raises:
        ValueError: its path is too long for that.
    """
    longest = len(os.fsencode(folder / LONGEST_SOCKET_NAME))
    if longest > MAX_SOCKET_PATH_BYTES:
        raise ValueError(
            f"the path of the folder {folder} is {longest - MAX_SOCKET_PATH_BYTES} bytes too long for unix sockets: "
            "set TMPDIR to a shorter one"
        )


class ReadySocket:
    """Listens on a datagram socket in the running event loop.

    Args:
        path: where the socket is made.
        on_ready: called with each worker_id and process id that come.
    """

    def __init__(self, path: Path, on_ready: Callable[[int, int], None]) -> None:
        self._path = path
        self._on_ready = on_ready
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(path))
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def close(self) -> None:
        """Stop listening."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _read(self) -> None:
        try:
            datagram = self._socket.recv(64)
        except BlockingIOError:
            return
        words = datagram.split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
            self._on_ready(int(words[0]), int(words[1]))
        else:
            logger.warning("a datagram on %s is not a worker_id and a process id: %r", self._path, datagram)
