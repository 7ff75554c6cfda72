"""The agent's proxy: members of a host that share one connection to a round's store."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from datetime import timedelta
from pathlib import Path
from ssl import PROTOCOL_TLS_CLIENT, PROTOCOL_TLS_SERVER, SSLContext
from typing import Any, TypeVar

import pytest
from torch.distributed import DistNetworkError, DistStoreError

from edriver.agent import store_proxy
from edriver.agent.store_proxy import StoreProxy
from edriver.wire import store_protocol as protocol
from edriver.wire.store_protocol import COMPRESSED_KEYS, COUNT, MULTI_GET
from edriver.wire.tls_files import member_context
from edriver.worker.group.store import StoreClient
from edriver.worker.group.store_server import StoreServer
from edriver.worker.group.store_transport import StoreTransport
from tests.torch.run_credentials import tls_credentials
from tests.torch.stores import LIMIT_SECONDS

R = TypeVar("R")


class CountingWire(StoreTransport):
    """What a server's connections are made of; counts them."""

    def __init__(self, credentials: Path) -> None:
        super().__init__(credentials)
        self.connections = 0

    def accepted(self, connection: socket.socket) -> socket.socket:
        self.connections += 1
        return super().accepted(connection)


class Host:
    """A host with a proxy, in an event loop of its own."""

    def __init__(self, folder: Path, credentials: Path, context: SSLContext) -> None:
        self.path = folder / "proxy.sock"
        self.wire = StoreTransport(credentials, self.path)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.proxy = self.call(lambda: StoreProxy(self.path, context))
        self._open = True

    def call(self, function: Callable[[], R]) -> R:
        async def called() -> R:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(LIMIT_SECONDS)

    def close(self) -> None:
        if self._open:
            self._open = False
            asyncio.run_coroutine_threadsafe(self.proxy.close(), self._loop).result(LIMIT_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @property
    def connections(self) -> int:
        return self.call(lambda: self.proxy.connections)

    @property
    def callers(self) -> int:
        return self.call(lambda: len(self.proxy._callers))

    @property
    def waiting_for_lists(self) -> int:
        """How many members wait for a list that is being asked for on behalf of others."""
        return self.call(
            lambda: sum(len(askers) for shared in self.proxy._shared.values() for askers in shared._lists.values())
        )

    def client(self, host: str, port: int, shared_as: str = "round 1") -> StoreClient:
        return StoreClient(host, port, LIMIT_SECONDS, self.wire, shared_as=shared_as)

    @contextlib.contextmanager
    def member(self, server: StoreServer, shared_as: str = "round 1") -> Iterator[StoreClient]:
        with contextlib.closing(self.client(server.host, server.port, shared_as)) as made:
            made.connect()
            yield made

    @contextlib.contextmanager
    def caller(self) -> Iterator[socket.socket]:
        """A connection to the proxy that has said nothing yet."""
        with socket.socket(socket.AF_UNIX) as made:
            made.settimeout(LIMIT_SECONDS)
            made.connect(str(self.path))
            yield made


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    return tls_credentials(tmp_path / "papers")


@pytest.fixture
def host(tmp_path: Path, credentials: Path) -> Iterator[Host]:
    with contextlib.closing(Host(tmp_path, credentials, member_context(PROTOCOL_TLS_CLIENT, credentials))) as made:
        yield made


@pytest.fixture
def wire(credentials: Path) -> CountingWire:
    return CountingWire(credentials)


@pytest.fixture
def server(wire: CountingWire) -> StoreServer:
    return StoreServer("127.0.0.1", wire)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bytes]]:
    """The kinds and keys of all requests that come to stores."""
    requests: list[tuple[int, bytes]] = []
    answer = StoreServer._answer

    def noted(self: StoreServer, caller: Any, kind: int, number: int, key: bytes, value: bytes) -> None:
        requests.append((kind, key))
        answer(self, caller, kind, number, key, value)

    monkeypatch.setattr(StoreServer, "_answer", noted)
    return requests


def until(done: Callable[[], bool]) -> None:
    waited = threading.Event()
    for _ in range(int(LIMIT_SECONDS * 100)):
        if done():
            return
        waited.wait(0.01)
    raise AssertionError("it has not come about")


