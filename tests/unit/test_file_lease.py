"""Which driver has a journal where locks do not hold: SQLite locks nothing here (its VFS "unix-none")."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from edriver.driver.journal.entries import JournalEntry
from edriver.driver.journal.file_lease import LEASE, LOOK_PERIOD, FileLease
from edriver.driver.journal.journal import Head, JournalError, JournalLostError, JournalRecord
from edriver.driver.journal.sqlite_journal import SqliteJournal
from edriver.model import events
from edriver.system.database import open_locked
from edriver.system.proc_stat import process_name

HEAD = Head("5d2f01aa", (), "/", {}, b"k" * 32, "")
EVENT = JournalRecord(JournalEntry(1.0, 2.0, events.Ticked()))


@pytest.fixture(autouse=True)
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect

    def unlocked(path: Path, **more: Any) -> sqlite3.Connection:
        made: sqlite3.Connection = connect(f"file:{path}?vfs=unix-none", uri=True, **more)
        return made

    monkeypatch.setattr(sqlite3, "connect", unlocked)


class Watching:
    """A lease of another machine, which looks at the first one's file; its time passes only by that."""

    def __init__(self, folder: Path, machine: str = "there x y", renewals: int = 0) -> None:
        self.waited = 0.0
        self._path = folder / "journal.lease"
        self._renewals = renewals
        self.lease = FileLease(self._path, machine, lambda: self.waited, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.waited += seconds
        if self._renewals:  # of the other driver
            self._renewals -= 1
            self._path.write_bytes(self._path.read_bytes()[:-1] + b"%d" % ((self._renewals + 1) % 10))


MADE: list[SqliteJournal] = []


@pytest.fixture(autouse=True)
def all_are_closed() -> Iterator[None]:
    yield
    while MADE:
        MADE.pop().close()


def first(folder: Path, machine: str = "here x y") -> SqliteJournal:
    lease = FileLease(folder / "journal.lease", machine)
    MADE.append(SqliteJournal.create(folder / "journal.sqlite3", HEAD, lease))
    return MADE[-1]


def stop(journal: SqliteJournal) -> None:
    """Have its driver renew nothing any more."""
    journal._lease._renewal.end()


def test_two_connections_do_not_see_each_other_here(tmp_path: Path) -> None:
    """What the other tests are about."""
    journal = first(tmp_path)
    open_locked(journal.path).close()
    journal.close()


def test_a_driver_on_another_machine_that_lives_is_left_alone(tmp_path: Path) -> None:
    journal = first(tmp_path)
    other = Watching(tmp_path, renewals=9)
    with pytest.raises(JournalError, match=r"the driver of this run lives on here: it renews .*journal\.lease\. Stop"):
        SqliteJournal.take_over(journal.path, lease=other.lease)
    assert other.waited < LEASE


def test_a_file_that_had_been_cached_here_is_no_renewal(tmp_path: Path) -> None:
    """The first look at a file of a network file system may find what it was before the driver's last renewal."""
    stop(first(tmp_path))
    other = Watching(tmp_path, renewals=1)
    SqliteJournal.take_over(tmp_path / "journal.sqlite3", lease=other.lease).close()
    assert other.waited == LOOK_PERIOD + LEASE


def test_one_that_is_silent_for_a_lease_is_replaced_and_writes_nothing_more(tmp_path: Path) -> None:
    journal = first(tmp_path)
    stop(journal)
    journal.append([EVENT])
    other = Watching(tmp_path)
    then = SqliteJournal.take_over(journal.path, lease=other.lease)
    assert other.waited == LEASE
    then.append([EVENT])
    with pytest.raises(JournalLostError, match="is another driver's: a driver on there has it now"):
        journal.append([EVENT])
    with pytest.raises(JournalLostError):
        journal.update(HEAD)
    journal.close()  # it does not take the other's lease away
    then.append([EVENT])
    assert len(list(then.entries())) == 3
    then.discard()
    assert list(tmp_path.iterdir()) == []


def test_records_that_were_removed_end_no_run(tmp_path: Path) -> None:
    journal = first(tmp_path)
    (tmp_path / "journal.lease").unlink()
    before = len([*journal.entries()])
    journal.append([EVENT])
    assert len([*journal.entries()]) == before + 1
    journal.close()


def test_it_notices_by_itself(tmp_path: Path) -> None:
    journal = first(tmp_path)
    noticed = threading.Event()
    journal.on_lost(lambda error: noticed.set())
    (tmp_path / "journal.lease").write_text("other\nthere x y\n1 1\n0")
    assert noticed.wait(60)


def test_what_was_written_while_another_took_over_is_not_acted_upon(tmp_path: Path) -> None:
    journal = first(tmp_path)
    stop(journal)
    check = journal._lease.check
    looks = chain([lambda: None], repeat(check))
    journal._lease.check = lambda: next(looks)()  # type: ignore[method-assign]
    (tmp_path / "journal.lease").write_text("other\nthere x y\n1 1\n0")
    with pytest.raises(JournalLostError):
        journal.append([EVENT])


def test_on_the_same_machine_the_process_decides_at_once(tmp_path: Path) -> None:
    journal = first(tmp_path)
    other = Watching(tmp_path, "here x y")
    with pytest.raises(JournalError, match="the driver of this run lives on here"):
        SqliteJournal.take_over(journal.path, lease=other.lease)
    ended = subprocess.run(
        [sys.executable, "-S", "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE, check=True
    )
    stop(journal)
    text = (tmp_path / "journal.lease").read_text()
    (tmp_path / "journal.lease").write_text(text.replace(process_name(os.getpid()), f"{int(ended.stdout)} 1"))
    SqliteJournal.take_over(journal.path, lease=other.lease).close()
    assert other.waited == 0.0


def test_a_process_that_has_ended_is_none_though_its_parent_does_not_know_it() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process_name(process.pid) == ""
    process.wait()
