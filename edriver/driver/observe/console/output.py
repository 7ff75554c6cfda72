"""What the run prints: the workers' lines with Horovod's prefix, and the driver's own.

A terminal that is stopped with Ctrl-S, or a pager that is not scrolled, blocks writes; training must not be affected.
So a thread for each stream does the writing, from a bounded queue: when that is full lines are left out, and counted.

On a terminal a line about the progress may stand below all others, and above it the progress bars of workers. Each
write removes them first and draws them again afterwards, so both streams have one thread if they go to the same
terminal. Nothing of a terminal's state is changed: a driver that is killed leaves those lines, and nothing else.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from edriver.calls import PROGRESS_MARK
from edriver.text.phrases import count_text
from edriver.text.printable import printable, printable_line
from edriver.text.unfinished_lines import StatesInFile, StatesOnTerminal, can_replace, columns_of, erased

if TYPE_CHECKING:  # the first line is printed before anything of the wire is imported
    from edriver.v1 import agent_pb2

MAX_QUEUED_BYTES: Final = 8 * 1024 * 1024
"""Bytes of workers' output that may wait for one stream; the driver's own words may fill as much again."""

REPORT_INTERVAL: Final = 10.0
"""Seconds between two lines about the same."""

WARNING_STYLE: Final = "33"
"""How a terminal shows what has gone wrong and is survived: yellow,"""

ERROR_STYLE: Final = "31"
"""and of what the run has ended: red. Both as the parameters of SGR."""
ROUTINE: Final = logging.INFO - 5
"""The level of what every run logs that begins and ends as it should."""

_CHUNK_BYTES = 8192
_FLUSH_TIMEOUT = 5.0


def prefixed(host: str, line: agent_pb2.OutputLine) -> bytes:
    """A worker's line as it is printed: `[rank]<stdout>:text`, and before its first rank `[host:slot]<stdout>:text`."""
    place = str(line.rank) if line.HasField("rank") else f"{host}:{line.slot}"
    stream = "stderr" if line.stderr else "stdout"
    return b"[%s]<%s>:%s\n" % (place.encode(), stream.encode(), line.text)


def has_colours(descriptor: int, environ: Mapping[str, str]) -> bool:
    """Whether a stream is a terminal that may show colours: NO_COLOR (https://no-color.org) and TERM=dumb forbid it."""
    return not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb" and os.isatty(descriptor)


