"""Where Prometheus asks: plain HTTP without a token, as it expects, by prometheus_client's own app."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from edriver.common.join_config import at_port
from edriver.discovery.poll_filter import Polls
from edriver.driver.core.membership import Membership
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.hosts.usage import UsageTracker
from edriver.driver.observe.metrics.bounded_server import BoundedServer
from edriver.driver.observe.metrics.counters import EventCounters
from edriver.driver.observe.metrics.gauges import RunGauges
from edriver.driver.observe.metrics.limits import ANSWER_TIMEOUT, IDLE_TIMEOUT, REQUEST_TIMEOUT
from edriver.driver.observe.metrics.usage_metrics import UsageMetrics

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_log = logging.getLogger("edriver.driver")

LAST_SCRAPE_TIMEOUT: Final = 30.0
"""Most seconds that a run whose metrics are read waits at its end until they are read once more."""

MISSED_SCRAPES: Final = 3.0
"""Number of scrape intervals after which a scraper counts as gone."""

SCRAPES_REMEMBERED: Final = 16
"""Number of scrapes among which the scrape interval is looked for: several scrapers, and people, read in between."""

LOOKBACK: Final = 300.0
"""Seconds after which Prometheus itself takes a series as gone: what is read less often is not scraped."""

CLOSE_TIMEOUT: Final = 1.0
"""Seconds that the server waits, when it closes, until the requests that it has read are answered."""

_SHUTDOWN_POLL_INTERVAL: Final = 0.1


class MetricsServer(Collector):
    """A run's metrics, for Prometheus.

    Args:
        run_id: the run.
        membership: the state of the core; only read.
        event_history: the events; only read.
        polls: how discovery fares; read only.
        address: where to listen, a name or an address.
        port: at which port; 0: any.
        answer_timeout: see ANSWER_TIMEOUT.
        idle_timeout: see IDLE_TIMEOUT.
        request_timeout: see REQUEST_TIMEOUT.
        clock: seconds, monotonic.
        usage: what hosts and workers use; read only.

    Attributes:
        port: where it listens, once it does.
    """

    def __init__(
        self,
        run_id: str,
        membership: Membership,
        event_history: EventHistory,
        polls: Polls,
        address: str,
        port: int,
        answer_timeout: float = ANSWER_TIMEOUT,
        idle_timeout: float = IDLE_TIMEOUT,
        request_timeout: float = REQUEST_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
        usage: UsageTracker | None = None,
    ) -> None:
        self._clock = clock
        self._address = address
        self.port = port
        self._answer_timeout = answer_timeout
        self._bounds = (idle_timeout, request_timeout)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: BoundedServer | None = None
        self._thread: threading.Thread | None = None
        self._scrapes: deque[float] = deque(maxlen=SCRAPES_REMEMBERED)  # when the latest ones were answered
        self._scraped = asyncio.Event()
        self._events = EventCounters(run_id, event_history)
        used = None if usage is None else UsageMetrics(usage, membership.roster)
        self._gauges = RunGauges(run_id, membership, event_history, polls, used)
        registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        self._app = _with_busy_answer(make_wsgi_app(registry))

    async def open(self) -> str:
        """Listen; returns the URL. The run is looked at on this event loop.

        Raises:
            OSError: it cannot; the message is one sentence.
        """
        self._loop = asyncio.get_running_loop()
        try:
            # In a thread: a name has to be looked up.
            self._server = await asyncio.to_thread(BoundedServer, self._address, self.port, self._app, *self._bounds)
        except (OSError, OverflowError) as error:
            where = at_port(self._address, self.port)
            words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise OSError(
                f"metrics cannot be served at {where}: {words}; give another --metrics-port (0: any free port) or "
                "--metrics-address"
            ) from None
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_SHUTDOWN_POLL_INTERVAL,), name="edriver-metrics", daemon=True
        )
        self._thread.start()
        return f"http://{at_port(self._address, self.port)}/metrics"

    async def last_scrape(self, hurry: asyncio.Event) -> None:
        """Wait until the metrics have been read once more, with what happened last and how the run ended.

        That takes no longer than the scrape interval, which is the longest time between two of the latest scrapes, and
        the bound above; a run that is not read, or no longer, waits for nothing.

        Args:
            hurry: set when the operator does not want to wait.
        """
        latest = [scrape for scrape in self._scrapes if scrape >= self._clock() - LOOKBACK]
        interval = max((after - before for before, after in pairwise(latest)), default=0.0)
        if not interval or self._clock() - latest[-1] > MISSED_SCRAPES * interval:
            return
        bound = min(LAST_SCRAPE_TIMEOUT, 1.0 + 1.2 * interval)
        _log.info("waiting up to %.0f s until Prometheus has read how the run ended (Ctrl-C: no longer)", bound)
        self._scraped.clear()
        waits = {asyncio.create_task(self._scraped.wait()), asyncio.create_task(hurry.wait())}
        await asyncio.wait(waits, timeout=bound, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None and self._thread is not None:
            await asyncio.to_thread(self._server.shutdown)
            await asyncio.to_thread(self._thread.join)
            await asyncio.to_thread(self._server.wait_for_answers, CLOSE_TIMEOUT)
            self._server.server_close()

    def collect(self) -> list[Metric]:
        """All metrics as they are at one moment: the event loop looks at the run, for a thread of the server's.

        Raises:
            TimeoutError: it has no time.
        """
        assert self._loop is not None, "asked before there was a server"
        answer: Future[list[Metric]] = Future()

        def on_loop() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result([*self._events.collect(), *self._gauges.collect()])
                self._scrapes.append(self._clock())
                self._scraped.set()
            except Exception as error:  # noqa: BLE001  the thread that waits for it raises it
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(on_loop)
        try:
            return answer.result(self._answer_timeout)
        finally:
            answer.cancel()


def _with_busy_answer(
    app: Callable[..., Iterable[bytes]],
) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    """The app, with an error response if the driver provides no values in time."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            return app(environ, start_response)
        except TimeoutError:
            status, words = "503 Service Unavailable", b"the driver is busy\n"
        except Exception:  # noqa: BLE001  a run continues without its metrics
            _log.exception("no metrics: an internal error of edriver, please report it")
            status, words = "500 Internal Server Error", b"see what the driver prints\n"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [words]

    return answer
