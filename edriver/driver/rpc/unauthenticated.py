"""Callers at the driver's TCP port that have not authenticated yet: how many there may be, and for how long.

gRPC knows no such bound: a caller that shakes hands and is silent, or calls without a token again and again, may stay.
So the connections are looked at from outside, a few times a second at most, and unauthenticated ones that are too many
or too old are shut down underneath gRPC, the oldest first: a legitimate caller has shown its token in milliseconds.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from edriver.common.serving.call_faults import AroundCalls
from edriver.system.descriptors import links
from edriver.system.sockets import duplicate

AUTHENTICATION_TIMEOUT: Final = 15.0
"""Seconds within which a caller must have made an authenticated call."""

_SOCKET_LINK_PREFIX: Final = "socket:["

Where: TypeAlias = tuple[str, int]
"""A caller's address and port."""


@dataclass(frozen=True, slots=True)
class Connection:
    """One that a caller has opened.

    Attributes:
        inode: the socket's; not another's while this process lives.
        fd: its descriptor.
        where: where the caller is.
    """

    inode: int
    fd: int
    where: Where


class UnauthenticatedConnections:
    """Distinguishes authenticated connections from others. Pure.

    Args:
        most: how many of them there may be.
        timeout: seconds that each may stay unauthenticated.
    """

    def __init__(self, most: int, timeout: float) -> None:
        self.most = most
        self._timeout = timeout
        self._known: set[Where] = set()
        self._since: dict[int, float] = {}
        self._crowded = False

    def know(self, where: Where) -> None:
        """This caller has made an authenticated call."""
        self._known.add(where)

    def too_many(self, connections: Iterable[Connection], now: float) -> list[Connection]:
        """The connections to shut down, among all open ones.

        Args:
            connections: all.
            now: the time in seconds, monotonic.
        """
        there = list(connections)
        self._known &= {connection.where for connection in there}
        unauthenticated = [connection for connection in there if connection.where not in self._known]
        self._since = {one.inode: self._since.get(one.inode, now) for one in unauthenticated}
        unauthenticated.sort(key=lambda one: (self._since[one.inode], one.inode))
        surplus = max(0, len(unauthenticated) - self.most)
        self._crowded = surplus > 0
        late = [one for one in unauthenticated[surplus:] if now - self._since[one.inode] >= self._timeout]
        return unauthenticated[:surplus] + late

    @property
    def crowded(self) -> bool:
        """Whether there were too many at the last check: more may follow, so the next check should be soon."""
        return self._crowded


class Connections:
    """This process's accepted connections at one TCP port.

    Args:
        port: the port.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._seen: dict[int, Where | None] = {}

    def look(self) -> list[Connection]:
        """Those that are open now. Descriptors that come and go meanwhile are tolerated."""
        found: list[Connection] = []
        seen: dict[int, Where | None] = {}
        for fd, inode in _sockets():
            if inode not in self._seen:
                with contextlib.suppress(OSError):  # closed meanwhile, or no descriptor is left to look at it
                    self._seen[inode] = self._caller(fd, inode)
            seen[inode] = where = self._seen.get(inode)
            if where is not None:
                found.append(Connection(inode, fd, where))
        self._seen = {inode: where for inode, where in seen.items() if inode in self._seen}
        return found

    def _caller(self, fd: int, inode: int) -> Where | None:
        """Who is at the other end; None: it is no connection at the port.

        Raises:
            OSError: the connection is closed, or no descriptor is left to look at it.
        """
        sock = duplicate(fd, inode)
        if sock is None:
            raise OSError("it is closed, or no descriptor is left to look at it")
        with sock:
            if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
                return None
            if sock.getsockname()[1] != self._port or sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return None
            address, port, *_ = sock.getpeername()
            return plain_address(address), port


def shut_down(connection: Connection) -> None:
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


def noting_callers(note: Callable[[str], None]) -> AroundCalls:
    """Notes the callers of admitted calls; goes behind the interceptor that refuses others.

    Args:
        note: called with each caller, by gRPC's name for it.
    """

    @contextlib.asynccontextmanager
    async def around(context: Any) -> AsyncIterator[None]:
        note(context.peer())
        yield

    return AroundCalls(around)
