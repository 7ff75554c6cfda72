"""The journal of a run: a SQLite database in the folder of its records.

Each event is committed before anything is done about it. The events are all that the core was given, and it is
deterministic: a driver that takes them in again stands where the last one stood.

The database is in write-ahead mode and not synced at each commit: a driver that is killed loses nothing; a power cut
may cost the last moments, and never tears what is older (https://www.sqlite.org/pragma.html#pragma_synchronous). It is
locked as long as its driver lives, so that there are never two.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edriver.common.release import VERSION
from edriver.driver.journal.entries import Entry, event_from_bytes, event_to_bytes
from edriver.system.private_files import open_private
from edriver.system.record_folder import JOURNAL_FILES

APPLICATION_ID: Final = 0x65647276
"""Marks the file as a journal (https://www.sqlite.org/fileformat.html#application_id): "edrv"."""

FORMAT: Final = 2
"""Grows with each change of what the file holds."""

SNAPSHOT_BYTES: Final = 512 * 1024
"""Events of this size are replaced by a snapshot: some 2,000, which take a fraction of a second to replay."""

SNAPSHOT_SHARE: Final = 10
"""The next one follows when the events since the last are so many times its size: a large one takes time to write."""

ENTRY_BYTES: Final = 40
"""What an entry takes beside its event."""

_SCHEMA: Final = """
CREATE TABLE head (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE entries (
    n INTEGER PRIMARY KEY, clock REAL NOT NULL, wall_clock REAL NOT NULL, event BLOB NOT NULL, progress BLOB NOT NULL
);
CREATE TABLE snapshot (
    one INTEGER PRIMARY KEY CHECK (one = 1), clock REAL NOT NULL, wall_clock REAL NOT NULL, state BLOB NOT NULL
);
CREATE TABLE links (agent_id INTEGER PRIMARY KEY, received INTEGER NOT NULL, acknowledged INTEGER NOT NULL);
"""

_LOCKED: Final = ("SQLITE_BUSY", "SQLITE_LOCKED")


class JournalError(Exception):
    """The journal cannot be used. The message is a sentence: which one, why, and what to do."""


@dataclass(frozen=True, slots=True, repr=False)
class Head:
    """What a driver needs to take a run over, beside the events.

    Attributes:
        run_id: the run.
        arguments: its command line,
        directory: the working directory in which it was given,
        environment: and the environment: workers inherit it.
        key: of its draws.
        folder: the run's own folder, with the socket at which the agents of this machine find their driver.
        incarnation: how many drivers there were before, plus 1.
        began: the core's clock, and the time in seconds since the epoch, when the run began.
        port: where agents of other hosts find the driver; 0: it has no port.
        credentials: what they know it by: see RunCredentials; empty: nothing.
    """

    run_id: str
    arguments: tuple[str, ...]
    directory: str
    environment: Mapping[str, str]
    key: bytes
    folder: str
    incarnation: int = 1
    began: tuple[float, float] = (0.0, 0.0)
    port: int = 0
    credentials: str = ""


class Journal:
    """The journal of a run, held by this process: see `create` and `take_over`.

    Attributes:
        path: where it is; the file's name is JOURNAL_FILE.
    """

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path = path
        self._database = database
        self._bytes_since_snapshot = 0
        self._snapshot_size = 0

    @classmethod
    def create(cls, path: Path, head: Head) -> Journal:
        """Begin one.

        Raises:
            JournalError: it cannot be made.
        """
        try:
            os.close(open_private(path, os.O_EXCL))
            journal = cls(path, _open(path))
            with journal._database:
                marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT};"
                journal._database.executescript(f"BEGIN; {marks} {_SCHEMA} COMMIT;")
            journal.update(head)
        except (OSError, sqlite3.Error) as error:
            raise JournalError(f"the journal {path} cannot be made: {_reason(error)}") from None
        return journal

    @classmethod
    def take_over(cls, path: Path, run_id: str = "") -> Journal:
        """Open one that another driver has left; nothing in it is changed.

        Args:
            path: where it is.
            run_id: the run whose it is to be; empty: any.

        Raises:
            JournalError: it is none, or damaged, of another version or run, or its driver lives.
        """
        if not path.is_file():
            raise JournalError(f"there is no journal {path}: a run without records, or of an older edriver, has none")
        if not path.stat().st_size:
            raise JournalError(f"{path} is not the journal of a run")  # SQLite would make a database of it
        try:
            journal = cls(path, _open(path))
            journal._check(run_id)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorname", "").startswith(_LOCKED):
                raise JournalError(
                    f"the driver of this run lives: it holds the journal {path}. Stop it first (edriver stop)"
                ) from None
            raise JournalError(f"the journal {path} cannot be read: {_reason(error)}") from None
        return journal

    def _check(self, run_id: str) -> None:
        (application,) = self._database.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            raise JournalError(f"{self.path} is not the journal of a run")
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        written_by = self._value("version")
        if (version, written_by) != (FORMAT, VERSION):
            raise JournalError(
                f"the journal {self.path} was written by edriver {written_by}, and this is {VERSION}: resume the run "
                f"with that one (pip install edriver=={written_by})"
            )
        (verdict,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise self.damaged(verdict)
        if run_id and self.head.run_id != run_id:
            raise JournalError(f"the journal {self.path} is that of run {self.head.run_id}, not of {run_id}")

    @property
    def head(self) -> Head:
        """See Head.

        Raises:
            JournalError: it has none.
        """
        found = json.loads(self._value("head"))
        key = bytes.fromhex(found.pop("key"))
        tuples = {name: tuple(found[name]) for name in ("arguments", "began")}
        return Head(**{**found, **tuples}, key=key)

    def update(self, head: Head) -> None:
        """Put another head in place of the one that is there."""
        value = {name: getattr(head, name) for name in Head.__slots__} | {"key": head.key.hex()}
        with self._database:
            self._database.executemany(
                "INSERT OR REPLACE INTO head VALUES (?, ?)", [("version", VERSION), ("head", json.dumps(value))]
            )

    def append(self, entry: Entry | None, link: tuple[int, int, int] | None = None) -> None:
        """Add an event, and note which message of an agent's has been taken in.

        Args:
            entry: the event, with its times; None: the message was none to the core.
            link: the agent, the number of its message, and the number of the driver's last message that it had then;
                None: the event comes from the driver itself.

        Raises:
            JournalError: it cannot be written.
        """
        with self._transaction():
            if entry is not None:
                event = event_to_bytes(entry.event)
                self._bytes_since_snapshot += len(event) + len(entry.progress) + ENTRY_BYTES
                self._database.execute(
                    "INSERT INTO entries (clock, wall_clock, event, progress) VALUES (?, ?, ?, ?)",
                    (entry.clock, entry.wall_clock, event, entry.progress),
                )
            if link is not None:
                self._database.execute("INSERT OR REPLACE INTO links VALUES (?, ?, ?)", link)

    @property
    def wants_snapshot(self) -> bool:
        """Whether there are so many events since the last snapshot that another one should take their place."""
        return self._bytes_since_snapshot >= max(SNAPSHOT_BYTES, SNAPSHOT_SHARE * self._snapshot_size)

    def keep_snapshot(self, clock: float, wall_clock: float, state: bytes) -> None:
        """Put the state after all events in place of these.

        Args:
            clock: the core's time,
            wall_clock: and that in seconds since the epoch.
            state: see snapshot.py.

        Raises:
            JournalError: it cannot be written.
        """
        with self._transaction():
            self._database.execute("INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?, ?)", (clock, wall_clock, state))
            self._database.execute("DELETE FROM entries")
        self._snapshot_size, self._bytes_since_snapshot = len(state), 0

    def snapshot(self) -> tuple[float, float, bytes] | None:
        """See `keep_snapshot`; None: there was none, and the entries are all there ever were."""
        found = self._database.execute("SELECT clock, wall_clock, state FROM snapshot").fetchone()
        return None if found is None else (float(found[0]), float(found[1]), bytes(found[2]))

    def entries(self) -> Iterator[Entry]:
        """All events since the snapshot, oldest first.

        Raises:
            JournalError: one cannot be read.
        """
        for n, clock, wall_clock, event, progress in self._database.execute("SELECT * FROM entries ORDER BY n"):
            try:
                yield Entry(clock, wall_clock, event_from_bytes(event), bytes(progress))
            except ValueError as error:
                raise self.damaged(f"entry {n}: {error}") from None

    def damaged(self, what: str) -> JournalError:
        """The error that says so, of something in it."""
        return JournalError(
            f"the journal {self.path} is damaged ({what}), so the run cannot be resumed: its hosts end their workers "
            "after --driver-timeout"
        )

    def links(self) -> Iterator[tuple[int, int, int]]:
        """Of each agent, its last message: see `append`."""
        yield from self._database.execute("SELECT * FROM links")

    def discard(self) -> None:
        """Remove it: from what it has, no driver may go on any more."""
        self.close()
        for name in JOURNAL_FILES:
            with contextlib.suppress(OSError):
                self.path.with_name(name).unlink(missing_ok=True)

    def close(self) -> None:
        """Let it go."""
        with contextlib.suppress(sqlite3.Error):
            self._database.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit all that is executed, or nothing of it.

        Raises:
            JournalError: it cannot be written.
        """
        try:
            with self._database:
                yield
        except sqlite3.Error as error:
            raise JournalError(f"the journal {self.path} cannot be written: {_reason(error)}") from None

    def _value(self, key: str) -> str:
        found = self._database.execute("SELECT value FROM head WHERE key = ?", (key,)).fetchone()
        if found is None:
            raise JournalError(f"the journal {self.path} has no {key}: its driver ended while it was being made")
        return str(found[0])


def _open(path: Path) -> sqlite3.Connection:
    """Open the database and lock it.

    Raises:
        sqlite3.Error: it is none, or locked.
    """
    database = sqlite3.connect(path, timeout=0.0, isolation_level="DEFERRED")
    try:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        with database:
            database.execute("BEGIN EXCLUSIVE")
    except BaseException:
        database.close()
        raise
    return database


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
