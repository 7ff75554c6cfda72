"""Output in pieces: lines, tails, batches."""

from __future__ import annotations

import pytest

from edriver.agent.forward import BATCH_BYTES, BATCH_LINES, BUFFER_BYTES, BUFFER_LINES, OutputBuffer
from edriver.agent.workers.capture import LINE_LIMIT, TAIL_BYTES, TAIL_LINES, LineSplitter, Tail
from edriver.v1 import agent_pb2


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        pytest.param([b"a\nb\n"], [b"a", b"b"], id="two lines at once"),
        pytest.param([b"a", b"b\nc", b"\n"], [b"ab", b"c"], id="lines in pieces"),
        pytest.param([b"\n\n"], [b"", b""], id="empty lines"),
        pytest.param([b"10%\r20%\r", b"\r\n"], [b"10%\r20%\r\r"], id="only a newline ends a line"),
        pytest.param([b"a\nend"], [b"a", b"end"], id="the last line has no end"),
        pytest.param([b"x" * LINE_LIMIT, b"\n"], [b"x" * LINE_LIMIT], id="as long as may be"),
        pytest.param([b"x" * LINE_LIMIT, b"y\n"], [b"x" * LINE_LIMIT, b"y"], id="one byte too long"),
        pytest.param([b"x" * (2 * LINE_LIMIT) + b"y"], [b"x" * LINE_LIMIT] * 2 + [b"y"], id="much too long"),
    ],
)
def test_lines(chunks: list[bytes], lines: list[bytes]) -> None:
    splitter = LineSplitter()
    assert [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.flush() == lines
    assert splitter.flush() == []


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    splitter = LineSplitter()
    pieces = [piece for _ in range(100) for piece in splitter.feed(b"x" * 10_000)]
    assert sum(map(len, pieces)) > 1_000_000 - 2 * LINE_LIMIT


def test_a_tail_has_the_last_lines() -> None:
    tail = Tail()
    for number in range(100):
        tail.add(str(number).encode())
    assert tail.text().split("\n") == [str(number) for number in range(100 - TAIL_LINES, 100)]


def test_a_tail_is_short_and_is_text() -> None:
    tail = Tail()
    tail.add(b"a" * 2 * TAIL_BYTES)
    tail.add(b"\xffend")
    assert tail.text() == "a" * (TAIL_BYTES - 5) + "\n\ufffdend"


def line(size: int) -> agent_pb2.OutputLine:
    return agent_pb2.OutputLine(text=b"x" * size)


def test_a_batch_is_full_by_lines_or_by_bytes() -> None:
    buffer = OutputBuffer()
    for _ in range(BATCH_LINES + 1):
        buffer.add(line(1))
    buffer.add(line(BATCH_BYTES))
    buffer.add(line(1))
    assert [len(buffer.take(1).lines) for _ in range(4)] == [BATCH_LINES, 1, 1, 1]
    assert not buffer


@pytest.mark.parametrize(("size", "count"), [(1, BUFFER_LINES), (LINE_LIMIT, BUFFER_BYTES // LINE_LIMIT)])
def test_a_full_buffer_drops_and_counts(size: int, count: int) -> None:
    buffer = OutputBuffer()
    for _ in range(count + 3):
        buffer.add(line(size))
    first = buffer.take(1)
    assert first.dropped == 3
    assert buffer.take(1).dropped == 0
    buffer.add(line(size))
    taken = len(first.lines)
    while buffer:
        taken += len(buffer.take(1).lines)
    # Of the batches above, the second is missing.
    assert taken == count + 1 - len(first.lines)


def test_what_was_dropped_is_told_even_if_nothing_else_comes() -> None:
    buffer = OutputBuffer()
    for _ in range(BUFFER_LINES):
        buffer.add(line(1))
    while buffer:
        buffer.take(1)
    for _ in range(BUFFER_LINES + 1):
        buffer.add(line(1))
    assert sum(buffer.take(1).dropped for _ in range(BUFFER_LINES // BATCH_LINES)) == 1
    assert not buffer
