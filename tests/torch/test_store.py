"""The store that introduces a round's members: what torch asks of it, and severing."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable
from concurrent import futures
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import DistNetworkError, DistStoreError

from edriver.wire import store_protocol as protocol
from edriver.wire.store_protocol import (
    COMPRESSED_KEYS,
    COMPRESSED_MULTI_GET,
    COUNT,
    as_list,
    compressed,
    decompressed,
)
from edriver.worker.group import store_server
from edriver.worker.group.store import StoreClient
from edriver.worker.group.store_server import StoreServer
from tests.torch.stores import LIMIT_SECONDS, SERVER, WIRE, client, client_of


def test_a_client_gets_the_value_that_another_has_set_through_torch_too() -> None:
    with client() as one, client() as other:
        PrefixStore("round", one).set("key", "value")
        assert other.get("round/key") == b"value"
        assert PrefixStore("round", other).get("key") == b"value"
        one.set("round/key", b"\x00\xff" * 50_000)
        assert other.get("round/key") == b"\x00\xff" * 50_000


def test_add_counts_for_all() -> None:
    with client() as one, client() as other:
        assert one.add("count", 2) == 2
        assert other.add("count", -1) == 1


@pytest.mark.parametrize("prefixed", [False, True], ids=["plain", "with-prefix"])
def test_it_has_torchs_other_methods(prefixed: bool) -> None:
    with client() as one:
        before = one.num_keys()
        store: Any = PrefixStore("whole", one) if prefixed else one
        assert store.compare_set("c", "x", "1") == b"x"
        assert not store.check(["c"])
        assert store.compare_set("c", "", "1") == b"1"
        assert store.compare_set("c", "1", "22") == b"22"
        assert store.compare_set("c", "1", "3") == b"22"
        store.append("c", "+")
        store.append("a", "new")
        store.multi_set(["m", "n"], ["4", "5"])
        assert store.multi_get(["n", "c", "a"]) == [b"5", b"22+", b"new"]
        assert store.num_keys() == before + 4
        assert store.delete_key("m")
        assert not store.delete_key("m")
        assert store.num_keys() == before + 3
        assert store.has_extended_api(), "Gloo would ask for each address on its own"


def test_a_key_that_was_removed_and_set_again_belongs_to_the_one_that_set_it() -> None:
    with client() as other:
        with client() as one:
            one.set("mine", "1")
            assert other.delete_key("mine")
            other.set("mine", "2")
        with client() as third:
            assert third.get("mine") == b"2"


def test_a_wait_is_as_long_as_the_timeout_that_was_set() -> None:
    with client() as one:
        one.set_timeout(timedelta(seconds=0.01))
        with pytest.raises(DistStoreError, match=r"was not set within 0\.01 s"):
            one.get("never")


def test_check_tells_whether_all_keys_are_set_without_waiting() -> None:
    with client() as one, client() as other:
        store = PrefixStore("checked", other)
        one.set("checked/first", "")
        assert store.check(["first"])
        assert not store.check(["first", "second"])
        one.add("checked/second", 1)
        assert store.check(["first", "second"])


def test_get_and_wait_return_once_another_client_has_set_the_keys() -> None:
    with client() as waiting, client() as setting, futures.ThreadPoolExecutor(2) as threads:
        got = threads.submit(waiting.get, "later")
        setting.set("later", "now")
        assert got.result(LIMIT_SECONDS) == b"now"
        both = threads.submit(waiting.wait, ["later", "last"])
        setting.set("last", "")
        both.result(LIMIT_SECONDS)


def test_several_keys_are_read_in_one_request() -> None:
    with client() as one:
        many = PrefixStore("many", one)
        one.multi_set(["many/0", "many/1"], ["zero", b"\x00one"])
        assert many.multi_get(["1", "0", "1"]) == [b"\x00one", b"zero", b"\x00one"]
        assert many.multi_get([]) == []


def test_several_keys_are_answered_once_all_are_set_without_delaying_other_requests() -> None:
    keys = struct.pack("!I4sI4s", 4, b"soon", 4, b"late")
    with client() as setting, socket.create_connection((SERVER.host, SERVER.port), LIMIT_SECONDS) as raw:
        raw.sendall(struct.pack("!BIII", 5, 7, 0, len(keys)) + keys + struct.pack("!BIII", 2, 8, 5, 1) + b"total1")
        assert raw.recv(9, socket.MSG_WAITALL) == struct.pack("!II", 8, 1) + b"1"
        setting.multi_set(["soon", "late"], ["x", "yz"])
        assert raw.recv(19, socket.MSG_WAITALL) == struct.pack("!III1sI2s", 7, 11, 1, b"x", 2, b"yz")


def test_a_key_that_is_deleted_while_another_is_awaited_is_awaited_again() -> None:
    keys = struct.pack("!I5sI5s", 5, b"first", 5, b"later")
    with client() as setting, socket.create_connection((SERVER.host, SERVER.port), LIMIT_SECONDS) as raw:
        setting.set("first", "x")
        raw.sendall(struct.pack("!BIII", 5, 7, 0, len(keys)) + keys + struct.pack("!BIII", 2, 8, 5, 1) + b"asked1")
        assert raw.recv(9, socket.MSG_WAITALL) == struct.pack("!II", 8, 1) + b"1"  # so the question is being kept
        assert setting.delete_key("first")
        setting.set("later", "z")
        setting.set("first", "y")
        assert raw.recv(18, socket.MSG_WAITALL) == struct.pack("!III1sI1s", 7, 10, 1, b"y", 1, b"z")


def test_the_values_of_many_keys_travel_compressed_and_are_those_of_now(tmp_path: Path) -> None:
    server = StoreServer(str(tmp_path / "store"), WIRE)
    keys = [f"0/{number}" for number in range(COMPRESSED_KEYS)]
    with client(server) as one, client_of(server, WIRE) as other:
        one.multi_set(keys, ["the same for all"] * len(keys))
        assert one.multi_get(keys) == other.multi_get(keys) == [b"the same for all"] * len(keys)
        one.set(keys[-1], "another")
        assert other.multi_get(keys)[-2:] == [b"the same for all", b"another"]
        assert other.delete_key(keys[0])
        with futures.ThreadPoolExecutor(1) as threads:
            asked = threads.submit(other.multi_get, keys)
            one.set(keys[0], "again")
            assert asked.result(LIMIT_SECONDS)[:2] == [b"again", b"the same for all"]
        assert server._last_list[0] == COMPRESSED_MULTI_GET, "or nothing was compressed"


def test_a_list_is_made_once_though_members_that_are_ahead_set_further_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a group that have all addresses go on to the next group while others are yet to ask."""
    made = []

    def compress(items: bytes) -> bytes:
        made.append(items)
        return compressed(items)

    monkeypatch.setattr(protocol, "compressed", compress)
    keys = [f"once/{number}" for number in range(COMPRESSED_KEYS)]
    with client() as one, client() as other:
        one.multi_set(keys, [*keys])
        for step in range(3):
            with client() as passing:  # it sets nothing
                assert passing.multi_get(keys) == other.multi_get(keys) == [key.encode() for key in keys]
            one.set(f"next/{step}", "x")
    assert len(made) == 1


