"""The link between driver and agent: whatever connections break, each message is acted upon once, in order."""

from __future__ import annotations

import copy
import random
from collections import deque
from dataclasses import dataclass

import pytest

from edriver.wire.link import Link, LinkOverflowError


@dataclass(slots=True)
class Message:
    """A numbered message."""

    text: str
    seq: int = 0
    ack: int = 0


class End:
    """One end of a stream: what it has sent in all, and acted upon in all."""

    def __init__(self) -> None:
        self.link: Link[Message] = Link()
        self.message: list[str] = []
        self.acted: list[str] = []
        self.wire: deque[Message] = deque()

    def say(self, connected: bool) -> None:
        """Send the next message; without a connection it is only kept."""
        self.message.append(str(len(self.message)))
        message = self.link.send(Message(self.message[-1]))
        if connected:
            self._put(message)

    def beat(self) -> None:
        """Send a heartbeat."""
        self._put(self.link.stamp(Message("heartbeat")))

    def greet(self) -> None:
        """Say first on a new connection what has been received."""
        self.wire.clear()
        self.beat()

    def catch_up(self) -> None:
        """Send again what the other side lacks."""
        for message in self.link.again():
            self._put(message)

    def hear(self, other: End) -> None:
        """Take one message off the wire, if there is one."""
        if other.wire:
            message = other.wire.popleft()
            if self.link.receive(message) and message.seq:
                self.acted.append(message.text)

    def _put(self, message: Message) -> None:
        self.wire.append(copy.copy(message))  # the wire carries bytes: later changes do not show


def connect(a: End, b: End) -> None:
    """A new connection: whatever the old one still carried is lost; both greet, and then send again."""
    a.greet()
    b.greet()
    a.hear(b)
    b.hear(a)
    a.catch_up()
    b.catch_up()


@pytest.mark.parametrize("seed", range(200))
def test_random_reconnects_lose_nothing_and_repeat_nothing(seed: int) -> None:
    rng = random.Random(seed)
    a, b = End(), End()
    connected = True
    for _ in range(rng.randint(20, 300)):
        one, other = rng.choice([(a, b), (b, a)])
        match rng.choices(["say", "hear", "beat", "cut", "connect"], weights=[8, 10, 2, 1, 2])[0]:
            case "say":
                one.say(connected)
            case "hear":
                one.hear(other)  # also after a cut: what had left the sender may still arrive
            case "beat" if connected:
                one.beat()
            case "cut":
                connected = False
            case "connect" if not connected:
                connected = True
                connect(a, b)
        assert a.acted == b.message[: len(a.acted)]
        assert b.acted == a.message[: len(b.acted)]
    connect(a, b)
    while a.wire or b.wire:
        a.hear(b)
        b.hear(a)
    assert (a.acted, b.acted) == (b.message, a.message)
    connect(a, b)  # each has now heard that all has arrived
    assert (a.link.again(), b.link.again()) == ([], [])


def test_messages_are_numbered_from_1_and_acknowledge_what_was_received() -> None:
    link: Link[Message] = Link()
    assert link.receive(Message("theirs", seq=1))
    assert link.send(Message("ours")) == Message("ours", seq=1, ack=1)
    assert link.receive(Message("theirs", seq=2))
    assert link.send(Message("ours")) == Message("ours", seq=2, ack=2)


def test_a_heartbeat_acknowledges_and_is_not_kept() -> None:
    link: Link[Message] = Link()
    link.send(Message("one"))
    link.send(Message("two"))
    assert link.stamp(Message("heartbeat")) == Message("heartbeat")
    assert link.receive(Message("heartbeat", ack=1))
    assert [message.text for message in link.again()] == ["two"]


def test_what_is_sent_again_keeps_its_number_and_brings_its_acknowledgement_up_to_date() -> None:
    link: Link[Message] = Link()
    link.send(Message("one"))
    link.receive(Message("theirs", seq=1))
    assert link.again() == [Message("one", seq=1, ack=1)]


def test_a_repeated_message_is_not_acted_upon_but_its_acknowledgement_counts() -> None:
    link: Link[Message] = Link()
    link.send(Message("one"))
    assert link.receive(Message("theirs", seq=1))
    assert not link.receive(Message("theirs", seq=1, ack=1))
    assert link.again() == []


def test_a_gap_is_an_error() -> None:
    link: Link[Message] = Link()
    link.receive(Message("theirs", seq=1))
    with pytest.raises(ValueError, match="message 3 came after message 1"):
        link.receive(Message("theirs", seq=3))
    assert link.receive(Message("theirs", seq=2))  # and has changed nothing


def test_what_is_unacknowledged_is_bounded() -> None:
    link: Link[Message] = Link(limit=2)
    link.send(Message("one"))
    link.send(Message("two"))
    with pytest.raises(LinkOverflowError, match="2 messages are unacknowledged"):
        link.send(Message("three"))
    link.receive(Message("heartbeat", ack=1))
    assert link.send(Message("three")).seq == 3