def test_the_members_of_a_host_share_one_connection_and_have_the_whole_store(
    host: Host, server: StoreServer, wire: CountingWire
) -> None:
    with host.member(server) as one, host.member(server) as other, futures.ThreadPoolExecutor(1) as threads:
        got = threads.submit(other.get, "key")
        one.set("key", b"\x00\xff" * 100_000)
        assert got.result(LIMIT_SECONDS) == b"\x00\xff" * 100_000
        assert [one.add("sum", 2), other.add("sum", 3)] == [2, 5]
        one.append("line", "a")
        other.append("line", "b")
        assert one.compare_set("line", "ab", "cd") == b"cd"
        assert other.multi_get(["line", "sum"]) == [b"cd", b"5"]
        assert one.check(["line"])
        assert not other.check(["line", "none"])
        assert one.delete_key("line")
        assert other.num_keys() == 2
        with pytest.raises(DistStoreError, match="was not set within"):
            one.wait(["none"], timedelta(milliseconds=10))
        other.set("none", "some")
        assert one.get("none") == b"some"
        assert (wire.connections, host.connections) == (1, 1)


def test_each_round_has_a_connection_of_its_own_which_ends_with_its_last_member(
    host: Host, server: StoreServer, wire: CountingWire
) -> None:
    with host.member(server, "round 1") as one:
        with host.member(server, "round 2") as two:
            two.set("of two", "")
            with host.member(server, "round 2") as three:
                three.set("of three", "")
            assert two.check(["of two", "of three"])
            assert wire.connections == host.connections == 2
        until(lambda: host.connections == 1)
        until(lambda: not one.check(["of two"]))
        assert not one.check(["of three"])


def test_a_list_that_many_want_is_asked_for_twice_at_most(
    host: Host, server: StoreServer, asked: list[tuple[int, bytes]]
) -> None:
    keys = [f"0/{number}" for number in range(COMPRESSED_KEYS)]
    with contextlib.ExitStack() as stack, futures.ThreadPoolExecutor(8) as threads:
        members = [stack.enter_context(host.member(server)) for _ in range(8)]
        members[0].multi_set(keys[1:], ["the same for all"] * (len(keys) - 1))
        got = [threads.submit(member.multi_get, keys) for member in members]
        last = stack.enter_context(host.member(server))
        until(lambda: host.waiting_for_lists == len(members) - 1)
        last.set(keys[0], "first")
        for each in got:
            assert each.result(LIMIT_SECONDS) == [b"first", *[b"the same for all"] * (len(keys) - 1)]
    assert 1 <= [kind for kind, _ in asked].count(protocol.COMPRESSED_MULTI_GET) <= 2


class MadeStore:
    """A store whose part the test plays."""

    def __init__(self, credentials: Path) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address, self.port = self.listener.getsockname()
        self._context = member_context(PROTOCOL_TLS_SERVER, credentials)

    def close(self) -> None:
        self.listener.close()

    def accept(self) -> socket.socket:
        connection, _ = self.listener.accept()
        connection.settimeout(LIMIT_SECONDS)
        return self._context.wrap_socket(connection, server_side=True)


def read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        assert more, "it has hung up"
        data += more
    return data


def request(connection: socket.socket) -> tuple[int, int, bytes]:
    """The next request: its kind, number and value."""
    kind, number, key_size, value_size = protocol.REQUEST_FORMAT.unpack(read(connection, protocol.REQUEST_FORMAT.size))
    return kind, number, read(connection, key_size + value_size)[key_size:]


