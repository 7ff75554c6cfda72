from __future__ import annotations

import logging
import os
import pty
import threading

import pytest

from edriver.driver.observe.console.output import Output, OutputStream, _LogHandler, has_colours, prefixed
from edriver.v1.agent_pb2 import ForwardOutputRequest, OutputLine


@pytest.mark.parametrize(
    ("line", "text"),
    [
        pytest.param(OutputLine(slot=1, rank=0, text=b"x"), b"[0]<stdout>:x\n", id="rank-0"),
        pytest.param(OutputLine(slot=1, rank=3, stderr=True, text=b"x"), b"[3]<stderr>:x\n", id="stderr"),
        pytest.param(OutputLine(slot=1, text=b"x"), b"[a:1]<stdout>:x\n", id="no-rank-yet"),
        pytest.param(OutputLine(slot=0, rank=0, text=b"\xff"), b"[0]<stdout>:\xff\n", id="not-utf-8"),
    ],
)
def test_prefix(line: OutputLine, text: bytes) -> None:
    assert prefixed("a", line) == text


def read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as pipe:
        return pipe.read()


def test_each_stream_gets_its_lines_and_the_driver_speaks_on_stderr() -> None:
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    output = Output(out_end, err_end)
    lines = [OutputLine(rank=0, text=b"one"), OutputLine(rank=1, stderr=True, text=b"two")]
    output.forward("a", ForwardOutputRequest(lines=lines, dropped=7))
    output.say("first\n  second")
    output.close()
    os.close(out_end)
    os.close(err_end)
    assert read_all(out) == b"[0]<stdout>:one\n"
    assert read_all(err) == (
        b"[1]<stderr>:two\n"
        b"edriver: 7 lines of output from host a left out: they came faster than they were read\n"
        b"edriver: first\nedriver:   second\n"
    )


def test_a_reader_that_does_not_read_costs_lines_but_never_blocks() -> None:
    reader, writer = os.pipe()
    lane = OutputStream(writer, "stdout", limit=100_000)
    line = b"x" * 999 + b"\n"
    for _ in range(1000):
        lane.put(line)
    lane.put(b"the driver's own\n", from_driver=True)
    assert not lane.flush(timeout=0.01)
    drained: list[bytes] = []
    reading = threading.Thread(target=lambda: drained.append(read_all(reader)), daemon=True)
    reading.start()
    assert lane.flush(timeout=20)
    os.close(writer)
    reading.join()
    *xs, left_out, own = drained[0].splitlines()
    assert set(xs) == {line[:-1]}
    assert left_out == b"edriver: %d lines left out: stdout is read too slowly" % (1000 - len(xs))
    assert own == b"the driver's own"


def test_a_flood_is_reported_periodically_and_at_the_end() -> None:
    out, out_end = os.pipe()
    now = [0.0]
    output = Output(out_end, out_end, clock=lambda: now[0])
    for second in range(25):
        now[0] = float(second)
        output.forward("a", ForwardOutputRequest(dropped=100))
    output.forward("b", ForwardOutputRequest(dropped=1))
    output.close()
    os.close(out_end)
    why = "left out: they came faster than they were read"
    assert read_all(out).decode().splitlines() == [
        f"edriver: 100 lines of output from host a {why}",
        f"edriver: 1000 more lines (in all 1100) of output from host a {why}",
        f"edriver: 1000 more lines (in all 2100) of output from host a {why}",
        f"edriver: 1 line of output from host b {why}",
        f"edriver: 400 more lines (in all 2500) of output from host a {why}",
    ]


def test_a_slow_reader_is_reported_periodically() -> None:
    reader, writer = os.pipe()
    now = [0.0]
    lane = OutputStream(writer, "stdout", limit=1000, clock=lambda: now[0])
    for second in range(12):
        now[0] = float(second)
        lane.put(b"x" * 1001)
        lane.put(b"\n")
    assert lane.flush(timeout=20)
    os.close(writer)
    assert read_all(reader).split() == [
        *b"edriver: 1 line left out: stdout is read too slowly".split(),
        *b"edriver: 10 more lines (in all 11) left out: stdout is read too slowly".split(),
        *b"edriver: 1 more line (in all 12) left out: stdout is read too slowly".split(),
    ]


