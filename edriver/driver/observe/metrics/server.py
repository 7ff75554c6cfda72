"""Where Prometheus asks: plain HTTP without a token, as it expects, in threads of its own.

A scraper that is slow, or says nothing, holds one of a few places for a few seconds, and never the driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

from edriver.common.invitation import at_port
from edriver.discovery.poller import Polls
from edriver.driver.core.membership import Membership
from edriver.driver.observe.event_history import Chronicle
from edriver.driver.observe.metrics.counters import EventMetrics
from edriver.driver.observe.metrics.gauges import RunGauges
from edriver.v1 import status_pb2

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

T = TypeVar("T")

_log = logging.getLogger("edriver.driver")

pause = time.sleep

MOST_AT_ONCE: Final = 8
"""Scrapers that are answered at the same time. When one more comes, the one that has taken longest is hung up on, if
that is more than LONG_ENOUGH; else the new one is, and Prometheus asks again."""

LONG_ENOUGH: Final = 1.0
"""Seconds in which a scraper that means it has asked and taken its answer."""

REQUEST_BOUND: Final = 10.0
"""Seconds that a whole request may take, however little of it is silence."""

SILENCE_BOUND: Final = 5.0
"""Seconds that a scraper may keep its side of a connection still."""

ANSWER_BOUND: Final = 5.0
"""Seconds that the driver has to say how the run stands."""

_CLOSING_PERIOD: Final = 0.1

_OUT_OF_MEANS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_PAUSE: Final = 0.1
"""Seconds before one is accepted again for whom there was no descriptor."""


class MetricsServer:
    """A run's metrics, for Prometheus.

    Args:
        run_id: the run.
        membership: what is known; only looked at.
        chronicle: what has happened; only looked at.
        polls: how discovery fares; only looked at.
        address: where to listen, a name or an address.
        port: at which port; 0: any.
        answer_bound: see ANSWER_BOUND.
        silence_bound: see SILENCE_BOUND.
        request_bound: see REQUEST_BOUND.
        long_enough: see LONG_ENOUGH.

    Attributes:
        port: where it listens, once it does.
    """

    def __init__(
        self,
        run_id: str,
        membership: Membership,
        chronicle: Chronicle,
        polls: Polls,
        address: str,
        port: int,
        answer_bound: float = ANSWER_BOUND,
        silence_bound: float = SILENCE_BOUND,
        request_bound: float = REQUEST_BOUND,
        long_enough: float = LONG_ENOUGH,
    ) -> None:
        self._address = address
        self.port = port
        self._answer_bound = answer_bound
        self._bounds = (silence_bound, request_bound, long_enough)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        registry = CollectorRegistry()
        self._events = EventMetrics(registry)
        registry.register(RunGauges(run_id, membership, chronicle, polls, self._ask))
        ProcessCollector(registry=registry)
        self._app = _patient(make_wsgi_app(registry))

    async def open(self) -> str:
        """Listen; returns the URL. The run is looked at on this event loop.

        Raises:
            OSError: it cannot; the message is one sentence.
        """
        self._loop = asyncio.get_running_loop()
        try:
            # In a thread: a name has to be looked up.
            self._server = await asyncio.to_thread(_Server, self._address, self.port, *self._bounds)
        except (OSError, OverflowError) as error:
            where = at_port(self._address, self.port)
            words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise OSError(
                f"no metrics can be had at {where}: {words}; give another --metrics-port (0: any that is free) or "
                "--metrics-address"
            ) from None
        self._server.set_app(self._app)
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_CLOSING_PERIOD,), name="edriver-metrics", daemon=True
        )
        self._thread.start()
        return f"http://{at_port(self._address, self.port)}/metrics"

    def observe(self, told: Iterable[status_pb2.Event]) -> None:
        """Count these events."""
        for event in told:
            self._events.observe(event)

    async def close(self) -> None:
        """Listen no more, if it did."""
        if self._server is not None and self._thread is not None:
            await asyncio.to_thread(self._server.shutdown)
            await asyncio.to_thread(self._thread.join)
            self._server.server_close()

    def _ask(self, look: Callable[[], T]) -> T:
        """Have the event loop look at the run, for a thread of the server's.

        Raises:
            TimeoutError: it has no time.
        """
        assert self._loop is not None, "asked before there was a server"
        answer: Future[T] = Future()

        def on_loop() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(look())
            except Exception as error:  # noqa: BLE001  the thread that waits for it raises it
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(on_loop)
        try:
            return answer.result(self._answer_bound)
        finally:
            answer.cancel()


def _patient(app: Callable[..., Iterable[bytes]]) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    """The app, and an answer of its own where the driver has none in time."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            return app(environ, start_response)
        except TimeoutError:
            status, words = "503 Service Unavailable", b"the driver is busy\n"
        except Exception:  # noqa: BLE001  a run goes on without its metrics
            _log.exception("no metrics: a fault of edriver's own, please report it")
            status, words = "500 Internal Server Error", b"see what the driver prints\n"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [words]

    return answer


class _Handler(WSGIRequestHandler):
    """One scraper, without a line in the log for each."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is the base class's
        """Say nothing."""

    def get_stderr(self) -> TextIO:
        """Where the base class writes about scrapers that have stopped reading."""
        return io.StringIO()


class _Server(ThreadingMixIn, WSGIServer):
    """Answers a few at a time, each in a thread.

    Raises:
        OSError: it cannot listen there.
    """

    daemon_threads = True
    allow_reuse_port = False  # a port that is taken is an error

    def __init__(self, address: str, port: int, silence_bound: float, request_bound: float, long_enough: float) -> None:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, where = found[0]
        self._silence_bound = silence_bound
        self._request_bound = request_bound
        self._long_enough = long_enough
        self._answered: dict[socket.socket, float] = {}  # who is answered, and since when
        self._changed = threading.Condition()
        super().__init__((str(where[0]), port), _Handler)

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
            if error.errno in _OUT_OF_MEANS:
                pause(_PAUSE)  # it waits on, and would be tried again at once
            raise
        connection.settimeout(self._silence_bound)
        return connection, peer

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there is a place."""
        with self._changed:
            self._make_room()
            if len(self._answered) >= MOST_AT_ONCE:
                self.shutdown_request(request)
                return
            self._answered[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no more threads are to be had
            self._part_with(request)
            raise

    def service_actions(self) -> None:
        """Hang up on those that take too long; called many times a second."""
        with self._changed:
            for request, since in self._answered.items():
                if time.monotonic() - since >= self._request_bound:
                    _hang_up(request)

    def _make_room(self) -> None:
        """Where there is no place, hang up on the one that has taken longest, if that is long; wait for its end."""
        longest = next(iter(self._answered.items()), None)
        if longest and len(self._answered) >= MOST_AT_ONCE and time.monotonic() - longest[1] >= self._long_enough:
            _hang_up(longest[0])
            self._changed.wait_for(lambda: len(self._answered) < MOST_AT_ONCE, self._long_enough)

    def _part_with(self, request: socket.socket) -> None:
        with self._changed:
            self._answered.pop(request, None)
            self._changed.notify_all()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and free the place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._part_with(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that went away, or said nothing: no affair of the run's."""


def _hang_up(request: socket.socket) -> None:
    """End a connection, in whatever its thread is."""
    with contextlib.suppress(OSError):  # its thread was faster
        request.shutdown(socket.SHUT_RDWR)
