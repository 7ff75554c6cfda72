"""The TCP ports of a victim, from outside."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import psutil

from edriver.common.join_config import SERVER_NAME, JoinConfig

BOUND = 240.0

HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a connection of HTTP/2 begins."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way into a driver: from the credentials file that it has written for authorized callers.

    Attributes:
        port: of the driver, on this machine.
        authority: the certificate by which the caller knows it.
        token: what the caller shows.
    """

    port: int
    authority: str
    token: str

    @classmethod
    def of(cls, credentials: Path) -> Way:
        reported = JoinConfig.from_json(credentials.read_bytes())
        return cls(int(reported.drivers[0].rpartition(":")[2]), reported.authority, reported.token)

    def showing(self, token: str) -> Way:
        """The same with another token."""
        return replace(self, token=token)

    @contextlib.contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        """Over TLS, with the token."""
        tls_credentials = grpc.composite_channel_credentials(
            grpc.ssl_channel_credentials(self.authority.encode()), grpc.access_token_call_credentials(self.token)
        )
        options = (
            ("grpc.ssl_target_name_override", SERVER_NAME),
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),  # a connection of its own
        )
        with grpc.secure_channel(f"ipv4:127.0.0.1:{self.port}", tls_credentials, options=options) as channel:
            yield channel


def say(port: int, data: bytes) -> bytes:
    """All that a port answers to these bytes, and to the end of what is said, until it closes the connection."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), BOUND) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        with contextlib.suppress(OSError):  # the other side was faster
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while chunk := connection.recv(65536):
                answer += chunk
    return answer


def hello_to(server_name: bytes) -> bytes:
    """The first message of a TLS handshake, with any bytes for the name of the server, 2 to 254 of them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # A name of this length that OpenSSL takes; nothing in the message vouches for it.
    placeholder = ".".join(["a" * 62] * 5)[: len(server_name) - 1] + "a"
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=placeholder).do_handshake()
    message = outgoing.read()
    assert message.count(placeholder.encode()) == 1
    return message.replace(placeholder.encode(), server_name)


def listening(pid: int) -> list[int]:
    """The TCP ports at which a process listens."""
    connections = psutil.Process(pid).net_connections(kind="tcp")
    return sorted({found.laddr.port for found in connections if found.status == psutil.CONN_LISTEN})
