"""The latest events of a run by their numbers, up to a limit in bytes.

Events wait for a pause, for seconds at most, to be written to the records (recorder.py). Where a driver takes a run
over, those that follow from the journal and are later than the last written one are written by it (`go_on_after`).
"""

from __future__ import annotations

from collections import deque
from itertools import chain, takewhile
from typing import Final, NamedTuple

from edriver.v1 import status_pb2
from edriver.wire.conversion import epoch_seconds, timestamp

MAX_KEPT_BYTES: Final = 32 * 1024 * 1024
"""Bytes of events that are remembered."""


RECENT: Final = 1000
"""Events that are remembered as messages: each takes ten times as much memory as its bytes, as which earlier ones are
remembered."""

UNWRITTEN_SECONDS: Final = 6.0
"""Seconds before the last event from which on events may not be in the records: their writer waits for a pause, for
MAX_WRITE_DELAY (recorder.py) at most, and takes time itself."""


class ForgottenError(LookupError):
    """What is asked for is not remembered, or has not happened yet; the message is one sentence for the caller."""


class _Kept(NamedTuple):
    """An event that is remembered.

    Attributes:
        event: the event, or its bytes.
        size: the number of these.
        time: when it happened, in seconds since the epoch.
    """

    event: status_pb2.Event | bytes
    size: int
    time: float

    @property
    def message(self) -> status_pb2.Event:
        """The event."""
        return self.event if isinstance(self.event, status_pb2.Event) else status_pb2.Event.FromString(self.event)


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
        self._earlier: deque[_Kept] = deque()  # as bytes,
        self._recent: deque[_Kept] = deque()  # and as messages
        self.last_seq = 0

    @property
    def unwritten(self) -> list[status_pb2.Event]:
        """For a snapshot: the events that may not be in the records yet. The next driver looks which are."""
        since = self._recent[-1].time - UNWRITTEN_SECONDS if self._recent else 0.0
        latest_first = chain(reversed(self._recent), reversed(self._earlier))
        found = [kept.message for kept in takewhile(lambda kept: kept.time >= since, latest_first)]
        return found[::-1]

    @unwritten.setter
    def unwritten(self, events: list[status_pb2.Event]) -> None:
        self._forget_all()
        for event in events:
            self._keep(event)

    def add(self, event: status_pb2.Event, now: float) -> None:
        """Give an event the next number and its time, in seconds since the epoch. It is not to be changed any more."""
        self.last_seq += 1
        event.seq = self.last_seq
        event.time.CopyFrom(timestamp(now))
        self._keep(event)
        while self._size > self._limit and len(self) > 1:
            self._size -= (self._earlier or self._recent).popleft().size

    def __len__(self) -> int:
        return len(self._earlier) + len(self._recent)

    def _keep(self, event: status_pb2.Event) -> None:
        size = event.ByteSize()
        self._size += size
        self._recent.append(_Kept(event, size, epoch_seconds(event.time)))  # the time as the records have it
        if len(self._recent) > RECENT:
            earlier = self._recent.popleft()
            self._earlier.append(earlier._replace(event=earlier.message.SerializeToString()))

    def _forget_all(self) -> None:
        self._earlier.clear()
        self._recent.clear()
        self._size = 0

    def go_on_after(self, seq: int, at: float) -> list[status_pb2.Event]:
        """Forget all events but those that another driver has not come to write down.

        Args:
            seq: the number of the last event that was written,
            at: and its time, in seconds since the epoch.

        Returns:
            the later events. They have new numbers, above all that there were: clients may know those.
        """
        unwritten = [(kept.message, kept.time) for kept in chain(self._earlier, self._recent) if kept.time > at]
        self._forget_all()
        self.last_seq = max(self.last_seq, seq)
        for event, time in unwritten:
            self.add(event, time)
        return [event for event, _ in unwritten]

    def since(self, seq: int, limit: int) -> list[status_pb2.Event]:
        """At most `limit` events after this number.

        Raises:
            ForgottenError: the number does not exist yet, or an event after it is forgotten.
        """
        first = self.last_seq - len(self) + 1
        if seq > self.last_seq:
            raise ForgottenError(f"there is no event {seq} yet: the last one is {self.last_seq}")
        if seq + 1 < first:
            raise ForgottenError(
                f"the events before {first} are no longer kept: call GetRun, and continue from its seq"
            )
        start, earlier = seq + 1 - first, len(self._earlier)
        places = range(start, min(start + limit, len(self)))
        return [(self._earlier[n] if n < earlier else self._recent[n - earlier]).message for n in places]
