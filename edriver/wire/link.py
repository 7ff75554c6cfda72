"""Makes a control stream survive broken connections: both sides number messages, and repeat unacknowledged ones.

Pure: it stamps and filters messages; sending them is up to its owner.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, NamedTuple, Protocol, TypeVar


class Numbered(Protocol):
    """A message with a sequence number and an acknowledgement: ConnectRequest, ConnectResponse."""

    seq: int
    ack: int


M = TypeVar("M", bound=Numbered)


class LinkState(NamedTuple):
    """How far one side of a control stream is.

    Attributes:
        sent: the number of the last message that was sent.
        durable: the number of the last received one that will be acted upon, whatever happens.
        unacknowledged: the messages that the other side has not acknowledged.
    """

    sent: int
    durable: int
    unacknowledged: tuple[Any, ...]


class LinkOverflowError(RuntimeError):
    """The number of messages that the other side has not acknowledged exceeds the limit."""


class Link(Generic[M]):
    """One side of a control stream.

    Args:
        limit: most messages that may be unacknowledged.
        acknowledge_at_once: whether a message is acknowledged as soon as it is received; else once
            `mark_durable` has said so.
    """

    def __init__(self, limit: int = 10_000, acknowledge_at_once: bool = True) -> None:
        self._limit = limit
        self._acknowledge_at_once = acknowledge_at_once
        self._sent = 0
        self._received = 0
        self._durable = 0
        self._stamped = 0
        self._unacknowledged: deque[M] = deque()

    def send(self, message: M) -> M:
        """Number a message and keep it until it is acknowledged; returns it.

        Raises:
            LinkOverflowError: too much is unacknowledged: give the other side up.
        """
        if len(self._unacknowledged) >= self._limit:
            raise LinkOverflowError(f"{self._limit} messages are unacknowledged")
        self._sent += 1
        message.seq = self._sent
        self._unacknowledged.append(message)
        return self.stamp(message)

    def stamp(self, message: M) -> M:
        """Acknowledge with a message what has been received; returns it. Enough for heartbeats, which are not kept."""
        message.ack = self._stamped = self._durable
        return message

    @property
    def owes_acknowledgement(self) -> bool:
        """Whether the other side may forget messages of which it has not been told so."""
        return self._stamped < self._durable

    def mark_durable(self, seq: int) -> None:
        """All messages up to this one will be acted upon, whatever happens: they may be acknowledged."""
        self._durable = max(self._durable, seq)

    @property
    def state(self) -> LinkState:
        """What another process continues from: it gets again what is not safe."""
        return LinkState(self._sent, self._durable, tuple(self._unacknowledged))

    def restore(self, state: LinkState) -> None:
        """Go on from the state of another process."""
        self._sent, self._durable = state.sent, state.durable
        self._received = state.durable
        self._unacknowledged = deque(state.unacknowledged)

    def acknowledge_at_once(self) -> None:
        """From now on acknowledge each message as soon as it is received."""
        self._acknowledge_at_once = True
        self._durable = self._received

    def resume(self, received: int, acknowledged: int) -> None:
        """Go on where another process has stopped, which had sent the same messages.

        Args:
            received: the number of the last message that is durable.
            acknowledged: the number of the last one that the other side had acknowledged.
        """
        self._received = self._durable = received
        self._forget(acknowledged)

    def receive(self, message: Numbered) -> bool:
        """Take in a message's numbers; returns whether it is to be acted upon (False: it was, before a reconnect).

        Raises:
            ValueError: a message is missing, or one was acknowledged that was never sent, which no order of reconnects
                can explain.
        """
        if message.ack > self._sent:
            raise ValueError(f"message {message.ack} is acknowledged, and {self._sent} were sent")
        self._forget(message.ack)
        if message.seq == 0:
            return True
        if message.seq <= self._received:
            return False
        if message.seq != self._received + 1:
            raise ValueError(f"message {message.seq} came after message {self._received}")
        self._received = message.seq
        if self._acknowledge_at_once:
            self._durable = message.seq
        return True

    def again(self) -> list[M]:
        """What must be sent first on a new connection, in order, acknowledgements brought up to date.

        The other side's first message on the new connection should be received before, so that only what it lacks is
        sent again.
        """
        return [self.stamp(message) for message in self._unacknowledged]

    def _forget(self, acknowledged: int) -> None:
        """The other side has the messages up to this one."""
        while self._unacknowledged and self._unacknowledged[0].seq <= acknowledged:
            self._unacknowledged.popleft()
