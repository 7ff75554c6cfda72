"""The driver's one TCP port, for agents on other hosts and for observers: TLS under the run's authority, and tokens.

It is opened when it is needed: for agents of other hosts, or for observers and operators. Other runs have no port.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hmac
import logging
import resource
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc
import grpc.aio

from edriver.common.join_config import JoinConfig, at_port
from edriver.common.serving.call_faults import CallFaults
from edriver.driver.rpc.agent_service import SERVER_OPTIONS, address_of
from edriver.driver.rpc.health_and_reflection import INTROSPECTION_SERVICES, add_introspection
from edriver.driver.rpc.taken_port import ALL_ADDRESSES, is_taken
from edriver.driver.rpc.unauthenticated import noting_callers
from edriver.system.ports.callers import Connection, UnauthenticatedConnections, close_surplus, plain_address
from edriver.v1 import agent_pb2, agent_pb2_grpc, control_pb2, control_pb2_grpc, status_pb2, status_pb2_grpc

if TYPE_CHECKING:
    from edriver.driver.rpc.certificate_authority import Authority
    from edriver.driver.rpc.run_credentials import RunCredentials

_log = logging.getLogger("edriver.driver")

HANDSHAKE_TIMEOUT: Final = 10.0
"""Seconds in which a caller must have shown that it speaks TLS and HTTP/2."""

IDLE_TIMEOUT: Final = 30.0
"""Seconds that a connection may be open without a call on it; those of agents always have one."""

AUTHENTICATION_TIMEOUT: Final = 15.0
"""Seconds within which a caller must have made an authenticated call."""

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

MAX_UNAUTHENTICATED: Final = 1024
"""Connections that have shown no token yet, if that is at most half of all; else half."""

AGENT_SERVICE: Final = agent_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name
CONTROL_SERVICE: Final = control_pb2.DESCRIPTOR.services_by_name["ControlService"].full_name
STATUS_SERVICE: Final = status_pb2.DESCRIPTOR.services_by_name["StatusService"].full_name

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class TcpEndpoint:
    """The driver's TCP port, at which agents of other hosts connect.

    Args:
        run_id: the run.
        agents: serves the agents.
        status: serves observers.
        control: serves operators.
        address: where it listens; empty: at all addresses of this machine.
        port: at which port; 0: any.
        secure: whether there are TLS and tokens.
        addresses: where this driver and others of the run may be found, HOST:PORT each; empty: callers find this one.
        made: the run's credentials, made before it started; None: it makes its own.
        on_open: awaited with the endpoint once it listens, before any caller can know of it.

    Attributes:
        token: opens AgentService,
        status_token: StatusService,
        control_token: ControlService and StatusService; all empty where it is not secure.
        authority: the run's certificate authority; None: there is none yet, or none at all.
        port: where it listens; 0: not yet.
    """

    def __init__(
        self,
        run_id: str,
        agents: agent_pb2_grpc.AgentServiceServicer,
        status: status_pb2_grpc.StatusServiceServicer,
        control: control_pb2_grpc.ControlServiceServicer,
        address: str = "",
        port: int = 0,
        secure: bool = True,
        addresses: Sequence[str] = (),
        made: RunCredentials | None = None,
        on_open: Callable[[TcpEndpoint], Awaitable[None]] | None = None,
    ) -> None:
        self._run_id = run_id
        self._on_open = on_open
        self._agents = agents
        self._status = status
        self._control = control
        self._opening = asyncio.Lock()
        self._server: GuardedServer | None = None
        self.address = address
        self._wanted_port = port
        self._secure = secure
        self._addresses = tuple(addresses)
        self.token, self.status_token, self.control_token = (
            (made.agent_token, made.status_token, made.control_token)
            if made is not None
            else [secrets.token_urlsafe(32) if secure else "" for _ in range(3)]
        )
        self.authority: Authority | None = made.authority if made is not None else None
        self.port = 0

    async def open(self) -> None:
        """Listen, if it does not yet. Afterwards `authority` and `port` are known.

        Raises:
            OSError: no port can be had.
        """
        async with self._opening:
            if self._server is None:
                await self._open()

    async def _open(self) -> None:
        server_credentials = self._make_server_credentials() if self._secure else None
        server = GuardedServer(
            {
                self.token: {AGENT_SERVICE},
                self.status_token: {STATUS_SERVICE, *INTROSPECTION_SERVICES},
                self.control_token: {CONTROL_SERVICE, STATUS_SERVICE, *INTROSPECTION_SERVICES},
            },
            server_credentials,
        )
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self._agents, server.grpc)
        status_pb2_grpc.add_StatusServiceServicer_to_server(self._status, server.grpc)
        control_pb2_grpc.add_ControlServiceServicer_to_server(self._control, server.grpc)
        await add_introspection(server.grpc, (AGENT_SERVICE, CONTROL_SERVICE, STATUS_SERVICE))
        self.port = await server.open(self.address, self._wanted_port)
        if server_credentials is None:
            _log.warning("--insecure: every process that reaches port %s here can control this run's hosts", self.port)
        self._server = server
        if self._on_open is not None:
            await self._on_open(self)

    def _make_server_credentials(self) -> grpc.ServerCredentials:
        if self.authority is None:
            from edriver.driver.rpc.certificate_authority import (
                Authority,  # takes 0.1 s and 10 MB, which a local run does not pay
            )

            self.authority = Authority.of_run(self._run_id, datetime.datetime.now(datetime.UTC))
        pair = (self.authority.driver_key, self.authority.driver_certificate)
        return grpc.ssl_server_credentials([pair])

    @property
    def worker_credentials(self) -> agent_pb2.WorkerCredentials | None:
        """The credentials with which this run's workers authenticate one another; None while there is no authority."""
        if self.authority is None:
            return None
        return agent_pb2.WorkerCredentials(
            ca_certificate=self.authority.certificate,
            certificate=self.authority.member_certificate,
            private_key=self.authority.member_key,
        )

    def credentials(self, token: str) -> JoinConfig:
        """The credentials that go with one of the tokens."""
        certificate = self.authority.certificate.decode() if self.authority else ""
        where = at_port(self.address or socket.gethostname(), self.port)
        return JoinConfig(
            *(self._run_id, "", 0, (where,)),
            authority=certificate,
            token=token,
            other_drivers=self.other_drivers(where),
        )

    def other_drivers(self, *found: str) -> tuple[str, ...]:
        """Where else the run's driver may be, once it is not at these addresses any more."""
        return tuple(address for address in self._addresses if address not in found)

    @property
    def run_credentials(self) -> RunCredentials | None:
        """What its callers know the run by; None where it is not secure, or has not been opened."""
        if self.authority is None:
            return None
        from edriver.driver.rpc.run_credentials import RunCredentials

        return RunCredentials(self._run_id, self.authority, self.token, self.status_token, self.control_token)

    async def close(self, grace: float) -> None:
        """Stop listening; running calls have the grace period, in seconds."""
        if self._server is not None:
            await self._server.close(grace)


