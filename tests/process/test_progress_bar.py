"""The progress in the driver's own terminal, as a terminal shows it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import selectors
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyte
import pytest

from tests.process.running import ROOT, SCRIPTS, running

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]
BOUND = 300.0
WIDE = 1000
"""Columns in which no line wraps, wherever the checkout lies."""


def _environ() -> dict[str, str]:
    """The environment without a terminal's size, which pytest-xdist sets and a shell does not export."""
    return {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}


class Terminal:
    """A terminal in which a run is watched.

    Args:
        args: edriver's.
        folder: the working folder.
        columns: how wide it is.
        environ: more variables.
        driver: whether it is the run's own; else another command's.
    """

    def __init__(self, args: list[str], folder: Path, columns: int, environ: dict[str, str], driver: bool) -> None:
        self.screen = pyte.HistoryScreen(columns, 30, history=100_000, ratio=1.0)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._ours, theirs = pty.openpty()
        self.before = termios.tcgetattr(theirs)
        self._size(columns)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edriver", *(["--no-journal"] if driver else []), *args],
            cwd=folder,
            env={**_environ(), "PYTHONPATH": str(ROOT), "TERM": "xterm", **environ},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        self._theirs = theirs
        os.set_blocking(self._ours, False)

    def _size(self, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))

    def resize(self, columns: int) -> None:
        self._size(columns)
        self.screen.resize(30, columns)

    def until(self, reached: Callable[[], bool]) -> None:
        """Show what comes until something is reached; fails with what is shown if that takes too long."""
        bound = time.monotonic() + BOUND
        with selectors.DefaultSelector() as selector:
            selector.register(self._ours, selectors.EVENT_READ)
            while not reached():
                left = bound - time.monotonic()
                ready = left > 0 and selector.select(left)
                assert ready, "\n".join(self.lines)
                data = os.read(self._ours, 65536)
                self.raw += data
                self._stream.feed(data)

    @property
    def lines(self) -> list[str]:
        """All lines there have been, as they stand, down to the cursor's."""
        top = ["".join(row[x].data for x in range(self.screen.columns)) for row in self.screen.history.top]
        return [line.rstrip() for line in (*top, *self.screen.display[: self.screen.cursor.y + 1])]

    @property
    def bottom(self) -> str:
        return self.lines[-1]

    def state(self) -> list[object]:
        """The terminal's settings."""
        return termios.tcgetattr(self._theirs)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@contextmanager
def terminal(
    args: list[str], folder: Path, columns: int = 120, driver: bool = True, **environ: str
) -> Iterator[Terminal]:
    shown = Terminal(args, folder, columns, environ, driver)
    try:
        yield shown
    finally:
        shown.close()


def is_whole(line: str) -> bool:
    """Whether a line is one of the driver's or a worker's, from its beginning."""
    return bool(re.match(r"edriver: |\[(\d+|localhost:\d)\]<std(out|err)>:", line))


def has_ended(shown: Terminal) -> Callable[[], bool]:
    return lambda: any("edriver: stopped:" in line or "edriver: done:" in line for line in shown.lines)


@pytest.mark.parametrize("columns", [WIDE, 40], ids=["wide", "narrow"])
def test_the_bar_stays_at_the_bottom_and_lines_above_it_whole(tmp_path: Path, columns: int) -> None:
    with terminal(["-np", "2", *TRAIN], tmp_path, columns, EPOCHS="4000") as shown:
        bar = re.compile(r"^epoch \d+ +\d+ % +━* ?.*step \d+")
        shown.until(lambda: bool(bar.search(shown.bottom)) and "step 5" in "\n".join(shown.lines[:-1]))
        seen = len(shown.lines)
        shown.until(lambda: len(shown.lines) > seen + 20 and bool(bar.search(shown.bottom)))
        assert len([line for line in shown.lines if bar.search(line)]) == 1
        assert len(shown.bottom) < columns
        assert ("steps/s" in shown.bottom and "2 workers" in shown.bottom) == (columns == WIDE)
        os.kill(shown.process.pid, signal.SIGINT)
        shown.until(has_ended(shown))
        assert shown.process.wait(BOUND) == 130
        assert not [line for line in shown.lines if bar.search(line)]
        assert shown.state() == shown.before
        if columns == WIDE:
            assert all(is_whole(line) for line in shown.lines if line), "\n".join(shown.lines)


