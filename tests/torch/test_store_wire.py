"""The store between hosts: it serves only clients that show the run's TLS credentials."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from concurrent import futures
from pathlib import Path

import pytest
from torch.distributed import DistNetworkError

from edriver.worker.group.store import StoreClient
from edriver.worker.group.store_server import StoreServer
from edriver.worker.group.store_transport import StoreTransport
from tests.torch.run_credentials import tls_credentials

LIMIT_SECONDS = 300.0


def exchange(server: StoreServer, wire: StoreTransport) -> None:
    with (
        contextlib.closing(StoreClient(server.host, server.port, LIMIT_SECONDS, wire)) as one,
        contextlib.closing(StoreClient(server.host, server.port, LIMIT_SECONDS, wire)) as other,
    ):
        one.connect()
        other.connect()
        with futures.ThreadPoolExecutor(1) as threads:
            got = threads.submit(other.get, "key")
            one.set("key", b"\x00\xff" * 100_000)  # more than TLS puts into one record
            assert got.result(LIMIT_SECONDS) == b"\x00\xff" * 100_000


def test_over_a_unix_socket(tmp_path: Path) -> None:
    wire = StoreTransport()
    server = StoreServer(str(tmp_path / "store"), wire)
    assert (server.host, server.port) == (str(tmp_path / "store"), 0)
    exchange(server, wire)


def test_over_tls(tmp_path: Path) -> None:
    wire = StoreTransport(tls_credentials(tmp_path / "a"))
    exchange(StoreServer("127.0.0.1", wire), wire)


def test_no_session_tickets_are_made_for_members_which_resume_none(tmp_path: Path) -> None:
    wire = StoreTransport(tls_credentials(tmp_path / "a"))
    server = StoreServer("127.0.0.1", wire)
    with contextlib.closing(StoreClient(server.host, server.port, LIMIT_SECONDS, wire)) as client:
        client.connect()
        client.set("key", "value")  # tickets would come before the answer
        assert isinstance(client._socket, ssl.SSLSocket)
        assert client._socket.session is None or not client._socket.session.has_ticket


def test_the_papers_are_for_this_users_eyes_only(tmp_path: Path) -> None:
    assignment = tls_credentials(tmp_path / "a")
    assert assignment.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in assignment.iterdir()] == [0o600, 0o600]


def call(stranger: StoreClient) -> None:
    stranger.connect()
    stranger.set("key", "value")  # TLS 1.3: only now is a client told that its certificate is refused


def without_papers(_folder: Path) -> StoreTransport:
    return StoreTransport()


def of_another_run(folder: Path) -> StoreTransport:
    return StoreTransport(tls_credentials(folder / "other", "other"))


@pytest.mark.parametrize("strangers", [without_papers, of_another_run])
def test_a_stranger_is_not_served(tmp_path: Path, strangers: Callable[[Path], StoreTransport]) -> None:
    ours = StoreTransport(tls_credentials(tmp_path / "ours"))
    server = StoreServer("127.0.0.1", ours)
    stranger = StoreClient(server.host, server.port, LIMIT_SECONDS, strangers(tmp_path))
    with contextlib.closing(stranger), pytest.raises(DistNetworkError):
        call(stranger)
    exchange(server, ours)


def test_a_member_does_not_speak_to_a_stranger(tmp_path: Path) -> None:
    server = StoreServer("127.0.0.1", of_another_run(tmp_path))
    member = StoreClient(server.host, server.port, LIMIT_SECONDS, StoreTransport(tls_credentials(tmp_path / "ours")))
    with contextlib.closing(member), pytest.raises(DistNetworkError):
        member.connect()


def test_silent_clients_do_not_delay_others(tmp_path: Path) -> None:
    wire = StoreTransport(tls_credentials(tmp_path / "a"))
    server = StoreServer("127.0.0.1", wire)
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(socket.create_connection((server.host, server.port)))
        exchange(server, wire)


def test_severing_frees_a_client_that_waits(tmp_path: Path) -> None:
    wire = StoreTransport(tls_credentials(tmp_path / "a"))
    server = StoreServer("127.0.0.1", wire)
    with contextlib.closing(StoreClient(server.host, server.port, LIMIT_SECONDS, wire)) as client:
        client.connect()
        with futures.ThreadPoolExecutor(1) as threads:
            got = threads.submit(client.get, "never set")
            while not got.running():
                pass
            client.sever()
            with pytest.raises(DistNetworkError):
                got.result(LIMIT_SECONDS)
