"""This process's open sockets, found by their descriptors, which other threads may close and reuse at any time."""

from __future__ import annotations

import os
import socket
import stat


def duplicate(fd: int, inode: int) -> socket.socket | None:
    """A second descriptor of a socket, for the caller to close.

    The duplicate cannot be closed and reused by another thread between the check and the use; the original can.

    Args:
        fd: the socket's descriptor.
        inode: the socket's inode when it was found.

    Returns:
        The socket; None if the number means something else by now, or no descriptor is left.
    """
    try:
        descriptor = os.dup(fd)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if stat.S_ISSOCK(found.st_mode) and found.st_ino == inode:
            return socket.socket(fileno=descriptor)
    except OSError:
        pass
    os.close(descriptor)
    return None
