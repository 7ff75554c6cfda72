"""What a store's connections are made of: a unix socket where all hosts are this machine, TLS between hosts.

With TLS both ends show a certificate of the run's own authority: no other caller gets so far as to send a request.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from edriver.common.join_config import MEMBER_NAME
from edriver.wire.tls_files import member_context

WOULD_BLOCK_ERRORS = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""The exceptions that reading from a connection raises while no data has arrived."""


class StoreTransport:
    """How this worker's store is reached, and how it reaches others'.

    Args:
        tls_folder: the folder of the run's TLS credentials; None: without TLS.
        proxy: the unix socket of this host's proxy (edriver/agent/store_proxy.py); None: there is none.

    Raises:
        OSError: the credentials cannot be read (ssl.SSLError: they are invalid).
    """

    def __init__(self, tls_folder: Path | None = None, proxy: Path | None = None) -> None:
        self._serving = None if tls_folder is None else member_context(ssl.PROTOCOL_TLS_SERVER, tls_folder)
        if self._serving is not None:
            self._serving.num_tickets = 0  # members resume no session, and the usual two take a third of a handshake
        self._calling = None if tls_folder is None else member_context(ssl.PROTOCOL_TLS_CLIENT, tls_folder)
        self._proxy = proxy

    def listen(self, host: str) -> socket.socket:
        """Listen there, and nowhere else.

        Args:
            host: a name or an address of this host's, or the path that a unix socket is to have.

        Raises:
            OSError: that cannot be done.
        """
        family, address = _where(host, 0)
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.bind(address)
            listener.listen(socket.SOMAXCONN)
        except OSError:
            listener.close()
            raise
        return listener

    def accepted(self, connection: socket.socket) -> socket.socket:
        """What is to be read from and written to instead of a connection that came in; it does not block."""
        connection.setblocking(False)
        if connection.family == socket.AF_UNIX:
            return connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._serving is None:
            return connection
        return self._serving.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def caller(self, host: str, port: int) -> tuple[socket.socket, object]:
        """A socket that is to be connected, and where to.

        Raises:
            OSError: the host does not resolve.
        """
        family, address = _where(host, port)
        caller = socket.socket(family, socket.SOCK_STREAM)
        if family == socket.AF_UNIX:
            return caller, address
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._calling is None:
            return caller, address
        return self._calling.wrap_socket(caller, server_hostname=MEMBER_NAME), address

    def proxy_to(self, host: str) -> str | None:
        """The unix socket of the proxy by which a store there can be reached; None: there is none, or no need of one.

        Args:
            host: the store's address, or the path of its unix socket.
        """
        return None if self._proxy is None or host.startswith("/") else str(self._proxy)


def is_known(connection: socket.socket) -> bool:
    """Whether the other end has shown that it may be here: by a certificate, or by having entered the user's folder.

    Without TLS nothing is shown on TCP; there the first request has to do.
    """
    if isinstance(connection, ssl.SSLSocket):
        return connection.version() is not None
    return connection.family == socket.AF_UNIX


def _where(host: str, port: int) -> tuple[int, str | tuple[object, ...]]:
    if host.startswith("/"):
        return socket.AF_UNIX, host
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, address
