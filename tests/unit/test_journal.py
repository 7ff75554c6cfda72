"""The journal: what it keeps, from whom, and what it refuses."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import re
import sqlite3
import stat
import subprocess
import sys
import typing
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edriver.common.release import VERSION
from edriver.driver.journal import formats, sqlite_journal
from edriver.driver.journal import journal as journal_module
from edriver.driver.journal.entries import JournalEntry, event_from_bytes, event_to_bytes
from edriver.driver.journal.journal import Head, JournalError, JournalRecord
from edriver.driver.journal.keyed_random import KeyedRandom, new_key
from edriver.driver.journal.sqlite_journal import SqliteJournal
from edriver.model import events
from edriver.model.cause import AgentFault, AgentFaultKind
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import RoundId, Version
from edriver.model.store_address import StoreAddress

HEAD = Head("5d2f01aa", ("-np", "2", "train.py"), "/there", {"A": "b"}, b"k" * 32, "/tmp/f", began=(3.5, 7.25))
SEEN: list[events.Event] = [
    events.HostsObserved(HostSet((Host("a", 2),))),
    events.AgentLost("a", 1, AgentFault(AgentFaultKind.SILENT, seconds=5.0)),
    events.WorkerWaiting(
        1,
        1,
        Version(RoundId(1, 2), 3),
        StoreAddress("a", 4000),
        "digest",
        2,
        "torn",
        40,
        sealed=Version(RoundId(1, 2), 4),
    ),
    events.FirstBoundaryPassed(1, RoundId(1, 2), {"synced": 1.5}),
    events.Ticked(),
    events.DriverResumed(2),
]


def journal_in(folder: Path) -> SqliteJournal:
    return SqliteJournal.create(folder / "journal.sqlite3", HEAD)


def entries_of(path: Path) -> list[JournalEntry]:
    """All that another driver finds."""
    with contextlib.closing(SqliteJournal.take_over(path)) as journal:
        return list(journal.entries())


def test_a_journal_that_is_refused_is_let_go(tmp_path: Path) -> None:
    first = journal_in(tmp_path)
    first.close()
    with pytest.raises(JournalError, match="is that of run") as refusal:
        SqliteJournal.take_over(first.path, "00000000")
    # As long as the error lives, so do the frames that have raised it, and all that they hold.
    assert refusal.value.__traceback__ is not None
    SqliteJournal.take_over(first.path).close()


def test_what_was_written_is_there_for_the_next_driver(tmp_path: Path) -> None:
    first = journal_in(tmp_path)
    for n, event in enumerate(SEEN):
        first.append([JournalRecord(JournalEntry(1.0 + n, 100.0 + n, event, b"progress" * n), (7, n + 1, n))])
    first.append([JournalRecord(None, link) for link in ((7, 8, 7), (8, 1, 0), (7, 9, 8))])
    first.update(replace(first.head, port=4711, incarnation=2))
    first.close()
    then = SqliteJournal.take_over(first.path, HEAD.run_id)
    expected = [JournalEntry(1.0 + n, 100.0 + n, event, b"progress" * n) for n, event in enumerate(SEEN)]
    assert list(then.entries()) == expected
    assert sorted(then.links()) == [(7, 9, 8), (8, 1, 0)]
    assert then.head == replace(HEAD, port=4711, incarnation=2)
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o600
    then.close()


WRITES_AND_DIES = """
import os, sys
from pathlib import Path
from edriver.model import events
from edriver.driver.journal.entries import JournalEntry
from edriver.driver.journal.journal import Head, JournalRecord
from edriver.driver.journal.sqlite_journal import SqliteJournal
journal = SqliteJournal.create(Path(sys.argv[1]), Head("5d2f01aa", (), "", {}, b"k", ""))
for n in range(500):
    journal.append([JournalRecord(JournalEntry(float(n), 0.0, events.Ticked()))])
