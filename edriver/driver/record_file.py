"""A file that a run's records are appended to: one that cannot be written is no reason to end a run."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

PORTION: Final = 256
"""Pieces of text that are written at once."""

_log = logging.getLogger("edriver.driver")


class RecordFile:
    """Appends to one file, which is open for no longer than that takes.

    Args:
        path: where.
        name: what it is, for the one line that tells of a fault.
        mode: its permissions, should it have to be made.
        largest: bytes beyond which nothing more is written; None: however many there are.
        opening: what an empty file gets in place of the first character.
    """

    def __init__(self, path: Path, name: str, mode: int = 0o600, largest: int | None = None, opening: str = "") -> None:
        self.path = path
        self._name = name
        self._mode = mode
        self._largest = largest
        self._opening = opening
        self._complained = False
        self._full = False

    def append(self, pieces: Iterable[str]) -> None:
        """Append these, a portion at a time. A portion that cannot be written whole is left out whole."""
        waiting = iter(pieces)
        while portion := "".join(itertools.islice(waiting, PORTION)):
            if self._full:
                continue  # whoever makes the pieces may keep count by them
            try:
                self._write(portion)
            except OSError as error:
                self._complain(f"cannot be written: {error.strerror}")

    def _write(self, text: str) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, self._mode)
        try:
            before = os.fstat(descriptor).st_size
            data = (text if before else self._opening + text[len(self._opening) :]).encode()
            if self._largest is not None and before + len(data) > self._largest:
                self._full = True
                self._complain(f"has {before / 2**20:.0f} MiB: nothing more is written to it")
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
        finally:
            os.close(descriptor)

    def _complain(self, words: str) -> None:
        if not self._complained:
            _log.warning("the %s %s %s", self._name, self.path, words)
        self._complained = True
