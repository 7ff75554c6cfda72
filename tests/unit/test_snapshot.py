"""Snapshots of the driver's state: what they hold, and that they take the place of events."""

from __future__ import annotations

import pickle
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edriver.driver.core import events
from edriver.driver.journal.entries import Entry
from edriver.driver.journal.journal import SNAPSHOT_BYTES, SNAPSHOT_SHARE, Head, Turn
from edriver.driver.journal.snapshot import snapshot_from_bytes, snapshot_to_bytes
from edriver.driver.journal.sqlite_journal import SqliteJournal
from edriver.v1 import agent_pb2
from edriver.wire.link import Link

HEAD = Head("5d2f01aa", (), "/", {}, b"k" * 32, "")
EVENT = Entry(1.0, 2.0, events.DrainRequested("a", None, "x" * 1000, "me"))


class Clock:
    """What each driver brings itself."""

    def __call__(self) -> float:
        return 0.0


def test_a_snapshot_takes_the_place_of_the_events_before_it(tmp_path: Path) -> None:
    first = SqliteJournal.create(tmp_path / "journal.sqlite3", HEAD)
    assert first.snapshot() is None
    first.append([Turn(EVENT)])
    first.keep_snapshot(3.0, 4.0, b"state")
    first.append([Turn(Entry(5.0, 6.0, events.Ticked()), (7, 1, 0))])
    first.close()
    then = SqliteJournal.take_over(first.path)
    assert then.snapshot() == (3.0, 4.0, b"state")
    assert list(then.entries()) == [Entry(5.0, 6.0, events.Ticked())]
    assert list(then.links()) == [(7, 1, 0)]
    then.close()


def test_the_journal_of_a_long_run_does_not_grow(tmp_path: Path) -> None:
    journal = SqliteJournal.create(tmp_path / "journal.sqlite3", HEAD)
    snapshots = 0
    for _ in range(5 * SNAPSHOT_BYTES // 1000):
        journal.append([Turn(EVENT)])
        if journal.wants_snapshot:
            journal.keep_snapshot(0.0, 0.0, b"s" * 1000)
            snapshots += 1
    assert 3 <= snapshots <= 6
    journal.close()
    assert journal.path.stat().st_size < 3 * SNAPSHOT_BYTES


def test_large_snapshots_are_rare(tmp_path: Path) -> None:
    journal = SqliteJournal.create(tmp_path / "journal.sqlite3", HEAD)
    journal.keep_snapshot(0.0, 0.0, bytes(SNAPSHOT_BYTES))
    for _ in range(2 * SNAPSHOT_BYTES // 1000):
        journal.append([Turn(EVENT)])
    assert not journal.wants_snapshot
    assert SNAPSHOT_SHARE > 2
    journal.close()


def test_what_a_driver_brings_itself_is_not_in_it() -> None:
    clock, other, drawn = Clock(), Clock(), random.Random(1).random
    brought: dict[str, object] = {"clock": clock, "draw": drawn}
    data = snapshot_to_bytes({"here": clock, "there": [drawn, clock]}, brought)
    assert snapshot_from_bytes(data, {"clock": other, "draw": drawn}) == {"here": other, "there": [drawn, other]}


def test_a_message_that_was_not_safe_comes_again() -> None:
    link: Link[Any] = Link(safe_at_once=False)
    order = link.send(agent_pb2.ConnectResponse())
    for seq in (1, 2):
        assert link.receive(agent_pb2.ConnectRequest(seq=seq))
    link.keep_safe(1)
    after: Link[Any] = snapshot_from_bytes(snapshot_to_bytes(link, {}), {})
    assert [message.seq for message in after.again()] == [order.seq]
    assert not after.receive(agent_pb2.ConnectRequest(seq=1))
    assert after.receive(agent_pb2.ConnectRequest(seq=2))


class Harm:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("this must not be run",)


@pytest.mark.parametrize(
    "data", [pickle.dumps(Harm()), pickle.dumps(subprocess.run), pickle.dumps(Path("/")), b"", b"\x80"]
)
def test_bytes_make_nothing_but_state(data: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="it is no snapshot"):
        snapshot_from_bytes(data, {})
    assert capsys.readouterr().out == ""


def test_methods_of_others_are_not_called() -> None:
    data = snapshot_to_bytes(Harm().__reduce__, {})
    with pytest.raises(ValueError, match="does not belong in a journal"):
        snapshot_from_bytes(data, {})
