"""The files with the workers' output: bounded per worker and in total, the oldest of it dropped first.

Each worker has two parts at most, of which the older one goes when the other is full. If all files together are too
long, the part goes to which nothing was added for the longest time; its worker may have ended long ago.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from edriver.system.private_files import make_private, open_private
from edriver.text.output_lines import MAX_HEADER_BYTES, Header, file_name, header_of, older, worker_of

MAX_WORKER_BYTES: Final = 64 * 1024 * 1024
"""Bytes that are kept of a worker's output, the latest."""

MAX_RUN_BYTES: Final = 1024 * 1024 * 1024
"""Bytes that are kept of all workers of a run together."""

MIN_FREE_BYTES: Final = 256 * 1024 * 1024
"""Bytes that are left free on the disk, for the journal and the other records."""


class Writer(NamedTuple):
    """A worker that has written something.

    Attributes:
        worker_id: its id.
        slot: its slot,
        host: on its host.
    """

    worker_id: int
    slot: int
    host: str


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write to the disk of a folder.

    Raises:
        OSError: the disk does not answer.
    """
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


class OutputFiles:
    """Appends to them. Files are not held open: a run may have thousands of workers.

    Args:
        folder: for the files; made when it is needed.
        worker_limit: see MAX_WORKER_BYTES.
        run_limit: see MAX_RUN_BYTES.
        free: see free_bytes.
    """

    def __init__(
        self,
        folder: Path,
        worker_limit: int = MAX_WORKER_BYTES,
        run_limit: int = MAX_RUN_BYTES,
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        self.folder = folder
        self._part_limit = worker_limit // 2
        self._run_limit = run_limit
        self._free = free
        self._headers: dict[int, Header] = {}
        self._begun = False
        self._sizes: dict[Path, int] = {}  # the file that was written to last comes last
        self._total = 0

    def append(self, writer: Writer, lines: bytes) -> None:
        """Append whole lines, or nothing.

        Raises:
            OSError: they cannot be written.
        """
        if not self._begun:
            self._begin()
        path = self.folder / file_name(writer.worker_id)
        header = self._headers.get(writer.worker_id) or Header(writer.worker_id, writer.slot, 1, writer.host)
        size = self._sizes.get(path, 0)
        if size and size + len(lines) > self._part_limit:
            with suppress(FileNotFoundError):  # the user has removed it
                path.rename(older(path))
            self._note(older(path), size)
            self._note(path, 0)
            header, size = header._replace(part=header.part + 1), 0
        self._headers[writer.worker_id] = header
        data = lines if size else header.line() + lines
        self._check_room(len(data))
        _append(path, data)
        self._note(path, size + len(data))
        self._drop_oldest(path)

    def _begin(self) -> None:
        """Read what is on the disk, where another driver of this run may have left something."""
        make_private(self.folder)
        found = []
        for entry in self.folder.iterdir():
            if (worker_id := worker_of(entry.name)) is None:
                continue
            with entry.open("rb") as file:
                if (header := header_of(file.readline(MAX_HEADER_BYTES))) is not None:
                    self._headers[worker_id] = header
                _end_line(file.fileno(), entry)
            for path in (entry, older(entry)):
                with suppress(FileNotFoundError):
                    about = path.stat()
                    found.append((about.st_mtime_ns, path, about.st_size))
        for _, path, size in sorted(found):
            self._note(path, size)
        self._begun = True

    def _note(self, path: Path, size: int) -> None:
        """This file was written to last, and has so many bytes now; 0: it is gone."""
        self._total += size - self._sizes.pop(path, 0)
        if size:
            self._sizes[path] = size

    def _check_room(self, size: int) -> None:
        if self._free(self.folder) < MIN_FREE_BYTES + size:
            why = f"less than {MIN_FREE_BYTES // 2**20} MiB are free there"
            raise OSError(errno.ENOSPC, why, str(self.folder))

    def _drop_oldest(self, current: Path) -> None:
        while self._total > self._run_limit and (oldest := next(iter(self._sizes))) != current:
            header = self._headers.get(worker_of(oldest.name) or 0)
            if header is None:  # an older part
                oldest.unlink(missing_ok=True)
                self._note(oldest, 0)
            else:  # a header remains, and tells that there was more
                self._headers[header.worker_id] = header = header._replace(part=header.part + 1)
                os.close(open_private(oldest, os.O_TRUNC))
                _append(oldest, header.line())
                self._note(oldest, len(header.line()))


def _append(path: Path, data: bytes) -> None:
    """Append all of it, or nothing.

    Raises:
        OSError: it cannot be written.
    """
    descriptor = open_private(path, os.O_APPEND)
    try:
        before = os.fstat(descriptor).st_size
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(descriptor, left) :]
        except OSError:
            with suppress(OSError):  # a disk that is full takes a part
                os.ftruncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)


def _end_line(descriptor: int, path: Path) -> None:
    """A driver that was killed may have left half a line: end it."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        _append(path, b"\n")
