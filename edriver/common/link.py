"""Makes a control stream survive broken connections: both sides number messages, and repeat unacknowledged ones.

Pure: it stamps and filters messages; sending them is up to its owner.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar


class Numbered(Protocol):
    """A message with a sequence number and an acknowledgement: ConnectRequest, ConnectResponse."""

    seq: int
    ack: int


class LinkOverflowError(RuntimeError):
    """The number of messages that the other side has not acknowledged exceeds the limit."""


M = TypeVar("M", bound=Numbered)


class Link(Generic[M]):
    """One side of a control stream.

    Args:
        limit: most messages that may be unacknowledged.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._sent = 0
        self._received = 0
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
        message.ack = self._received
        return message

    def receive(self, message: Numbered) -> bool:
        """Take in a message's numbers; returns whether it is to be acted upon (False: it was, before a reconnect).

        Raises:
            ValueError: a message is missing, which no order of reconnects can explain.
        """
        while self._unacknowledged and self._unacknowledged[0].seq <= message.ack:
            self._unacknowledged.popleft()
        if message.seq == 0:
            return True
        if message.seq <= self._received:
            return False
        if message.seq != self._received + 1:
            raise ValueError(f"message {message.seq} came after message {self._received}")
        self._received = message.seq
        return True

    def again(self) -> list[M]:
        """What must be sent first on a new connection, in order, acknowledgements brought up to date.

        The other side's first message on the new connection should be received before, so that only what it lacks is
        sent again.
        """
        return [self.stamp(message) for message in self._unacknowledged]
