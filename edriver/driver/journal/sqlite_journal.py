"""The journal of a run as a SQLite database in the folder of its records.

The database is in write-ahead mode and not synced at each commit: a driver that is killed loses nothing; a power cut
may cost the last moments, and never tears what is older (https://www.sqlite.org/pragma.html#pragma_synchronous). It is
locked as long as its driver lives, so that there are never two. Where locks do not hold, a lease does: file_lease.py.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from edriver.common.release import VERSION
from edriver.driver.journal.codec import Json
from edriver.driver.journal.entries import JournalEntry, event_from_bytes, event_to_bytes
from edriver.driver.journal.file_lease import FileLease
from edriver.driver.journal.formats import FORMAT
from edriver.driver.journal.journal import AgentLink, Head, Journal, JournalError, JournalLostError, JournalRecord
from edriver.system.database import is_locked, open_locked
from edriver.system.private_files import NotOwnError, OwnFolder, open_private
from edriver.system.record_folder import JOURNAL_FILES, LEASE_FILE

APPLICATION_ID: Final = 0x65647276
"""Marks the file as a journal (https://www.sqlite.org/fileformat.html#application_id): "edrv"."""

_SCHEMA: Final = """
CREATE TABLE head (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE entries (
    n INTEGER PRIMARY KEY, clock REAL NOT NULL, wall_clock REAL NOT NULL, event BLOB NOT NULL, progress BLOB NOT NULL
);
CREATE TABLE orders (n INTEGER PRIMARY KEY, what TEXT NOT NULL);
CREATE TABLE snapshot (
    one INTEGER PRIMARY KEY CHECK (one = 1), clock REAL NOT NULL, wall_clock REAL NOT NULL, state BLOB NOT NULL
);
CREATE TABLE links (agent_id INTEGER PRIMARY KEY, received INTEGER NOT NULL, acknowledged INTEGER NOT NULL);
"""


class SqliteJournal(Journal):
    """The journal of a run, held by this process: see `create` and `take_over`.

    Attributes:
        path: where it is; the file's name is JOURNAL_FILE.
    """

    def __init__(self, path: Path, database: sqlite3.Connection, lease: FileLease) -> None:
        super().__init__()
        self.path = path
        self.name = str(path)
        self._database = database
        self._lease = lease

    @classmethod
    def create(cls, path: Path, head: Head, lease: FileLease | None = None) -> SqliteJournal:
        """Begin one.

        Args:
            path: where it is to be.
            head: its head.
            lease: this driver's claim to the folder; None: the usual one.

        Raises:
            JournalError: it cannot be made.
        """
        try:
            os.close(open_private(path, os.O_EXCL))
            lease = lease or FileLease(path.with_name(LEASE_FILE))
            lease.acquire()
            with _closed_on_error(cls(path, open_locked(path), lease)) as journal:
                with journal._database:
                    marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT};"
                    journal._database.executescript(f"BEGIN; {marks} {_SCHEMA} COMMIT;")
                journal.update(head)
        except (OSError, sqlite3.Error) as error:
            raise JournalError(f"the journal {path} cannot be created: {_reason(error)}") from None
        return journal

    @classmethod
    def take_over(cls, path: Path, run_id: str = "", lease: FileLease | None = None) -> SqliteJournal:
        """Open a journal that another driver has left, without changing it.

        Args:
            path: the path of the journal.
            run_id: the run that it must belong to; empty: any.
            lease: this driver's claim to the folder; None: the usual one.

        Raises:
            JournalError: it is not a journal, or is damaged, of an unsupported format, or of another run; or its driver
                is alive; or another account can have written it, whose command line would then run as this user.
        """
        try:
            with OwnFolder(path.parent) as folder:
                folder.check(JOURNAL_FILES)
                if not path.exists():
                    raise JournalError(
                        f"the journal {path} does not exist: a run without records, or of an older edriver, has none"
                    )
                if not path.stat().st_size:
                    raise JournalError(f"{path} is not the journal of a run")  # SQLite would make a database of it
                lease = lease or FileLease(path.with_name(LEASE_FILE))
                with _closed_on_error(cls(path, open_locked(path), lease)) as journal:
                    folder.check_opened((path.name, f"{path.name}-wal"))  # SQLite goes by the path
                    journal._check(run_id)
                    lease.acquire()
        except NotOwnError as error:
            raise JournalError(f"the journal {path} is refused: {error}") from None
        except OSError as error:
            raise JournalError(f"the journal {path} cannot be taken over: {_reason(error)}") from None
        except (sqlite3.Error, ValueError, TypeError) as error:  # its texts may be damaged, too
            if isinstance(error, sqlite3.Error) and is_locked(error):
                raise JournalError(
                    f"the driver of this run lives: it holds the journal {path}. Stop it first (edriver stop)"
                ) from None
            raise JournalError(f"the journal {path} cannot be read: {_reason(error)}") from None
        return journal

    def _check(self, run_id: str) -> None:
        (application,) = self._database.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            raise JournalError(f"{self.path} is not the journal of a run")
        (format_number,) = self._database.execute("PRAGMA user_version").fetchone()
        self._check_format(format_number, self._value("version"))
        (verdict,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise self.damaged(verdict)
        if run_id and self.head.run_id != run_id:
            raise JournalError(f"the journal {self.path} is that of run {self.head.run_id}, not of {run_id}")

    @property
    def head(self) -> Head:
        with self._reading("its head"):
            return Head.from_json(self._value("head"), self.format)

    def update(self, head: Head) -> None:
        with self._transaction():
            self._put_head(head)

    def _put_head(self, head: Head) -> None:
        rows = [("version", VERSION), ("head", head.to_json())]
        self._database.executemany("INSERT OR REPLACE INTO head VALUES (?, ?)", rows)

    def append(self, records: Sequence[JournalRecord]) -> None:
        entries = [record.entry for record in records if record.entry is not None]
        rows = [(entry.clock, entry.wall_clock, event_to_bytes(entry.event), entry.progress) for entry in entries]
        links = {record.link[0]: record.link for record in records if record.link is not None}  # the latest of each
        with self._transaction():
            self._database.executemany(
                "INSERT INTO entries (clock, wall_clock, event, progress) VALUES (?, ?, ?, ?)", rows
            )
            self._database.executemany("INSERT OR REPLACE INTO links VALUES (?, ?, ?)", links.values())
        self._note_written(len(event) + len(progress) for _, _, event, progress in rows)

    def append_orders(self, orders: Sequence[str]) -> None:
        with self._transaction():
            self._database.executemany("INSERT INTO orders (what) VALUES (?)", [(order,) for order in orders])

    def write_snapshot(self, clock: float, wall_clock: float, state: bytes) -> None:
        head = None if self.format == FORMAT else self.head
        with self._transaction():
            self._database.execute("INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?, ?)", (clock, wall_clock, state))
            self._database.execute("DELETE FROM entries")
            self._database.execute("DELETE FROM orders")
            if head is not None:
                self._put_head(head)
                self._database.execute(f"PRAGMA user_version = {FORMAT}")
        self.format = FORMAT
        self._snapshot_size, self._bytes_since_snapshot = len(state), 0

    def snapshot(self) -> tuple[float, float, Json] | None:
        with self._reading("its snapshot"):
            found = self._database.execute("SELECT clock, wall_clock, state FROM snapshot").fetchone()
            return None if found is None else (_number(found[0]), _number(found[1]), self._state(_blob(found[2])))

    def entries(self) -> Iterator[JournalEntry]:
        with self._reading("its entries"):
            rows = self._database.execute("SELECT * FROM entries ORDER BY n")
        while True:
            with self._reading("its entries"):
                if (row := rows.fetchone()) is None:
                    return
            with self._reading(f"entry {row[0]}"):
                _, clock, wall_clock, event, progress = row
                taken = event_from_bytes(_blob(event), self.format)
                entry = JournalEntry(_number(clock), _number(wall_clock), taken, _blob(progress))
            yield entry

    def orders(self) -> Iterator[str]:
        with self._reading("its orders"):
            orders = [order for (order,) in self._database.execute("SELECT what FROM orders ORDER BY n")]
            if not all(isinstance(order, str) for order in orders):
                raise ValueError("one of them is not a string")
        yield from orders

    def links(self) -> Iterator[AgentLink]:
        with self._reading("its links"):
            links = list(self._database.execute("SELECT agent_id, received, acknowledged FROM links"))
            if not all(isinstance(number, int) for link in links for number in link):
                raise ValueError("one of them is not a number")
        yield from links

    def discard(self) -> None:
        self.close()
        for name in JOURNAL_FILES:
            with contextlib.suppress(OSError):
                self.path.with_name(name).unlink(missing_ok=True)

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._database.close()
        self._lease.release()

    def on_lost(self, leave: Callable[[JournalLostError], None]) -> None:
        self._lease.on_lost(leave)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit the statements executed inside, all or none.

        Raises:
            JournalLostError: another driver holds the journal, or may have held it meanwhile.
            JournalError: the journal cannot be written.
        """
        self._lease.check()
        try:
            with self._database:
                yield
        except (sqlite3.Error, UnicodeError) as error:
            raise JournalError(f"the journal {self.path} cannot be written: {_reason(error)}") from None
        self._lease.check()

    def _value(self, key: str) -> str:
        found = self._database.execute("SELECT value FROM head WHERE key = ?", (key,)).fetchone()
        if found is None:
            raise JournalError(f"the journal {self.path} has no {key}: its driver ended while creating it")
        return str(found[0])


@contextlib.contextmanager
def _closed_on_error(journal: SqliteJournal) -> Iterator[SqliteJournal]:
    try:
        yield journal
    except BaseException:
        journal.close()
        raise


def _number(found: object) -> float:
    if not isinstance(found, int | float):
        raise ValueError(f"{found!a:.100} is not a number")
    return float(found)


def _blob(found: object) -> bytes:
    if not isinstance(found, bytes):
        raise ValueError(f"{found!a:.100} is not bytes")
    return found


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
