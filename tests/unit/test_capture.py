"""Output in pieces: lines, tails, batches."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edriver.agent.forward import MAX_BATCH_BYTES, MAX_BATCH_LINES, MAX_BUFFER_BYTES, MAX_BUFFER_LINES, OutputBuffer
from edriver.agent.workers.capture import (
    MAX_HELD_BYTES,
    MAX_LINE_BYTES,
    MAX_TAIL_BYTES,
    MAX_TAIL_LINES,
    Capture,
    LineSplitter,
    PipeReader,
    ShowPace,
    Tail,
)
from edriver.agent.workers.log_files import Destination
from edriver.agent.workers.pipes import Pipes
from edriver.v1 import agent_pb2


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        pytest.param([b"a\nb\n"], [b"a", b"b"], id="two lines at once"),
        pytest.param([b"a", b"b\nc", b"\n"], [b"ab", b"c"], id="lines in pieces"),
        pytest.param([b"\n\n"], [b"", b""], id="empty lines"),
        pytest.param([b"10%\r20%\r", b"\r\n"], [b"20%"], id="a bar's last state"),
        pytest.param([b"\r10%", b"\r2", b"0%", b"\nend\n"], [b"20%", b"end"], id="a bar that comes in pieces"),
        pytest.param([b"\r10%\r", b"   \r", b"text\n"], [b"text"], id="a bar that is wiped out"),
        pytest.param([b"\r10%\r  "], [b"10%"], id="the last state of a bar without end"),
        pytest.param([b"a\r\nb\r", b"\n"], [b"a", b"b"], id="lines that end with both"),
        pytest.param([b"\r%d" % i for i in range(30_000)], [b"29999"], id="no bar is a long line"),
        pytest.param([b"a\nend"], [b"a", b"end"], id="the last line has no end"),
        pytest.param([b"x" * MAX_LINE_BYTES, b"\n"], [b"x" * MAX_LINE_BYTES], id="as long as may be"),
        pytest.param([b"x" * MAX_LINE_BYTES, b"y\n"], [b"x" * MAX_LINE_BYTES, b"y"], id="one byte too long"),
        pytest.param([b"x" * (2 * MAX_LINE_BYTES) + b"y"], [b"x" * MAX_LINE_BYTES] * 2 + [b"y"], id="much too long"),
    ],
)
def test_lines(chunks: list[bytes], lines: list[bytes]) -> None:
    splitter = LineSplitter()
    assert [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.flush() == lines
    assert splitter.flush() == []


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    splitter = LineSplitter()
    pieces = [piece for _ in range(100) for piece in splitter.feed(b"x" * 10_000)]
    assert sum(map(len, pieces)) > 1_000_000 - 2 * MAX_LINE_BYTES


def test_a_tail_has_the_last_lines() -> None:
    tail = Tail()
    for number in range(100):
        tail.add(str(number).encode())
    assert tail.text().split("\n") == [str(number) for number in range(100 - MAX_TAIL_LINES, 100)]


def test_a_tail_is_short_and_is_text() -> None:
    tail = Tail()
    tail.add(b"a" * 2 * MAX_TAIL_BYTES)
    tail.add(b"\xffend")
    assert tail.text() == "a" * (MAX_TAIL_BYTES - 5) + "\n\ufffdend"


def line(size: int) -> agent_pb2.OutputLine:
    return agent_pb2.OutputLine(text=b"x" * size)


def test_a_batch_is_full_by_lines_or_by_bytes() -> None:
    buffer = OutputBuffer()
    for _ in range(MAX_BATCH_LINES + 1):
        buffer.add(line(1))
    buffer.add(line(MAX_BATCH_BYTES))
    buffer.add(line(1))
    assert [len(buffer.take(1).lines) for _ in range(4)] == [MAX_BATCH_LINES, 1, 1, 1]
    assert not buffer


@pytest.mark.parametrize(
    ("size", "count"), [(1, MAX_BUFFER_LINES), (MAX_LINE_BYTES, MAX_BUFFER_BYTES // MAX_LINE_BYTES)]
)
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


def test_dropped_lines_are_reported_even_if_no_further_line_follows() -> None:
    buffer = OutputBuffer()
    for _ in range(MAX_BUFFER_LINES):
        buffer.add(line(1))
    while buffer:
        buffer.take(1)
    for _ in range(MAX_BUFFER_LINES + 1):
        buffer.add(line(1))
    assert sum(buffer.take(1).dropped for _ in range(MAX_BUFFER_LINES // MAX_BATCH_LINES)) == 1
    assert not buffer


@pytest.mark.parametrize(
    ("early", "place", "shown"),
    [
        pytest.param(b"early\n", True, [], id="goes where the place's output does"),
        pytest.param(b"early\n", False, [b"early", b"late"], id="is shown where there never was a place"),
        pytest.param(b"x" * (MAX_HELD_BYTES - 1) + b"\n", False, [b"x" * (MAX_HELD_BYTES - 1), b"late"], id="a lot"),
        pytest.param(b"e\n" * (MAX_HELD_BYTES // 2) + b"more\n", True, None, id="too much"),
    ],
)
def test_lines_before_a_place_is_known_wait_for_it(
    tmp_path: Path, early: bytes, place: bool, shown: list[bytes] | None
) -> None:
    lines: list[tuple[bytes, bool]] = []
    log = tmp_path / "stdout.log"

    async def read() -> None:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        reader = PipeReader(
            reading,
            Pipes(),
            lambda line, shown, _kind: lines.append((line, shown)),
            lambda _file, _reason: None,
            ShowPace(lambda: 0.0),
        )
        reader.lead_to(Destination(held=True))
        for start in range(0, len(early), 4096):
            os.write(writing, early[start : start + 4096])
            reader._read()
        if shown is not None:
            assert lines == []
        if place:
            reader.lead_to(Destination(log, shown=False))
        os.write(writing, b"late\n")
        os.close(writing)
        reader.finish()

    asyncio.run(read())
    if shown is None:  # beyond what is held back nothing waits
        assert [each for each in lines if each[1]] == [(b"e", True)] * (MAX_HELD_BYTES // 2) + [(b"more", True)]
        assert lines[-1] == (b"late", False)
        return
    assert [line for line, visible in lines if visible] == shown
    if place:
        assert log.read_bytes() == early + b"late\n"


def test_what_was_printed_before_a_round_does_not_get_its_rank() -> None:
    async def ranks() -> list[tuple[bytes, int | None]]:
        found: list[agent_pb2.OutputLine] = []
        paused = asyncio.Event()
        (out, write), (err, other) = os.pipe2(os.O_NONBLOCK), os.pipe2(os.O_NONBLOCK)
        pipes = Pipes(lambda _, watch: paused.set())
        capture = Capture(1, 0, out, err, pipes, found.append, lambda: None, lambda _file, _reason: None)
        os.write(write, b"first\n")
        await paused.wait()  # the pipes have been read, and are left alone from now on
        os.write(write, b"before\n")
        capture.begin_round(6)
        os.write(write, b"after\n")
        capture.finish()
        capture.begin_round(7)  # too late, and of no effect
        for end in (write, other):
            os.close(end)
        return [(line.text, line.rank if line.HasField("rank") else None) for line in found]

    assert asyncio.run(ranks()) == [(b"first", None), (b"before", None), (b"after", 6)]


class Bar:
    """A worker that writes to stderr, read in virtual time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.shown: list[tuple[str, bool]] = []
        self.ends: list[tuple[str, bool]] = []
        self.signs = 0
        self._later: list[tuple[float, Callable[[], None]]] = []
        pipes = Pipes(lambda seconds, call: self._later.append((self.now + seconds, call)))
        pipes.time = lambda: self.now
        (out, self._other), (err, self._write) = os.pipe2(os.O_NONBLOCK), os.pipe2(os.O_NONBLOCK)
        self.capture = Capture(1, 0, out, err, pipes, self._take, self._sign, lambda _file, _reason: None)

    def _take(self, line: agent_pb2.OutputLine) -> None:
        self.shown.append((line.text.decode(), line.replaces))
        self.ends.append((line.text.decode(), not line.unfinished))

    def _sign(self) -> None:
        self.signs += 1

    def write(self, text: str, after: float = 0.0) -> None:
        self.wait(after)
        os.write(self._write, text.encode())
        self.capture._readers[1].read_all()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        due, self._later = self._later, []
        for when, call in due:
            if when <= self.now:
                call()
            else:
                self._later.append((when, call))

    def end(self) -> str:
        for end in (self._write, self._other):
            os.close(end)
        return self.capture.finish()


