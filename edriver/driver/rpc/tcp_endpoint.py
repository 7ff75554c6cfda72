"""The driver's one TCP port, for agents on other hosts and for onlookers: TLS under the run's authority, and tokens.

It is opened when somebody may come: another host is to be used, or onlookers were promised. Other runs have no port.
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
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc
import grpc.aio

from edriver.common.invitation import Invitation, at_port
from edriver.driver.rpc.agent_service import SERVER_OPTIONS, address_of
from edriver.driver.rpc.health_and_reflection import SERVICES, add_introspection
from edriver.driver.rpc.unauthenticated import PATIENCE, Connections, Noted, Strangers, Where, plain_address, shut_down
from edriver.v1 import agent_pb2, agent_pb2_grpc, control_pb2, control_pb2_grpc, status_pb2, status_pb2_grpc

if TYPE_CHECKING:
    from edriver.driver.rpc.certificate_authority import Authority

_log = logging.getLogger("edriver.driver")

HANDSHAKE_BOUND: Final = 10.0
"""Seconds in which a caller must have shown that it speaks TLS and HTTP/2."""

IDLE_BOUND: Final = 30.0
"""Seconds that a connection may be open without a call on it; those of agents always have one."""

STRANGERS_NAMED: Final = 100
"""How many addresses are named in the log for what they did; those after them are refused in silence."""

_OPTIONS: Final = (
    *SERVER_OPTIONS,
    ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_BOUND * 1000)),
    ("grpc.max_connection_idle_ms", int(IDLE_BOUND * 1000)),
    ("grpc.max_metadata_size", 8 * 1024),
    ("grpc.max_concurrent_streams", 8),  # of one connection; an agent has two
)

LOOK: Final = (1.0, 0.1)
"""Seconds between two looks at who has shown no token yet: usually, and while there are many."""

MOST_CONNECTIONS: Final = 20_000
"""Connections at a time, if this process may have twice as many descriptors; else half of those that it may have: what
strangers take, the rest of the driver must not lack. Beyond that each is closed as soon as it is accepted."""

MOST_STRANGERS: Final = 1024
"""Connections that have shown no token yet, if that is at most half of all; else half."""

AGENTS: Final = agent_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name
CONTROL: Final = control_pb2.DESCRIPTOR.services_by_name["ControlService"].full_name
STATUS: Final = status_pb2.DESCRIPTOR.services_by_name["StatusService"].full_name

_EVERYWHERE: Final = ("::", "0.0.0.0")  # noqa: S104  TLS and the token are at the door; the first is IPv4's, too

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Door:
    """Where agents of other hosts come in.

    Args:
        run_id: the run.
        agents: serves the agents.
        status: serves onlookers.
        control: serves operators.
        address: where it listens; empty: at all addresses of this machine.
        port: at which port; 0: any.
        secure: whether there are TLS and tokens.

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
    ) -> None:
        self._run_id = run_id
        self._agents = agents
        self._status = status
        self._control = control
        self._opening = asyncio.Lock()
        self._server: grpc.aio.Server | None = None
        self._watching: asyncio.Task[None] | None = None
        self.address = address
        self._wheres = [at_port(host, port) for host in ([address] if address else _EVERYWHERE)]
        self._secure = secure
        self.token = secrets.token_urlsafe(32) if secure else ""
        self.status_token = secrets.token_urlsafe(32) if secure else ""
        self.control_token = secrets.token_urlsafe(32) if secure else ""
        self.authority: Authority | None = None
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
        check = TokenCheck(
            {
                self.token: {AGENTS},
                self.status_token: {STATUS, *SERVICES},
                self.control_token: {CONTROL, STATUS, *SERVICES},
            }
        )
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = min(MOST_CONNECTIONS, MOST_CONNECTIONS if descriptors == resource.RLIM_INFINITY else descriptors // 2)
        strangers = Strangers(min(MOST_STRANGERS, most // 2), PATIENCE)
        noted = Noted(lambda peer: strangers.know(_where(peer)))
        server = grpc.aio.server(
            options=(*_OPTIONS, ("grpc.max_allowed_incoming_connections", most)),
            interceptors=(check, noted) if self._secure else (noted,),
        )
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self._agents, server)
        status_pb2_grpc.add_StatusServiceServicer_to_server(self._status, server)
        control_pb2_grpc.add_ControlServiceServicer_to_server(self._control, server)
        await add_introspection(server, (AGENTS, CONTROL, STATUS))
        papers = self._make_papers() if self._secure else None
        self.port = self._add_port(server, papers)
        await server.start()
        if papers is None:
            _log.warning("--insecure: whoever reaches port %s here can command this run's hosts", self.port)
        self._server = server
        self._watching = asyncio.create_task(self._watch(strangers))

    async def _watch(self, strangers: Strangers) -> None:
        """Turn out strangers that are too many, or that stay too long, until cancelled."""
        connections, loop, told = Connections(self.port), asyncio.get_running_loop(), False
        while True:
            surplus = []
            with contextlib.suppress(OSError):  # without descriptors nothing can be looked at: the next time
                surplus = strangers.too_many(connections.look(), loop.time())
            for connection in surplus:
                shut_down(connection)
            if surplus and not told:
                told = True
                _log.warning(
                    "callers at port %s from %s, and perhaps others, show no token: they are hung up on",
                    *(self.port, surplus[0].where[0]),
                )
            await asyncio.sleep(LOOK[strangers.crowded])

    def _make_papers(self) -> grpc.ServerCredentials:
        from edriver.driver.rpc.certificate_authority import (
            Authority,  # takes 0.1 s and 10 MB, which a local run does not pay
        )

        self.authority = Authority.of_run(self._run_id, datetime.datetime.now(datetime.UTC))
        pair = (self.authority.driver_key, self.authority.driver_certificate)
        return grpc.ssl_server_credentials([pair])

    def _add_port(self, server: grpc.aio.Server, papers: grpc.ServerCredentials | None) -> int:
        failure = ""
        for where in self._wheres:
            try:
                return server.add_secure_port(where, papers) if papers else server.add_insecure_port(where)
            except RuntimeError as error:
                failure = str(error)
        raise OSError(f"no TCP port can be opened for the agents: {failure}")

    @property
    def papers(self) -> agent_pb2.Papers | None:
        """What this run's workers show one another; None while there is no authority."""
        if self.authority is None:
            return None
        return agent_pb2.Papers(
            authority=self.authority.certificate,
            member_certificate=self.authority.member_certificate,
            member_key=self.authority.member_key,
        )

    def credentials(self, token: str) -> Invitation:
        """What somebody has to know to come in with one of the tokens."""
        certificate = self.authority.certificate.decode() if self.authority else ""
        where = at_port(self.address or socket.gethostname(), self.port)
        return Invitation(self._run_id, "", 0, (where,), authority=certificate, token=token)

    async def close(self, grace: float) -> None:
        """Listen no more; calls that are under way have the grace, in seconds."""
        if self._watching is not None:
            self._watching.cancel()
        if self._server is not None:
            await self._server.stop(grace)


class TokenCheck(grpc.aio.ServerInterceptor):
    """Refuses every call without a token for its service, and says once for each address that one came from there.

    Args:
        tokens: the full names of the services that each token opens; the metadata's `authorization` gives it as bearer.
    """

    def __init__(self, tokens: Mapping[str, set[str]]) -> None:
        self._services = {f"Bearer {token}".encode(): services for token, services in tokens.items()}
        self._named: set[str] = set()
        self._refusal: Handler = grpc.stream_stream_rpc_method_handler(self._refuse)
        self._denial: Handler = grpc.stream_stream_rpc_method_handler(self._deny)

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
        return await continuation(handler_call_details) if _service(handler_call_details) in known[0] else self._denial

    async def _refuse(self, _requests: Any, context: Any) -> None:
        self._name(context, "it did not show this run's token")
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "this run's token is wanted")

    async def _deny(self, _requests: Any, context: Any) -> None:
        self._name(context, "its token is for another service")
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "this token is for another service of the run")

    def _name(self, context: Any, why: str) -> None:
        address = context.peer().rpartition(":")[0]
        if address not in self._named and len(self._named) < STRANGERS_NAMED:
            self._named.add(address)
            _log.warning("refused a call from %s: %s", address, why)


def _service(details: grpc.HandlerCallDetails) -> str:
    return details.method.strip("/").rpartition("/")[0]


def _where(peer: str) -> Where:
    """Where the caller is that gRPC calls so (ipv4:10.0.0.1:50)."""
    return plain_address(address_of(peer)), int(peer.rpartition(":")[2])


def _bytes_of(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