def test_output_whose_reader_is_gone_is_dropped() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    lane = OutputStream(writer, "stdout")
    lane.put(b"lost\n")
    assert not lane.flush(timeout=20)
    lane.put(b"lost as well\n")
    assert not lane.flush(timeout=20)
    os.close(writer)


def test_a_descriptor_that_does_not_block_gets_everything() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    lane = OutputStream(writer, "stdout")
    for _ in range(200):
        lane.put(b"y" * 999 + b"\n")
    drained: list[bytes] = []
    reading = threading.Thread(target=lambda: drained.append(read_all(reader)), daemon=True)
    reading.start()
    assert lane.flush(timeout=20)
    os.close(writer)
    reading.join()
    assert len(drained[0]) == 200_000


def test_a_footer_is_below_all_lines_and_gone_at_the_end() -> None:
    reader, writer = os.pipe()
    lane = OutputStream(writer, "stderr")
    lane.footer(b"half")
    assert lane.flush(timeout=20)
    lane.put(b"one\n")
    assert lane.flush(timeout=20)
    lane.footer(b"all")
    assert lane.flush(timeout=20)
    lane.footer(b"")
    assert lane.flush(timeout=20)
    lane.put(b"two\n")
    assert lane.flush(timeout=20)
    os.close(writer)
    away = b"\r\x1b[J"
    assert read_all(reader) == b"half" + away + b"one\nhalf" + away + b"all" + away + b"two\n"


def test_a_workers_line_takes_the_footer_away_though_it_is_for_the_other_stream() -> None:
    ours, theirs = os.openpty()
    output = Output(theirs, theirs)
    output.footer(b"half")
    shown = os.read(ours, 1000)
    output.forward("a", ForwardOutputRequest(lines=[OutputLine(rank=0, text=b"one")]))
    while b"one\r\n" not in shown:
        shown += os.read(ours, 1000)
    output.close()
    assert shown.startswith(b"half\r\x1b[J[0]<stdout>:one\r\n")
    os.close(ours)
    os.close(theirs)


def test_warnings_and_errors_are_coloured_where_that_is_allowed() -> None:
    for colours, expected in (
        (False, b"edriver: fine\nedriver: worse\nedriver: failed\nedriver: of it\n"),
        (
            True,
            b"edriver: fine\n\x1b[33medriver: worse\x1b[0m\n%s"
            % b"\x1b[31medriver: failed\x1b[0m\n\x1b[31medriver: of it\x1b[0m\n",
        ),
    ):
        read_end, write_end = os.pipe()
        output = Output(write_end, write_end, colours=colours)
        handler = _LogHandler(output)
        for level, text in ((logging.INFO, "fine"), (logging.WARNING, "worse"), (logging.ERROR, "failed\nof it")):
            handler.emit(logging.LogRecord("edriver.driver", level, "", 0, text, None, None))
        output.close()
        assert os.read(read_end, 1000) == expected
        os.close(read_end)
        os.close(write_end)


@pytest.mark.parametrize(
    ("environ", "has"),
    [
        pytest.param({"TERM": "xterm"}, True, id="a terminal"),
        pytest.param({"TERM": "xterm", "NO_COLOR": "1"}, False, id="NO_COLOR"),
        pytest.param({"TERM": "xterm", "NO_COLOR": ""}, True, id="an empty NO_COLOR is none"),
        pytest.param({"TERM": "dumb"}, False, id="a dumb terminal"),
        pytest.param({}, False, id="an unknown terminal"),
    ],
)
def test_where_there_are_colours(environ: dict[str, str], has: bool) -> None:
    ours, theirs = pty.openpty()
    read_end, write_end = os.pipe()
    try:
        assert has_colours(theirs, environ) is has
        assert not has_colours(write_end, environ)
    finally:
        for descriptor in (ours, theirs, read_end, write_end):
            os.close(descriptor)
