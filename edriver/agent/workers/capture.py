"""A worker's output: read as it comes, kept in files, cut into lines for the driver, its end remembered.

A carriage return starts a line again: of a progress bar a state is shown once a second, and its last one when the line
ends. Files have all that workers write.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from edriver.agent.workers.log_files import TO_DRIVER, Destination
from edriver.agent.workers.pipes import Pipes
from edriver.system.private_files import make_private, open_private
from edriver.v1 import agent_pb2

MAX_LINE_BYTES = 64 * 1024
"""Maximum length of a line in bytes; a longer one is split."""

MAX_TAIL_LINES = 60  # the traceback of an exception, and some lines before it
MAX_TAIL_BYTES = 8 * 1024
"""How much of a worker's output is reported with its exit."""

MAX_HELD_BYTES = 64 * 1024
"""Bytes of a stream that are held back at most; what comes after them is shown."""

READ_BYTES = 64 * 1024
"""What a pipe holds."""

MAX_DRAIN_BYTES = 1024 * 1024
"""Most bytes read from a pipe after its worker's exit: as much as the largest pipe holds. Children that still write to
it could continue for ever."""


SHOW_INTERVAL = 1.0
"""Seconds between two states of unfinished lines that are shown of a worker: a progress bar has many a second."""


class LineSplitter:
    """Cuts a stream of bytes into lines, without their ends.

    A newline ends a line. A carriage return starts it again, as on a terminal: what counts of a progress bar is its
    last state.

    Attributes:
        state: how the unfinished line looks, if carriage returns are in it; else empty.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self.state = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Take more of the stream; returns the lines that are now complete, or longer than MAX_LINE_BYTES."""
        self._rest += data
        *lines, rest = bytes(self._rest).split(b"\n")
        pieces = [piece for line in lines for piece in self._cut(_final_state(line))]
        if b"\r" in rest:
            self.state = _final_state(rest)[:MAX_LINE_BYTES]
            rest = b"\r".join((self.state, rest.rpartition(b"\r")[2]))
        else:
            self.state = b""
        *full, last = self._cut(rest)
        self._rest = bytearray(last)
        return pieces + full

    def flush(self) -> list[bytes]:
        """What is left at the stream's end, if anything."""
        rest, self._rest, self.state = _final_state(bytes(self._rest)), bytearray(), b""
        return [rest] if rest else []

    @staticmethod
    def _cut(line: bytes) -> list[bytes]:
        if len(line) <= MAX_LINE_BYTES:
            return [line]
        return [line[start : start + MAX_LINE_BYTES] for start in range(0, len(line), MAX_LINE_BYTES)]


def _final_state(line: bytes) -> bytes:
    """How a line looks in the end: what follows its last carriage return, and is more than blanks."""
    if b"\r" not in line:
        return line
    return next((part for part in reversed(line.split(b"\r")) if part.strip()), b"")


class ShowPace:
    """When the next state of an unfinished line of a worker may be shown, of either stream.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._shown = -math.inf

    def wait(self) -> float:
        """Seconds until then; 0: it may be shown now, and counts as shown."""
        now = self._clock()
        if (left := self._shown + SHOW_INTERVAL - now) > 0:
            return left
        self._shown = now
        return 0.0


class Tail:
    """The last lines of a worker's output: MAX_TAIL_LINES of them at most, and MAX_TAIL_BYTES."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=MAX_TAIL_LINES)

    def add(self, line: bytes) -> None:
        """Remember one more line."""
        self._lines.append(line[-MAX_TAIL_BYTES:])

    def text(self) -> str:
        """The lines, in the order in which they arrived; bytes that are not UTF-8 show as the replacement character."""
        return b"\n".join(self._lines)[-MAX_TAIL_BYTES:].decode(errors="replace")