def test_a_bar_is_shown_once_a_second_and_as_it_looks_in_the_end() -> None:
    async def story() -> None:
        bar = Bar()
        bar.write("the loss is not a number\n")
        for percent in range(60):
            bar.write(f"\r{percent}%", after=1 / 16)
        assert bar.shown == [
            ("the loss is not a number", False),
            ("0%", False),
            *((f"{percent}%", True) for percent in (15, 31, 47)),
        ]
        assert bar.signs == 5
        bar.wait(0.5)  # nothing follows: its state is shown all the same
        assert bar.shown[-1] == ("59%", True)
        bar.write("\r100%\nnext\n", after=0.1)
        assert bar.shown[-2:] == [("100%", True), ("next", False)]
        assert bar.end() == "the loss is not a number\n100%\nnext"

    asyncio.run(story())


def test_that_a_line_has_ended_is_passed_on_though_its_last_state_was_shown() -> None:
    async def story() -> None:
        bar = Bar()
        bar.write("\r100%")
        bar.write("\n")
        bar.write("\rnext")
        assert bar.shown == [("100%", False), ("100%", True)]
        bar.wait(1.0)
        assert bar.shown[2:] == [("next", False)]
        assert bar.end() == "100%\nnext"
        assert bar.ends == [("100%", False), ("100%", True), ("next", False), ("next", True)]

    asyncio.run(story())