def test_an_answer_is_never_older_than_its_question(host: Host, credentials: Path) -> None:
    keys = protocol.as_list([b"changes"])
    with contextlib.closing(MadeStore(credentials)) as made, host.caller() as one, host.caller() as other:
        via = protocol.via_address(made.address, made.port)
        for caller in (one, other):
            caller.sendall(protocol.REQUEST_FORMAT.pack(protocol.VIA, 1, 1, len(via)) + b"r" + via)
        with made.accept() as store:
            for caller in (one, other):
                assert read(caller, 8) == protocol.REPLY_FORMAT.pack(1, 0)
            one.sendall(protocol.REQUEST_FORMAT.pack(MULTI_GET, 2, 0, len(keys)) + keys)
            kind, first, value = request(store)
            assert (kind, value) == (MULTI_GET, keys)
            # The store has looked at the value, and its answer is on its way, when another asks.
            other.sendall(protocol.REQUEST_FORMAT.pack(MULTI_GET, 3, 0, len(keys)) + keys)
            other.sendall(protocol.REQUEST_FORMAT.pack(COUNT, 4, 0, 0))
            assert request(store)[0] == COUNT  # so the proxy has the other's question
            store.sendall(protocol.REPLY_FORMAT.pack(first, 3) + b"old")
            assert read(one, 11) == protocol.REPLY_FORMAT.pack(2, 3) + b"old"
            kind, second, value = request(store)
            assert (kind, value) == (MULTI_GET, keys)
            store.sendall(protocol.REPLY_FORMAT.pack(second, 3) + b"new")
            assert read(other, 11) == protocol.REPLY_FORMAT.pack(3, 3) + b"new"


def test_a_member_that_dies_waiting_costs_the_others_nothing(host: Host, server: StoreServer) -> None:
    keys = [f"0/{number}" for number in range(COMPRESSED_KEYS)]
    with host.member(server) as staying, futures.ThreadPoolExecutor(3) as threads:
        with host.member(server) as dying, host.member(server) as dying_too:
            calls: list[futures.Future[Any]] = [
                threads.submit(dying.multi_get, keys),
                threads.submit(dying_too.get, "later"),
            ]
            waiting = threads.submit(staying.multi_get, keys)
            for gone in (dying, dying_too):
                gone.sever()
            for call in calls:
                with pytest.raises(DistNetworkError):
                    call.result(LIMIT_SECONDS)
        with host.member(server) as setting:
            setting.multi_set([*keys, "later"], [*keys, "now"])
            assert waiting.result(LIMIT_SECONDS) == [key.encode() for key in keys]
            assert staying.get("later") == b"now"


def test_a_store_of_an_older_release_is_met_through_the_proxy(
    host: Host, server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "LAST_KIND", COUNT)
    monkeypatch.setattr(StoreServer, "_knows", lambda self, key: key in self._values)
    keys = [f"old/{number}" for number in range(COMPRESSED_KEYS)]
    with host.member(server) as one, host.member(server) as other:
        one.multi_set(keys, [*keys])
        assert one.multi_get(keys) == other.multi_get(keys) == [key.encode() for key in keys]


def test_members_with_and_without_a_proxy_meet(host: Host, server: StoreServer, wire: CountingWire) -> None:
    alone = StoreClient(server.host, server.port, LIMIT_SECONDS, wire)
    with host.member(server) as one, contextlib.closing(alone):
        alone.connect()
        alone.set("key", "of an older release")
        assert one.get("key") == b"of an older release"


def test_without_a_proxy_each_member_connects_on_its_own(
    tmp_path: Path, credentials: Path, server: StoreServer, wire: CountingWire
) -> None:
    for number, proxy in enumerate((tmp_path / "none", tmp_path / "dead"), start=1):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / "dead"))
        client = StoreClient(server.host, server.port, LIMIT_SECONDS, StoreTransport(credentials, proxy), shared_as="r")
        with contextlib.closing(client):
            client.connect()
            client.set("key", "value")
            assert wire.connections == number
        (tmp_path / "dead").unlink()


def test_a_member_reaches_a_store_that_its_proxy_cannot(
    tmp_path: Path, credentials: Path, server: StoreServer, wire: CountingWire
) -> None:
    with socket.socket(socket.AF_UNIX) as proxy, futures.ThreadPoolExecutor(1) as threads:
        proxy.bind(str(tmp_path / "proxy.sock"))
        proxy.listen()
        ours = StoreTransport(credentials, tmp_path / "proxy.sock")
        with contextlib.closing(StoreClient(server.host, server.port, LIMIT_SECONDS, ours, shared_as="r")) as member:
            connected = threads.submit(member.connect)
            caller, _ = proxy.accept()
            with caller:
                assert request(caller)[0] == protocol.VIA
                caller.sendall(protocol.REPLY_FORMAT.pack(1, 8) + b"no route")
            connected.result(LIMIT_SECONDS)
            member.set("key", "value")
            assert wire.connections == 1


