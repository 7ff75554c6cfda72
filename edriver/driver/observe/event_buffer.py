"""The latest events of a run by their numbers, up to a limit in bytes.

Events wait for a fifth of a second to be written to the records. Where a driver takes a run over, those that follow
from the journal and are later than the last written one are written by it (`go_on_after`).
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import Final

from edriver.v1 import status_pb2
from edriver.wire.conversion import epoch_seconds, timestamp

MAX_KEPT_BYTES: Final = 32 * 1024 * 1024
"""Bytes of events that are remembered."""


UNWRITTEN_SECONDS: Final = 5.0
"""Seconds before the last event from which on events may not be in the records: their writer waits for a moment."""


class ForgottenError(LookupError):
    """What is asked for is not remembered, or has not happened yet; the message is one sentence for the caller."""


class EventBuffer:
    """Numbers events and remembers the latest; always at least the last one.

    Args:
        limit: the maximum total size, in bytes.

    Attributes:
        last_seq: the number of the last event; 0 before the first.
    """

    STATE = ("last_seq", "unwritten")

    def __init__(self, limit: int = MAX_KEPT_BYTES) -> None:
        self._limit = limit
        self._size = 0
        self._events: deque[tuple[status_pb2.Event, int, float]] = deque()  # each with its size and time
        self.last_seq = 0

    @property
    def unwritten(self) -> list[status_pb2.Event]:
        """For a snapshot: the events that may not be in the records yet. The next driver looks which are."""
        since = self._events[-1][2] - UNWRITTEN_SECONDS if self._events else 0.0
        found = [event for event, _, _ in takewhile(lambda kept: kept[2] >= since, reversed(self._events))]
        return found[::-1]

    @unwritten.setter
    def unwritten(self, events: list[status_pb2.Event]) -> None:
        self._events = deque((event, event.ByteSize(), epoch_seconds(event.time)) for event in events)
        self._size = sum(size for _, size, _ in self._events)

    def add(self, event: status_pb2.Event, now: float) -> None:
        """Give an event the next number and its time, in seconds since the epoch."""
        self.last_seq += 1
        event.seq = self.last_seq
        event.time.CopyFrom(timestamp(now))
        size = event.ByteSize()
        self._events.append((event, size, epoch_seconds(event.time)))  # as the records have it
        self._size += size
        while self._size > self._limit and len(self._events) > 1:
            self._size -= self._events.popleft()[1]

    def go_on_after(self, seq: int, at: float) -> list[status_pb2.Event]:
        """Forget all events but those that another driver has not come to write down.

        Args:
            seq: the number of the last event that was written,
            at: and its time, in seconds since the epoch.

        Returns:
            the later events. They have new numbers, above all that there were: clients may know those.
        """
        unwritten = [(event, time) for event, _, time in self._events if time > at]
        self._events.clear()
        self._size = 0
        self.last_seq = max(self.last_seq, seq)
        for event, time in unwritten:
            self.add(event, time)
        return [event for event, _ in unwritten]

    def since(self, seq: int, limit: int) -> list[status_pb2.Event]:
        """At most `limit` events after this number.

        Raises:
            ForgottenError: the number does not exist yet, or an event after it is forgotten.
        """
        first = self.last_seq - len(self._events) + 1
        if seq > self.last_seq:
            raise ForgottenError(f"there is no event {seq} yet: the last one is {self.last_seq}")
        if seq + 1 < first:
            raise ForgottenError(
                f"the events before {first} are no longer kept: call GetRun, and continue from its seq"
            )
        start = seq + 1 - first
        return [self._events[place][0] for place in range(start, min(start + limit, len(self._events)))]
