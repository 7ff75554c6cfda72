"""The journal's readers: what was written is read again, and damaged bytes are refused by one sentence."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.message import Message
from hypothesis import assume, given
from hypothesis import strategies as st

from edriver.driver.journal.entries import JournalEntry, event_from_bytes, event_to_bytes
from edriver.driver.journal.journal import Head, JournalError, JournalRecord
from edriver.driver.journal.sqlite_journal import SqliteJournal
from edriver.model import events
from edriver.model.ids import RoundId, Version
from edriver.model.limits import OutOfBoundsError
from edriver.model.store_address import StoreAddress
from edriver.v1 import notification_pb2
from edriver.wire import message_limits
from edriver.wire.reports import event_of_report
from tests.fuzz.messages import Fuzzer
from tests.fuzz.strategies import SOURCES, messages

WAITING = events.WorkerWaiting(1, 1, Version(RoundId(1, 2), 3), StoreAddress("a", 4000), "digest")
HEAD = Head("5d2f01aa", ("-np", "2", "train.py"), "/there", {"A": "b"}, b"k" * 32, "/tmp/f", began=(3.5, 7.25))


@given(messages(notification_pb2.Report))
def test_an_event_is_read_as_it_was_written(report: Message) -> None:
    assert isinstance(report, notification_pb2.Report)
    with contextlib.suppress(OutOfBoundsError):
        message_limits.check(report)
        event = event_of_report(7, report)
        assume(event is not None)
        assert event is not None
        assert event_from_bytes(event_to_bytes(event)) == event


@given(SOURCES)
def test_of_damaged_bytes_one_sentence_says_so(source: random.Random) -> None:
    damaged = Fuzzer(source).mutated(event_to_bytes(WAITING))
    try:
        event = event_from_bytes(damaged)
    except ValueError as error:
        sentence = str(error)
        assert sentence.startswith("it is not an event")
        assert len(sentence) < 1000
    else:
        assert type(event).__module__ == events.__name__


@pytest.fixture(scope="module")
def whole() -> Iterator[bytes]:
    """The bytes of a journal."""
    with tempfile.TemporaryDirectory() as folder:
        journal = SqliteJournal.create(Path(folder, "journal.sqlite3"), HEAD)
        for n in range(40):
            journal.append([JournalRecord(JournalEntry(float(n), 0.0, WAITING), (7, n, 1))])
        journal.close()
        yield journal.path.read_bytes()


@given(source=SOURCES, cut=st.none() | st.floats(0, 1))
def test_a_damaged_file_is_read_or_refused_by_a_sentence_that_names_it(
    whole: bytes, source: random.Random, cut: float | None
) -> None:
    damaged = Fuzzer(source).mutated(whole)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal.sqlite3")
        path.touch(mode=0o600)
        path.write_bytes(damaged if cut is None else damaged[: int(cut * len(damaged))])
        try:
            with contextlib.closing(SqliteJournal.take_over(path)) as journal:
                _ = journal.head, journal.snapshot(), list(journal.entries()), list(journal.links())
        except JournalError as error:
            sentence = str(error)
            assert str(path) in sentence
            assert len(sentence) < 1000 + len(str(path))