def test_a_store_on_this_machine_is_met_without_the_proxy(host: Host, tmp_path: Path) -> None:
    server = StoreServer(str(tmp_path / "store"), StoreTransport())
    with host.member(server) as one, host.member(server) as other:
        one.set("key", "value")
        assert other.get("key") == b"value"
        assert host.connections == 0


def test_a_store_that_is_gone_is_known_at_once(host: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with contextlib.closing(host.client("127.0.0.1", port)) as member:
        with pytest.raises(DistNetworkError, match=r"cannot be reached: .*refused"):
            member.connect()
        until(lambda: host.connections == 0)


def test_a_store_that_ends_ends_its_members_calls_and_the_next_is_reached(host: Host, credentials: Path) -> None:
    with contextlib.closing(MadeStore(credentials)) as made, futures.ThreadPoolExecutor(2) as threads:
        for _ in range(2):
            clients = [host.client(made.address, made.port) for _ in range(2)]
            connecting = [threads.submit(client.connect) for client in clients]
            store = made.accept()
            for each in connecting:
                each.result(LIMIT_SECONDS)
            calls = [threads.submit(client.get, "never") for client in clients]
            store.close()
            for call in calls:
                with pytest.raises(DistNetworkError, match="is lost"):
                    call.result(LIMIT_SECONDS)
            for client in clients:
                client.close()


def test_an_answer_that_is_larger_than_any_is_not_waited_for(host: Host, credentials: Path) -> None:
    with (
        contextlib.closing(MadeStore(credentials)) as made,
        contextlib.closing(host.client(made.address, made.port)) as client,
        futures.ThreadPoolExecutor(1) as threads,
    ):
        connecting = threads.submit(client.connect)
        with made.accept() as store:
            connecting.result(LIMIT_SECONDS)
            call = threads.submit(client.get, "key")
            _, number, _ = request(store)
            store.sendall(protocol.REPLY_FORMAT.pack(number, protocol.MAX_LIST_BYTES + 1))
            with pytest.raises(DistNetworkError, match="is lost"):
                call.result(LIMIT_SECONDS)


def test_severing_frees_a_member_whose_store_is_stopped_amid_the_handshake(host: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stopped, futures.ThreadPoolExecutor(2) as threads:
        clients = [host.client(*stopped.getsockname()) for _ in range(2)]
        trying = [threads.submit(client.connect) for client in clients]
        met, _ = stopped.accept()  # and it does nothing more
        with met:
            for client, call in zip(clients, trying, strict=True):
                until(lambda call=call, client=client: call.done() or client.sever())  # type: ignore[misc]
                with pytest.raises(DistNetworkError):
                    call.result(LIMIT_SECONDS)
                client.close()
            until(lambda: host.connections == 0)
            met.settimeout(LIMIT_SECONDS)
            with contextlib.suppress(ConnectionResetError):
                while met.recv(65536):
                    pass


def test_a_store_that_does_not_answer_in_time_cannot_be_reached(host: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        address, port = stopped.getsockname()
        member = StoreClient(address, port, 0.05, host.wire, shared_as="r")
        with contextlib.closing(member), pytest.raises(DistNetworkError, match=r"reached: not within 0\.05 s"):
            member.connect()


def test_the_proxy_does_not_speak_to_a_strangers_store(host: Host, tmp_path: Path) -> None:
    server = StoreServer("127.0.0.1", StoreTransport(tls_credentials(tmp_path / "other", "other")))
    member = host.client(server.host, server.port)
    with contextlib.closing(member), pytest.raises(DistNetworkError, match="certificate verify failed"):
        member.connect()


def test_a_strangers_proxy_is_not_served(tmp_path: Path, server: StoreServer) -> None:
    other = tls_credentials(tmp_path / "other", "other")
    with (
        contextlib.closing(Host(tmp_path, other, member_context(PROTOCOL_TLS_CLIENT, other))) as host,
        contextlib.closing(host.client(server.host, server.port)) as stranger,
        pytest.raises(DistNetworkError),
    ):
        stranger.connect()


@pytest.mark.parametrize(
    ("sent", "leaves"),
    [
        pytest.param(struct.pack("!BIII", 0, 1, 1, 11) + b"k127.0.0.1 9", False, id="says-not-where-to"),
        pytest.param(struct.pack("!BIII", 255, 1, 1, 4) + b"rhost", False, id="no-address"),
        pytest.param(struct.pack("!BIII", 255, 1, 1, 2**31), False, id="larger-than-any"),
        pytest.param(struct.pack("!BIII", 255, 1, 1, 1000) + b"r127.0.0.1", True, id="half-a-request"),
        pytest.param(b"", True, id="nothing"),
    ],
)
def test_a_caller_that_is_no_member_is_hung_up_on_and_the_others_are_served(
    host: Host, server: StoreServer, sent: bytes, leaves: bool
) -> None:
    with host.member(server) as member, host.caller() as stranger:
        stranger.sendall(sent)
        if leaves:
            stranger.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        member.set("key", "value")
        assert host.connections == 1


def test_a_member_that_reads_no_answer_is_hung_up_on(
    host: Host, server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_proxy, "MAX_UNREAD_BYTES", 1_000_000)
    via = protocol.via_address(server.host, server.port)
    with host.member(server) as member, host.caller() as deaf:
        member.set("unread", bytes(900_000))
        deaf.sendall(protocol.REQUEST_FORMAT.pack(protocol.VIA, 1, 7, len(via)) + b"round 1" + via)
        with contextlib.suppress(ConnectionError):
            for number in range(30):
                deaf.sendall(struct.pack("!BIII", 1, number, 6, 0) + b"unread")
        until(lambda: host.callers == 1)
        assert member.get("unread") == bytes(900_000)


def joined(caller: socket.socket, host: str, port: int) -> None:
    """Have a bare caller join the others of its round at a store."""
    via = protocol.via_address(host, port)
    caller.sendall(protocol.REQUEST_FORMAT.pack(protocol.VIA, 1, 7, len(via)) + b"round 1" + via)
    assert read(caller, protocol.REPLY_FORMAT.size) == protocol.REPLY_FORMAT.pack(1, 0)


def a_set(number: int, value: bytes) -> bytes:
    return protocol.REQUEST_FORMAT.pack(protocol.SET, number, 3, len(value)) + b"key" + value


@pytest.mark.parametrize("kind", [protocol.LAST_KIND + 1, protocol.VIA])
def test_what_no_store_knows_costs_its_caller_alone_the_connection(host: Host, server: StoreServer, kind: int) -> None:
    with host.member(server) as member, host.caller() as other:
        joined(other, server.host, server.port)
        other.sendall(protocol.REQUEST_FORMAT.pack(kind, 2, 0, 0))
        with contextlib.suppress(ConnectionResetError):
            assert other.recv(1) == b""
        member.set("key", "value")
        assert member.get("key") == b"value"


def test_members_that_leave_a_store_that_does_not_read_are_noticed(host: Host, credentials: Path) -> None:
    with contextlib.closing(MadeStore(credentials)) as made, futures.ThreadPoolExecutor(1) as threads:
        accepted = threads.submit(made.accept)
        with contextlib.ExitStack() as members:
            callers = [members.enter_context(host.caller()) for _ in range(8)]
            for caller in callers:
                joined(caller, made.address, made.port)
            for caller in callers:
                caller.sendall(a_set(2, bytes(1_000_000)))
        with accepted.result(LIMIT_SECONDS):
            until(lambda: host.callers == host.connections == 0)


def test_more_than_a_store_reads_is_not_kept(host: Host, credentials: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_proxy, "MAX_UNREAD_BYTES", 1_000_000)
    with contextlib.closing(MadeStore(credentials)) as made, futures.ThreadPoolExecutor(1) as threads:
        accepted = threads.submit(made.accept)
        with host.caller() as caller:
            joined(caller, made.address, made.port)
            with accepted.result(LIMIT_SECONDS), contextlib.suppress(ConnectionError):
                for number in range(60):
                    caller.sendall(a_set(number, bytes(1_000_000)))
                until(lambda: host.callers == 0)
            until(lambda: host.callers == 0)


def test_closing_the_proxy_ends_its_members_calls(
    host: Host, server: StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    with host.member(server) as member, futures.ThreadPoolExecutor(1) as threads:
        call = threads.submit(member.get, "never")
        host.close()
        with pytest.raises(DistNetworkError):
            call.result(LIMIT_SECONDS)
    assert not host.path.exists()
    assert not caplog.records