os.kill(os.getpid(), 9)
"""


def test_a_driver_that_is_killed_has_lost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    assert subprocess.run([sys.executable, "-c", WRITES_AND_DIES, str(path)], check=False).returncode == -9
    assert [entry.clock for entry in entries_of(path)] == [float(n) for n in range(500)]


def test_a_run_has_one_driver_at_a_time(tmp_path: Path) -> None:
    first = journal_in(tmp_path)
    with pytest.raises(JournalError, match="the driver of this run lives: it holds the journal"):
        SqliteJournal.take_over(first.path)
    first.append([JournalRecord(JournalEntry(1.0, 2.0, events.Ticked()))])  # it was not disturbed
    first.close()
    assert len(entries_of(first.path)) == 1


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        pytest.param(lambda path: path.unlink(), "does not exist: a run without records", id="missing"),
        pytest.param(lambda path: path.write_bytes(b"x" * 5000), "cannot be read: file is not a database", id="noise"),
        pytest.param(lambda path: path.write_bytes(b""), "is not the journal of a run", id="empty"),
        pytest.param(
            lambda path: path.write_bytes(path.read_bytes()[:4096] + b"\xff" * (path.stat().st_size - 4096)),
            "is damaged|cannot be read",
            id="torn",
        ),
        pytest.param(
            lambda path: _execute(path, "UPDATE entries SET event = x'00'"),
            r"is damaged \(entry 1: it is not an event",
            id="bad-entry",
        ),
        pytest.param(lambda path: _execute(path, "DELETE FROM head"), "has no version: its driver ended", id="no-head"),
    ],
)
def test_what_cannot_be_used_is_refused_and_left_as_it_is(
    tmp_path: Path, harm: typing.Callable[[Path], object], sentence: str
) -> None:
    first = journal_in(tmp_path)
    for n in range(200):
        first.append([JournalRecord(JournalEntry(float(n), 0.0, SEEN[2]))])
    first.close()
    harm(first.path)
    before = first.path.read_bytes() if first.path.exists() else None
    with pytest.raises(JournalError, match=sentence):
        entries_of(first.path)
    assert (first.path.read_bytes() if first.path.exists() else None) == before


def harmed_heads() -> typing.Iterator[str]:
    """A head that is cut off anywhere, and one whose fields have values of other types, or are missing."""
    whole = HEAD.to_json()
    yield from (whole[:length] for length in range(len(whole)))
    head = json.loads(whole)
    for name in head:
        if name not in ("incarnation", "began", "port", "credentials", "protocol"):  # those have defaults
            yield json.dumps({key: value for key, value in head.items() if key != name})
        for wrong in (None, True, -1, 1e400, 2**70, "\0", "\ud800", "=", [], [1], {}, {"": ""}, {"a": 1}, [None, "x"]):
            fits = {"arguments": [], "environment": {"a": "b"}}.get(name, "=" if isinstance(head[name], str) else None)
            if wrong not in (fits, {}) or name != "environment":
                yield json.dumps({**head, name: None if wrong == fits else wrong})


def test_a_damaged_head_is_refused_by_a_sentence_that_names_the_file(tmp_path: Path) -> None:
    first = journal_in(tmp_path)
    first.close()
    for harmed in harmed_heads():
        _execute(first.path, "UPDATE head SET value = ? WHERE key = 'head'", harmed)
        with (
            contextlib.closing(SqliteJournal.take_over(first.path)) as journal,
            pytest.raises(JournalError, match=rf"^the journal {first.path} is damaged \(its head: "),
        ):
            raise AssertionError(f"{harmed} is read as {journal.head}")


@pytest.mark.parametrize("table", ["entries", "snapshot", "links", "orders"])
def test_values_of_other_types_are_damage(tmp_path: Path, table: str) -> None:
    first = journal_in(tmp_path)
    first.append([JournalRecord(JournalEntry(1.0, 0.0, SEEN[2]), (7, 1, 1))])
    first.write_snapshot(1.0, 0.0, b"{}")
    first.append([JournalRecord(JournalEntry(2.0, 0.0, SEEN[2]), (7, 2, 1))])
    first.append_orders(["Leave 1"])
    first.close()
    names = {"entries": "clock wall_clock event progress", "snapshot": "clock wall_clock state", "links": "received"}
    names["orders"] = "what"
    for name in names[table].split():
        for wrong in (b"" if name == "what" else "x", b"\x80x", 7 if name in ("event", "progress", "state") else b""):
            kept = _execute(first.path, f"SELECT {name} FROM {table}")
            _execute(first.path, f"UPDATE {table} SET {name} = ?", wrong)
            with contextlib.closing(SqliteJournal.take_over(first.path)) as journal:
                if not (isinstance(wrong, bytes) and name == "progress"):  # any bytes may be that
                    with pytest.raises(JournalError, match=rf"{first.path} is damaged \("):
                        deque([journal.snapshot(), *journal.entries(), *journal.links(), *journal.orders()])
            _execute(first.path, f"UPDATE {table} SET {name} = ?", *kept)


def test_a_journal_that_is_cut_off_anywhere_is_refused_by_a_sentence(tmp_path: Path) -> None:
    first = journal_in(tmp_path)
    write_many(first)
    first.close()
    whole = first.path.read_bytes()
    places = [*range(0, 4096, 97), *range(4096, len(whole), 4099)]
    for length in places:
        first.path.write_bytes(whole[:length])
        with pytest.raises(JournalError, match=f"{first.path}"):
            entries_of(first.path)


def test_a_journal_with_harmed_bytes_raises_nothing_else(tmp_path: Path) -> None:
    first = journal_in(tmp_path)
    for n in range(100):
        first.append([JournalRecord(JournalEntry(float(n), 0.0, SEEN[n % len(SEEN)]), (7, n, n))])
    first.close()
    whole, draw = first.path.read_bytes(), random.Random(7)
    for _ in range(300):
        harmed = bytearray(whole)
        for _ in range(draw.choice((1, 8, 64))):
            harmed[draw.randrange(len(harmed))] = draw.randrange(256)
        first.path.write_bytes(harmed)
        with contextlib.suppress(JournalError), contextlib.closing(SqliteJournal.take_over(first.path)) as journal:
            deque([journal.head, journal.snapshot(), *journal.entries(), *journal.links(), *journal.orders()])


def write_many(journal: SqliteJournal) -> None:
    for n in range(1000):
        journal.append([JournalRecord(JournalEntry(float(n), 0.0, SEEN[2]))])


def _execute(path: Path, statement: str, *values: object) -> tuple[typing.Any, ...]:
    """Execute it; returns the first row."""
    database = sqlite3.connect(path)
    with database:
        row = database.execute(statement, values).fetchone()
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    return row or ()


def test_the_journal_of_another_run_is_refused(tmp_path: Path) -> None:
    first = journal_in(tmp_path)
    first.close()
    with pytest.raises(JournalError, match="is that of run 5d2f01aa, not of 00000000"):
        SqliteJournal.take_over(first.path, "00000000")


def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    first = journal_in(tmp_path)
    first._database.execute("PRAGMA max_page_count = 8")
    with pytest.raises(JournalError, match="cannot be written: database or disk is full"):
        write_many(first)
    first.discard()
    assert list(tmp_path.iterdir()) == []


def test_every_kind_of_event_can_be_written() -> None:
    rooms = {kind.__module__ for kind in typing.get_args(events.Event)}
    assert rooms == {events.__name__}
    for event in SEEN:
        assert event_from_bytes(event_to_bytes(event)) == event


class Harm:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("this must not be run",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Harm()),
        pickle.dumps(events.Ticked()),
        b"",
        b"\x80",
        b"7",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b"9" * 10_000,
        b'{"subprocess.run": {"args": "true"}}',
        b'{"Path": {"path": "/"}}',
        b'{"Ticked": {}, "WorkerQuiet": {"worker_id": 1}}',
        b'{"Ticked": []}',
        b'{"RoundId": {"incarnation": 1, "n": 2}}',
        b'{"list": 7}',
        b'{"bytes": "!"}',
        b'{"CauseKind": "no such kind"}',
        b'{"edriver.v1.Event": "AAAA"}',
        b'{"edriver.v1.NoSuchMessage": ""}',
        b'{"AgentLost": {"host": "a"}}',
        b'{"AgentLost": {"host": "a", "agent_id": "1", "fault": null}}',
        b'{"AgentLost": {"host": "a", "agent_id": true, "fault": {"Ticked": {}}}}',
        b'{"WorkerQuiet": {"worker_id": 1.0}}',
        b'{"HostsObserved": {"hosts": {"HostSet": {"hosts": [{"Host": {"name": "a", "slots": "2"}}]}}}}',
        b'{"FirstBoundaryPassed": {"worker_id": 1, "round_id": [1, 2], "times": {"dict": []}}}',
        b'{"WorkerWaiting": {"worker_id": 1, "ordinal": 1, "version": {"dict": [[[], 1, 2]]}}}',
    ],
)
def test_bytes_make_events_and_nothing_else(data: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="it is not an event"):
        event_from_bytes(data)
    assert capsys.readouterr().out == ""


def test_an_event_of_another_release_may_have_more_fields_or_fewer() -> None:
    event = events.DrainRequested("a", None, "because", "me")
    data = json.loads(event_to_bytes(event))
    data["DrainRequested"]["urgency"] = {"Urgency": {"of": [1, 2]}}
    assert event_from_bytes(json.dumps(data).encode()) == event
    del data["DrainRequested"]["requester"]
    assert event_from_bytes(json.dumps(data).encode()) == replace(event, requester="")


def test_a_head_of_another_release_may_have_more_fields_or_fewer() -> None:
    data = json.loads(HEAD.to_json())
    assert Head.from_json(json.dumps({**data, "colour": [1]})) == HEAD
    del data["port"], data["credentials"], data["incarnation"], data["protocol"]
    assert Head.from_json(json.dumps(data)) == HEAD


def as_format(path: Path, number: int, written_by: str) -> None:
    _execute(path, f"PRAGMA user_version = {number}")
    _execute(path, "UPDATE head SET value = ? WHERE key = 'version'", written_by)


def test_a_journal_of_another_release_is_read_and_goes_on_in_the_present_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FORMAT grows by one, and each part has its upgrade."""
    first = journal_in(tmp_path)
    first.write_snapshot(1.0, 2.0, b'{"of": "5"}')
    first.append([JournalRecord(JournalEntry(3.0, 4.0, events.StopRequested("enough")))])
    first.append_orders(["FinishRun 1"])
    first.close()
    as_format(first.path, formats.FORMAT, "0.0.1")

    def upgrade(part: formats.JournalPart, data: Any) -> Any:
        match part:
            case formats.JournalPart.HEAD:
                return {**data, "folder": f"{data['folder']}-6"}
            case formats.JournalPart.EVENT:
                return {"StopRequested": {**data["StopRequested"], "requester": "somebody"}}
            case formats.JournalPart.SNAPSHOT:
                return {**data, "and": "6"}

    newest = formats.FORMAT + 1
    for module in (formats, journal_module, sqlite_journal):
        monkeypatch.setattr(module, "FORMAT", newest)
    monkeypatch.setitem(formats.UPGRADES, newest - 1, upgrade)
    with contextlib.closing(SqliteJournal.take_over(first.path)) as journal:
        assert (journal.format, journal.written_by) == (newest - 1, "0.0.1")
        assert journal.head == replace(HEAD, folder="/tmp/f-6")
        assert [entry.event for entry in journal.entries()] == [events.StopRequested("enough", "somebody")]
        assert journal.snapshot() == (1.0, 2.0, {"of": "5", "and": "6"})
        assert list(journal.orders()) == ["FinishRun 1"]
        journal.write_snapshot(5.0, 6.0, b'{"of": "6"}')
        journal.append([JournalRecord(JournalEntry(7.0, 8.0, events.StopRequested("enough")))])
    with contextlib.closing(SqliteJournal.take_over(first.path)) as journal:
        assert (journal.format, journal.written_by) == (newest, VERSION)
        assert journal.head == replace(HEAD, folder="/tmp/f-6")  # it was upgraded once
        assert [entry.event for entry in journal.entries()] == [events.StopRequested("enough")]
        assert journal.snapshot() == (5.0, 6.0, {"of": "6"})
        assert list(journal.orders()) == []


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (formats.FORMAT + 1, r"in format 8, and this is .*, which reads 6 to 7: .* \(pip install 'edriver>=0\.9\.0'\)"),
        (5, r"in format 5, and this is .*, which reads 6 to 7: .* with that one \(pip install edriver==0\.9\.0\)"),
    ],
    ids=["newer", "of-pickles"],
)
def test_an_unknown_format_is_refused_with_the_way_out(tmp_path: Path, number: int, sentence: str) -> None:
    first = journal_in(tmp_path)
    first.close()
    as_format(first.path, number, "0.9.0")
    with pytest.raises(JournalError, match=rf"{first.path} was written by edriver 0\.9\.0 {sentence}"):
        SqliteJournal.take_over(first.path)


