"""Closing a Gloo device's listener to all who come after its group was built, and closing the connections of others
that came before.

Gloo listens for as long as a group lives, accepts everyone, and aborts the process when no descriptor is left for that
(torch 2.13, gloo/transport/tcp/listener.cc). Yet once a group is built none of its members connects any more. The
listener's descriptor cannot be closed, for Gloo also aborts when accept() fails; but the kernel can be made to drop
every packet that asks for a connection, and the last packet of a handshake that has begun (sockets.close_listener). The
connections that exist are left alone. A system on which that cannot be done leaves the listener open, and the worker
reports that at its start (checks.py).

A process that is not a member may have connected while the group was being built; it holds a descriptor until the group
ends. Each member's connection begins with the number of a pair, 8 bytes. One that has brought less is not a member's:
it is shut down, and Gloo closes it. One that has brought a number to which no pair belongs is kept by Gloo, and cannot
be freed.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Collection

from edriver.system.sockets import close_listener, duplicate
from edriver.worker.backend.gloo.sever import Descriptor, GlooDevice

_PAIR_NUMBER_BYTES = 8
"""Bytes with which each member's connection to a listener begins."""

_TCP_INFO_SIZE, _UNACKED, _BYTES_RECEIVED = 136, 24, 128
"""Of struct tcp_info (linux/tcp.h): the offsets of tcpi_unacked, a listener's connections that wait to be accepted, and
of tcpi_bytes_received."""

QUEUE_TIMEOUT = 0.1
"""Seconds that Gloo may take to accept the connections that came before the filter."""

_QUEUE_POLL_INTERVAL = 0.001


def close_listeners(find: Callable[[], Collection[GlooDevice]], size: int) -> set[int]:
    """Let nothing new connect to a group's devices, and shut down the connections that have sent nothing.

    To be called once the group is built on this rank: when `init_process_group` or `new_group` has returned. A device
    with fewer connections than its group has pairs still needs its listener (TORCH_GLOO_LAZY_INIT connects at first
    use), and is left open.

    Args:
        find: answers the devices of this group, and of no other, as they are now.
        size: the group's number of ranks.

    Returns:
        The listeners' inodes of the devices that are closed now. No pair of theirs waits for a connection any more, and
        a new one would wait in vain.
    """
    closed = set()
    waited = False
    devices = find()
    for device in devices:
        with contextlib.ExitStack() as stack:
            listener = duplicate(device.listener.fd, device.listener.inode)
            if listener is None:
                continue
            stack.enter_context(listener)
            if len(device.connections) - len(_silent(device)) < size - 1:
                continue
            if close_listener(listener):  # which the worker has logged at its start (checks.py)
                continue
            closed.add(device.listener.inode)
            waited |= await_queue(listener)
    for device in find() if waited else devices:
        if device.listener.inode in closed and len(device.connections) > size - 1:
            for connection in _silent(device):
                _shut_down(connection)
    return closed


def await_queue(listener: socket.socket) -> bool:
    """Wait until Gloo has accepted what came before the filter; answers whether there was anything."""
    deadline = time.monotonic() + QUEUE_TIMEOUT
    waited = False
    while _tcp_info(listener, _UNACKED, "=I") and time.monotonic() < deadline:
        waited = True
        time.sleep(_QUEUE_POLL_INTERVAL)
    return waited


def _silent(device: GlooDevice) -> list[Descriptor]:
    """Accepted connections of the device that have not named a pair, so that they do not belong to a member."""
    listener = duplicate(device.listener.fd, device.listener.inode)
    if listener is None:
        return []
    with listener:
        port = listener.getsockname()[1]
    return [connection for connection in device.connections if _is_silent(connection, port)]


def _is_silent(descriptor: Descriptor, port: int) -> bool:
    connection = duplicate(descriptor.fd, descriptor.inode)
    if connection is None:
        return False
    with connection:
        accepted = connection.getsockname()[1] == port
        return accepted and _tcp_info(connection, _BYTES_RECEIVED, "=Q") < _PAIR_NUMBER_BYTES


def _shut_down(descriptor: Descriptor) -> None:
    connection = duplicate(descriptor.fd, descriptor.inode)
    if connection is not None:
        with connection, contextlib.suppress(OSError):  # its other end was faster
            connection.shutdown(socket.SHUT_RDWR)


def _tcp_info(connection: socket.socket, offset: int, kind: str) -> int:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_SIZE)
    return int(struct.unpack_from(kind, info, offset)[0])
