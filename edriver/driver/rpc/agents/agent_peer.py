"""One agent as the driver sees it: what it was sent, and the connection it has at the moment, if any."""

from __future__ import annotations

from typing import Any, Final

from edriver.common.lease import Lease
from edriver.common.link import Link
from edriver.driver.rpc.agents.agent_identity import AgentIdentity
from edriver.driver.rpc.mailbox import Mailbox
from edriver.v1 import agent_pb2

STREAM_LIMIT: Final = 20_000
"""Messages that may wait for one connection; more than the link keeps, so that a new connection can take them all."""


class AgentPeer:
    """The agent with this id; its connections come and go, the numbering of messages stays.

    Attributes:
        identity: who it is.
        host: the host it is for.
        agent_id: its id, never used for another.
        lease: counts its silence.
        pid: its process, or 0 before it first dialled in.
        silent: whether its lease has expired and it has sent nothing since.
        ending: whether it is to end.
    """

    def __init__(self, identity: AgentIdentity, lease: Lease) -> None:
        self.identity = identity
        self.host = identity.host
        self.agent_id = identity.agent_id
        self.lease = lease
        self.pid = 0
        self.silent = False
        self.ending = False
        self._link: Link[Any] = Link()  # numbers ConnectResponse, and reads the numbers of ConnectRequest
        self._stream: Mailbox[agent_pb2.ConnectResponse] | None = None

    @property
    def connected(self) -> bool:
        """Whether it has ever dialled in."""
        return self.pid > 0

    def connect(
        self, hello: agent_pb2.ConnectRequest, welcome: agent_pb2.ConnectResponse
    ) -> Mailbox[agent_pb2.ConnectResponse]:
        """Begin a connection: the welcome, then all that its Hello does not acknowledge. An older one is over.

        Returns:
            what is to be sent on this connection, until it is closed.

        Raises:
            ValueError: the Hello carries a number that it must not have.
        """
        self.receive(hello)
        self.pid = hello.hello.pid or 1
        if self._stream is not None:
            self._stream.close()
        stream = self._stream = Mailbox[agent_pb2.ConnectResponse](STREAM_LIMIT)
        stream.put(self._link.stamp(welcome))
        for message in self._link.again():
            stream.put(message)
        return stream

    def disconnect(self, stream: Mailbox[agent_pb2.ConnectResponse]) -> None:
        """The connection is over; the next one sends again what is unacknowledged."""
        stream.close()
        if self._stream is stream:
            self._stream = None

    def send(self, message: agent_pb2.ConnectResponse) -> None:
        """Send a message, now or on the next connection.

        Raises:
            LinkOverflowError: too much is unacknowledged.
        """
        self.identity.note(message)
        self._put(self._link.send(message))

    def beat(self) -> None:
        """Send a heartbeat, if there is a connection."""
        self._put(self._link.stamp(agent_pb2.ConnectResponse(heartbeat=agent_pb2.Heartbeat())))

    def receive(self, message: agent_pb2.ConnectRequest) -> bool:
        """Take in the numbers of a message of the agent's; returns whether it is to be acted upon.

        Raises:
            ValueError: a message is missing.
        """
        return self._link.receive(message)

    def close(self) -> None:
        """Nothing more is sent."""
        if self._stream is not None:
            self.disconnect(self._stream)

    def _put(self, message: agent_pb2.ConnectResponse) -> None:
        if self._stream is None:
            return
        if self._stream.full:  # connected, but it takes nothing: a new connection begins where this one stopped
            self.disconnect(self._stream)
        else:
            self._stream.put(message)
