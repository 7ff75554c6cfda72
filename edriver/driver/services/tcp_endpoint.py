"""The driver's one TCP port, for agents on other hosts and for observers: TLS under the run's authority, and tokens.

It is opened when it is needed: for agents of other hosts, or for observers and operators. Other runs have no port.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

import grpc

from edriver.common.join_config import JoinConfig, at_port
from edriver.v1 import agent_pb2, agent_pb2_grpc, control_pb2, control_pb2_grpc, status_pb2, status_pb2_grpc
from edriver.wire.guarded_server import GuardedServer
from edriver.wire.introspection import INTROSPECTION_SERVICES, add_introspection

if TYPE_CHECKING:
    from edriver.driver.services.run_credentials import RunCredentials
    from edriver.wire.certificate_authority import Authority

_log = logging.getLogger("edriver.driver")

AGENT_SERVICE: Final = agent_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name
CONTROL_SERVICE: Final = control_pb2.DESCRIPTOR.services_by_name["ControlService"].full_name
STATUS_SERVICE: Final = status_pb2.DESCRIPTOR.services_by_name["StatusService"].full_name

_OPENED_BY: Final = {
    AGENT_SERVICE: "the credentials that hosts dial in by (--credentials)",
    STATUS_SERVICE: "the file of --status-credentials or --control-credentials",
    CONTROL_SERVICE: "the file of --control-credentials",
}
"""What opens a service."""


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
        authority: the run's certificate authority; None if there is none yet, or none at all.
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
            _log,
            opened_by=_OPENED_BY,
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
            from edriver.wire.certificate_authority import (
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
            self._run_id,
            "",
            0,
            (where,),
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
        from edriver.driver.services.run_credentials import RunCredentials

        return RunCredentials(self._run_id, self.authority, self.token, self.status_token, self.control_token)

    async def close(self, grace: float) -> None:
        """Stop listening; running calls have the grace period, in seconds."""
        if self._server is not None:
            await self._server.close(grace)