class GuardedServer:
    """A gRPC server at a TCP port that serves callers with a token, and limits those without.

    Args:
        tokens: the full names of the services that each token opens.
        credentials: the server's own; None: there are neither TLS nor tokens.
        options: the server's, in place of the usual ones of the same name.

    Attributes:
        grpc: the server, to which services are added before it is opened.
    """

    def __init__(
        self,
        tokens: Mapping[str, set[str]],
        credentials: grpc.ServerCredentials | None,
        options: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = min(MAX_CONNECTIONS, MAX_CONNECTIONS if descriptors == resource.RLIM_INFINITY else descriptors // 2)
        self._unauthenticated = UnauthenticatedConnections(min(MAX_UNAUTHENTICATED, most // 2), AUTHENTICATION_TIMEOUT)
        noted = noting_callers(self._know)
        self._credentials = credentials
        self._watching: asyncio.Task[None] | None = None
        usual = dict[str, int](_TCP_SERVER_OPTIONS)
        self.grpc = grpc.aio.server(
            options=tuple({**usual, "grpc.max_allowed_incoming_connections": most, **options}.items()),
            interceptors=(CallFaults(), TokenCheck(tokens), noted) if credentials else (CallFaults(), noted),
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

        def log(surplus: Connection) -> None:
            _log.warning(
                "callers at port %s from %s, and perhaps others, have no token: their connections are closed",
                *(port, surplus.where[0]),
            )

        self._watching = asyncio.create_task(close_surplus(port, self._unauthenticated, log))
        return port

    async def close(self, grace: float) -> None:
        """Stop listening; running calls have the grace period, in seconds."""
        if self._watching is not None:
            self._watching.cancel()
        await self.grpc.stop(grace)

    def _know(self, peer: str) -> None:
        """The caller that gRPC calls so (ipv4:10.0.0.1:50) has made an authenticated call."""
        with contextlib.suppress(ValueError):  # it has gone, and has no name any more
            self._unauthenticated.know((plain_address(address_of(peer)), int(peer.rpartition(":")[2])))

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


_OPENED_BY: Final = {
    AGENT_SERVICE: "the credentials that hosts dial in by (--credentials)",
    STATUS_SERVICE: "the file of --status-credentials or --control-credentials",
    CONTROL_SERVICE: "the file of --control-credentials",
}
"""What opens a service."""


class TokenCheck(grpc.aio.ServerInterceptor):
    """Refuses every call without a token for its service, and logs that once per address.

    Args:
        tokens: the full names of the services that each token opens; the metadata's `authorization` gives it as bearer.
    """

    def __init__(self, tokens: Mapping[str, set[str]]) -> None:
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
        opens = _OPENED_BY.get(service, "no credentials of this run")

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
            _log.warning("refused a call from %s: %s", address, why)


def _service(details: grpc.HandlerCallDetails) -> str:
    return details.method.strip("/").rpartition("/")[0]


def _bytes_of(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
