"""What a take-over says when it fails: a journal that does not replay is damaged, a fault of edriver's own is none."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edriver.common.release import PROTOCOL, VERSION
from edriver.driver.journal.codec import CodecError
from edriver.driver.journal.journal import Head, JournalError
from edriver.driver.journal.sqlite_journal import SqliteJournal
from edriver.driver.run import session

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


class Formless:
    """A session that has taken in its journal, and knows something that no journal has a form for."""

    resume = session.Session.resume
    _records = _set_clocks = None

    def __init__(self) -> None:
        self._parts = SimpleNamespace(loop=self)
        self._wall_clock = lambda: 0.0

    @property
    def state(self) -> bytes:
        """See CoreLoop."""
        raise CodecError("a Thing does not belong in a journal")


@pytest.mark.parametrize(
    ("written_by", "way_out"), [("0.0.9", r"\(pip install edriver==0\.0\.9\)"), (VERSION, "Remove the journal, and")]
)
def test_what_no_journal_has_a_form_for_is_named_and_is_no_damage(
    written_by: str, way_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "Session", lambda *_: Formless())
    monkeypatch.setattr(session, "replay", lambda *_: None)
    nothing: Any = None
    with contextlib.closing(SqliteJournal.create(tmp_path / "journal.sqlite3", HEAD)) as journal:
        journal.written_by = written_by
        with pytest.raises(JournalError, match=f"a Thing does not belong in a journal.*{way_out}") as raised:
            session.resume(nothing, journal, None, nothing, {})
        assert "damaged" not in str(raised.value)
        assert journal.snapshot() is None
        assert journal.head == HEAD


def test_a_run_whose_agents_would_be_refused_is_not_taken_over(tmp_path: Path) -> None:
    nothing: Any = None
    head = replace(HEAD, protocol=PROTOCOL + 1)
    with contextlib.closing(SqliteJournal.create(tmp_path / "journal.sqlite3", head)) as journal:
        journal.written_by = "9.0"
        sentence = rf"nothing has been changed: .* protocol {PROTOCOL + 1}, .*\(pip install edriver==9\.0\)"
        with pytest.raises(JournalError, match=sentence):
            session.resume(nothing, journal, None, nothing, {})
