"""The latest output of the workers, for observers: numbered, and bounded per worker and in total."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from edriver.v1 import agent_pb2, status_pb2
from edriver.wire.conversion import timestamp

MAX_WORKER_BYTES: Final = 256 * 1024
"""Bytes that are remembered of each worker, the latest."""

MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes that are kept of all workers together; lines of the workers that have been silent longest are dropped first."""

MAX_LINES_BETWEEN: Final = 100
"""Lines of the worker's other stream between two states of a progress bar, of which only the last one is kept."""

_LINE_OVERHEAD: Final = 200
"""Bytes that a line takes beside its text."""


class OutputLine(NamedTuple):
    """A line that a worker has written; see WorkerLine in status.proto. It is made a message once it is asked for."""

    seq: int
    time: float
    worker_id: int
    rank: int | None
    host: str
    slot: int
    stderr: bool
    text: bytes
    unfinished: bool

    def message(self) -> status_pb2.WorkerLine:
        """As it is sent."""
        return status_pb2.WorkerLine(
            seq=self.seq,
            time=timestamp(self.time),
            worker_id=self.worker_id,
            rank=self.rank,
            host=self.host,
            slot=self.slot,
            stderr=self.stderr,
            text=self.text,
            unfinished=self.unfinished,
        )


Wanted = Callable[[OutputLine], bool]


@dataclass(slots=True)
class _Latest:
    """The latest lines of a worker."""

    lines: deque[OutputLine] = field(default_factory=deque)
    size: int = 0


class WorkerOutput:
    """The latest output of a run's workers, including those that have ended.

    Args:
        clock: seconds since the epoch.
        worker_limit: see MAX_WORKER_BYTES.
        limit: see MAX_BYTES.

    Attributes:
        last_seq: the number of the last line; 0 before the first.
        news: set when a line is added, and then replaced.
    """

    def __init__(
        self, clock: Callable[[], float], worker_limit: int = MAX_WORKER_BYTES, limit: int = MAX_BYTES
    ) -> None:
        self._clock = clock
        self._worker_limit = worker_limit
        self._limit = limit
        self._workers: dict[int, _Latest] = {}  # those with the latest output come last
        self._size = 0
        self.last_seq = 0
        self.news = asyncio.Event()

    def add(self, host: str, batch: agent_pb2.ForwardOutputRequest) -> None:
        """Remember what a host's workers wrote."""
        now = self._clock()
        for line in batch.lines:
            self.last_seq += 1
            latest = self._workers.pop(line.worker_id, None) or _Latest()
            self._workers[line.worker_id] = latest
            size = len(line.text) + _LINE_OVERHEAD
            rank = line.rank if line.HasField("rank") else None
            if line.replaces:
                self._forget_state(latest, line.stderr)
            latest.lines.append(
                OutputLine(
                    self.last_seq, now, line.worker_id, rank, host, line.slot, line.stderr, line.text, line.unfinished
                )
            )
            latest.size += size
            self._size += size
            while latest.size > self._worker_limit and len(latest.lines) > 1:
                self._forget_line(latest)
            while self._size > self._limit and self._size > size:
                silent = next(iter(self._workers))
                self._forget_line(self._workers[silent])
                if not self._workers[silent].lines:
                    del self._workers[silent]
        if batch.lines:
            self.news.set()
            self.news = asyncio.Event()

    def since(self, seq: int, wanted: Wanted, limit: int) -> list[OutputLine]:
        """At most `limit` of the selected lines after this number, in the order in which they arrived."""
        return list(islice(filter(wanted, self._lines_after(seq)), limit))

    def before_last(self, count: int, seq: int, wanted: Wanted) -> int:
        """The number after which the last `limit` selected lines after this number begin."""
        found: deque[int] = deque(maxlen=count + 1)
        found.extend(line.seq for line in filter(wanted, self._lines_after(seq)))
        return found[0] if len(found) > count else seq

    def _lines_after(self, seq: int) -> Iterator[OutputLine]:
        of_workers = [_after(seq, latest.lines) for latest in self._workers.values() if latest.lines[-1].seq > seq]
        return heapq.merge(*of_workers, key=lambda line: line.seq)

    def _forget_state(self, latest: _Latest, stderr: bool) -> None:
        """Forget the last line of this stream: another one takes its place."""
        for place in range(1, min(len(latest.lines), MAX_LINES_BETWEEN) + 1):
            if latest.lines[-place].stderr == stderr:
                size = len(latest.lines[-place].text) + _LINE_OVERHEAD
                del latest.lines[-place]
                latest.size -= size
                self._size -= size
                return

    def _forget_line(self, latest: _Latest) -> None:
        size = len(latest.lines.popleft().text) + _LINE_OVERHEAD
        latest.size -= size
        self._size -= size


def _after(seq: int, lines: deque[OutputLine]) -> Iterator[OutputLine]:
    """The lines after this number; looked for from the end, where those lie that a follower has not seen."""
    place = len(lines)
    while place and lines[place - 1].seq > seq:
        place -= 1
    return islice(lines, place, None)


def is_wanted(request: status_pb2.ReadOutputRequest) -> Wanted:
    """Whether a line is selected."""

    def wanted(line: OutputLine) -> bool:
        return (
            (not request.HasField("rank") or line.rank == request.rank)
            and (not request.host or line.host == request.host)
            and (not request.HasField("slot") or line.slot == request.slot)
            and (not request.worker_id or line.worker_id == request.worker_id)
        )

    return wanted
