"""What a driver that takes a run over writes down for the one before: the events that had waited to be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from edriver.driver.observe.event_buffer import RECENT, EventBuffer
from edriver.driver.observe.records.log_end import LogEnd, log_end
from edriver.text.event_lines import event_line
from edriver.v1 import status_pb2


def replayed(count: int) -> EventBuffer:
    """As many events, one a second from 101 on."""
    buffer = EventBuffer()
    for n in range(1, count + 1):
        buffer.add(status_pb2.Event(text=f"event {n}"), 100.0 + n)
    return buffer


def test_those_after_the_last_that_was_written_get_new_numbers() -> None:
    buffer = replayed(5)
    unwritten = buffer.go_on_after(7, 103.5)  # some came from heartbeats, which are not replayed
    assert [(event.seq, event.text) for event in unwritten] == [(8, "event 4"), (9, "event 5")]
    assert buffer.since(7, 10) == unwritten
    buffer.add(status_pb2.Event(text="another"), 110.0)
    assert buffer.last_seq == 10


def test_where_all_were_written_there_are_none() -> None:
    buffer = replayed(5)
    assert buffer.go_on_after(5, 105.001) == []
    assert buffer.last_seq == 5


def test_earlier_events_take_no_more_than_their_bytes_and_are_told_as_they_were() -> None:
    buffer = replayed(RECENT + 5)
    recent = buffer.since(5, RECENT)
    assert all(event is again for event, again in zip(recent, buffer.since(5, RECENT), strict=True))
    earlier = buffer.since(0, 5)
    assert all(event is not again for event, again in zip(earlier, buffer.since(0, 5), strict=True))
    assert [(event.seq, event.text) for event in earlier] == [(n, f"event {n}") for n in range(1, 6)]
    assert [event.seq for event in buffer.since(3, 4)] == [4, 5, 6, 7]  # of both
    assert [event.seq for event in buffer.since(RECENT + 4, 10)] == [RECENT + 5]
    assert buffer.since(RECENT + 5, 10) == []


def test_those_that_may_be_unwritten_are_found_among_earlier_ones() -> None:
    buffer = EventBuffer()
    for n in range(RECENT + 5):
        buffer.add(status_pb2.Event(text=f"event {n}"), 100.0)  # all at once, as when a large run forms
    assert [event.seq for event in buffer.unwritten] == list(range(1, RECENT + 6))
    after = EventBuffer()
    after.last_seq, after.unwritten = buffer.last_seq, buffer.unwritten
    assert after.since(2, 3) == buffer.since(2, 3)
    assert len(after.go_on_after(RECENT, 99.0)) == RECENT + 5


def test_the_oldest_is_forgotten_first_once_they_are_too_many_bytes() -> None:
    size = replayed(1).since(0, 1)[0].ByteSize()
    buffer = EventBuffer(limit=(RECENT + 10) * (size + 5))
    for n in range(2 * RECENT):
        buffer.add(status_pb2.Event(text=f"event {n}"), 100.0)
    kept = len(buffer)
    assert RECENT + 10 <= kept < 2 * RECENT
    assert buffer.since(2 * RECENT - kept, 1)[0].seq == 2 * RECENT - kept + 1


@pytest.mark.parametrize("end", ["", '{"seq": "4", "ti', '{"progress": {}}\n', '{"seq": "4", "time": "now"}\n'])
def test_the_last_event_of_a_log_is_found(tmp_path: Path, end: str) -> None:
    log = tmp_path / "events.jsonl"
    buffer = replayed(3)
    log.write_text("".join(map(event_line, buffer.since(0, 10))) + end)
    assert log_end(log) == LogEnd(3, 103.0)


@pytest.mark.parametrize("text", [None, "", "no event\n"])
def test_a_log_may_have_none(tmp_path: Path, text: str | None) -> None:
    log = tmp_path / "events.jsonl"
    if text is not None:
        log.write_text(text)
    assert log_end(log) == LogEnd()


def test_the_steps_after_the_last_event_are_found(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    buffer = replayed(1)

    def progress(steps: int) -> str:
        return f'{{"time": "2026-03-01T12:00:00Z", "progress": {{"steps": "{steps}"}}}}\n'

    log.write_text(progress(7) + event_line(buffer.since(0, 10)[0]))
    assert log_end(log) == LogEnd(1, 101.0)
    with log.open("a") as file:
        file.write(progress(12) + progress(14) + '{"time": "2026')
    assert log_end(log) == LogEnd(1, 101.0, 14)
