"""What a driver that takes a run over writes down for the one before: the events that had waited to be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from edriver.driver.observe.event_buffer import EventBuffer
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