def test_every_format_that_is_read_has_an_upgrade() -> None:
    assert formats.UPGRADES.keys() == set(range(formats.OLDEST_FORMAT, formats.FORMAT))


def test_nothing_in_the_journal_unpickles() -> None:
    for module in sorted(Path(journal_module.__file__).parent.glob("*.py")):
        assert not re.search(r"\b(pickle|marshal|shelve)\b", module.read_text()), module


def test_orders_are_there_for_the_next_driver(tmp_path: Path) -> None:
    first = journal_in(tmp_path)
    first.append_orders(["StartAgent 1", "StartAgent 2"])
    first.append_orders(["StartWorker 3"])
    first.close()
    with contextlib.closing(SqliteJournal.take_over(first.path)) as journal:
        assert list(journal.orders()) == ["StartAgent 1", "StartAgent 2", "StartWorker 3"]
        journal.write_snapshot(1.0, 2.0, b"{}")
        assert list(journal.orders()) == []


def test_draws_repeat_themselves_with_the_same_key_only() -> None:
    first, again, other = KeyedRandom(HEAD.key), KeyedRandom(HEAD.key), KeyedRandom(new_key())
    drawn = [(first.random(), first.secret()) for _ in range(100)]
    assert drawn == [(again.random(), again.secret()) for _ in range(100)]
    assert len({other.secret(), *(secret for _, secret in drawn)}) == 101
    assert all(0.0 <= number < 1.0 for number, _ in drawn)
    assert 0.4 < sum(number for number, _ in drawn) / 100 < 0.6