class OutputFile:
    """One file of a worker's output. A disk that is full or gone is reported once and does not affect the worker.

    Args:
        path: the file. It is made private to the user, its folder is made, too.
        append: whether what it has stays.
        on_unwritten: called if it cannot be written, with the path and the reason.
    """

    def __init__(self, path: Path, *, append: bool, on_unwritten: Callable[[Path, str], None]) -> None:
        self._path = path
        self._on_unwritten = on_unwritten
        self._file: BinaryIO | None = None
        try:
            with suppress(FileExistsError):  # not a folder: opening the file gives a better error
                make_private(path.parent)
            self._file = os.fdopen(open_private(path, os.O_APPEND if append else os.O_TRUNC), "wb", buffering=0)
        except OSError as error:
            self._give_up(error)

    @property
    def lost(self) -> bool:
        """Whether it cannot be written."""
        return self._file is None

    def write(self, data: bytes) -> None:
        """Append bytes as they are."""
        try:
            while data and self._file:
                data = data[self._file.write(data) :]
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Nothing comes any more."""
        if self._file:
            self._file.close()
            self._file = None

    def _give_up(self, error: OSError) -> None:
        self.close()
        self._on_unwritten(self._path, error.strerror or str(error))


class LineKind(NamedTuple):
    """The kind of a line.

    Attributes:
        finished: whether a newline has ended it; otherwise it is an intermediate state of a line.
        replaces: whether it replaces the stream's previously shown line, which was an earlier state of it.
    """

    finished: bool
    replaces: bool


class PipeReader:
    """Reads one pipe of a worker.

    Args:
        fd: its end to read, non-blocking; closed by `finish`.
        pipes: have it read.
        on_line: called with each line: what it has, whether to show it, and how it relates to the one before.
        on_unwritten: called with each file that cannot be written, and the reason.
        pace: when states of its unfinished lines may be shown.
    """

    def __init__(
        self,
        fd: int,
        pipes: Pipes,
        on_line: Callable[[bytes, bool, LineKind], None],
        on_unwritten: Callable[[Path, str], None],
        pace: ShowPace,
    ) -> None:
        self._fd = fd
        self._pipes = pipes
        self._file: OutputFile | None = None
        self._shown = True
        self._held: bytearray | None = None
        self._on_line = on_line
        self._on_unwritten = on_unwritten
        self._splitter = LineSplitter()
        self._pace = pace
        self._state_shown: bytes | None = None  # of the unfinished line
        self._waits = False
        pipes.add(fd, self._read)

    def lead_to(self, destination: Destination) -> None:
        """What is read from now on goes there, after what was held back; if its file cannot be written, it is shown
        instead.
        """
        if self._file:
            self._file.close()
        path = destination.file
        self._file = OutputFile(path, append=destination.append, on_unwritten=self._on_unwritten) if path else None
        self._shown = destination.shown
        self._release()
        if destination.held:
            self._held = bytearray()

    def _read(self) -> int:
        """Read once; returns the number of bytes, 0 at the end or if none are available now."""
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._pipes.remove(self._fd)
            return 0
        if self._held is not None and len(self._held) + len(data) <= MAX_HELD_BYTES:
            self._held += data
        else:
            self._release()
            self._take(data)
        return len(data)

    def _release(self) -> None:
        """Hold nothing back any more."""
        held, self._held = self._held, None
        if held:
            self._take(bytes(held))

    def _take(self, data: bytes) -> None:
        if self._file:
            self._file.write(data)
        self._pass_on(self._splitter.feed(data))

    def _pass_on(self, lines: list[bytes]) -> None:
        for line in lines:
            before, self._state_shown = self._state_shown, None
            self._on_line(line, self._is_shown, LineKind(finished=True, replaces=before is not None))
        self._show_state()

    @property
    def _is_shown(self) -> bool:
        return self._shown or (self._file is not None and self._file.lost)

    def _show_state(self) -> None:
        """Show how the unfinished line looks, or look again when that may be shown."""
        state = self._splitter.state
        if self._waits or self._fd < 0 or not state or state == self._state_shown:
            return
        if wait := self._pace.wait():
            self._waits = True
            self._pipes.call_later(wait, self._show_later)
            return
        before, self._state_shown = self._state_shown, state
        self._on_line(state, self._is_shown, LineKind(finished=False, replaces=before is not None))

    def _show_later(self) -> None:
        self._waits = False
        self._show_state()

    def read_all(self) -> None:
        """Take what is in the pipe now, unless it is closed."""
        left = MAX_DRAIN_BYTES if self._fd >= 0 else 0
        while left > 0 and (count := self._read()):
            left -= count

    def finish(self) -> None:
        """The worker has exited: take what is in the pipe, and close it.

        Never waits for the pipe's end: a process that the worker has left may hold it open.
        """
        self.read_all()
        self._release()
        self._pass_on(self._splitter.flush())
        self._pipes.remove(self._fd)
        os.close(self._fd)
        self._fd = -1
        if self._file:
            self._file.close()


class Capture:
    """Captures one worker's output.

    Args:
        worker_id: the worker,
        slot: and its slot: both are put on each line.
        stdout: the ends to read of its pipes, non-blocking; closed by `finish`.
        stderr: see above.
        pipes: have them read.
        forward: called with each line to show, in the order in which they are read.
        on_line: called for each line.
        on_unwritten: called with each file that cannot be written, and the reason.
        destinations: where its stdout and its stderr go.
    """

    def __init__(
        self,
        worker_id: int,
        slot: int,
        stdout: int,
        stderr: int,
        pipes: Pipes,
        forward: Callable[[agent_pb2.OutputLine], None],
        on_line: Callable[[], None],
        on_unwritten: Callable[[Path, str], None],
        destinations: tuple[Destination, Destination] = TO_DRIVER,
    ) -> None:
        self.rank: int | None = None
        self._worker_id = worker_id
        self._slot = slot
        self._forward = forward
        self._on_line = on_line
        self._on_unwritten = on_unwritten
        self._tail = Tail()
        self._pace = ShowPace(pipes.time)
        self._readers = (self._reader(stdout, pipes, is_stderr=False), self._reader(stderr, pipes, is_stderr=True))
        self.lead_to(destinations)

    def begin_round(self, rank: int) -> None:
        """The worker's lines have this rank from now on. What its pipes hold was printed before."""
        for reader in self._readers:
            reader.read_all()
        self.rank = rank

    def lead_to(self, destinations: tuple[Destination, Destination]) -> None:
        """What is read from now on of its stdout, and of its stderr, goes there."""
        for reader, destination in zip(self._readers, destinations, strict=True):
            reader.lead_to(destination)

    def finish(self) -> str:
        """The worker has exited: take in what it still wrote.

        Returns:
            the last lines of its output, whether they were shown or not.
        """
        for reader in self._readers:
            reader.finish()
        return self._tail.text()

    def _reader(self, fd: int, pipes: Pipes, *, is_stderr: bool) -> PipeReader:
        def take(line: bytes, shown: bool, kind: LineKind) -> None:
            self._take(line, is_stderr, shown, kind)

        return PipeReader(fd, pipes, take, self._on_unwritten, self._pace)

    def _take(self, line: bytes, is_stderr: bool, shown: bool, kind: LineKind) -> None:
        if kind.finished:
            self._tail.add(line)
        self._on_line()
        if shown:
            self._forward(
                agent_pb2.OutputLine(
                    worker_id=self._worker_id,
                    slot=self._slot,
                    rank=self.rank,
                    stderr=is_stderr,
                    text=line,
                    replaces=kind.replaces,
                    unfinished=not kind.finished,
                )
            )
