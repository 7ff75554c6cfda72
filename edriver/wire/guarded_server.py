"""A gRPC server at a TCP port: TLS and tokens, and bounds on callers that have shown none."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import logging
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from edriver.common.join_config import at_port
from edriver.system.own_addresses import bound_at
from edriver.wire.call_faults import AroundCalls, CallFaults
from edriver.wire.grpc_streams import SERVER_OPTIONS, address_of
from edriver.wire.port_watch import AcceptedSocket, PortLimit, close_surplus, plain_address

ALL_ADDRESSES: Final = ("::", "0.0.0.0")  # noqa: S104  TLS and the token protect it; the first is IPv4's, too

HANDSHAKE_TIMEOUT: Final = 10.0
"""Seconds in which a caller must have shown that it speaks TLS and HTTP/2."""

IDLE_TIMEOUT: Final = 30.0
"""Seconds that a connection may be open without a call on it; those of agents always have one."""

AUTHENTICATION_TIMEOUT: Final = 60.0
"""Seconds within which a caller must have made an authenticated call. Of a thousand hosts that dial in at once, a busy
driver comes to the last ones late, and they would have to begin again."""

MAX_LOGGED_ADDRESSES: Final = 100
"""How many addresses are named in the log for what they did; those after them are refused in silence."""

_TCP_SERVER_OPTIONS: Final = (
    *SERVER_OPTIONS,
    ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_TIMEOUT * 1000)),
    ("grpc.max_connection_idle_ms", int(IDLE_TIMEOUT * 1000)),
    ("grpc.max_metadata_size", 8 * 1024),
    ("grpc.max_concurrent_streams", 8),  # of one connection; an agent has two
)

MAX_CONNECTIONS: Final = 20_000
"""Connections at a time, if this process may have twice as many descriptors; else half of those that it may have: what
unauthenticated callers take, the rest of the driver must not lack. Beyond that each is closed as soon as it is
accepted."""

MAX_UNAUTHENTICATED: Final = 4096
"""Connections that have shown no token yet, if that is at most half of all; else half."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class GuardedServer:
    """A gRPC server at a TCP port that serves callers with a token, and limits those without.

    Args:
        tokens: the full names of the services that each token opens.
        credentials: the server's own; None: there are neither TLS nor tokens.
        log: where callers that are refused are named.
        options: the server's, in place of the usual ones of the same name.
        opened_by: what opens a service, for people whose token does not.

    Attributes:
        grpc: the server, to which services are added before it is opened.
    """

    def __init__(
        self,
        tokens: Mapping[str, set[str]],
        credentials: grpc.ServerCredentials | None,
        log: logging.Logger,
        options: Mapping[str, int] = MappingProxyType({}),
        opened_by: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = min(MAX_CONNECTIONS, MAX_CONNECTIONS if descriptors == resource.RLIM_INFINITY else descriptors // 2)
        self._limit = PortLimit(min(MAX_UNAUTHENTICATED, most // 2), AUTHENTICATION_TIMEOUT)
        noted = AroundCalls(self._noted)  # behind the one that refuses others
        self._credentials = credentials
        self._log = log
        self._watching: asyncio.Task[None] | None = None
        usual = dict[str, int](_TCP_SERVER_OPTIONS)
        self.grpc = grpc.aio.server(
            options=tuple({**usual, "grpc.max_allowed_incoming_connections": most, **options}.items()),
            interceptors=(CallFaults(), TokenCheck(tokens, opened_by, log), noted)
            if credentials
            else (CallFaults(), noted),
        )

    async def open(self, address: str, port: int) -> int:
        """Listen; returns the port.

        Args:
            address: where; empty: at all addresses of this machine.
            port: at which port; 0: any.

        Raises:
            OSError: no port can be had.
        """
        if port and is_taken(address, port):
            raise OSError(f"another process listens at port {port}: give another --port (0: any free port)")
        port = self._add_port([at_port(host, port) for host in ([address] if address else ALL_ADDRESSES)])
        await self.grpc.start()

        def name(surplus: AcceptedSocket) -> None:
            self._log.warning(
                "callers at port %s from %s, and perhaps others, showed no token: their connections are closed",
                port,
                surplus.where[0],
            )

        self._watching = asyncio.create_task(close_surplus(port, self._limit, name))
        return port

    async def close(self, grace: float) -> None:
        """Stop listening; running calls have the grace period, in seconds."""
        if self._watching is not None:
            self._watching.cancel()
        await self.grpc.stop(grace)

    @contextlib.asynccontextmanager
    async def _noted(self, context: Any) -> AsyncIterator[None]:
        """Around a call that was let in."""
        peer = context.peer()
        with contextlib.suppress(ValueError):  # it has gone, and has no name any more
            self._limit.authenticate((plain_address(address_of(peer)), int(peer.rpartition(":")[2])))
        yield

    def _add_port(self, wheres: Sequence[str]) -> int:
        failure = ""
        for where in wheres:
            try:
                return (
                    self.grpc.add_secure_port(where, self._credentials)
                    if self._credentials
                    else self.grpc.add_insecure_port(where)
                )
            except RuntimeError as error:
                failure = str(error)
        raise OSError(f"no TCP port can be opened: {failure}")


def is_taken(address: str, port: int) -> bool:
    """Whether another process has a TCP port. If so, gRPC would write lines of C++ to stderr.

    Args:
        address: at which address; empty: at all of this machine.
        port: the port.
    """
    try:
        bound_at(address or ALL_ADDRESSES[-1], port).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


class TokenCheck(grpc.aio.ServerInterceptor):
    """Refuses every call without a token for its service, and logs that once per address.

    Args:
        tokens: the full names of the services that each token opens; the metadata's `authorization` gives it as bearer.
        opened_by: what opens a service, for people whose token does not.
        log: where callers that are refused are named.
    """

    def __init__(self, tokens: Mapping[str, set[str]], opened_by: Mapping[str, str], log: logging.Logger) -> None:
        self._log = log
        self._opened_by = opened_by
        self._services = {f"Bearer {token}".encode(): services for token, services in tokens.items()}
        self._named: set[str] = set()
        self._refusal: Handler = grpc.stream_stream_rpc_method_handler(self._refuse)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Hand on what shows the token."""
        shown = [value for key, value in handler_call_details.invocation_metadata or () if key == "authorization"]
        token = _bytes_of(shown[0]) if len(shown) == 1 else b""
        known = [services for expected, services in self._services.items() if hmac.compare_digest(token, expected)]
        if not known:
            return self._refusal
        service = _service(handler_call_details)
        return await continuation(handler_call_details) if service in known[0] else self._denial(service)

    async def _refuse(self, _requests: Any, context: Any) -> None:
        self._name(context, "it did not show this run's token")
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a token of this run is required")

    def _denial(self, service: str) -> Handler:
        opens = self._opened_by.get(service, "no credentials of this run")

        async def deny(_requests: Any, context: Any) -> None:
            self._name(context, "its token is for another service")
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, f"these credentials do not allow this call; {opens} would"
            )

        return grpc.stream_stream_rpc_method_handler(deny)

    def _name(self, context: Any, why: str) -> None:
        address = context.peer().rpartition(":")[0]
        if address and address not in self._named and len(self._named) < MAX_LOGGED_ADDRESSES:
            self._named.add(address)
            self._log.warning("refused a call from %s: %s", address, why)


def _service(details: grpc.HandlerCallDetails) -> str:
    return details.method.strip("/").rpartition("/")[0]


def _bytes_of(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
