"""Callers at the driver's TCP port that have not shown yet who they are: how many there may be, and for how long.

gRPC knows no such bound: a caller that shakes hands and is silent, or calls without a token again and again, may stay.
So the connections are looked at from outside, a few times a second at most, and those of strangers that are too many
or too old are shut down underneath gRPC, the oldest first: who comes in earnest has shown its token in milliseconds.
"""

from __future__ import annotations

import contextlib
import inspect
import ipaddress
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from edriver.system.sockets import duplicate

PATIENCE: Final = 15.0
"""Seconds in which a caller must have made a call that was let in."""

_FDS: Final = Path("/proc/self/fd")
_SOCKET: Final = "socket:["

Where: TypeAlias = tuple[str, int]
"""A caller's address and port."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


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


class Strangers:
    """Tells those that have shown who they are from those that have not. Pure.

    Args:
        most: how many strangers there may be.
        patience: seconds that each may stay one.
    """

    def __init__(self, most: int, patience: float) -> None:
        self.most = most
        self._patience = patience
        self._known: set[Where] = set()
        self._since: dict[int, float] = {}

    def know(self, where: Where) -> None:
        """A call of this caller's was let in."""
        self._known.add(where)

    def too_many(self, connections: Iterable[Connection], now: float) -> list[Connection]:
        """Those to be shut down, of all that there are.

        Args:
            connections: all.
            now: the time in seconds, monotonic.
        """
        there = list(connections)
        self._known &= {connection.where for connection in there}
        strangers = [connection for connection in there if connection.where not in self._known]
        self._since = {one.inode: self._since.get(one.inode, now) for one in strangers}
        strangers.sort(key=lambda one: (self._since[one.inode], one.inode))
        surplus = max(0, len(strangers) - self.most)
        late = [one for one in strangers[surplus:] if now - self._since[one.inode] >= self._patience]
        return strangers[:surplus] + late

    @property
    def crowded(self) -> bool:
        """Whether there were so many at the last look that the next one should be soon."""
        return 2 * len(self._since) > self.most


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
    found = []
    for name in os.listdir(_FDS):  # noqa: PTH208  many, and often: names will do
        with contextlib.suppress(OSError):
            link = os.readlink(f"{_FDS}/{name}")  # noqa: PTH115  the same
            if link.startswith(_SOCKET):
                found.append((int(name), int(link[len(_SOCKET) : -1])))
    return found


class Noted(grpc.aio.ServerInterceptor):
    """Notes who makes calls that are let in; put behind whatever refuses them.

    Args:
        note: told of each caller, by gRPC's name for it.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Hand everything on."""
        handler = await continuation(handler_call_details)
        return None if handler is None else self._noting(handler)

    def _noting(self, handler: Handler) -> Handler:
        serializers = (handler.request_deserializer, handler.response_serializer)
        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._streaming(handler.stream_stream), *serializers)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(self._answering(handler.stream_unary), *serializers)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._streaming(handler.unary_stream), *serializers)
        return grpc.unary_unary_rpc_method_handler(self._answering(handler.unary_unary), *serializers)

    def _answering(self, behaviour: Any) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            self._note(context.peer())
            return await behaviour(request, context)

        return answer

    def _streaming(self, behaviour: Any) -> Any:
        if not inspect.isasyncgenfunction(behaviour):
            return self._answering(behaviour)  # it writes to the context

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            self._note(context.peer())
            async with contextlib.aclosing(behaviour(request, context)) as answers:
                async for answer in answers:
                    yield answer

        return stream
