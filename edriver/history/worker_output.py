"""The output of a run's workers, read back from its records: what `edriver logs` prints once the run has ended."""

from __future__ import annotations

import heapq
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Final, NamedTuple

from edriver.text.output_lines import (
    MAX_HEADER_BYTES,
    Header,
    RecordedLine,
    header_of,
    line_of,
    older,
    worker_of,
)
from edriver.v1 import status_pb2
from edriver.wire.conversion import timestamp

BLOCK_BYTES: Final = 64 * 1024
"""Bytes that are read at once. Files are not held open: a run may have thousands of workers."""

MIN_SHARE: Final = 10
"""Lines of a worker that are worth showing."""

_EDRIVER: Final = b"edriver"


class _Recorded(NamedTuple):
    """What there is of a worker: its files, the oldest first, and whether there was more before them."""

    header: Header
    files: tuple[Path, ...]
    cut: bool


def recorded_output(
    folder: Path, rank: int | None = None, host: str = "", slot: int | None = None, worker_id: int = 0, lines: int = 0
) -> Iterator[status_pb2.WorkerLine]:
    """The output of the workers, in the order in which the driver received it. Lines must match all given arguments.

    `seq` counts what is returned. Where something is missing, a line says so, as one of stderr that begins with
    "edriver: ".

    Args:
        folder: where the files are.
        rank: the rank under which a line was written.
        host: the host on which it was written.
        slot: the slot of the worker that wrote it.
        worker_id: the ID of the worker that wrote it.
        lines: only the latest lines, at most this many; 0: all.

    Raises:
        OSError: they cannot be read.
    """
    chosen = [
        each
        for each in _workers(folder)
        if (not host or each.header.host == host)
        and (slot is None or each.header.slot == slot)
        and (not worker_id or each.header.worker_id == worker_id)
    ]
    if lines:
        latest = heapq.merge(*(_wanted(each, rank, backward=True) for each in chosen[::-1]), key=_time, reverse=True)
        found: Iterator[tuple[Header, RecordedLine]] = reversed(list(islice(latest, lines)))
    else:
        found = heapq.merge(*(_wanted(each, rank) for each in chosen), key=_time)
    yield from _messages(found)


def latest_output(folder: Path, limit: int) -> list[status_pb2.WorkerLine]:
    """The latest output of each worker, equally much, in the order in which the driver received it.

    Args:
        folder: where the files are.
        limit: lines of all workers together; of very many workers, those that have written last.

    Raises:
        OSError: they cannot be read.
    """
    workers = list(_workers(folder))
    share = max(MIN_SHARE, limit // max(1, len(workers)))
    of_each = [list(islice(_wanted(each, None, backward=True), share))[::-1] for each in workers]
    return list(_messages(list(heapq.merge(*of_each, key=_time))[-limit:]))


def _messages(found: Iterable[tuple[Header, RecordedLine]]) -> Iterator[status_pb2.WorkerLine]:
    for seq, (header, line) in enumerate(found, start=1):
        yield status_pb2.WorkerLine(
            seq=seq,
            time=timestamp(line.seconds),
            worker_id=header.worker_id,
            rank=line.rank,
            host=header.host,
            slot=header.slot,
            stderr=line.stream != b"stdout",
            text=b"edriver: " + line.text if line.stream == _EDRIVER else line.text,
        )


def _workers(folder: Path) -> Iterator[_Recorded]:
    """The workers that have files, in the order of their ids."""
    with suppress(FileNotFoundError):
        entries = [(worker_id, entry) for entry in folder.iterdir() if (worker_id := worker_of(entry.name)) is not None]
        for worker_id, current in sorted(entries):
            headers = [(path, _header(path)) for path in (older(current), current) if _is_own_file(path)]
            header = next((found for _, found in headers if found), Header(worker_id, 0, 1, "?"))
            yield _Recorded(header, tuple(path for path, _ in headers), cut=header.part > 1)


def _is_own_file(path: Path) -> bool:
    """Whether it is a file; a link may lead anywhere, and a pipe may wait for ever."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _header(path: Path) -> Header | None:
    with path.open("rb") as file:
        return header_of(file.readline(MAX_HEADER_BYTES))


def _wanted(worker: _Recorded, rank: int | None, *, backward: bool = False) -> Iterator[tuple[Header, RecordedLine]]:
    """A worker's lines under a rank, and with them what edriver has to say about the lines beside them."""
    said: list[RecordedLine] = []
    some = rank is None
    for line in _lines(worker, backward):
        if line.stream == _EDRIVER:
            said.append(line)
        elif rank is None or line.rank == rank:
            some = True
            yield from ((worker.header, each) for each in (*said, line))
            said = []
    if some:
        yield from ((worker.header, each) for each in said)


def _lines(worker: _Recorded, backward: bool) -> Iterator[RecordedLine]:
    """A worker's lines. The first says if there was something before it."""
    files = worker.files[::-1] if backward else worker.files
    parsed = map(line_of, chain.from_iterable(map(_backward if backward else _forward, files)))
    known = (line for line in parsed if line is not None)
    if not worker.cut:
        yield from known
        return
    text = f"what worker {worker.header.worker_id} wrote before this is no longer kept".encode()
    at = None
    for line in known:
        if at is None and not backward:
            yield RecordedLine(line.time, None, _EDRIVER, text)
        at = line.time
        yield line
    if backward and at is not None:
        yield RecordedLine(at, None, _EDRIVER, text)


def _forward(path: Path) -> Iterator[bytes]:
    """The lines of a file."""
    rest, offset = b"", 0
    while block := _read(path, offset):
        offset += len(block)
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _backward(path: Path) -> Iterator[bytes]:
    """The lines of a file, the last first."""
    rest, offset = b"", path.stat().st_size
    while offset:
        begin = max(0, offset - BLOCK_BYTES)
        rest, *lines = (_read(path, begin)[: offset - begin] + rest).split(b"\n")
        yield from reversed(lines)
        offset = begin
    yield rest


def _read(path: Path, offset: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), BLOCK_BYTES, offset)


def _time(found: tuple[Header, RecordedLine]) -> bytes:
    return found[1].time
