"""What the server keeps on disk: each change, as a record in a SQLite database that only its user can read.

A change is written before it is answered, so a server that is killed has lost nothing that a client relies on. It is
not synced to the disk one by one: after a power failure the last changes may be missing. That is safe, because each
start of the server is another incarnation, which is synced, and tokens of earlier ones are stale: no client can write
on top of a state that it has not seen.

The database is locked as that of a run's journal is (edriver/system/database.py). Having clients restore the state of a
server that has lost it would need an agreement among them on who has the latest, and nothing could give back a store's
keys.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from edriver.system.database import is_locked, open_locked
from edriver.system.private_files import OwnFolder, open_private
from edriver.v1.rendezvous_pb2 import RendezvousRecord

DATABASE: Final = "journal.sqlite3"

JOURNAL_FILES: Final = (DATABASE, f"{DATABASE}-wal")
"""The names of its files."""

APPLICATION_ID: Final = 0x65647272
"""Marks the file as a rendezvous's (https://www.sqlite.org/fileformat.html#application_id): "edrr"."""

FORMAT: Final = 1
"""Of the database; another one is refused."""

_SCHEMA: Final = """
CREATE TABLE starts (incarnation INTEGER NOT NULL);
CREATE TABLE records (n INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, record BLOB NOT NULL);
"""

_CHECKPOINT_PAGES: Final = 4096
"""Pages of 4 KiB after which SQLite moves its log into the database and syncs, while no call is answered. Its default
is 1,000."""

MIN_APPENDED_BYTES: Final = 8 * 1024 * 1024
"""Bytes that are appended at least before the records are written again."""


class CorruptJournalError(Exception):
    """What is on disk is damaged, or of a later edriver; the message names the file."""


class JournalHeldError(Exception):
    """Another server uses the folder."""


class ServerJournal:
    """The database of one server, from its construction to `close`.

    Args:
        folder: where it lies.
        path: what the folder is called.

    Attributes:
        incarnation: of this start.

    Raises:
        JournalHeldError: another server uses the folder.
        CorruptJournalError: the database is damaged, or of a later edriver.
        OSError: it cannot be made.
        NotOwnError: another folder has taken the place of this one.
    """

    def __init__(self, folder: OwnFolder, path: Path) -> None:
        self._path = path / DATABASE
        os.close(open_private(folder.pinned / DATABASE))  # SQLite would let the umask decide who may read it
        with self._errors():
            self._database = open_locked(folder.pinned / DATABASE)
        try:
            folder.check_opened(JOURNAL_FILES)
            with self._errors():
                self._check()
                self._database.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
            self.incarnation = 1 + self._last_incarnation()
        except BaseException:
            self._database.close()
            raise
        self._appended = 0
        self._whole = 0

    def load(self) -> Iterator[RendezvousRecord]:
        """What was written by earlier starts, in order.

        Raises:
            CorruptJournalError: it is damaged.
            OSError: it cannot be read.
        """
        with self._errors():
            for n, checksum, data in self._database.execute("SELECT n, checksum, record FROM records ORDER BY n"):
                record = _record(data, checksum) if isinstance(data, bytes) else None
                if record is None:
                    raise self._damaged(f"record {n}")
                yield record

    def begin(self, records: Iterable[RendezvousRecord]) -> None:
        """Write everything again: this start, and all that there is. It is on the disk then.

        Raises:
            OSError: that cannot be done.
        """
        self._whole = 0
        with self._errors(), self._database:
            self._database.execute("DELETE FROM records")
            self._database.execute("DELETE FROM starts")
            self._database.execute("INSERT INTO starts VALUES (?)", (self.incarnation,))
            for record in records:
                self._whole += self._insert(record)
        with self._errors():
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # which syncs
        self._appended = 0

    def append(self, record: RendezvousRecord) -> None:
        """Write down a change.

        Raises:
            OSError: that cannot be done.
        """
        with self._errors(), self._database:
            self._appended += self._insert(record)

    @property
    def long(self) -> bool:
        """Whether everything should be written again: most of it is out of date."""
        return self._appended > max(MIN_APPENDED_BYTES, 2 * self._whole)

    def close(self) -> None:
        """Close the database, and let another server have the folder."""
        self._database.close()

    def _insert(self, record: RendezvousRecord) -> int:
        data = record.SerializeToString()
        self._database.execute("INSERT INTO records (checksum, record) VALUES (?, ?)", (zlib.crc32(data), data))
        return len(data)

    def _check(self) -> None:
        (application,) = self._database.execute("PRAGMA application_id").fetchone()
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if (application, version) == (0, 0) and not self._database.execute("SELECT 1 FROM sqlite_schema").fetchone():
            marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT};"
            self._database.executescript(f"BEGIN; {marks} {_SCHEMA} COMMIT;")
            return
        if application != APPLICATION_ID:
            raise self._damaged("its header")
        if version != FORMAT:
            raise CorruptJournalError(
                f"{self._path} has format {version}, and this edriver reads {FORMAT}: use the edriver that wrote it, "
                "or remove the file, after which all runs begin with a new rendezvous"
            )
        (verdict,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise self._damaged(str(verdict))

    def _last_incarnation(self) -> int:
        """That of the last start; of a new database any, so that tokens of one that was removed are stale as well."""
        with self._errors():
            found = self._database.execute("SELECT incarnation FROM starts").fetchone()
        return secrets.randbits(32) if found is None else int(found[0])

    def _damaged(self, where: str) -> CorruptJournalError:
        return CorruptJournalError(
            f"{self._path} is damaged ({where}): remove it, after which all runs begin with a new rendezvous"
        )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise what SQLite raises as the errors that are promised."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if is_locked(error):
                raise JournalHeldError from None
            raise OSError(errno.EIO, str(error), str(self._path)) from None
        except sqlite3.Error as error:
            raise self._damaged(str(error)) from None


def _record(data: bytes, checksum: int) -> RendezvousRecord | None:
    if zlib.crc32(data) != checksum:
        return None
    try:
        return RendezvousRecord.FromString(data)
    except DecodeError:
        return None
