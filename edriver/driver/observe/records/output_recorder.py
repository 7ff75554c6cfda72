"""Keeps the workers' output in the run's records, beside the run: neither a full disk nor a file server that hangs is
felt by it, and what waits to be written is bounded.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from edriver.driver.observe.records.output_files import Writer
from edriver.text.output_lines import missing_line, time_bytes, written_line
from edriver.text.unfinished_lines import StatesInFile
from edriver.v1 import agent_pb2

MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
"""Bytes of output that may wait to be written; lines beyond that are left out, and counted."""

WRITE_DELAY: Final = 0.2
"""Seconds that lines wait at most, so that a worker's are written together."""

RETRY_INTERVAL: Final = 1.0
"""Seconds after which what could not be written is tried again, if nothing comes before."""

CLOSE_TIMEOUT: Final = 5.0
"""Seconds that the end of a run waits for the rest to be written."""

_LINE_OVERHEAD: Final = 100
"""Bytes that a line takes beside its text."""

_log = logging.getLogger("edriver.driver")


class LineFiles(Protocol):
    """Where lines are written; see OutputFiles."""

    def append(self, writer: Writer, lines: bytes) -> None:
        """Append whole lines, or nothing.

        Raises:
            OSError: they cannot be written.
        """
        ...


class _Batch(NamedTuple):
    """Lines of a host's workers, and when they came."""

    at: float
    host: str
    lines: list[agent_pb2.OutputLine]
    size: int


class OutputRecorder:
    """Takes lines and has a thread write them. Never blocks but in `close`.

    Args:
        files: where they are written.
        clock: seconds since the epoch.
        delay: see WRITE_DELAY.
        limit: see MAX_WAITING_BYTES.

    Attributes:
        fault: why nothing is written now; empty if all is.
    """

    def __init__(
        self,
        files: LineFiles,
        clock: Callable[[], float],
        delay: float = WRITE_DELAY,
        limit: int = MAX_WAITING_BYTES,
    ) -> None:
        self.fault = ""
        self._files = files
        self._clock = clock
        self._delay = delay
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: deque[_Batch] = deque()
        self._size = 0
        self._missing: Counter[Writer] = Counter()
        self._closing = False
        self._thread: threading.Thread | None = None
        # The thread's own:
        self._states: StatesInFile[agent_pb2.OutputLine] = StatesInFile()
        self._hosts: dict[int, str] = {}
        self._unwritten: dict[Writer, bytearray] = {}
        self._unwritten_sizes: Counter[Writer] = Counter()

    def start(self) -> None:
        """Begin to write."""
        self._thread = threading.Thread(target=self._write_on, name="edriver-output-recorder", daemon=True)
        self._thread.start()

    def put(self, host: str, batch: agent_pb2.ForwardOutputRequest) -> None:
        """Keep what a host's workers have written."""
        lines = list(batch.lines)
        if not lines:
            return
        size = sum(map(_size_of, lines))
        with self._changed:
            if self._missing or self._size + size > self._limit:
                # Once lines are missing, all that follow are, until the files say so at that place.
                self._missing.update(Writer(line.worker_id, line.slot, host) for line in lines)
                return
            self._waiting.append(_Batch(self._clock(), host, lines, size))
            self._size += size
            self._changed.notify_all()

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Wait until all is written, for at most this many seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                _log.warning("the workers' last output is not recorded: writing takes too long")

    def _write_on(self) -> None:
        closing = False
        while not closing:
            with self._changed:
                behind = bool(self._unwritten)
                self._changed.wait_for(lambda: self._waiting or self._closing, RETRY_INTERVAL if behind else None)
                self._changed.wait_for(lambda: self._closing, self._delay)
                taken, self._waiting = self._waiting, deque()
                closing = self._closing
            for batch in taken:
                self._take(batch)
            if closing:
                for line in self._states.rest():
                    self._add(time_bytes(self._clock()), self._hosts[line.worker_id], line, 0)
            if self._write():
                self._take_missing()
        if not self._write():
            _log.warning("the last output of %s workers is not recorded", len(self._unwritten))

    def _take(self, batch: _Batch) -> None:
        at = time_bytes(batch.at)
        size = batch.size
        for line in batch.lines:
            self._hosts[line.worker_id] = batch.host
            if self._states.take(line, batch.at):
                self._add(at, batch.host, line, _size_of(line))
                size -= _size_of(line)
        with self._changed:
            self._size -= size  # of states that are not written

    def _take_missing(self) -> None:
        """All before them is written: have the lines written that tell how many are missing."""
        with self._changed:
            if self._waiting:
                return
            missing, self._missing = self._missing, Counter()
        at = time_bytes(self._clock())
        for writer, count in missing.items():
            self._unwritten[writer] = bytearray(missing_line(at, count))

    def _add(self, at: bytes, host: str, line: agent_pb2.OutputLine, size: int) -> None:
        writer = Writer(line.worker_id, line.slot, host)
        self._unwritten.setdefault(writer, bytearray()).extend(written_line(at, line))
        self._unwritten_sizes[writer] += size

    def _write(self) -> bool:
        """Write what waits; returns whether nothing is left."""
        while self._unwritten:
            writer, lines = next(iter(self._unwritten.items()))
            try:
                self._files.append(writer, bytes(lines))
            except OSError as error:
                why = f"the workers' output cannot be recorded: {error.strerror}"
                if not self.fault:
                    _log.warning("%s; it is kept in memory, up to a limit, and written later", why)
                self.fault = why
                return False
            del self._unwritten[writer]
            with self._changed:
                self._size -= self._unwritten_sizes.pop(writer, 0)
            if self.fault:
                _log.info("the workers' output is recorded again")
                self.fault = ""
        return True


def _size_of(line: agent_pb2.OutputLine) -> int:
    return len(line.text) + _LINE_OVERHEAD
