"""What a rendezvous server keeps across its starts, and within which bounds."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sqlite3
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edriver.model.limits import OutOfBoundsError
from edriver.rendezvous.server import journal as journals
from edriver.rendezvous.server import key_values, runs
from edriver.rendezvous.server.journal import CorruptJournalError, JournalHeldError, ServerJournal
from edriver.rendezvous.server.runs import Runs
from edriver.system.database import open_locked
from edriver.system.private_files import NotOwnError, OwnFolder
from edriver.v1.rendezvous_pb2 import (
    ChangeKeyRequest,
    CompareSet,
    DeleteKey,
    KeyValue,
    SetKeysRequest,
    SetStateRequest,
    StateChange,
)
from edriver.wire.store_values import NotANumberError
from tests.unit.rendezvous_changes import change, entry, names


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Host:
    """A folder in which a server starts again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.own = OwnFolder(folder)
        self.journal = ServerJournal(self.own, folder)
        self.runs = Runs(self.journal, self.clock)

    def restart(self) -> Runs:
        self.journal.close()
        self.journal = ServerJournal(self.own, self.folder)
        self.runs = Runs(self.journal, self.clock)
        return self.runs

    @property
    def file(self) -> Path:
        return self.folder / journals.DATABASE

    def join(self, name: str, run_id: str = "r") -> None:
        found = self.runs.find(run_id)
        token = found.state.token if found and found.state.version else None
        count = found.state.participants + 1 if found else 1
        request = change(token, entry(name, participant=True), count=count, nodes=(50, 60))
        request.run_id = run_id
        assert self.runs.set_state(request)[1]

    def set(self, key: str, value: bytes, run_id: str = "r") -> None:
        self.runs.set_keys(SetKeysRequest(run_id=run_id, pairs=[KeyValue(key=key, value=value)]))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    (tmp_path / "server").mkdir(0o700)
    found = Host(tmp_path / "server")
    with found.own:
        yield found
        found.journal.close()


def add(key: str, number: int, request_id: bytes) -> ChangeKeyRequest:
    return ChangeKeyRequest(run_id="r", key=key, add=number, request_id=request_id)


def append(key: str, value: bytes) -> ChangeKeyRequest:
    """Its id is the value's, so that one may arrive again."""
    return ChangeKeyRequest(run_id="r", key=key, append=b".", request_id=value)


def test_states_and_keys_survive_a_restart_and_tokens_do_not(host: Host) -> None:
    host.join("a")
    host.join("b")
    host.set("key", b"value")
    before = host.runs.get("r").state.token
    run = host.restart().get("r")
    assert names(run.state) == ["a", "b"]
    assert run.state.participants == 2
    assert run.keys.get("key") == b"value"
    assert run.state.token.incarnation == before.incarnation + 1
    stale = change(before, entry("c", participant=True), count=3, nodes=(50, 60))
    stale.run_id = "r"
    assert not host.runs.set_state(stale)[1]


def test_nodes_get_a_whole_lease_from_a_restarted_server(host: Host) -> None:
    host.join("a")
    host.clock.now += 1000
    state = host.restart().get("r").state
    for seconds, expired in ((14, False), (16, True)):
        state.expire(host.clock.now + seconds)
        assert [node.expired for node in state.nodes] == [expired]


def test_a_change_that_arrives_again_is_made_once_also_after_a_restart(host: Host) -> None:
    for _ in range(2):
        assert host.runs.change_key(add("n", 5, b"one")).value == b"5"
    host.restart()
    assert host.runs.change_key(add("n", 5, b"one")).value == b"5"
    host.restart()
    assert host.runs.change_key(add("n", 5, b"one")).value == b"5"
    assert host.runs.change_key(add("n", 5, b"two")).value == b"10"


def test_a_server_that_is_killed_has_lost_nothing_that_it_has_answered(host: Host, tmp_path: Path) -> None:
    """Killed: its files are as they are at some moment, and the last change is torn."""
    host.set("a", b"1")
    host.set("b", b"2")
    killed = tmp_path / "killed"
    shutil.copytree(host.folder, killed)
    log = killed / f"{journals.DATABASE}-wal"
    log.write_bytes(log.read_bytes()[:-3])
    with OwnFolder(killed) as own, closing(ServerJournal(own, killed)) as journal:
        keys = Runs(journal, host.clock).get("r").keys
        assert (keys.get("a"), keys.get("b")) == (b"1", None)


@pytest.mark.parametrize(
    "where", [pytest.param(b"a-value", id="in-a-value"), pytest.param(b"SQLite", id="at-its-begin")]
)
def test_a_damaged_file_is_refused(host: Host, where: bytes) -> None:
    host.set("a", b"a-value")
    host.restart()
    host.journal.close()
    data = host.file.read_bytes()
    assert where in data
    host.file.write_bytes(data.replace(where, where.swapcase()))
    with pytest.raises(CorruptJournalError, match=r"journal.sqlite3 is damaged \(.*\): remove it"):
        host.restart()
    host.journal.close()