class OutputStream:
    """One stream and the thread that writes to it.

    Args:
        descriptor: the stream's file descriptor. Written to directly: a thread that hangs in a buffered file at exit
            would hold the lock that the interpreter's shutdown needs.
        name: for the line that reports how much was left out.
        limit: most bytes that may wait.
        clock: seconds that only grow.
    """

    def __init__(
        self, descriptor: int, name: str, limit: int = MAX_QUEUED_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._descriptor = descriptor
        self._name = name
        self._limit = limit
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._omitted = OmittedLines(clock)
        self._written = 0
        self._broken = False
        self._footer = b""
        self._drawn = b""
        self._changed = threading.Condition()
        threading.Thread(target=self._write_on, name=f"edriver-{name}", daemon=True).start()

    def put(self, line: bytes, from_driver: bool = False) -> None:
        """Queue a line with its end; never blocks for long. The driver's own lines are left out last."""
        with self._changed:
            if self._broken:
                return
            if self._size + len(line) > self._limit * (2 if from_driver else 1):
                self._omitted.add(1)
                return
            self._report_omitted()
            self._append(line)

    def footer(self, lines: bytes) -> None:
        """Have these lines, without the last end, below all others from now on; empty: none. For terminals only."""
        with self._changed:
            if lines != self._footer:
                self._footer = lines
                self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until all is written, or this many seconds pass without a write; returns whether all is written."""
        with self._changed:
            self._report_omitted(last=True)
            while (self._size or self._footer != self._drawn) and not self._broken:
                before = self._written
                self._changed.wait(timeout)
                if self._written == before and not self._broken:
                    return False
            return not self._broken

    def _append(self, line: bytes) -> None:
        self._waiting.append(line)
        self._size += len(line)
        self._changed.notify_all()

    def _report_omitted(self, *, last: bool = False) -> None:
        if count := self._omitted.due(last=last):
            self._append(f"edriver: {count} left out: {self._name} is read too slowly\n".encode())

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._footer != self._drawn)
                lines: list[bytes] = []
                size = 0
                while self._waiting and (not lines or size + len(self._waiting[0]) <= _CHUNK_BYTES):
                    lines.append(self._waiting.popleft())
                    size += len(lines[-1])
                footer = self._footer
                drawn = self._drawn
            if not self._write(b"".join((erased(drawn), *lines, footer))):
                return
            with self._changed:
                self._size -= size
                self._drawn = footer
                self._changed.notify_all()

    def _write(self, data: bytes) -> bool:
        """Write the complete text, however long it takes; returns whether the stream still has a reader."""
        left = memoryview(data)
        while left:
            try:
                count = os.write(self._descriptor, left[:_CHUNK_BYTES])
            except BlockingIOError:  # another process made a shared descriptor non-blocking
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll()
                continue
            except (
                OSError
            ):  # it has no reader any more (`| head`), or the disk is full: the run continues without output
                with self._changed:
                    self._broken = True
                    self._waiting.clear()
                    self._size = 0
                    self._changed.notify_all()
                return False
            left = left[count:]
            with self._changed:
                self._written += count
                self._changed.notify_all()
        return True


class WorkerLines:
    """The workers' lines on one stream of the driver.

    Args:
        stream: the stream,
        descriptor: and its file descriptor.
    """

    def __init__(self, stream: OutputStream, descriptor: int) -> None:
        self._stream = stream
        self._descriptor = descriptor
        self._terminal = StatesOnTerminal() if can_replace(descriptor, os.environ) else None
        self._states: StatesInFile[agent_pb2.OutputLine] = StatesInFile()
        self._hosts: dict[int, str] = {}
        self._below = b""

    def put(self, host: str, line: agent_pb2.OutputLine, now: float) -> None:
        """Print a line, or a state of one."""
        if self._terminal is not None:
            for each in self._terminal.take(line, prefixed(host, line), now):
                self._stream.put(each)
        elif self._states.take(line, now):
            self._stream.put(prefixed(host, line))
        if line.unfinished:
            self._hosts[line.worker_id] = host

    def draw(self, now: float, below: bytes | None = None) -> None:
        """Draw what stands below all others again.

        Args:
            now: seconds that only grow.
            below: the line below the states, without its end; empty: none; None: as before.
        """
        self._below = self._below if below is None else below
        rows = [self._below] if self._below else []
        if self._terminal is not None:
            for each in self._terminal.stale(now):
                self._stream.put(each)
            rows[:0] = self._terminal.rows(columns_of(self._descriptor))
        self._stream.footer(b"\n".join(rows))

    def close(self) -> None:
        """Nothing comes any more: lines that have not ended are lines like others, and none stands below."""
        if self._terminal is None:
            for line in self._states.rest():
                self._stream.put(prefixed(self._hosts[line.worker_id], line))
        else:
            for each in self._terminal.rest():
                self._stream.put(each)
        self._stream.footer(b"")


class Output:
    """Both streams of the driver.

    Args:
        stdout: file descriptor for what workers write to theirs.
        stderr: file descriptor for what workers write to theirs, and for the driver's own lines.
        clock: seconds that only grow.
        colours: whether warnings and errors of the driver's own are coloured.
    """

    def __init__(
        self,
        stdout: int = 1,
        stderr: int = 2,
        clock: Callable[[], float] = time.monotonic,
        *,
        colours: bool = False,
    ) -> None:
        self._clock = clock
        self._colours = colours
        self._omitted: dict[str, OmittedLines] = {}
        self._stderr = OutputStream(stderr, "stderr", clock=clock)
        self._stdout = self._stderr if _same_terminal(stdout, stderr) else OutputStream(stdout, "stdout", clock=clock)
        self._on_stderr = WorkerLines(self._stderr, stderr)
        self._on_stdout = self._on_stderr if self._stdout is self._stderr else WorkerLines(self._stdout, stdout)

    def forward(self, host: str, batch: agent_pb2.ForwardOutputRequest) -> None:
        """Print what a host's workers wrote."""
        now = self._clock()
        for line in batch.lines:
            (self._on_stderr if line.stderr else self._on_stdout).put(host, line, now)
        self._on_stdout.draw(now)
        self._on_stderr.draw(now)
        if batch.dropped:
            self._omitted.setdefault(host, OmittedLines(self._clock)).add(batch.dropped)
        if host in self._omitted:
            self._report_omitted(host)

    def _report_omitted(self, host: str, *, last: bool = False) -> None:
        if count := self._omitted[host].due(last=last):
            self.say(f"{count} of output from host {host} left out: they came faster than they were read")

    def say(self, text: str, style: str = "") -> None:
        """Print something of the driver's own to stderr, each line with its prefix.

        Args:
            text: the text.
            style: its style, if this output has colours; empty: none.
        """
        for line in text.splitlines():
            shown = f"edriver: {printable(line)}".rstrip()
            if style and self._colours:
                shown = f"\x1b[{style}m{shown}\x1b[0m"
            self._stderr.put(shown.encode("utf-8", "backslashreplace") + b"\n", from_driver=True)

    def footer(self, line: bytes) -> None:
        """Have this line, without its end, below all others on stderr, a terminal, from now on; empty: none."""
        self._on_stderr.draw(self._clock(), line)

    def progress(self, line: str) -> None:
        """Give the caller of `edriver.launch` this line, to show in the place of the one before."""
        self._stderr.put(
            f"{PROGRESS_MARK}{printable_line(line)}\n".encode("utf-8", "backslashreplace"), from_driver=True
        )

    def handle_logs(self, level: int) -> None:
        """Print what this process logs: of edriver's from a level on, of others' from WARNING on."""
        root = logging.getLogger()
        root.handlers[:] = [_LogHandler(self)]
        root.setLevel(logging.WARNING)
        logging.getLogger("edriver").setLevel(level)

    def close(self, timeout: float = _FLUSH_TIMEOUT) -> None:
        """Wait until all is written and the progress line is removed, or this many seconds pass without a write."""
        self._on_stdout.close()
        self._on_stderr.close()
        for host in self._omitted:
            self._report_omitted(host, last=True)
        self._stdout.flush(timeout)
        self._stderr.flush(timeout)


def _same_terminal(one: int, other: int) -> bool:
    try:
        return os.isatty(one) and os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:  # closed by the parent process
        return False


class _LogHandler(logging.Handler):
    """Turns log records into lines of the driver's own; names the logger where it is not plainly the driver."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001  as logging does: a bad log call must not end the run
            self.handleError(record)
            return
        name = record.name.removeprefix("edriver.")
        style = ERROR_STYLE if record.levelno >= logging.ERROR else ""
        style = WARNING_STYLE if record.levelno == logging.WARNING else style
        self._output.say(text if name in ("edriver", "driver") else f"{name}: {text}", style)


class OmittedLines:
    """Counts the lines omitted at one place, and limits how often that is reported.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reported_at: float | None = None
        self._unreported = 0
        self._total = 0

    def add(self, count: int) -> None:
        """So many more."""
        self._unreported += count
        self._total += count

    def due(self, *, last: bool = False) -> str:
        """Report, as text, the lines omitted since the last report and in all; empty if no report is due.

        Args:
            last: report the rest, however recent the last report was.
        """
        now = self._clock()
        soon = self._reported_at is not None and now - self._reported_at < REPORT_INTERVAL
        if not self._unreported or (soon and not last):
            return ""
        text = count_text(self._unreported, "line" if self._unreported == self._total else "more line")
        text += f" (in all {self._total})" if self._unreported < self._total else ""
        self._reported_at, self._unreported = now, 0
        return text
