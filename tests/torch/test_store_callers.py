"""A store's callers that are no members: they are hung up on, are bounded, and cost its members nothing."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import DistNetworkError

from edriver.wire.unauthenticated import UnauthenticatedCallers
from edriver.worker.group.store import StoreClient
from edriver.worker.group.store_server import StoreServer
from edriver.worker.group.store_transport import StoreTransport
from tests.torch.run_credentials import tls_credentials
from tests.torch.stores import LIMIT_SECONDS, SERVER, WIRE, client, client_of


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", id="http"),
        pytest.param(b"\x00\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff", id="larger-than-any"),
        pytest.param(b"\x02\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01kx", id="adds-no-number"),
        pytest.param(b"\x05\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x03abc", id="no-list"),
        pytest.param(b"\x05\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x02a", id="half-a-list"),
        pytest.param(b"\x06\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00", id="no-such-kind"),
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


class GatedWire(StoreTransport):
    """A wire that holds the store's thread between two callers, so that what happens meanwhile comes in one batch."""

    def __init__(self, assignment: Path) -> None:
        super().__init__(assignment)
        self.gate = threading.Event()
        self.gate.set()
        self.held = threading.Event()

    def accepted(self, connection: socket.socket) -> socket.socket:
        if not self.gate.is_set():
            self.held.set()
            assert self.gate.wait(LIMIT_SECONDS)
        return super().accepted(connection)


