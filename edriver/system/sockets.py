"""This process's open sockets, found by their descriptors, and what the kernel lets through to them.

Filters are classic BPF (SO_ATTACH_FILTER, socket(7)). The kernel runs a listener's filter on each packet that asks for
a connection or completes one; from then on a connection has the filter that its listener had when it came to be.

Most kernels give filters to everyone. Some, Linux 6.18.44 for one, give TCP sockets a filter only with CAP_NET_ADMIN.
What takes its place there needs no privilege:

* A listener demands that all packets are signed (TCP_MD5SIG, tcp(7), RFC 2385), by a key that is kept nowhere. Nothing
  new connects. Connections that exist have no such key and continue.
* A connection is not readable until as many bytes wait as its buffer may hold (SO_RCVLOWAT, socket(7); it has that from
  its listener, too). A caller who sends so many megabytes is heard.

Nothing takes the place of a filter that drops resets.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import socket
import stat
import struct
from typing import Final, NamedTuple

_SO_ATTACH_FILTER: Final = 26
_SO_DETACH_FILTER: Final = 27

_TCP_MD5SIG_EXT: Final = 32
_WITH_PREFIX: Final = 1
_KEY_BYTES: Final = 80
"""Of linux/tcp.h: the option that takes a struct tcp_md5sig, the flag of one that has the length of a prefix, and the
longest key."""

_EVERYONE: Final = {
    socket.AF_INET: (b"",),
    socket.AF_INET6: (b"", bytes(16 - 6) + b"\xff\xff" + bytes(4)),
}
"""By the family of a socket: the addresses whose prefix of length 0 is everyone's, the second is that of IPv4."""

_TCP_ESTABLISHED: Final = 1
_TCP_FIN_WAIT1: Final = 4
_TCP_FIN_WAIT2: Final = 5
_LAST_DATA_RECEIVED: Final = 52
_BYTES_ACKNOWLEDGED: Final = 120
_TCP_INFO_BYTES: Final = 128
"""Of struct tcp_info: where its fields lie, and its length up to the last of them."""

_MAX_INT: Final = 2**31 - 1

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


def close_listener(listener: socket.socket) -> str:
    """Let no connection come to be any more; answers why that cannot be done; empty: it is done."""
    trouble = _attach(listener, _DROP_ALL)
    if not trouble:
        return ""
    try:
        _demand_signatures(listener, secrets.token_bytes(_KEY_BYTES))
    except OSError as error:
        return f"{trouble}; nor can they demand signatures: {error.strerror}"
    return ""


def hold_back(connection: socket.socket) -> None:
    """Let connections come to be, and have what is sent over them wait until `hear`.

    A filter drops it, and the sender's system sends it again, after some 0.2 s; without one, it waits in the buffer.
    """
    if _attach(connection, _DROP_DATA):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _MAX_INT)


def no_filters() -> str:
    """Why this process cannot give a TCP socket a filter; empty: it can."""
    with socket.socket() as connection:
        return _attach(connection, _DROP_RESETS)


def drop_resets(connection: socket.socket) -> None:
    """Keep a TCP connection from being reset by its peer, where there are filters.

    A peer's kernel also sends a reset when the peer's process dies with bytes unread. This one's then keeps sending,
    for as long as `give_up_after` says.
    """
    _attach(connection, _DROP_RESETS)


class TcpProgress(NamedTuple):
    """How far a TCP connection is (struct tcp_info of linux/tcp.h).

    Attributes:
        state: as in net/tcp_states.h.
        heard_ago: seconds since the last data came from the peer, or the connection was made.
        acknowledged: the number of bytes sent that the peer's system has acknowledged.
    """

    state: int
    heard_ago: float
    acknowledged: int

    @property
    def established(self) -> bool:
        """Whether neither end has been closed, and the connection has been made."""
        return self.state == _TCP_ESTABLISHED

    @property
    def closed_by_peer(self) -> bool:
        """Whether the peer will send nothing more; also of a connection that is not there."""
        return self.state not in (_TCP_ESTABLISHED, _TCP_FIN_WAIT1, _TCP_FIN_WAIT2)


def tcp_progress(connection: socket.socket) -> TcpProgress:
    """How far a TCP connection is."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        info = b""
    info = info.ljust(_TCP_INFO_BYTES, b"\0")  # a kernel before 4.1 tells less
    (milliseconds,) = struct.unpack_from("=I", info, _LAST_DATA_RECEIVED)
    (acknowledged,) = struct.unpack_from("=Q", info, _BYTES_ACKNOWLEDGED)
    return TcpProgress(info[0], milliseconds / 1000, acknowledged)


def give_up_after(connection: socket.socket, seconds: float) -> None:
    """Have the kernel drop a TCP connection, open or closed, whose peer has acknowledged nothing for this long."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))


def probe(connection: socket.socket, seconds: int) -> None:
    """Have the kernel ask that of a silent peer for a sign of life every second, and drop the connection if there is
    none for so many: the peer's process is gone. One that lives need do nothing.
    """
    give_up_after(connection, seconds)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, seconds)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def hear(connection: socket.socket) -> None:
    """Let everything through again."""
    with contextlib.suppress(OSError):  # it has no filter
        connection.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    with contextlib.suppress(OSError):  # it demands no signatures
        _demand_signatures(connection, b"")


def _demand_signatures(listener: socket.socket, key: bytes) -> None:
    """Demand a signature by this key of everyone; empty: of no one.

    Raises:
        OSError: this kernel has no signatures, or, for an empty key, none are demanded.
    """
    for address in _EVERYONE[socket.AddressFamily(listener.family)]:
        everyone = struct.pack("=H", listener.family) + bytes(6 if address else 0) + address
        message = struct.pack("=128sBBHi80s", everyone, _WITH_PREFIX, 0, len(key), 0, key)
        listener.setsockopt(socket.IPPROTO_TCP, _TCP_MD5SIG_EXT, message)


def _attach(connection: socket.socket, instructions: tuple[tuple[int, int, int, int], ...]) -> str:
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in instructions))
    filtered = struct.pack("@HP", len(instructions), ctypes.addressof(program))
    try:
        connection.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filtered)
    except OSError as error:
        return f"TCP sockets get no filters: {error.strerror}"
    return ""
