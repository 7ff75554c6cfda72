"""Admission: whether the first message of a control stream proves it to be an agent of this run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import grpc

from edriver.common.release import PROTOCOL, VERSION
from edriver.driver.agents.dial_in_hosts import DialInHosts
from edriver.driver.agents.fault_log import FaultLog
from edriver.driver.agents.registry import AgentPeer, AgentRegistry
from edriver.driver.observe.cause_text import agent_fault_text
from edriver.model.cause import AgentFault, AgentFaultKind
from edriver.model.limits import OutOfBoundsError
from edriver.text.printable import printable
from edriver.v1 import agent_pb2
from edriver.wire import message_limits

ARRIVAL_BOUND: Final = 30.0
"""Seconds that a host which has dialled in on its own waits to be given a place; then it dials again."""


class RefusedError(Exception):
    """A connection is refused; the message has the reason.

    Attributes:
        code: the status that its call ends with.
    """

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Admission:
    """Lets the agents of one run in, by run, id, host, protocol and secret; hosts that dial in wait for their place.

    Args:
        run_id: this run; a Hello of another is refused.
        welcome: the first message to every agent.
        registry: the agents that are expected.
        dial_in_hosts: admits hosts that dial in; None if there are none.
        credentials: what workers authenticate one another by; None: nothing.
        faults: logs agents that claim to be another.
    """

    def __init__(
        self,
        run_id: str,
        welcome: agent_pb2.Welcome,
        registry: AgentRegistry,
        dial_in_hosts: DialInHosts | None,
        credentials: Callable[[], agent_pb2.WorkerCredentials | None],
        faults: FaultLog,
    ) -> None:
        self._run_id = run_id
        self._welcome = welcome
        self._registry = registry
        self._dial_in_hosts = dial_in_hosts
        self._credentials = credentials
        self._faults = faults

    async def admit(
        self, first: agent_pb2.ConnectRequest | None, observed_address: str
    ) -> tuple[AgentPeer, agent_pb2.Welcome]:
        """Look at the message that opens a connection.

        Args:
            first: the message; None if there is none. The Hello of a host that dials in gets its ID and secret.
            observed_address: the address from which it came; empty: this machine.

        Returns:
            the agent that connects, and its Welcome.

        Raises:
            RefusedError: the connection is refused.
        """
        try:
            message_limits.check(first or agent_pb2.ConnectRequest())
        except OutOfBoundsError as error:
            raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
        if first is None or first.WhichOneof("kind") != "hello":
            raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, "a control stream must begin with Hello")
        hello = first.hello
        arriving = bool(hello.host) and not hello.agent_id
        if arriving:
            await self._let_in(hello)
        peer = self._peer_of(hello)
        if not peer.identity.is_proven_by(hello.secret):
            text = f"refused a connection from {observed_address or 'this machine'}: it claimed"
            self._faults.warn_once(f"{text} to be the agent of host {peer.host} and did not know its secret")
            raise RefusedError(
                grpc.StatusCode.PERMISSION_DENIED, f"agent {peer.agent_id} of host {peer.host} must show its secret"
            )
        if hello.version != VERSION:  # of the same PROTOCOL, which covers what workers exchange: no reason to refuse
            self._faults.warn_once(
                f"the agent of host {peer.host} runs edriver {printable(hello.version)}, and the driver {VERSION}: "
                "they work together; when the run is over, install the same release on all hosts"
            )
        return peer, self._welcome_to(peer, observed_address, arriving)

    async def _let_in(self, hello: agent_pb2.Hello) -> None:
        """Wait until the run has a place for a host that has dialled in on its own, and give its agent an id."""
        if self._dial_in_hosts is None:
            raise RefusedError(
                grpc.StatusCode.FAILED_PRECONDITION, "this run does not accept hosts that dial in (--hosts-dial-in)"
            )
        if hello.run_id == self._run_id and hello.protocol == PROTOCOL:  # else it is refused anyway
            try:
                place = self._dial_in_hosts.register(hello.host, hello.slots)
            except ValueError as error:
                raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
            except KeyError:  # it dials again: the one that is there may be itself, before its connection broke
                self._faults.warn_once(
                    f"a second agent has dialled in as host {hello.host}: give it another name (--host)"
                )
                raise RefusedError(grpc.StatusCode.ALREADY_EXISTS, f"the run already has a host {hello.host}") from None
            try:
                async with asyncio.timeout(ARRIVAL_BOUND):
                    hello.agent_id = await place
                hello.secret = self._registry.secret_of(hello.agent_id)
            except TimeoutError:
                raise RefusedError(grpc.StatusCode.UNAVAILABLE, "the run cannot use this host at the moment") from None
            finally:
                if not hello.agent_id:
                    self._dial_in_hosts.leave(hello.host)

    def _peer_of(self, hello: agent_pb2.Hello) -> AgentPeer:
        """The agent that has sent this.

        Raises:
            RefusedError: it is not an agent that this run waits for.
        """
        if hello.run_id != self._run_id:
            raise _unknown(f"this is the driver of run {self._run_id}, not of {hello.run_id!r}")
        peer = self._registry.peer(hello.agent_id)
        if peer is None:
            raise _unknown(
                f"agent {hello.agent_id} was given up, or never belonged to this run: it ends its workers and itself"
            )
        if peer.host != hello.host:
            raise _unknown(f"agent {hello.agent_id} belongs to host {peer.host}, not to {hello.host!r}")
        if hello.protocol != PROTOCOL:
            fault = AgentFault(AgentFaultKind.OTHER_RELEASE, hello.version)
            if not peer.connected and peer.identity.is_proven_by(hello.secret):  # else it comes from another process
                self._registry.lose(peer, fault)
            raise _unknown(agent_fault_text(fault))
        return peer

    def _welcome_to(self, peer: AgentPeer, observed_address: str, arriving: bool) -> agent_pb2.Welcome:
        welcome = agent_pb2.Welcome()
        welcome.CopyFrom(self._welcome)
        welcome.agent_id = peer.agent_id
        if arriving:
            welcome.secret = peer.identity.secret
        welcome.observed_address = observed_address
        if credentials := self._credentials():
            welcome.credentials.CopyFrom(credentials)
        return welcome


def _unknown(reason: str) -> RefusedError:
    return RefusedError(grpc.StatusCode.FAILED_PRECONDITION, reason)
