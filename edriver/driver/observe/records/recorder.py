"""Writes down what happens in a run, beside the run: neither a full disk nor a file server that hangs is felt by it."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from edriver.driver.observe.records.record_file import RecordFile
from edriver.driver.observe.records.trace import FILE_CLOSING, FILE_OPENING, Trace, gap_text, trace_text
from edriver.system import record_folder
from edriver.text.event_lines import event_line, gap_line, progress_line, usage_line
from edriver.v1 import resources_pb2, status_pb2

MAX_QUEUED_BYTES: Final = 32 * 1024 * 1024
"""Bytes of events that may wait to be written."""

MAX_FILE_BYTES: Final = 256 * 1024 * 1024
"""Bytes of a file of a run's records beyond which nothing more will be written to it."""

WRITE_DELAY: Final = 0.2
"""Seconds without a new event after which those that wait are written: a round's are written together, and the writer
does not compete with the event loop while thousands of workers report."""

MAX_WRITE_DELAY: Final = 2.5
"""The most seconds that the writer waits for such a pause."""

RETRY_INTERVAL: Final = 1.0
"""Seconds after which what could not be written is tried again, if nothing happens before."""

CLOSE_TIMEOUT: Final = 5.0
"""Seconds that the end of a run waits for the rest to be written."""

PROGRESS_AGE_FRACTION: Final = 0.01
"""A line about the progress is written when so much of the run's age has passed since the last one,"""

PROGRESS_INTERVALS: Final = (1.0, 60.0)
"""but after no fewer, and no more, than these seconds."""

USAGE_AGE_FRACTION: Final = 0.002
"""A line about what hosts use is written when so much of the run's age has passed since the last one."""

Entry: TypeAlias = status_pb2.Event | tuple[float, status_pb2.Progress] | resources_pb2.UsageSample
"""What is to be written: an event, the progress at a time, or what hosts used."""

_log = logging.getLogger("edriver.driver")


def progress_is_due(age: float, last: float) -> bool:
    """Whether a line about the progress is due; pure.

    So a run of a month has some 44,000 of them, and one of a minute sixty.

    Args:
        age: the age of the run, in seconds.
        last: its age at the last such line; negative before the first.
    """
    shortest, longest = PROGRESS_INTERVALS
    return last < 0 or age - last >= min(max(PROGRESS_AGE_FRACTION * age, shortest), longest)


class RecordWriter(Protocol):
    """One thing that is written of a run."""

    @property
    def fault(self) -> str:
        """Why nothing is written now; empty: all is."""
        ...

    def events(self, new_events: Iterable[status_pb2.Event]) -> None:
        """These have happened."""
        ...

    def progress(self, at: float, progress: status_pb2.Progress) -> None:
        """So far is training at that time, in seconds since the epoch."""
        ...

    def usage(self, sample: resources_pb2.UsageSample) -> None:
        """So much do the hosts use."""
        ...

    def flush(self) -> bool:
        """Write what could not be written before; returns whether nothing is left."""
        ...

    def close(self) -> None:
        """Nothing comes any more."""
        ...


class EventLogWriter:
    """The event log.

    Args:
        file: to which its lines are appended.
        progress: whether lines about the progress are, too.
    """

    def __init__(self, file: RecordFile, progress: bool) -> None:
        self._file = file
        self._progress = progress

    @property
    def fault(self) -> str:
        return self._file.fault

    def events(self, new_events: Iterable[status_pb2.Event]) -> None:
        self._file.append(map(event_line, new_events))

    def progress(self, at: float, progress: status_pb2.Progress) -> None:
        if self._progress:
            self._file.append([progress_line(at, progress)])

    def usage(self, sample: resources_pb2.UsageSample) -> None:
        """Do nothing: UsageWriter writes it."""

    def flush(self) -> bool:
        return self._file.flush()

    def close(self) -> None:
        self._file.close()


class TraceWriter:
    """The trace.

    Args:
        file: in which it is written.
        trace: translates.
    """

    def __init__(self, file: RecordFile, trace: Trace) -> None:
        self._file = file
        self._trace = trace

    @property
    def fault(self) -> str:
        return self._file.fault

    def events(self, new_events: Iterable[status_pb2.Event]) -> None:
        self._file.append(self._texts(new_events))

    def progress(self, at: float, progress: status_pb2.Progress) -> None:
        """Do nothing: a trace has no progress."""

    def usage(self, sample: resources_pb2.UsageSample) -> None:
        """Do nothing: UsageWriter writes it."""

    def flush(self) -> bool:
        return self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _texts(self, new_events: Iterable[status_pb2.Event]) -> Iterator[str]:
        for event in new_events:
            yield from map(trace_text, self._trace.entries(event))
            if event.HasField("run_ended"):
                yield FILE_CLOSING


class UsageWriter:
    """What the hosts used, over time.

    Args:
        file: to which its lines are appended.
    """

    def __init__(self, file: RecordFile) -> None:
        self._file = file

    @property
    def fault(self) -> str:
        return self._file.fault

    def events(self, new_events: Iterable[status_pb2.Event]) -> None:
        """Do nothing: EventLogWriter and TraceWriter write them."""

    def progress(self, at: float, progress: status_pb2.Progress) -> None:
        """Do nothing: EventLogWriter writes it."""

    def usage(self, sample: resources_pb2.UsageSample) -> None:
        self._file.append([usage_line(sample)])

    def flush(self) -> bool:
        return self._file.flush()

    def close(self) -> None:
        self._file.close()


