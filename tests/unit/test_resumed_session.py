"""What a take-over says when it fails: a journal that does not replay is damaged, a fault of edriver's own is none."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from edriver.driver import session
from edriver.driver.journal.journal import Head, JournalError
from edriver.driver.journal.sqlite_journal import SqliteJournal

HEAD = Head("5d2f01aa", ("-np", "2", "train.py"), "/there", {"A": "b"}, b"k" * 32, "/tmp/f", began=(3.5, 7.25))


class Broken:
    """A session that raises such an error when it is made, or when it takes in the journal."""

    def __init__(self, made: bool) -> None:
        if made:
            raise KeyError("a part that was not made")

    def resume(self, *_: object) -> None:
        """Take in the journal."""
        raise KeyError("a worker that no event has named")


@pytest.mark.parametrize(("made", "raised"), [(True, KeyError), (False, JournalError)], ids=["making", "replaying"])
def test_only_what_the_journal_holds_is_called_damaged(
    made: bool, raised: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "Session", lambda *_: Broken(made))
    nothing: Any = None
    made_journal = SqliteJournal.create(tmp_path / "journal.sqlite3", HEAD)
    with contextlib.closing(made_journal) as journal, pytest.raises(raised):
        session.resume(nothing, journal, None, nothing, {})