@pytest.mark.long
def test_a_terminal_that_becomes_narrow(tmp_path: Path) -> None:
    with terminal(["-np", "1", *TRAIN], tmp_path, EPOCHS="4000") as shown:
        shown.until(lambda: "steps/s" in shown.bottom)
        shown.resize(60)
        shown.until(lambda: shown.bottom.startswith("epoch") and len(shown.bottom) < 60)


def test_no_color(tmp_path: Path) -> None:
    with terminal(["-np", "1", *TRAIN], tmp_path, EPOCHS="4000", NO_COLOR="1") as shown:
        shown.until(lambda: "steps/s" in shown.bottom)
        assert not re.search(rb"\x1b\[[0-9;]*m", re.sub(rb"\x1b\[(0|1|2|22)?m", b"", shown.raw))


def test_without_a_terminal_there_is_no_escape(tmp_path: Path) -> None:
    with running(["-np", "1", *TRAIN], tmp_path, {"EPOCHS": "2"}) as run:
        assert run.end() == 0
        assert "\x1b" not in run.text


BARS = [sys.executable, str(SCRIPTS / "bars.py")]


def bars(shown: Terminal) -> list[int]:
    """How far the bars of both ranks are that stand below all other lines; empty before that."""
    found = [re.match(r"\[(\d)\]<stderr>:bar \1: +(\d+) \|#{20}\|$", line) for line in shown.lines[-2:]]
    states = [int(match[2]) for match in found if match]
    return states if len(states) == 2 else []


def until_both_go_on(shown: Terminal) -> None:
    shown.until(lambda: bool(bars(shown)))
    first = bars(shown)
    shown.until(lambda: bool(bars(shown)) and all(now > then for now, then in zip(bars(shown), first, strict=True)))
    shown.until(lambda: min(bars(shown), default=0) > 150)  # by then, the driver knows what there is of the progress
    assert len([line for line in shown.lines if "|##" in line]) == 2


def test_the_bars_of_workers_stand_below_the_lines_and_are_replaced(tmp_path: Path) -> None:
    with terminal(["-np", "2", "--no-records", *BARS], tmp_path, WIDE) as shown:
        until_both_go_on(shown)
        assert "[1]<stdout>:rank 1 begins" in shown.lines
        (tmp_path / "enough").touch()
        shown.until(has_ended(shown))
        assert shown.process.wait(BOUND) == 0
        assert not [line for line in shown.lines if "|##" in line]
        for rank in range(2):
            assert shown.lines.count(f"[{rank}]<stderr>:bar {rank}: whole") == 1
            assert f"[{rank}]<stdout>:rank {rank} ends" in shown.lines
        assert shown.state() == shown.before


@pytest.mark.long
def test_the_bars_that_edriver_logs_follows_are_replaced(tmp_path: Path) -> None:
    with running(["-np", "2", "--no-records", *BARS], tmp_path) as run:
        run.line("rank 1 begins")
        with terminal(["logs", "-f", "--run", run.id], tmp_path, WIDE, driver=False) as shown:
            until_both_go_on(shown)
            (tmp_path / "enough").touch()
            shown.until(lambda: all(f"[{rank}]<stderr>:bar {rank}: whole" in shown.lines for rank in range(2)))
            assert shown.process.wait(BOUND) == 0
            assert not [line for line in shown.lines if "|##" in line]
        assert run.end() == 0
    # Into a pipe, once in a while, and whole.
    assert [line for line in run.lines if "<stderr>:bar 0:" in line][-1] == "[0]<stderr>:bar 0: whole"
    assert all(is_whole(line) for line in run.lines if line), run.text
