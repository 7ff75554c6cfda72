"""Events for those who watch: many in a message that is made once, none left out."""

from __future__ import annotations

import pytest

from edriver.driver.core.membership import Membership
from edriver.driver.observe.event_buffer import ForgottenError
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.progress import ProgressTracker
from edriver.driver.services.event_batches import BATCH_BYTES, BATCH_EVENTS, KEPT, EventBatches, last_number_of
from edriver.model.settings import Settings
from edriver.v1 import status_pb2


class Run:
    """The history of a run, in which as much happens as is wanted."""

    def __init__(self, limit: int = 64 * 1024 * 1024) -> None:
        membership = Membership(Settings(np=1, min_np=1, max_np=1), now=0.0)
        self.history = EventHistory(membership, ProgressTracker(lambda: 0.0), lambda: 0.0, limit)
        self.batches = EventBatches(self.history)

    def happens(self, count: int, text: str = "something") -> None:
        for _ in range(count):
            self.history.events.add(status_pb2.Event(text=text, remark=status_pb2.Remark()), 0.0)

    def read(self, seq: int = 0) -> list[list[status_pb2.Event]]:
        """All batches after a number."""
        found = []
        while (batch := self.batches.after(seq)) is not None:
            found.append([batch.event, *batch.more])
            assert last_number_of(batch) == found[-1][-1].seq
            seq = last_number_of(batch)
        return found


def test_all_events_come_in_order_and_a_thousand_at_once() -> None:
    run = Run()
    assert run.read() == []
    run.happens(2 * BATCH_EVENTS + 3)
    found = run.read()
    assert [len(batch) for batch in found] == [BATCH_EVENTS, BATCH_EVENTS, 3]
    assert [event.seq for batch in found for event in batch] == list(range(1, 2 * BATCH_EVENTS + 4))
    assert [[event.seq for event in batch] for batch in run.read(2 * BATCH_EVENTS + 1)] == [
        [2 * BATCH_EVENTS + 2, 2 * BATCH_EVENTS + 3]
    ]


def test_a_message_is_no_larger_than_its_limit_unless_one_event_is() -> None:
    run = Run()
    run.happens(10, "x" * (BATCH_BYTES // 4))
    run.happens(1, "y" * (BATCH_BYTES + 1))
    run.happens(2)
    assert [len(batch) for batch in run.read()] == [3, 3, 3, 1, 1, 2]


def test_a_message_is_made_once_for_all_and_again_when_there_is_more() -> None:
    run = Run()
    run.happens(3)
    first = run.batches.after(0)
    assert run.batches.after(0) is first
    run.happens(1)
    assert [[event.seq for event in batch] for batch in run.read()] == [[1, 2, 3, 4]]


def test_only_a_few_messages_are_kept() -> None:
    run = Run()
    run.happens(KEPT + 1)
    first = run.batches.after(0)
    for seq in range(1, KEPT):
        run.batches.after(seq)
    assert run.batches.after(0) is first
    run.batches.after(KEPT)
    assert run.batches.after(0) is not first


def test_numbers_that_are_not_there() -> None:
    run = Run(limit=100)
    run.happens(50)
    with pytest.raises(ForgottenError, match="there is no event 51 yet"):
        run.batches.after(51)
    with pytest.raises(ForgottenError, match="no longer kept"):
        run.batches.after(0)
