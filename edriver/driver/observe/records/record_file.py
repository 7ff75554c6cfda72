"""A file that a run's records are appended to: one that cannot be written is no reason to end a run, nor to forget.

It stays open while the run lasts, so that a driver which has run out of descriptors keeps writing. What cannot be
written is kept, up to 8 MiB a file, and written later, in order; what is more than that is missing, and the file says
so at that place.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from edriver.system.private_files import open_private

PIECES_PER_WRITE: Final = 256
"""Pieces of text that are written at once."""

MAX_BACKLOG_BYTES: Final = 8 * 1024 * 1024
"""Bytes that are kept of what cannot be written, until it can."""

_DISK_FULL_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT)

_log = logging.getLogger("edriver.driver")


class RecordFile:
    """Appends to one file, which stays open, so that a process without free descriptors can still write to it.

    Pieces that cannot be written are kept and written later, in order. If more arrive than are kept, the file itself
    shows where they are missing.

    Args:
        path: the path of the file. If it was moved or removed, it is created again.
        name: a description of the file, for log lines about a fault.
        largest: the maximum size in bytes; None: no limit.
        opening: the text that an empty file gets in place of the first character.
        gap: makes the piece that reports the number of missing pieces; None: the file has no such piece.
        kept: see MAX_BACKLOG_BYTES.

    Attributes:
        fault: why writing fails now; empty if it does not.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        largest: int | None = None,
        opening: str = "",
        gap: Callable[[int], str] | None = None,
        kept: int = MAX_BACKLOG_BYTES,
    ) -> None:
        self.path = path
        self._name = name
        self._largest = largest
        self._opening = opening
        self._gap = gap
        self._most_kept = kept
        self._descriptor: int | None = None
        self._kept: deque[tuple[str, int]] = deque()
        self._kept_size = 0
        self._missing = 0
        self._behind = False
        self._full = False
        self.fault = ""

    def append(self, pieces: Iterable[str]) -> None:
        """Append these, a portion at a time. A portion is written whole, now or later."""
        waiting = iter(pieces)
        while portion := list(itertools.islice(waiting, PIECES_PER_WRITE)):
            if self._full:
                continue  # the iterator may count its pieces, so it is read to its end
            self._keep("".join(portion), len(portion))
            self.flush()

    def flush(self) -> bool:
        """Write what could not be written before; returns whether nothing is left."""
        try:
            while self._kept and not self._full:
                text, _ = self._kept[0]
                self._write(text)
                self._kept.popleft()
                self._kept_size -= len(text)
            if self._missing and not self._full:
                if self._gap is not None:
                    self._write(self._gap(self._missing))
                words = f"lacks {self._missing} entries: they could not be written"
                _log.warning("the %s %s %s", self._name, self.path, words)
                self._missing = 0
        except OSError as error:
            reason = f"the {self._name} {self.path} cannot be written: {error.strerror}"
            if not self._behind:
                _log.warning("%s; events are kept in memory and written later", reason)
            self._behind, self.fault = True, reason
            return False
        if self._behind:
            _log.info("the %s %s is written again", self._name, self.path)
            self._behind, self.fault = False, ""
        return True

    def close(self) -> None:
        """Nothing comes any more; what still cannot be written is lost."""
        if not self.flush():
            lost = self._missing + sum(count for _, count in self._kept)
            _log.warning("the %s %s lacks its last %s entries", self._name, self.path, lost)
        self._release()

    def _keep(self, text: str, count: int) -> None:
        """Once something is missing, everything is until the file records the gap."""
        if self._kept and (self._missing or self._kept_size + len(text) > self._most_kept):
            self._missing += count
        else:
            self._kept.append((text, count))
            self._kept_size += len(text)

    def _write(self, text: str) -> None:
        descriptor = self._opened()
        try:
            before = os.fstat(descriptor).st_size
            data = (text if before else self._opening + text[len(self._opening) :]).encode()
            if self._largest is not None and before + len(data) > self._largest:
                self._full = True
                size = before / 2**20
                self.fault = f"the {self._name} {self.path} has {size:.0f} MiB: nothing more will be written to it"
                _log.warning("%s", self.fault)
                return
            left = memoryview(data)
            try:
                while left:
                    left = left[os.write(descriptor, left) :]
            except OSError:
                # A disk that is full takes a part: half a line would spoil the one that is written when it is not.
                with contextlib.suppress(OSError):
                    if os.fstat(descriptor).st_size == before + len(data) - len(left):
                        os.ftruncate(descriptor, before)
                raise
        except OSError as error:
            if error.errno not in _DISK_FULL_ERRORS:
                self._release()  # a file server may have forgotten the file: open it again
            raise

    def _opened(self) -> int:
        """The descriptor of the file that is there under this path now."""
        if self._descriptor is not None and not self._is_there(self._descriptor):
            self._release()
        if self._descriptor is None:
            self._descriptor = open_private(self.path, os.O_APPEND)
        return self._descriptor

    def _is_there(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(self.path.stat(), os.fstat(descriptor))
        except OSError:
            return False

    def _release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