class LeapingClock:
    """The monotonic clock, which a test can set forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


def strangers(most: int = 256, patience: float = LIMIT_SECONDS, first_word: float = 0.0) -> UnauthenticatedCallers[Any]:
    return UnauthenticatedCallers(most, patience, first_word, head_start=0.0)


@contextlib.contextmanager
def callers(server: StoreServer, count: int) -> Iterator[list[socket.socket]]:
    """Connections that show no certificate and send nothing."""
    with contextlib.ExitStack() as stack:
        where = (server.host, server.port)
        yield [stack.enter_context(socket.create_connection(where, LIMIT_SECONDS)) for _ in range(count)]


def is_served(server: StoreServer, wire: StoreTransport) -> bool:
    """Whether a member that comes now is served; all that came before it have been accepted then."""
    with contextlib.closing(StoreClient(server.host, server.port, LIMIT_SECONDS, wire)) as member:
        member.connect()
        member.set("key", "value")
        return member.get("key") == b"value"


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(1024):
            pass  # TLS sends an alert before it closes the connection
        return False
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


@pytest.mark.parametrize("leap", [0.0, 2 * LIMIT_SECONDS], ids=["to-make-room", "because-time-is-over"])
def test_strangers_that_are_turned_out_as_they_hang_up_do_not_stop_the_store(
    tmp_path: Path, leap: float, caplog: pytest.LogCaptureFixture
) -> None:
    wire, clock = GatedWire(tls_credentials(tmp_path / "papers")), LeapingClock()
    server = StoreServer("127.0.0.1", wire, strangers(most=201), clock)
    with client_of(server, wire) as member, callers(server, 200) as silent:
        assert is_served(server, wire)
        wire.gate.clear()
        with callers(server, 1):
            assert wire.held.wait(LIMIT_SECONDS)
            with callers(server, 1):
                for stranger in silent:
                    stranger.shutdown(socket.SHUT_WR)
                clock.ahead = leap
                wire.gate.set()  # the next batch: another caller, and two hundred ends of file
                assert is_served(server, wire)
        member.set("still", "here")
        assert not any(is_open(stranger) for stranger in silent)
    assert not caplog.records


def test_a_silent_stranger_is_turned_out_though_no_other_comes(tmp_path: Path) -> None:
    wire = StoreTransport(tls_credentials(tmp_path / "papers"))
    server = StoreServer("127.0.0.1", wire, strangers(patience=0.1))
    with client_of(server, wire) as member, callers(server, 1) as (stranger,):
        assert stranger.recv(1) == b""
        member.set("still", "here")


def test_without_tls_the_first_request_makes_a_caller_known() -> None:
    server = StoreServer("127.0.0.1", WIRE, strangers(patience=0.1))
    with client(server) as member, callers(server, 1) as (stranger,):
        member.set("key", "value")
        assert stranger.recv(1) == b""
        assert member.get("key") == b"value"


def test_strangers_are_capped_and_members_never_make_room_for_them(tmp_path: Path) -> None:
    wire = StoreTransport(tls_credentials(tmp_path / "papers"))
    server = StoreServer("127.0.0.1", wire, strangers(most=8))
    with client_of(server, wire) as member:
        member.set("mine", "1")
        with callers(server, 100) as silent:
            assert is_served(server, wire)
            assert sum(is_open(stranger) for stranger in silent) <= 8
            assert member.get("mine") == b"1"


def test_a_caller_beyond_the_limit_waits_until_another_is_disconnected(tmp_path: Path) -> None:
    wire = StoreTransport(tls_credentials(tmp_path / "papers"))
    server = StoreServer("127.0.0.1", wire, strangers(most=2, patience=0.3, first_word=LIMIT_SECONDS))
    with callers(server, 8):
        assert is_served(server, wire)


def test_a_process_without_descriptors_tries_again_after_a_pause(tmp_path: Path) -> None:
    wire = StoreTransport(tls_credentials(tmp_path / "papers"))
    tries: list[float] = []
    server = StoreServer("127.0.0.1", _Scarce(wire, tries, without=3), strangers())
    assert is_served(server, wire)
    assert len(tries) == 4
    assert tries[-1] - tries[0] >= 0.1  # three pauses of 0.05 s


def test_a_process_without_descriptors_turns_a_stranger_out(tmp_path: Path) -> None:
    wire = StoreTransport(tls_credentials(tmp_path / "papers"))
    tries: list[float] = []
    scarce = _Scarce(wire, tries, without=0)
    server = StoreServer("127.0.0.1", scarce, strangers())
    with client_of(server, wire) as member, callers(server, 1) as (stranger,):
        assert is_served(server, wire)
        scarce.without = 1
        assert is_served(server, wire)
        assert not is_open(stranger)
        member.set("still", "here")


def test_an_error_of_our_own_costs_its_caller_and_is_logged_a_few_times(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answer = StoreServer._answer

    def faulty(self: StoreServer, caller: Any, kind: int, number: int, key: bytes, value: bytes) -> None:
        if key == b"faulty":
            raise KeyError(key)
        answer(self, caller, kind, number, key, value)

    monkeypatch.setattr(StoreServer, "_answer", faulty)
    server = StoreServer("127.0.0.1", WIRE)
    with client(server) as member:
        for _ in range(15):
            with client(server) as unlucky, pytest.raises(DistNetworkError):
                unlucky.set("faulty", "x")
        member.set("key", "value")
        assert member.get("key") == b"value"
    assert 1 <= len(caplog.records) <= 10


def test_an_error_outside_of_any_caller_does_not_end_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    server = StoreServer("127.0.0.1", WIRE)
    accept, failures = StoreServer._accept, iter([MemoryError(), RuntimeError()])

    def faulty(self: StoreServer) -> None:
        if self is server and (error := next(failures, None)) is not None:
            raise error
        accept(self)

    monkeypatch.setattr(StoreServer, "_accept", faulty)
    assert is_served(server, WIRE)


class _Scarce(StoreTransport):
    """A wire in whose process accept finds no free descriptor, so many times."""

    def __init__(self, wire: StoreTransport, tries: list[float], without: int) -> None:
        self.__dict__.update(wire.__dict__)
        self.tries, self.without = tries, without

    def listen(self, host: str) -> socket.socket:
        real = super().listen(host)
        scarce, wire = _ScarceListener(fileno=real.detach()), self
        scarce.wire = wire
        return scarce


class _ScarceListener(socket.socket):
    wire: _Scarce

    def accept(self) -> tuple[socket.socket, Any]:
        self.wire.tries.append(time.monotonic())
        if self.wire.without:
            self.wire.without -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()
