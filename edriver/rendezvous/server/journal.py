"""What the server keeps on disk: each change, appended to one file that only its user can read.

A change is written before it is answered, so a server that is killed has lost nothing that a client relies on. It is
not synced to the disk one by one: after a power failure the last changes may be missing. That is safe, because each
start of the server is another incarnation, which is synced, and tokens of earlier ones are stale: no client can write
on top of a state that it has not seen.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from edriver.system.private_files import open_private, sync_folder
from edriver.v1.rendezvous_pb2 import RendezvousRecord

_log = logging.getLogger("edriver.rendezvous")

_HEAD: Final = struct.Struct("!II")
"""Before each record: its length and its CRC-32."""

JOURNAL_FILES: Final = ("journal", "journal.new", "lock")
"""The names of its files."""

MIN_APPENDED_BYTES: Final = 8 * 1024 * 1024
"""Bytes that are appended at least before the file is written anew."""


class CorruptJournalError(Exception):
    """The file is damaged; the message names it."""


class Journal:
    """The file.

    Args:
        folder: where it lies.

    Attributes:
        incarnation: of this start.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal"
        self._lock = open_private(folder / "lock")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise
        self._file = -1
        self._appended = 0
        self._whole = 0
        self.incarnation = 1

    def load(self) -> Iterator[RendezvousRecord]:
        """What was written by earlier starts, in order.

        Raises:
            CorruptJournalError: the file is damaged, and not only cut off in its last record.
            OSError: it cannot be read.
        """
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        at = 0
        while at < len(data):
            end = at + _HEAD.size
            length, checksum = _HEAD.unpack_from(data, at) if end <= len(data) else (len(data), 0)
            if end + length > len(data):
                _log.warning("%s ends in the middle of a record, which was never answered: it is left out", self._path)
                return
            record = _record(data[end : end + length], checksum)
            if record is None:
                raise CorruptJournalError(
                    f"{self._path} is damaged at byte {at}: remove it, and all runs begin with a new rendezvous"
                )
            if record.HasField("incarnation"):
                self.incarnation = record.incarnation + 1
            else:
                yield record
            at = end + length

    def begin(self, records: Iterable[RendezvousRecord]) -> None:
        """Write the file anew: this start, and all that there is.

        Raises:
            OSError: that cannot be done.
        """
        new = self._path.with_suffix(".new")
        descriptor = open_private(new, os.O_TRUNC | os.O_APPEND)
        whole = 0
        try:
            for record in itertools.chain([RendezvousRecord(incarnation=self.incarnation)], records):
                packed = _packed(record)
                _write(descriptor, packed)
                whole += len(packed)
            os.fsync(descriptor)
            new.replace(self._path)
            sync_folder(self._path.parent)
        except OSError:
            os.close(descriptor)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file = descriptor
        self._whole = whole
        self._appended = 0

    def append(self, record: RendezvousRecord) -> None:
        """Write down a change.

        Raises:
            OSError: that cannot be done.
        """
        packed = _packed(record)
        _write(self._file, packed)
        self._appended += len(packed)

    @property
    def long(self) -> bool:
        """Whether the file should begin anew: most of it is out of date."""
        return self._appended > max(MIN_APPENDED_BYTES, 2 * self._whole)

    def close(self) -> None:
        """Close the file, and let another server have the folder."""
        if self._file >= 0:
            os.close(self._file)
        os.close(self._lock)


def _record(data: bytes, checksum: int) -> RendezvousRecord | None:
    if zlib.crc32(data) != checksum:
        return None
    try:
        return RendezvousRecord.FromString(data)
    except DecodeError:
        return None


def _packed(record: RendezvousRecord) -> bytes:
    data = record.SerializeToString()
    return _HEAD.pack(len(data), zlib.crc32(data)) + data


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