def writers_of(folder: Path, run_id: str, began: float) -> list[RecordWriter]:
    """What is written into a run's folder.

    Args:
        folder: the run's.
        run_id: its name.
        began: when it began, in seconds since the epoch.
    """
    events = RecordFile(folder / record_folder.EVENTS_FILE, "record", largest=MAX_FILE_BYTES, gap=gap_line)
    trace = RecordFile(
        folder / record_folder.TRACE_FILE, "record", largest=MAX_FILE_BYTES, opening=FILE_OPENING, gap=gap_text
    )
    usage = RecordFile(folder / record_folder.USAGE_FILE, "record", largest=MAX_FILE_BYTES)
    return [EventLogWriter(events, progress=True), TraceWriter(trace, Trace(run_id, began)), UsageWriter(usage)]


def describe(folder: Path, about: dict[str, Any]) -> None:
    """Write the description of the run into its folder; called once, before anything else."""
    file = RecordFile(folder / record_folder.RUN_FILE, "record")
    file.append([f"{json.dumps(about, indent=2)}\n"])
    file.close()


def describe_failure(folder: Path, report: str) -> None:
    """Write into a run's folder of what it failed; once, after everything else."""
    file = RecordFile(folder / record_folder.FAILURE_FILE, "record")
    file.append([f"{report}\n"])
    file.close()


class Recorder:
    """Takes what happens and has a thread write it. Never blocks but in `close`.

    Args:
        writers: what is to be written.
        began: when the run began, in seconds since the epoch.
        clock: seconds since the epoch.
        delay: seconds without a new event after which those that wait are written.
        limit: bytes of events that may wait to be written.
    """

    def __init__(
        self,
        writers: Sequence[RecordWriter],
        began: float,
        clock: Callable[[], float] = time.time,
        delay: float = WRITE_DELAY,
        limit: int = MAX_QUEUED_BYTES,
    ) -> None:
        self._writers = writers
        self._began = began
        self._clock = clock
        self._delay = delay
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Entry, int]] = deque()
        self._size = 0
        self._overflow_logged = False
        self._closing = False
        self._last: Callable[[], object] = lambda: None
        self._last_progress = -1.0
        self._last_usage = -math.inf
        self._thread: threading.Thread | None = None

    def start(self, first: Callable[[], object] = lambda: None) -> None:
        """Begin to write.

        Args:
            first: what the thread does before.
        """
        if self._writers:
            self._thread = threading.Thread(target=self._write_on, args=(first,), name="edriver-recorder", daemon=True)
            self._thread.start()

    def events(self, new_events: Iterable[status_pb2.Event]) -> None:
        """These have happened; they are not to be changed any more."""
        if self._writers:
            self._put([(event, event.ByteSize()) for event in new_events])

    def progress(self, progress: status_pb2.Progress) -> None:
        """Record the current progress, if a record is due. Called often."""
        now = self._clock()
        if self._writers and progress_is_due(now - self._began, self._last_progress):
            self._last_progress = now - self._began
            self._put([((now, progress), progress.ByteSize())])

    def usage(self, sample: resources_pb2.UsageSample) -> None:
        """So much do the hosts use now. Called often: what is not due is left out."""
        age = self._clock() - self._began
        if self._writers and age - self._last_usage >= USAGE_AGE_FRACTION * age:
            self._last_usage = age
            self._put([(sample, sample.ByteSize())])

    @property
    def fault(self) -> str:
        """What is not written now, and why; empty: all is."""
        return next(filter(None, (writer.fault for writer in self._writers)), "")

    def end_with(self, last: Callable[[], object]) -> None:
        """Have the thread do this once all is written."""
        self._last = last

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Wait until all is written, for at most this many seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                _log.warning("the run's last events are not recorded: writing takes too long")

    def _put(self, items: list[tuple[Entry, int]]) -> None:
        with self._changed:
            idle = not self._waiting  # else the thread waits for more to come, and need not hear of it
            for one, size in items:
                if self._size + size > self._limit:
                    if not self._overflow_logged:
                        _log.warning("events are left out of the run's records: writing takes too long")
                    self._overflow_logged = True
                else:
                    self._waiting.append((one, size))
                    self._size += size
            if idle:
                self._changed.notify_all()

    def _wait_for_quiet(self) -> None:
        """Wait until no more events come, for as long as there is time and room; the caller holds the lock."""
        latest, before = time.monotonic() + MAX_WRITE_DELAY, -1
        while before != len(self._waiting) and time.monotonic() < latest and self._size <= self._limit // 2:
            before = len(self._waiting)
            if self._changed.wait_for(lambda: self._closing, self._delay):
                return

    def _write_on(self, first: Callable[[], object]) -> None:
        first()
        behind = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing, RETRY_INTERVAL if behind else None)
                self._wait_for_quiet()
                if self._closing and not self._waiting:
                    break
                taken, self._waiting = self._waiting, deque()
            for writer in self._writers:
                _write_in_order(writer, [one for one, _ in taken])
            flushed = [writer.flush() for writer in self._writers]
            behind = not all(flushed)
            with self._changed:
                self._size -= sum(size for _, size in taken)
        for writer in self._writers:
            writer.close()
        self._last()


def _write_in_order(writer: RecordWriter, items: Iterable[Entry]) -> None:
    """Tell a book, in order; events that follow one another at once."""
    events: list[status_pb2.Event] = []
    for one in items:
        if isinstance(one, status_pb2.Event):
            events.append(one)
            continue
        writer.events(events)
        events = []
        if isinstance(one, resources_pb2.UsageSample):
            writer.usage(one)
        else:
            writer.progress(*one)
    writer.events(events)
