"""Who is connected to this process's Gloo listeners, for a message: addresses, and accounts of this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from edriver.system.sockets import duplicate
from edriver.text.phrases import some_of
from edriver.worker.backend.gloo.sever import GlooDevice

MAX_NAMED_CALLERS: Final = 8
"""The maximum number of callers that a message names."""

_UID_FIELD: Final = 7  # of a line of /proc/net/tcp, proc_pid_net(5)


class Caller(NamedTuple):
    """The other end of a connection that came in.

    Attributes:
        address: its address and port.
        uid: the account that owns it, if it is on this machine; None: not known.
    """

    address: str
    uid: int | None

    def __str__(self) -> str:
        """Its address, and the account where that is known."""
        return self.address if self.uid is None else f"{self.address} (uid {self.uid})"


def suspects(devices: Iterable[GlooDevice]) -> list[Caller]:
    """Those that are connected to these devices' listeners and may be no members.

    They are those of other accounts of this machine, if there are any; else all, for it cannot be seen from outside
    which of them Gloo takes for which rank.
    """
    callers = [caller for device in devices for caller in _callers_of(device)]
    return [caller for caller in callers if caller.uid not in (None, os.getuid())] or callers


def names_of(callers: Iterable[Caller]) -> str:
    """The first few of them, for a message; none: that nothing is connected any longer."""
    names = list(dict.fromkeys(map(str, callers)))
    if not names:
        return "nothing is connected any longer"
    return f"connected from {some_of(names, MAX_NAMED_CALLERS)}"


def _callers_of(device: GlooDevice) -> list[Caller]:
    listener = duplicate(device.listener.fd, device.listener.inode)
    if listener is None:
        return []
    with listener:
        port = listener.getsockname()[1]
    owners = _owners()
    callers = []
    for descriptor in device.connections:
        connection = duplicate(descriptor.fd, descriptor.inode)
        if connection is None:
            continue
        with connection, contextlib.suppress(OSError):  # gone
            if connection.getsockname()[1] != port:
                continue  # this end has connected: it knows whom it has called
            host, far_port = connection.getpeername()[:2]
            where = f"[{host}]:{far_port}" if connection.family == socket.AF_INET6 else f"{host}:{far_port}"
            callers.append(Caller(where, owners.get((socket.inet_pton(connection.family, host), far_port))))
    return callers


def _owners() -> dict[tuple[bytes, int], int]:
    """The accounts of this machine's TCP sockets, by address and port."""
    owners = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                address, _, port = fields[1].partition(":")
                owners[_network_order(address), int(port, 16)] = int(fields[_UID_FIELD])
    return owners


def _network_order(address: str) -> bytes:
    """An address of /proc/net/tcp: words of 32 bits, each in the machine's order."""
    words = (int(address[start : start + 8], 16) for start in range(0, len(address), 8))
    return b"".join(struct.pack("=I", word) for word in words)
