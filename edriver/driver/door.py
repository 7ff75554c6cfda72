"""The driver's one TCP port, for agents on other hosts: TLS under the run's own authority, and a token.

It is opened when the first such host is to be used. A run on this machine alone has none.
"""

from __future__ import annotations

import asyncio
import datetime
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc
import grpc.aio

from edriver.driver.server import SERVER_OPTIONS
from edriver.invitation import Invitation, at_port
from edriver.v1 import agent_pb2, agent_pb2_grpc

if TYPE_CHECKING:
    from edriver.driver.authority import Authority

_log = logging.getLogger("edriver.driver")

HANDSHAKE_BOUND: Final = 10.0
"""Seconds in which a caller must have shown that it speaks TLS and HTTP/2."""

STRANGERS_NAMED: Final = 100
"""How many addresses are named in the log for what they did; those after them are refused in silence."""

_OPTIONS: Final = (
    *SERVER_OPTIONS,
    ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_BOUND * 1000)),
    ("grpc.max_metadata_size", 8 * 1024),
    ("grpc.max_concurrent_streams", 8),  # of one connection; an agent has two
)

_EVERYWHERE: Final = ("::", "0.0.0.0")  # noqa: S104  TLS and the token are at the door; the first is IPv4's, too

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Door:
    """Where agents of other hosts come in.

    Args:
        run_id: the run.
        agents: serves those who are let in.
        address: where it listens; empty: at all addresses of this machine.
        port: at which port; 0: any.
        secure: whether there are TLS and the token.
    """

    def __init__(
        self,
        run_id: str,
        agents: agent_pb2_grpc.AgentServiceServicer,
        address: str = "",
        port: int = 0,
        secure: bool = True,
    ) -> None:
        self._run_id = run_id
        self._agents = agents
        self._opening = asyncio.Lock()
        self._server: grpc.aio.Server | None = None
        self.address = address
        self._wheres = [at_port(host, port) for host in ([address] if address else _EVERYWHERE)]
        self._secure = secure
        self.token = secrets.token_urlsafe(32) if secure else ""
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
        server = grpc.aio.server(options=_OPTIONS, interceptors=(TokenCheck(self.token),) if self._secure else ())
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self._agents, server)
        papers = self._make_papers() if self._secure else None
        self.port = self._add_port(server, papers)
        await server.start()
        if papers is None:
            _log.warning("--insecure: whoever reaches port %s here can command this run's hosts", self.port)
        self._server = server

    def _make_papers(self) -> grpc.ServerCredentials:
        from edriver.driver.authority import Authority  # takes 0.1 s and 10 MB, which a local run does not pay

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

    def credentials(self) -> Invitation:
        """What an agent has to know that nobody has started."""
        certificate = self.authority.certificate.decode() if self.authority else ""
        return Invitation(self._run_id, "", 0, (), authority=certificate, token=self.token)

    async def close(self, grace: float) -> None:
        """Listen no more; calls that are under way have the grace, in seconds."""
        if self._server is not None:
            await self._server.stop(grace)


class TokenCheck(grpc.aio.ServerInterceptor):
    """Refuses every call without the token, whatever it calls, and says once where it came from.

    Args:
        token: what the metadata's `authorization` must give as bearer.
    """

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()
        self._named: set[str] = set()
        self._refusal: Handler = grpc.stream_stream_rpc_method_handler(self._refuse)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Hand on what shows the token."""
        shown = [value for key, value in handler_call_details.invocation_metadata or () if key == "authorization"]
        if len(shown) == 1 and hmac.compare_digest(_bytes_of(shown[0]), self._expected):
            return await continuation(handler_call_details)
        return self._refusal

    async def _refuse(self, _requests: Any, context: Any) -> None:
        address = context.peer().rpartition(":")[0]
        if address not in self._named and len(self._named) < STRANGERS_NAMED:
            self._named.add(address)
            _log.warning("refused a call from %s: it did not show this run's token", address)
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "this run's token is wanted")


def _bytes_of(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
