"""Callers at a TCP port of gRPC's that have not authenticated are found, and closed, from outside gRPC.

gRPC knows no such bound: a caller that shakes hands and is silent, or calls without a token again and again, may stay.
So the connections are looked at from outside, a few times a second at most, and unauthenticated ones that are too many
or too old are shut down underneath gRPC, the oldest first: a legitimate caller has shown its token, or has had the
answer for which there is none, in milliseconds.

At such a port gRPC itself takes at most half of the descriptors that the driver may have, and closes what comes beyond
that at once. Callers that have made no call with a token are hung up on: the oldest when there are too many, all of
them after AUTHENTICATION_TIMEOUT (60 s, guarded_server.py). Those that connect again and again as fast as they are
turned out can delay a host that has yet to arrive; those that are connected do not notice them. At the health port,
which knows no tokens, the oldest connections go when there are too many.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias

from edriver.system.descriptors import links
from edriver.system.sockets import duplicate
from edriver.wire.unauthenticated import UnauthenticatedCallers

CHECK_INTERVALS: Final = (1.0, 0.1)
"""Seconds between two looks at the connections: usually, and after there were too many.

A look takes this process about 2 microseconds for each of its descriptors, so connections that stay below the bound
do not make it look more often."""

LOOK_SECONDS: Final = 0.002
"""What a look may take. One that takes a multiple of it, of a thousand connections for instance, is made so many times
less often,"""

FEWER_LOOKS: Final = 5.0
"""but no more than so many times."""

_SOCKET_LINK_PREFIX: Final = "socket:["

Where: TypeAlias = tuple[str, int]
"""A caller's address and port."""


@dataclass(frozen=True, slots=True)
class AcceptedSocket:
    """A connection that a caller has opened.

    Attributes:
        inode: the socket's; not another's while this process lives.
        fd: its descriptor.
        where: where the caller is.
    """

    inode: int
    fd: int
    where: Where


class PortLimit:
    """Says which connections at a port to close. Pure.

    Args:
        most: how many unauthenticated ones there may be.
        timeout: seconds that each may stay unauthenticated.
    """

    def __init__(self, most: int, timeout: float) -> None:
        self._unauthenticated: UnauthenticatedCallers[int] = UnauthenticatedCallers(most, timeout)
        self._known: set[Where] = set()

    def authenticate(self, where: Where) -> None:
        """This caller has made an authenticated call."""
        self._known.add(where)

    def to_close(self, connections: Iterable[AcceptedSocket], now: float) -> list[AcceptedSocket]:
        """The connections to shut down.

        Args:
            connections: all that are open.
            now: the time in seconds, monotonic.
        """
        there = {connection.inode: connection for connection in connections}
        self._known &= {connection.where for connection in there.values()}
        # Those that came between two looks, in the order of their descriptors: the kernel gives the lowest that is
        # free. It gives inodes in blocks of a thousand to each processor, so these are in no order (fs/inode.c:
        # get_next_ino).
        in_order = sorted(there, key=lambda inode: there[inode].fd)
        unknown = (inode for inode in in_order if there[inode].where not in self._known)
        return [there[inode] for inode in self._unauthenticated.observe(unknown, now)]

    @property
    def crowded(self) -> bool:
        """Whether there were too many at the last check: more may follow, so the next check should be soon."""
        return self._unauthenticated.crowded


class PortSockets:
    """This process's accepted connections at one TCP port.

    Args:
        port: the port.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._seen: dict[int, Where | None] = {}

    def look(self) -> list[AcceptedSocket]:
        """Those that are open now. Descriptors that come and go meanwhile are tolerated."""
        found: list[AcceptedSocket] = []
        seen: dict[int, Where | None] = {}
        for fd, inode in _sockets():
            if inode not in self._seen:
                with contextlib.suppress(OSError):  # closed meanwhile, or no descriptor is left to look at it
                    self._seen[inode] = self._caller(fd, inode)
            seen[inode] = where = self._seen.get(inode)
            if where is not None:
                found.append(AcceptedSocket(inode, fd, where))
        self._seen = {inode: where for inode, where in seen.items() if inode in self._seen}
        return found

    def _caller(self, fd: int, inode: int) -> Where | None:
        """Who is at the other end; None if it is not a connection at the port.

        Raises:
            OSError: the connection is closed, or no descriptor is left to look at it.
        """
        sock = duplicate(fd, inode)
        if sock is None:
            raise OSError("it is closed, or no file descriptor is left to inspect it")
        with sock:
            if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
                return None
            if sock.getsockname()[1] != self._port or sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return None
            address, port, *_ = sock.getpeername()
            return plain_address(address), port


def shut_down(connection: AcceptedSocket) -> None:
    """End a connection: gRPC finds it closed by its caller."""
    sock = duplicate(connection.fd, connection.inode)
    if sock is not None:
        with sock, contextlib.suppress(OSError):  # the caller was faster
            sock.shutdown(socket.SHUT_RDWR)


def plain_address(address: str) -> str:
    """An IP address in the one form in which gRPC and the kernel agree."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return str((isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped) or parsed)


def _sockets() -> list[tuple[int, int]]:
    """The descriptors of this process's sockets, each with its inode."""
    prefix = _SOCKET_LINK_PREFIX
    return [(fd, int(link[len(prefix) : -1])) for fd, link in links() if link.startswith(prefix)]


async def close_surplus(port: int, limit: PortLimit, on_surplus: Callable[[AcceptedSocket], None]) -> NoReturn:
    """Close the connections at a port that are too many or too old, until cancelled.

    Args:
        port: the port.
        limit: says which these are.
        on_surplus: called once, with the first of them.
    """
    sockets, loop, told = PortSockets(port), asyncio.get_running_loop(), False
    while True:
        surplus = []
        began = time.monotonic()  # uvloop's clock stands still meanwhile
        with contextlib.suppress(OSError):  # without descriptors nothing can be looked at: the next time
            surplus = limit.to_close(sockets.look(), loop.time())
        for connection in surplus:
            shut_down(connection)
        if surplus and not told:
            told = True
            on_surplus(surplus[0])
        fewer = min(FEWER_LOOKS, max(1.0, (time.monotonic() - began) / LOOK_SECONDS))
        await asyncio.sleep(CHECK_INTERVALS[1] if limit.crowded else CHECK_INTERVALS[0] * fewer)
