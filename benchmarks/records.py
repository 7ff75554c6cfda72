"""What a training job writes down while it trains: one file a process, one JSON line a fact, in order.

A line is written before its fact can affect other processes (a batch before its gradient is sent, a finished step
before its boundary), so a killed process has recorded all that others can depend on.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.processes import started


@dataclass(frozen=True, slots=True)
class Boot:
    """A process has imported and built everything, and now wants to train.

    Attributes:
        time: seconds of the system-wide monotonic clock.
        pid: the process.
        started: when the process began, on the same clock, to a hundredth of a second.
    """

    time: float
    pid: int
    started: float


@dataclass(frozen=True, slots=True)
class Grouped:
    """A process has its place in a round's process group; attributes as in RoundStart. Only the bare floor tells it."""

    time: float
    round: int
    rank: int


@dataclass(frozen=True, slots=True)
class RoundStart:
    """A process has entered a round and holds its state.

    Attributes:
        time: seconds of the system-wide monotonic clock.
        round: the round's number; only grows within a run.
        rank: the process's rank in it.
        size: how many members it has.
        pid: the process.
        host: the name of its host.
        step: how many steps the state has behind it.
        digest: a hash of the state; empty: not made.
    """

    time: float
    round: int
    rank: int
    size: int
    pid: int
    host: str
    step: int
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """A process begins a step.

    Attributes:
        time, round, rank: as in RoundStart.
        epoch: the epoch.
        step: the number of the step, which the state has behind it once it is finished: 1 is the run's first.
        samples: the dataset indices that this process trains on.
    """

    time: float
    round: int
    rank: int
    epoch: int
    step: int
    samples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepDone:
    """A process has finished a step; attributes as above. The digest is that of the state after it."""

    time: float
    round: int
    rank: int
    step: int
    digest: str = ""


Record = Boot | Grouped | RoundStart | Batch | StepDone
_KINDS: dict[str, type[Record]] = {
    "boot": Boot,
    "grouped": Grouped,
    "round": RoundStart,
    "batch": Batch,
    "done": StepDone,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class Recorder:
    """Writes this process's records.

    Args:
        folder: where all processes of the run write.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._round, self._rank = 0, 0

    def boot(self) -> None:
        """Note that this process is ready to train."""
        self._write(Boot(time.monotonic(), os.getpid(), started()))

    def grouped(self, number: int, rank: int) -> None:
        """Note that this process has joined a round's process group."""
        self._write(Grouped(time.monotonic(), number, rank))

    def round_start(self, round_id: int, rank: int, size: int, host: str, step: int, digest: str) -> None:
        """Note that this process has entered a round; what follows belongs to it."""
        self._round, self._rank = round_id, rank
        self._write(RoundStart(time.monotonic(), round_id, rank, size, os.getpid(), host, step, digest))

    def batch(self, epoch: int, step: int, samples: tuple[int, ...]) -> None:
        """Note that this process begins a step."""
        self._write(Batch(time.monotonic(), self._round, self._rank, epoch, step, samples))

    def done(self, step: int, digest: str) -> None:
        """Note that this process has finished a step."""
        self._write(StepDone(time.monotonic(), self._round, self._rank, step, digest))

    def _write(self, record: Record) -> None:
        # One write(2) a line: a process that is killed leaves no half line behind in any case worth naming.
        os.write(self._descriptor, f"{json.dumps([_NAMES[type(record)], asdict(record)])}\n".encode())


class RecordReader:
    """Reads what all processes of a run have written, from where it stopped last time.

    Args:
        folder: where they write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def read(self) -> list[Record]:
        """The records that are new; a line without its end is left for the next time."""
        found: list[Record] = []
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            found += [_parsed(line) for line in whole.splitlines()]
        return found

    def retire(self, pid: int) -> None:
        """Forget a process that has ended and whose records have all been read, and delete them.

        Its number may be used again, and a run may have thousands of such processes.
        """
        path = self._folder / f"{pid}.jsonl"
        self._offsets.pop(path, None)
        path.unlink(missing_ok=True)


def _parsed(line: bytes) -> Record:
    name, fields = json.loads(line)
    if "samples" in fields:
        fields["samples"] = tuple(fields["samples"])
    return _KINDS[name](**fields)
