"""The store that introduces a round's members: what torch asks of it, severing, and callers that are not ours."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import DistNetworkError, DistStoreError

from edriver.worker.store import StoreClient, StoreServer
from edriver.worker.store_wire import StoreWire

LIMIT_SECONDS = 30.0
WIRE = StoreWire()
SERVER = StoreServer("127.0.0.1", WIRE)


@contextlib.contextmanager
def client(server: StoreServer = SERVER) -> Iterator[StoreClient]:
    connected = StoreClient(server.host, server.port, LIMIT_SECONDS, WIRE)
    connected.connect()
    try:
        yield connected
    finally:
        connected.close()


def test_what_one_sets_another_gets_through_torch_too() -> None:
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


def test_check_tells_whether_all_keys_are_set_without_waiting() -> None:
    with client() as one, client() as other:
        store = PrefixStore("checked", other)
        one.set("checked/first", "")
        assert store.check(["first"])
        assert not store.check(["first", "second"])
        one.add("checked/second", 1)
        assert store.check(["first", "second"])


def test_get_and_wait_return_once_somebody_has_set_the_keys() -> None:
    with client() as waiting, client() as setting, futures.ThreadPoolExecutor(2) as threads:
        got = threads.submit(waiting.get, "later")
        setting.set("later", "now")
        assert got.result(LIMIT_SECONDS) == b"now"
        both = threads.submit(waiting.wait, ["later", "last"])
        setting.set("last", "")
        both.result(LIMIT_SECONDS)


def test_a_wait_that_ends_in_a_timeout_leaves_a_store_that_works() -> None:
    with client() as waiting, client() as setting:
        with pytest.raises(DistStoreError, match=r"nobody has set 'never' within 0\.01 s"):
            waiting.wait(["never"], timedelta(milliseconds=10))
        setting.set("never", "the answer to a question that is given up")
        setting.set("other", "wanted")
        assert waiting.get("other") == b"wanted"


def test_what_a_client_set_first_goes_when_it_hangs_up_and_nothing_else() -> None:
    with client() as staying:
        staying.set("mine", "1")
        with client() as leaving:
            leaving.set("yours", "1")
            leaving.set("mine", "2")
            leaving.add("ours", 1)
            staying.add("ours", 1)
        _until(lambda: staying.add("ours", 0) == 0, lambda: None)  # the server has seen it go
        assert staying.get("mine") == b"2"
        with pytest.raises(DistStoreError, match="nobody has set 'yours'"):
            staying.wait(["yours"], timedelta(milliseconds=10))


def test_a_waiting_client_is_freed_by_severing_and_so_is_what_it_asks_afterwards() -> None:
    with client() as waiting, client() as other, futures.ThreadPoolExecutor(1) as threads:
        got = threads.submit(waiting.get, "nobody sets it")
        waiting.sever()
        with pytest.raises(DistNetworkError, match="store is gone"):
            got.result(LIMIT_SECONDS)
        waiting.sever()
        with pytest.raises(DistNetworkError, match="store is gone"):
            waiting.set("key", "value")
        other.set("key", "value")


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


def test_a_question_is_answered_when_its_key_is_set_and_holds_up_nothing() -> None:
    with client() as setting, socket.create_connection((SERVER.host, SERVER.port), LIMIT_SECONDS) as raw:
        raw.sendall(struct.pack("!BIII", 1, 7, 6, 0) + b"unset!" + struct.pack("!BIII", 2, 8, 5, 1) + b"total1")
        assert raw.recv(9, socket.MSG_WAITALL) == struct.pack("!II", 8, 1) + b"1"
        setting.set("unset!", "x")
        assert raw.recv(9, socket.MSG_WAITALL) == struct.pack("!II", 7, 1) + b"x"


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", id="http"),
        pytest.param(b"\x00\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff", id="larger-than-any"),
        pytest.param(b"\x02\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01kx", id="adds-no-number"),
    ],
)
def test_a_caller_that_is_not_ours_is_hung_up_on_and_the_others_are_served(sent: bytes) -> None:
    with client() as ours:
        with socket.create_connection((SERVER.host, SERVER.port), LIMIT_SECONDS) as stranger:
            stranger.sendall(sent)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
        ours.set("key", "value")
        assert ours.get("key") == b"value"


@pytest.mark.parametrize("sent", [b"", b"\x00\x00\x00"], ids=["nothing", "half-a-request"])
def test_a_caller_that_leaves_is_forgotten(sent: bytes) -> None:
    with client() as ours, socket.create_connection((SERVER.host, SERVER.port), LIMIT_SECONDS) as stranger:
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(1) == b""
        ours.set("key", "value")


def test_a_client_that_dies_waiting_is_forgotten() -> None:
    with client() as other:
        with client() as dying, futures.ThreadPoolExecutor(1) as threads:
            got = threads.submit(dying.get, "of the dead")
            dying.sever()
            with pytest.raises(DistNetworkError):
                got.result(LIMIT_SECONDS)
        other.set("of the dead", "x")
        assert other.get("of the dead") == b"x"


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
    connecting.get("nobody answers")


def _until(done: Callable[[], bool], action: Callable[[], None]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS / 2
    while not done():
        assert time.monotonic() < deadline, "still waiting after it was severed"
        action()
