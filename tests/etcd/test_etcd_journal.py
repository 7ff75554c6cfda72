"""The journal in a real etcd cluster: what it keeps, who may write, and what happens when a member is killed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from edriver.driver.journal import etcd_journal, formats
from edriver.driver.journal import journal as journal_module
from edriver.driver.journal.entries import JournalEntry
from edriver.driver.journal.etcd_client import EtcdAddress, EtcdClient
from edriver.driver.journal.etcd_journal import ORDERS_AT_ONCE, PART_BYTES, EtcdJournal
from edriver.driver.journal.journal import Head, JournalError, JournalLostError, JournalRecord
from edriver.model import events
from tests.etcd.cluster import Cluster, TlsFiles, etcd_cluster

HEAD = Head("5d2f01aa", ("-np", "2", "train.py"), "/there", {"A": "b"}, b"k" * 32, "/tmp/f", began=(3.5, 7.25))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as running:
        yield running


class Drivers:
    """The journals of one run, as its drivers have them."""

    def __init__(self, cluster: Cluster, name: str, closing: ExitStack) -> None:
        self._cluster, self._name, self._closing = cluster, name, closing

    def __call__(self, holder: str = "first") -> EtcdJournal:
        journal = EtcdJournal(self._cluster.client(), self._name, holder)
        self._closing.callback(journal.close)
        return journal


@pytest.fixture
def drivers(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Drivers]:
    with ExitStack() as closing:
        yield Drivers(cluster, request.node.name.replace("[", "-").rstrip("]"), closing)


def tick(n: int) -> JournalRecord:
    return JournalRecord(JournalEntry(float(n), 100.0 + n, events.Ticked(), b"progress" * n), (7, n + 1, n))


def expire(journal: EtcdJournal) -> None:
    """What etcd does to the lock of a driver that is silent."""
    journal._lock._revoke(journal._lock._lease)


def test_what_was_written_is_there_for_the_next_driver(drivers: Drivers) -> None:
    first, standby = drivers(), drivers("second")
    assert first.acquire()
    assert not first.holds_run
    first.begin(HEAD)
    first.append([tick(0), tick(1), JournalRecord(None, (8, 1, 0))])
    first.append([tick(2)])
    first.update(replace(HEAD, port=4711))
    assert not standby.acquire()
    assert standby.holder == "first"
    expire(first)
    assert standby.wait()
    assert standby.holds_run
    assert standby.head == replace(HEAD, port=4711)
    assert standby.snapshot() is None
    assert list(standby.entries()) == [tick(n).entry for n in range(3)]
    assert sorted(standby.links()) == [(7, 3, 2), (8, 1, 0)]
    standby.append([tick(3)])
    assert [entry.clock for entry in standby.entries()] == [0.0, 1.0, 2.0, 3.0]


def test_a_snapshot_takes_the_place_of_the_events_before_it(drivers: Drivers) -> None:
    first, second = drivers(), drivers("second")
    assert first.acquire()
    first.begin(HEAD)
    large = "0123456789abcdef" * (PART_BYTES // 7)
    for state in (large, large[::-1]):
        first.append([tick(n) for n in range(60)])
        first.append_orders(["StartAgent 1"])
        first.write_snapshot(1.0, 2.0, json.dumps(state).encode())
    first.append([tick(61)])
    first.append_orders(["StartWorker 1", "StartWorker 2"])
    first.append_orders(["Leave 3"] * (ORDERS_AT_ONCE + 1))
    expire(first)
    assert second.wait()
    assert second.snapshot() == (1.0, 2.0, large[::-1])
    assert list(second.entries()) == [tick(61).entry]
    assert list(second.orders()) == ["StartWorker 1", "StartWorker 2", *["Leave 3"] * (ORDERS_AT_ONCE + 1)]
    second.append([tick(62)])
    second.append_orders(["Leave 4"])
    assert list(second.orders())[-2:] == ["Leave 3", "Leave 4"]
    second.write_snapshot(3.0, 4.0, b'"small"')
    assert second.snapshot() == (3.0, 4.0, "small")
    assert list(second.entries()) == []
    assert list(second.orders()) == []


def test_a_journal_of_another_format_goes_on_in_the_present_one(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = drivers(), drivers("second"), drivers("third")
    assert first.acquire()
    first.begin(HEAD)
    first.append([tick(0)])
    expire(first)
    newest = formats.FORMAT + 1
    for module in (formats, journal_module, etcd_journal):
        monkeypatch.setattr(module, "FORMAT", newest)

    def upgrade(part: formats.JournalPart, data: Any) -> Any:
        return {**data, "folder": "/tmp/6"} if part is formats.JournalPart.HEAD else data

    monkeypatch.setitem(formats.UPGRADES, newest - 1, upgrade)
    assert second.wait()
    assert second.head == replace(HEAD, folder="/tmp/6")
    assert list(second.entries()) == [tick(0).entry]
    second.write_snapshot(1.0, 2.0, b"{}")
    expire(second)
    assert third.wait()
    assert third.head == replace(HEAD, folder="/tmp/6")
    assert third.format == newest
    monkeypatch.setattr(journal_module, "FORMAT", newest - 1)
    with pytest.raises(JournalError, match=rf"in format {newest}, and this is .*, which reads 6 to {newest - 1}"):
        third.head  # noqa: B018


@pytest.mark.parametrize(
    "write",
    [
        lambda journal: journal.append([tick(1)]),
        lambda journal: journal.update(HEAD),
        lambda journal: journal.write_snapshot(1.0, 2.0, b"{}"),
        lambda journal: journal.append_orders(["Leave 1"]),
    ],
    ids=["append", "update", "write_snapshot", "append_orders"],
)
def test_a_driver_that_was_replaced_writes_nothing(drivers: Drivers, write: object) -> None:
    first, second = drivers(), drivers("second")
    assert first.acquire()
    first.begin(HEAD)
    first.append([tick(0)])
    expire(first)
    assert second.wait()
    head = replace(second.head, incarnation=2)
    second.update(head)
    with pytest.raises(JournalLostError, match=r"its lease in etcd has expired.*; second has it now"):
        write(first)  # type: ignore[operator]
    first.discard()
    assert second.head == head
    assert second.snapshot() is None
    assert list(second.entries()) == [tick(0).entry]


def test_a_driver_notices_that_it_was_replaced(drivers: Drivers) -> None:
    first = drivers()
    assert first.acquire()
    first.begin(HEAD)
    noticed = threading.Event()
    first.on_lost(lambda error: noticed.set())
    expire(first)
    assert noticed.wait(60)
    heard: list[JournalLostError] = []
    first.on_lost(heard.append)  # too late, and called all the same
    assert "its lease in etcd has expired" in str(heard[0])


def test_a_run_that_has_ended_is_not_taken_over(drivers: Drivers) -> None:
    first, standby = drivers(), drivers("second")
    assert first.acquire()
    first.begin(HEAD)
    result: list[bool] = []
    looked = threading.Event()
    waiting = threading.Thread(target=lambda: result.append(standby.wait()))
    standby._sleep = lambda _: looked.set()
    waiting.start()
    assert looked.wait(60)
    first.discard()
    waiting.join(60)
    assert result == [False]
    assert drivers("third").acquire()  # for the next run of this name


@pytest.mark.parametrize("killed", range(3))
def test_a_member_is_killed(cluster: Cluster, drivers: Drivers, killed: int) -> None:
    first = drivers()
    assert first.acquire()
    first.begin(HEAD)
    first.append([tick(0)])
    cluster.kill_member(killed)
    try:
        for n in range(1, 5):
            first.append([tick(n)])
        assert list(first.entries()) == [tick(n).entry for n in range(5)]
    finally:
        cluster.start_member(killed)


def test_another_format_and_damage_are_sentences(cluster: Cluster, drivers: Drivers) -> None:
    journal = drivers()
    assert journal.acquire()
    journal.begin(HEAD)
    journal.append([tick(0)])
    journal._write([journal._put(b"entries/%020d" % 1, b"\xff")])
    with pytest.raises(JournalError, match=r"the journal /edriver/.* in etcd .* is damaged \(.*entries/0+1: "):
        list(journal.entries())
    journal._write([journal._put(b"head", b'{"format": 1, "version": "0.0.1", "head": "{}"}')])
    with pytest.raises(
        JournalError, match=r"was written by edriver 0\.0\.1 in format 1, .*: resume the run with that one"
    ):
        journal.head  # noqa: B018
    journal._write([journal._put(b"head", b"{")])
    with pytest.raises(JournalError, match="is damaged"):
        journal.head  # noqa: B018


def test_a_member_that_waited_for_others_in_vain_is_one_that_does_not_answer() -> None:
    client = EtcdClient(EtcdAddress.parse("http://127.0.0.1:1,http://127.0.0.1:2", {}))

    class TimedOut(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.UNKNOWN

        def details(self) -> str:
            return "context deadline exceeded"  # etcd 3.4, a member of which had just been killed

    asked: list[grpc.Channel] = []

    def call(_rpc: object, channel: grpc.Channel, _timeout: float) -> str:
        asked.append(channel)
        if len(asked) == 1:
            raise TimedOut
        return "from the other one"

    assert client.call(call) == "from the other one"
    assert len({*asked}) == 2
    client.close()


def test_with_tls(tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    tls, foreign = TlsFiles(tmp_path), TlsFiles(tmp_path / "foreign")
    with etcd_cluster(tmp_path, tls) as cluster:

        def journal(environ: dict[str, str]) -> EtcdJournal:
            return EtcdJournal(EtcdClient(EtcdAddress.parse(cluster.urls, environ)), "run", "me")

        first = journal(tls.environ)
        assert first.acquire()
        first.begin(HEAD)
        first.append([tick(0)])
        assert list(first.entries()) == [tick(0).entry]
        trusting_another = {**tls.environ, "ETCDCTL_CACERT": foreign.environ["ETCDCTL_CACERT"]}
        unknown_there = {**foreign.environ, "ETCDCTL_CACERT": tls.environ["ETCDCTL_CACERT"]}
        without_any = {"ETCDCTL_CACERT": tls.environ["ETCDCTL_CACERT"]}
        for environ in (trusting_another, unknown_there, without_any):
            with pytest.raises(JournalError, match=r"; if it is up, check ETCDCTL_CACERT, ETCDCTL_CERT, ETCDCTL_KEY$"):
                journal(environ).acquire()
        first.discard()


def test_no_etcd_is_a_sentence() -> None:
    journal = EtcdJournal(EtcdClient(EtcdAddress.parse("http://127.0.0.1:1,http://127.0.0.1:2", {})), "run", "me")
    with pytest.raises(
        JournalError, match=r"/edriver/run in etcd \(127\.0\.0\.1:1, 127\.0\.0\.1:2\) cannot be read: 127"
    ):
        journal.acquire()


@pytest.mark.parametrize(
    ("text", "environ", "sentence"),
    [
        ("etcd1:2379", {}, "are not URLs of etcd"),
        ("http://a:1,https://b:2", {}, "are not URLs of etcd"),
        ("https://a", {"ETCDCTL_CACERT": "/nowhere"}, "ETCDCTL_CACERT=/nowhere: No such file"),
        ("https://a", {"ETCDCTL_CERT": __file__}, "go together"),
    ],
)
def test_an_address_that_cannot_be_used(text: str, environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        EtcdAddress.parse(text, environ)


def test_an_address(tmp_path: Path) -> None:
    (tmp_path / "ca").write_bytes(b"pem")
    found = EtcdAddress.parse("https://a, https://[::1]:9", {"ETCDCTL_CACERT": str(tmp_path / "ca")})
    assert found.members == ("a:2379", "[::1]:9")
    assert (found.secure, found.authority, found.key) == (True, b"pem", b"")