def test_a_server_of_an_older_release_is_asked_for_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs up on requests of kinds that it does not know."""
    monkeypatch.setattr(protocol, "LAST_KIND", COUNT)
    keys = [f"old/{number}" for number in range(COMPRESSED_KEYS)]
    with client() as one:
        monkeypatch.setattr(StoreServer, "_knows", lambda self, key: key in self._values)
        one.multi_set(keys, [*keys])
        assert one.multi_get(keys) == [key.encode() for key in keys]


@pytest.mark.parametrize("answer", [b"", b"no list", compressed(b"a list that is cut")[:-1], compressed(bytes(1001))])
def test_an_answer_that_is_no_compressed_list_is_refused(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_LIST_BYTES", 1000)
    with pytest.raises(ValueError, match="compressed list"):
        decompressed(answer)


class CountedValues(dict[bytes, bytes]):
    """How often a key was looked for."""

    looked = 0

    def __contains__(self, key: object) -> bool:
        self.looked += 1
        return super().__contains__(key)


def test_a_group_of_many_looks_for_few_keys_whatever_the_order_in_which_members_come() -> None:
    """Each of n members sets its own key and asks for all of them: some lookups for each of the n keys, not n * n."""
    members = 200
    keys = tuple(b"%d" % number for number in range(members))
    server = StoreServer("127.0.0.1", WIRE)
    server._values = values = CountedValues()
    with contextlib.ExitStack() as stack:
        callers = [
            stack.enter_context(socket.create_connection((server.host, server.port), LIMIT_SECONDS)) for _ in keys
        ]
        question = as_list(keys)
        for key, caller in zip(keys, callers, strict=True):
            caller.sendall(struct.pack("!BIII", 0, 1, len(key), 1) + key + b"v")
            assert caller.recv(8, socket.MSG_WAITALL) == struct.pack("!II", 1, 0)
            caller.sendall(struct.pack("!BIII", 5, 2, 0, len(question)) + question)
        answer = as_list([b"v"] * members)
        for caller in callers:
            assert caller.recv(8 + len(answer), socket.MSG_WAITALL) == struct.pack("!II", 2, len(answer)) + answer
    assert values.looked < 10 * members


def test_what_is_appended_comes_in_order() -> None:
    with client() as one, client() as other:
        one.append("appended", "first, ")
        other.append("appended", b"second")
        assert one.get("appended") == b"first, second"


def test_an_answer_that_is_larger_than_a_sockets_buffer_arrives_whole(tmp_path: Path) -> None:
    server = StoreServer(str(tmp_path / "store"), WIRE)
    values = [bytes([number]) * 500_000 for number in range(8)]
    keys = [f"large/{number}" for number in range(8)]
    with client(server) as one, client_of(server, WIRE) as other:
        one.multi_set(keys, list(values))
        assert one.multi_get(keys) == values
        other.set("and the others", "are served")
        assert one.multi_get([*keys, "and the others"]) == [*values, b"are served"]


def test_a_caller_that_reads_no_answer_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_server, "_MAX_UNSENT_BYTES", 1_000_000)
    with client() as ours, socket.create_connection((SERVER.host, SERVER.port), LIMIT_SECONDS) as deaf:
        ours.set("unread", bytes(900_000))
        deaf.sendall(struct.pack("!BIII", 0, 0, 4, 1) + b"deaf1")
        assert ours.get("deaf") == b"1"
        with contextlib.suppress(ConnectionError):
            for number in range(100):
                deaf.sendall(struct.pack("!BIII", 1, number, 6, 0) + b"unread")
        _until(lambda: not ours.check(["deaf"]), lambda: None)  # it was the first to set it
        assert ours.get("unread") == bytes(900_000)


def test_a_wait_that_ends_in_a_timeout_leaves_a_store_that_works() -> None:
    with client() as waiting, client() as setting:
        with pytest.raises(DistStoreError, match=r"'never' was not set within 0\.01 s"):
            waiting.wait(["never"], timedelta(milliseconds=10))
        setting.set("never", "the answer to a question that is given up")
        setting.set("other", "wanted")
        assert waiting.get("other") == b"wanted"


def test_the_keys_that_a_client_set_first_are_deleted_when_it_disconnects() -> None:
    with client() as staying:
        staying.set("mine", "1")
        with client() as leaving:
            leaving.set("yours", "1")
            leaving.set("mine", "2")
            leaving.add("ours", 1)
            staying.add("ours", 1)
        _until(lambda: staying.add("ours", 0) == 0, lambda: None)  # the server has seen it go
        assert staying.get("mine") == b"2"
        with pytest.raises(DistStoreError, match="'yours' was not set"):
            staying.wait(["yours"], timedelta(milliseconds=10))


def test_a_waiting_client_is_freed_by_severing_and_so_is_what_it_asks_afterwards() -> None:
    with client() as waiting, client() as other, futures.ThreadPoolExecutor(1) as threads:
        got = threads.submit(waiting.get, "never set")
        waiting.sever()
        with pytest.raises(DistNetworkError, match="store is lost"):
            got.result(LIMIT_SECONDS)
        waiting.sever()
        with pytest.raises(DistNetworkError, match="store is lost"):
            waiting.set("key", "value")
        other.set("key", "value")


def test_none_goes_on_before_all_have_come_that_build_a_communicator() -> None:
    def members_of(key: str, together: bool) -> int | None:
        return 3 if key == "id" and not together else None

    with contextlib.ExitStack() as clients, futures.ThreadPoolExecutor() as pool:
        one, two, three = (clients.enter_context(client_of(SERVER, WIRE, members_of)) for _ in range(3))
        calls: list[futures.Future[Any]] = [pool.submit(one.set, "id", b"unique"), pool.submit(two.get, "id")]
        assert not futures.wait(calls, timeout=0.05).done
        assert three.get("id") == b"unique"
        assert calls[1].result(LIMIT_SECONDS) == b"unique"
        calls[0].result(LIMIT_SECONDS)
        two.set("another", b"key")  # at which none meet
        two.multi_get(["id", "another"])  # nor at several together


def test_none_goes_on_before_all_have_asked_together_for_what_introduces_a_communicator() -> None:
    def members_of(key: str, together: bool) -> int | None:
        return 3 if key == "id 0" and together else None

    keys = ["id 0", "id 1"]
    with contextlib.ExitStack() as clients, futures.ThreadPoolExecutor() as pool:
        one, two, three = (clients.enter_context(client_of(SERVER, WIRE, members_of)) for _ in range(3))
        one.set("id 0", b"unique")  # waits for nobody: another one has to set the other key
        two.set("id 1", b"too")
        calls = [pool.submit(client.multi_get, keys) for client in (one, two)]
        assert not futures.wait(calls, timeout=0.05).done
        assert three.multi_get(keys) == [b"unique", b"too"]
        assert [call.result(LIMIT_SECONDS) for call in calls] == [[b"unique", b"too"]] * 2


def test_members_of_whom_one_never_comes_are_freed_by_severing() -> None:
    with (
        client_of(SERVER, WIRE, lambda *_: 3) as one,
        client_of(SERVER, WIRE, lambda *_: 3) as two,
        futures.ThreadPoolExecutor() as pool,
    ):
        calls: list[futures.Future[Any]] = [pool.submit(one.set, "lonely", b"unique"), pool.submit(two.get, "lonely")]
        for each in (one, two):
            each.sever()
        for call in calls:
            with pytest.raises(DistNetworkError):
                call.result(LIMIT_SECONDS)


def test_a_client_that_is_still_connecting_is_freed_by_severing() -> None:
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # more than it queues: the last ones' first packets go unanswered
            stack.enter_context(_knock(full.getsockname()))
        host, port = full.getsockname()
        connecting = StoreClient(host, port, LIMIT_SECONDS, WIRE)
        stack.callback(connecting.close)
        threads = stack.enter_context(futures.ThreadPoolExecutor(1))
        trying = threads.submit(_connect_and_ask, connecting)
        _until(trying.done, connecting.sever)
        with pytest.raises(DistNetworkError):
            trying.result(LIMIT_SECONDS)


def test_a_store_that_is_gone_is_known_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
    unlucky = StoreClient(host, port, LIMIT_SECONDS, WIRE)
    with pytest.raises(DistNetworkError, match="cannot be reached"):
        unlucky.connect()
    unlucky.close()


def test_a_get_is_answered_when_its_key_is_set_without_delaying_other_requests() -> None:
    with client() as setting, socket.create_connection((SERVER.host, SERVER.port), LIMIT_SECONDS) as raw:
        raw.sendall(struct.pack("!BIII", 1, 7, 6, 0) + b"unset!" + struct.pack("!BIII", 2, 8, 5, 1) + b"total1")
        assert raw.recv(9, socket.MSG_WAITALL) == struct.pack("!II", 8, 1) + b"1"
        setting.set("unset!", "x")
        assert raw.recv(9, socket.MSG_WAITALL) == struct.pack("!II", 7, 1) + b"x"


def test_a_client_that_dies_waiting_is_forgotten() -> None:
    with client() as other:
        with client() as dying, futures.ThreadPoolExecutor(1) as threads:
            got = threads.submit(dying.get, "of the dead")
            dying.sever()
            with pytest.raises(DistNetworkError):
                got.result(LIMIT_SECONDS)
        other.set("of the dead", "x")
        assert other.get("of the dead") == b"x"


def test_of_several_that_ask_the_same_those_that_stay_are_answered() -> None:
    keys = struct.pack("!I4sI4s", 4, b"same", 4, b"kept")
    with client() as setting, contextlib.ExitStack() as stack:
        one, two, three = (
            stack.enter_context(socket.create_connection((SERVER.host, SERVER.port), LIMIT_SECONDS)) for _ in range(3)
        )
        for number, caller in enumerate((one, two, three)):
            caller.sendall(struct.pack("!BIII", 5, number, 0, len(keys)) + keys)
            caller.sendall(struct.pack("!BIII", 3, 9, 4, 0) + b"same")
            assert (
                caller.recv(9, socket.MSG_WAITALL) == struct.pack("!II", 9, 1) + b"0"
            )  # so the question is being kept
        for gone in (one, two):
            gone.shutdown(socket.SHUT_WR)
            assert gone.recv(1) == b""  # so the server has forgotten it
        setting.multi_set(["same", "kept"], ["x", "yz"])
        assert three.recv(19, socket.MSG_WAITALL) == struct.pack("!III1sI2s", 2, 11, 1, b"x", 2, b"yz")


def test_a_question_that_none_asks_any_more_is_forgotten(tmp_path: Path) -> None:
    server = StoreServer(str(tmp_path / "store"), WIRE)
    with client_of(server, WIRE) as staying:
        for _ in range(2):
            with client_of(server, WIRE) as leaving, pytest.raises(DistStoreError):
                leaving.wait(["never"], timedelta(milliseconds=10))
        _until(lambda: not server._waiting, lambda: staying.set("time", "passes"))
        assert not server._open
        staying.set("never", "now")
        assert staying.get("never") == b"now"


def test_it_listens_at_its_hosts_address_only() -> None:
    server = StoreServer("127.0.0.2", WIRE)
    with client(server) as one:
        one.set("key", "value")
    assert server.host == "127.0.0.2"


def _knock(address: tuple[str, int]) -> socket.socket:
    caller = socket.socket()
    caller.setblocking(False)
    caller.connect_ex(address)
    return caller


def _connect_and_ask(connecting: StoreClient) -> None:
    connecting.connect()
    connecting.set("key", "value")
    connecting.get("never set")


def _until(done: Callable[[], bool], action: Callable[[], None]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS / 2
    while not done():
        assert time.monotonic() < deadline, "still waiting after it was severed"
        action()