def test_the_file_of_a_later_edriver_is_refused(host: Host) -> None:
    host.journal.close()
    with closing(sqlite3.connect(host.file)) as database:
        database.execute(f"PRAGMA user_version = {journals.FORMAT + 1}")
    with pytest.raises(CorruptJournalError, match="has format 2, and this edriver reads 1"):
        host.restart()


def test_tokens_of_a_database_that_was_removed_are_stale(host: Host) -> None:
    host.join("a")
    token = host.runs.get("r").state.token
    host.journal.close()
    host.file.unlink()
    host.restart()
    host.join("a")
    stale = change(token, entry("b", participant=True), count=2, nodes=(50, 60))
    stale.run_id = "r"
    assert host.runs.get("r").state.token.version == token.version
    assert not host.runs.set_state(stale)[1]


def test_a_folder_that_is_replaced_while_it_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite goes by the path: what it has opened must lie in the folder that was looked at."""
    for name in ("own", "foreign"):
        (tmp_path / name).mkdir(0o700)
        (tmp_path / name / journals.DATABASE).touch(0o600)

    def swapped(path: Path) -> sqlite3.Connection:
        return open_locked(tmp_path / "foreign" / path.name)

    monkeypatch.setattr(journals, "open_locked", swapped)
    with OwnFolder(tmp_path / "own") as own, pytest.raises(NotOwnError, match="was replaced with another folder"):
        ServerJournal(own, tmp_path / "own")


def test_files_are_for_their_user_alone_and_a_folder_for_one_server(host: Host) -> None:
    host.set("a", b"1")
    assert {stat.S_IMODE(path.stat().st_mode) for path in host.folder.iterdir()} == {0o600}
    with pytest.raises(JournalHeldError):
        ServerJournal(host.own, host.folder)


def test_the_file_begins_anew_when_most_of_it_is_out_of_date(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "MIN_APPENDED_BYTES", 10_000)
    for number in range(100):
        host.set("key", b"%d" % number * 2000)
    assert host.restart().get("r").keys.get("key") == b"99" * 2000
    assert host.file.stat().st_size < 60_000  # it has never been larger: SQLite gives nothing back


def test_a_change_at_which_the_file_begins_anew_is_not_lost(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "MIN_APPENDED_BYTES", 1)
    for number in range(8):
        host.set("key", b"%d" % number)
        killed = tmp_path / f"killed-{number}"
        shutil.copytree(host.folder, killed)
        with OwnFolder(killed) as own, closing(ServerJournal(own, killed)) as journal:
            assert Runs(journal, host.clock).get("r").keys.get("key") == b"%d" % number


def test_the_keys_of_old_rounds_are_removed(host: Host) -> None:
    for number in (0, 1):
        host.set(f"torch.rendezvous.r.{number}/MASTER_ADDR", b"a")
    host.set("other", b"stays")
    for number in (1, 2):
        token = host.runs.get("r").state.token if number > 1 else None
        state = StateChange(nodes=[entry("a", participant=True)], round=number)
        host.runs.set_state(SetStateRequest(run_id="r", token=token, change=state, participants=1))
    keys = host.runs.get("r").keys
    assert sorted(key for key, _ in keys.items()) == ["other", "torch.rendezvous.r.1/MASTER_ADDR"]
    assert len(host.restart().get("r").keys) == 2


def test_compare_and_set_of_a_key() -> None:
    keys = key_values.KeyValues()

    def compare_set(expected: bytes, desired: bytes, request_id: bytes) -> bytes:
        compare = CompareSet(expected=expected, desired=desired)
        return keys.change(ChangeKeyRequest(key="k", compare_set=compare, request_id=request_id))[0].value

    assert compare_set(b"x", b"1", b"a") == b"x"
    assert keys.get("k") is None
    assert compare_set(b"", b"1", b"b") == b"1"
    assert compare_set(b"", b"2", b"c") == b"1"
    assert compare_set(b"1", b"2", b"d") == b"2"
    assert keys.change(ChangeKeyRequest(key="k", delete_key=DeleteKey(), request_id=b"e"))[0].existed
    assert (len(keys), keys.size) == (0, 0)


def test_what_is_no_number_is_not_added_to() -> None:
    keys = key_values.KeyValues()
    keys.set("k", b"x")
    with pytest.raises(NotANumberError, match="'k': the value is not a number"):
        keys.change(add("k", 1, b"a"))


def test_keys_and_runs_have_bounds(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_values, "MAX_STORE_BYTES", 10)
    with pytest.raises(OutOfBoundsError, match="at most 10 bytes"):
        host.set("key", b"12345678")
    host.set("key", b"1234567")
    host.set("key", b"7654321")
    monkeypatch.setattr(runs, "MAX_TOTAL_STORE_BYTES", 12)
    with pytest.raises(OutOfBoundsError, match="all runs hold 12 bytes"):
        host.set("k", b"123", run_id="other")
    monkeypatch.setattr(runs, "MAX_TOTAL_STORE_BYTES", 1000)
    monkeypatch.setattr(key_values, "MAX_STORE_BYTES", 100)
    monkeypatch.setattr(key_values, "MAX_STORE_KEYS", 1)
    with pytest.raises(OutOfBoundsError, match="at most 1 keys"):
        host.set("k", b"")
    monkeypatch.setattr(runs, "MAX_RUNS", 2)
    with pytest.raises(OutOfBoundsError, match="at most 2 runs"):
        host.join("a", run_id="third")


def test_appends_to_a_large_value_keep_one_copy_of_it_in_memory_and_on_disk(host: Host) -> None:
    large = 1024 * 1024
    host.set("k", bytes(large))
    for number in range(50):
        assert len(host.runs.change_key(append("k", b"%d" % number)).value) == large + number + 1
        assert host.file.stat().st_size < journals.MIN_APPENDED_BYTES + 4 * large
    assert host.runs.get("r").keys.footprint < large + 50 * 300
    assert len(host.runs.change_key(append("k", b"7")).value) == large + 50  # it has arrived again
    keys = host.restart().get("r").keys
    assert keys.footprint < large + 50 * 300
    assert len(host.runs.change_key(append("k", b"7")).value) == large + 50


def test_what_is_remembered_of_changes_has_the_bound_of_the_store(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_values, "MAX_STORE_BYTES", 2000)
    numbers = [b"%d" % number for number in range(50)]
    with pytest.raises(OutOfBoundsError, match="at most 2000 bytes"):
        deque(host.runs.change_key(add("n", 1, number)) for number in numbers)
    assert host.runs.get("r").keys.footprint < 2500


def test_many_small_keys_count_with_what_each_takes(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MAX_TOTAL_STORE_BYTES", 10_000)
    with pytest.raises(OutOfBoundsError, match="all runs hold 10000 bytes"):
        deque(map(host.set, map(str, range(100)), itertools.repeat(b"")))


def test_an_appended_value_has_the_bound_of_any_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_values, "MAX_STORE_VALUE_BYTES", 10)
    keys = key_values.KeyValues()
    keys.set("k", b"12345678")
    with pytest.raises(OutOfBoundsError, match="a value has 10 bytes at most"):
        keys.change(ChangeKeyRequest(key="k", append=b"123", request_id=b"a"))
    assert keys.get("k") == b"12345678"


@pytest.mark.parametrize("restarted", [False, True])
def test_each_kind_of_change_that_arrives_again_is_answered_as_before(host: Host, restarted: bool) -> None:
    compare = CompareSet(desired=b"mine")
    requests = [
        ChangeKeyRequest(run_id="r", key="c", compare_set=compare, request_id=b"1"),
        ChangeKeyRequest(run_id="r", key="c", compare_set=CompareSet(desired=b"other"), request_id=b"2"),
        ChangeKeyRequest(run_id="r", key="a", append=b"x", request_id=b"3"),
        ChangeKeyRequest(run_id="r", key="gone", append=b"y", request_id=b"4"),
        ChangeKeyRequest(run_id="r", key="gone", delete_key=DeleteKey(), request_id=b"5"),
        ChangeKeyRequest(run_id="r", key="n", add=3, request_id=b"6"),
    ]
    answers = [host.runs.change_key(request) for request in requests]
    host.runs.change_key(add("n", 4, b"7"))
    if restarted:
        host.restart()
    assert [host.runs.change_key(request) for request in requests[:3]] == answers[:3]
    assert [host.runs.change_key(request) for request in requests[4:]] == answers[4:]
    keys = host.runs.get("r").keys
    assert {key: keys.get(key) for key, _ in keys.items()} == {"c": b"mine", "a": b"x", "n": b"7"}


def test_an_idle_run_makes_room_for_another_and_stays_away(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MAX_RUNS", 1)
    host.join("a")
    host.clock.now += runs.IDLE_TIMEOUT + 1
    host.join("b", run_id="another")
    assert [run_id for run_id, _ in host.restart()] == ["another"]


def test_who_waits_for_a_key_is_woken_by_each_way_to_set_it(host: Host) -> None:
    async def story() -> None:
        run = host.runs.get("r")
        for key, setting in (("a", lambda: host.set("a", b"")), ("b", lambda: host.runs.change_key(add("b", 1, b"i")))):
            waiting = asyncio.get_running_loop().create_future()
            run.waiting[key].add(waiting)
            setting()
            await asyncio.wait_for(waiting, 10)
        assert not run.waiting

    asyncio.run(story())
