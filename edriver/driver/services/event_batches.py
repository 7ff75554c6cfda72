"""Many events in one message, which is made once for all who watch.

gRPC and the event loop take as long for a message of one event as for one of a thousand, and in a large run each
watcher that begins is sent tens of thousands of events.
"""

from __future__ import annotations

from typing import Final

from edriver.driver.observe.event_history import EventHistory
from edriver.v1 import status_pb2

BATCH_EVENTS: Final = 1000
"""Events of one message, at most,"""

BATCH_BYTES: Final = 256 * 1024
"""and bytes, unless a single event has more: a round of thousands names all of its members."""

KEPT: Final = 16
"""Messages that are kept: watchers read at different speeds."""


class EventBatches:
    """The events of a run as messages of many.

    Args:
        event_history: the events; only read.
    """

    def __init__(self, event_history: EventHistory) -> None:
        self._event_history = event_history
        self._made: dict[tuple[int, int], status_pb2.WatchResponse] = {}

    def after(self, seq: int) -> status_pb2.WatchResponse | None:
        """The events after this number, as many as one message has; None: there are none. It must not be changed.

        Raises:
            ForgottenError: the number does not exist yet, or an event after it is forgotten.
        """
        last = min(seq + BATCH_EVENTS, self._event_history.last_seq)
        if seq == last:
            return None
        if (known := self._made.get((seq, last))) is not None:
            return known
        events = self._event_history.since(seq, BATCH_EVENTS)
        size = 0
        for number, event in enumerate(events):
            size += event.ByteSize()
            if number and size > BATCH_BYTES:
                del events[number:]
                break
        made = self._made[seq, last] = status_pb2.WatchResponse(event=events[0], more=events[1:])
        if len(self._made) > KEPT:
            del self._made[next(iter(self._made))]
        return made


def last_number_of(batch: status_pb2.WatchResponse) -> int:
    """The number of the last event in a message."""
    return (batch.more[-1] if batch.more else batch.event).seq
