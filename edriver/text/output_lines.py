"""A worker's output as the run's records have it: a file for each worker, a line for each line of it.

    # edriver output: worker 7, slot 1, part 1, host node-3
    2026-03-01T12:00:00.123456Z 2 stdout epoch 3: loss 0.71

After the time at which the driver received the line come the rank (`-` before the worker's first round), the stream,
and the line's own bytes. A file that has become too long gets the ending `.1` in place of an older one, and another
part begins. What edriver has to say about missing lines has `edriver` in place of the stream.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from edriver.v1 import agent_pb2

OLDER_ENDING: Final = ".1"
"""What the name of the part before the current one ends with."""

MAX_HEADER_BYTES: Final = 1024
"""More than a header has."""

_STREAMS: Final = (b"stdout", b"stderr", b"edriver")

_FILE_NAME: Final = re.compile(r"worker\.([1-9][0-9]{0,18})\.log")
_HEADER: Final = re.compile(rb"# edriver output: worker (\d{1,19}), slot (\d{1,9}), part (\d{1,18}), host (\S+)")
_LINE: Final = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z) (-|\d{1,9}) (stdout|stderr|edriver) (.*)", re.DOTALL
)


class Header(NamedTuple):
    """The first line of a file.

    Attributes:
        worker_id: the worker.
        slot: its slot on its host.
        part: the number of this part of its output, from 1.
        host: its host.
    """

    worker_id: int
    slot: int
    part: int
    host: str

    def line(self) -> bytes:
        """As it is written."""
        text = f"# edriver output: worker {self.worker_id}, slot {self.slot}, part {self.part}, host {self.host}\n"
        return text.encode()


class RecordedLine(NamedTuple):
    """A line of a file.

    Attributes:
        time: when the driver received it: `2026-03-01T12:00:00.123456Z`, so texts have the order of the times.
        rank: the worker's; None before its first round.
        stream: stdout, stderr, or edriver.
        text: the line.
    """

    time: bytes
    rank: int | None
    stream: bytes
    text: bytes

    @property
    def seconds(self) -> float:
        """The time in seconds since the epoch.

        Raises:
            ValueError: there is no such time.
        """
        return datetime.fromisoformat(self.time.decode()).timestamp()


def file_name(worker_id: int) -> str:
    """The name of the file with the current part of a worker's output."""
    return f"worker.{worker_id}.log"


def older(path: Path) -> Path:
    """The file with the part before that of this file."""
    return path.with_name(path.name + OLDER_ENDING)


def worker_of(name: str) -> int | None:
    """The worker that a file is about; None: it is another file, or an older part."""
    found = _FILE_NAME.fullmatch(name)
    return int(found[1]) if found else None


def time_bytes(at: float) -> bytes:
    """A time as lines have it, from seconds since the epoch."""
    return f"{datetime.fromtimestamp(at, UTC).isoformat(timespec='microseconds')[:-6]}Z".encode()


def written_line(time: bytes, line: agent_pb2.OutputLine) -> bytes:
    """A line as it is written."""
    rank = b"%d" % line.rank if line.HasField("rank") else b"-"
    return b"%s %s %s %s\n" % (time, rank, _STREAMS[line.stderr], line.text.replace(b"\n", b" "))


def missing_line(time: bytes, count: int) -> bytes:
    """The line that takes the place of lines that could not be written."""
    lines = "line is" if count == 1 else "lines are"
    return b"%s - edriver %s\n" % (time, f"{count} {lines} missing here: they could not be written".encode())


def header_of(line: bytes) -> Header | None:
    """Read a file's first line; None if it is something else."""
    found = _HEADER.fullmatch(line.removesuffix(b"\n"))
    if not found:
        return None
    return Header(int(found[1]), int(found[2]), int(found[3]), found[4].decode(errors="replace"))


def line_of(line: bytes) -> RecordedLine | None:
    """Read any other line; None if it is incomplete: a driver that was killed may have left half a line."""
    found = _LINE.fullmatch(line.removesuffix(b"\n"))
    if not found:
        return None
    return RecordedLine(found[1], None if found[2] == b"-" else int(found[2]), found[3], found[4])
