"""This process's open sockets, found by their descriptors, and what the kernel lets through to them.

Filters are classic BPF (SO_ATTACH_FILTER, socket(7)), which takes no privilege. The kernel runs a listener's filter on
each packet that asks for a connection or completes one; from then on a connection has the filter that its listener had
when it came to be.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import stat
import struct
from typing import Final

_SO_ATTACH_FILTER: Final = 26
_SO_DETACH_FILTER: Final = 27

_WHOLE: Final = 0xFFFFFFFF
_DROP_ALL: Final = ((0x06, 0, 0, 0),)  # return 0: so many bytes of a packet are let through
_DROP_DATA: Final = (
    (0x30, 0, 0, 12),  # the byte whose upper half is the length of the TCP header, in words of 4 bytes
    (0x74, 0, 0, 2),
    (0x54, 0, 0, 0x3C),
    (0x07, 0, 0, 0),
    (0x80, 0, 0, 0),  # the packet's length, from its TCP header on
    (0x1D, 0, 1, 0),
    (0x06, 0, 0, _WHOLE),  # nothing but a header
    (0x06, 0, 0, 0),
)
_DROP_RESETS: Final = (
    (0x30, 0, 0, 13),  # the TCP header's flags
    (0x45, 0, 1, 0x04),  # RST
    (0x06, 0, 0, 0),
    (0x06, 0, 0, _WHOLE),
)
"""Instructions as in linux/filter.h: code, two jumps, a constant."""


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


def drop_all(connection: socket.socket) -> str:
    """Let no packet through; answers why that cannot be done; empty: it is done."""
    return _attach(connection, _DROP_ALL)


def drop_data(connection: socket.socket) -> str:
    """Let connections come to be, and no byte that is sent over them through. The sender's system sends it again.

    Answers why that cannot be done; empty: it is done.
    """
    return _attach(connection, _DROP_DATA)


def drop_resets(connection: socket.socket) -> str:
    """Keep a TCP connection from being reset by its peer; answers why that cannot be done; empty: it is done.

    A peer's kernel also sends a reset when the peer's process dies with bytes unread. This one's then goes on sending,
    for as long as `give_up_after` says.
    """
    return _attach(connection, _DROP_RESETS)


def give_up_after(connection: socket.socket, seconds: float) -> None:
    """Have the kernel drop a TCP connection, open or closed, whose peer has acknowledged nothing for this long."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))


def hear(connection: socket.socket) -> None:
    """Let everything through again."""
    with contextlib.suppress(OSError):  # there is no filter on it
        connection.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def _attach(connection: socket.socket, instructions: tuple[tuple[int, int, int, int], ...]) -> str:
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in instructions))
    filtered = struct.pack("@HP", len(instructions), ctypes.addressof(program))
    try:
        connection.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filtered)
    except OSError as error:
        return f"this system has no socket filters: {error.strerror}"
    return ""
