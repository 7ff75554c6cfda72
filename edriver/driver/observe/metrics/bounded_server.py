"""prometheus_client's HTTP server with bounds: a scraper that is slow, or silent, never keeps Prometheus out.

The server runs in threads, a few at a time; they have the event loop do the reading, between two steps of the core, and
wait for that with a bound: nothing is locked, and a slow scraper holds a place of its own, not the driver.
"""

from __future__ import annotations

import contextlib
import errno
import io
import socket
import threading
import time
from collections.abc import Callable, Iterable
from socketserver import TCPServer
from typing import Any, Final, TextIO
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client.exposition import ThreadingWSGIServer

from edriver.wire.unauthenticated import UnauthenticatedCallers

pause = time.sleep

MAX_CONCURRENT_REQUESTS: Final = 8
"""Maximum number of concurrent requests. When another one arrives, the oldest connection is closed."""

EVICTION_TIMEOUT: Final = 1.0
"""Seconds that a new scraper waits for the place of the oldest, whose thread may wait for the driver."""

_RESOURCE_ERRORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_ACCEPT_RETRY_DELAY: Final = 0.1
"""Seconds before the next attempt to accept a connection for which no descriptor was free."""


class _Handler(WSGIRequestHandler):
    """One request. It logs nothing."""

    server: BoundedServer

    def parse_request(self) -> bool:
        """Read it, as the base class; once that is done, it is to be answered."""
        complete = super().parse_request()
        if complete:
            self.server.note_read(self.connection)
        return complete

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is the base class's
        """Say nothing."""

    def get_stderr(self) -> TextIO:
        """Where the base class writes about scrapers that have stopped reading."""
        return io.StringIO()


class BoundedServer(ThreadingWSGIServer):
    """Serves an app to a few scrapers at a time, each in a thread.

    Args:
        address: where to listen, a name or an address.
        port: at which port; 0: any.
        app: what answers.
        idle_timeout: see limits.IDLE_TIMEOUT.
        request_timeout: see limits.REQUEST_TIMEOUT.

    Raises:
        OSError: it cannot listen there.
    """

    allow_reuse_port = False  # a port that is taken is an error

    def __init__(
        self, address: str, port: int, app: Callable[..., Iterable[bytes]], idle_timeout: float, request_timeout: float
    ) -> None:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, where = found[0]
        self._idle_timeout = idle_timeout
        self._places = threading.BoundedSemaphore(MAX_CONCURRENT_REQUESTS)
        self._lock = threading.Lock()
        # All callers are: there is no token. Their requests under way, oldest first:
        self._requests: UnauthenticatedCallers[socket.socket] = UnauthenticatedCallers(
            MAX_CONCURRENT_REQUESTS, request_timeout
        )
        self._unanswered: set[socket.socket] = set()  # those of them that have been read
        self._answered = threading.Condition(self._lock)
        super().__init__((str(where[0]), port), _Handler)
        self.set_app(app)

    def server_bind(self) -> None:
        """Bind, and look no name up: the base class asks the name server for this machine's."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection, with a bound on silence."""
        try:
            connection, peer = super().get_request()
        except OSError as error:
            if error.errno in _RESOURCE_ERRORS:
                pause(_ACCEPT_RETRY_DELAY)  # it is still in the queue, and would be tried again at once
            raise
        connection.settimeout(self._idle_timeout)
        return connection, peer

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if need be in the place of the oldest request."""
        if not self._places.acquire(blocking=False):
            with self._lock:
                oldest = self._requests.dispensable(time.monotonic())
                self._hang_up([] if oldest is None else [oldest])
            if not self._places.acquire(timeout=EVICTION_TIMEOUT):
                self.shutdown_request(request)
                return
        with self._lock:
            self._requests.add(request, time.monotonic())
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._release(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and free the place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._release(request)

    def service_actions(self) -> None:
        """Hang up on requests that take too long; called several times a second."""
        with self._lock:
            self._hang_up(self._requests.overdue(time.monotonic()))

    def note_read(self, request: socket.socket) -> None:
        """A request has been read, and will be answered."""
        with self._lock:
            self._unanswered.add(request)

    def wait_for_answers(self, timeout: float) -> bool:
        """Wait until each request that has been read is answered, for so many seconds at most; whether it is."""
        with self._answered:
            return self._answered.wait_for(lambda: not self._unanswered, timeout)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper closed its connection, or it was closed here: the run is not affected."""

    def _hang_up(self, requests: Iterable[socket.socket]) -> None:
        """End these connections, whatever their threads are doing; each thread frees its place when it ends."""
        for request in requests:
            self._requests.discard(request)
            with contextlib.suppress(OSError):  # the scraper has closed it
                request.shutdown(socket.SHUT_RDWR)

    def _release(self, request: socket.socket) -> None:
        with self._lock:
            self._requests.discard(request)
            self._unanswered.discard(request)
            self._answered.notify_all()
        self._places.release()
