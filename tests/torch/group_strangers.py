"""Strangers who connect to the members of a group that is being built, and how they behave."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from tests.torch.group_ranks import Member

PREAMBLE = struct.Struct("=6Q")
"""Of a message of Gloo's: bytes in all, kind, slot, offset, length, remote offset (gloo/transport/tcp/pair.h)."""
UNBOUND, SEND_READY, RECV_READY = 1, 2, 3


def ports_of(member: Member) -> set[int]:
    """Where a member's Gloo listens."""
    listening = psutil.Process(member.pid).net_connections("tcp")
    return {c.laddr.port for c in listening if c.status == psutil.CONN_LISTEN} - {member.store[1]}


def answer_all(connection: socket.socket) -> None:
    """Send as much of anything as is asked for, as a member would."""
    with connection, connection.makefile("rb") as message:
        while head := message.read(PREAMBLE.size):
            _, kind, slot, _, length, _ = PREAMBLE.unpack(head)
            if kind == RECV_READY:
                connection.sendall(PREAMBLE.pack(PREAMBLE.size + length, UNBOUND, slot, 0, length, 0) + b"x" * length)
            elif kind == SEND_READY:
                connection.sendall(PREAMBLE.pack(PREAMBLE.size, RECV_READY, slot, 0, length, 0))
            elif kind == UNBOUND:
                message.read(length)


def say_nothing(connection: socket.socket) -> None:
    with connection, connection.makefile("rb") as message:
        message.read()


def hang_up(connection: socket.socket) -> None:
    with connection:
        connection.recv(PREAMBLE.size)


@contextmanager
def strangers(victims: list[Member], behave: Callable[[socket.socket], None]) -> Iterator[list[str]]:
    """Connect as each rank to each member; yields the addresses, while they behave so."""
    opened, threads = [], []
    for victim in victims:
        for port in ports_of(victim):
            for pair in range(len(victims)):
                connection = socket.create_connection(("127.0.0.1", port))
                connection.sendall(struct.pack("=q", pair))
                opened.append(connection)
                threads.append(threading.Thread(target=behave, args=(connection,)))
    names = [f"127.0.0.1:{connection.getsockname()[1]}" for connection in opened]
    for thread in threads:
        thread.start()
    try:
        yield names
    finally:
        for connection in opened:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
