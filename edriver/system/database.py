"""SQLite databases that one process holds: locked as long as it lives, so that there are never two that write.

They are in write-ahead mode and not synced at each commit: a process that is killed loses nothing; a power cut may cost
the last moments, and never tears what is older (https://www.sqlite.org/pragma.html#pragma_synchronous).
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

_LOCKED: Final = ("SQLITE_BUSY", "SQLITE_LOCKED")


def open_locked(path: Path) -> sqlite3.Connection:
    """Open a database and lock it. SQLite goes by paths: see OwnFolder.check_opened.

    Raises:
        sqlite3.Error: it is not a database, or another process holds it (see `is_locked`).
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


def is_locked(error: sqlite3.Error) -> bool:
    """Whether another process holds the database."""
    return str(getattr(error, "sqlite_errorname", "")).startswith(_LOCKED)
