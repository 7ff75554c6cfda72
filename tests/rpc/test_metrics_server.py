"""The endpoint that Prometheus scrapes: a slow or silent client does not delay others."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import select
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from socketserver import TCPServer
from typing import Any

import pytest
from prometheus_client import ProcessCollector
from prometheus_client.core import Metric

from edriver.discovery.poll_filter import Polls
from edriver.driver.core.membership import Membership
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.metrics import bounded_server
from edriver.driver.observe.metrics.bounded_server import MAX_CONCURRENT_REQUESTS, BoundedServer
from edriver.driver.observe.metrics.server import MetricsServer
from edriver.driver.observe.progress import ProgressTracker
from edriver.model.ids import RoundId
from edriver.model.settings import Settings
from edriver.v1 import status_pb2
from edriver.wire.conversion import round_id_message
from tests import needs

BOUND = 60.0
"""Seconds that a test waits for what must come."""


class Site:
    """A server for a run in which nothing happens."""

    def __init__(
        self,
        address: str = "127.0.0.1",
        port: int = 0,
        answer_timeout: float = BOUND,
        idle_timeout: float = BOUND,
        request_timeout: float = BOUND,
        polls: Polls | None = None,
    ) -> None:
        self.membership = Membership(Settings(np=2, min_np=1, max_np=3), now=0.0)
        self.event_history = EventHistory(self.membership, ProgressTracker(lambda: 0.0), lambda: 0.0)
        self.server = MetricsServer(
            "abcd",
            self.membership,
            self.event_history,
            polls or Polls(),
            address,
            port,
            answer_timeout,
            idle_timeout,
            request_timeout,
            clock=lambda: self.now,
        )
        self.now = 0.0

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        url = await self.server.open()
        try:
            yield url
        finally:
            await self.server.close()

    def get(self, method: str = "GET") -> tuple[int, str]:
        """A scrape's status and body; called from another thread than the loop's."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=BOUND)
        with contextlib.closing(connection):
            connection.request(method, "/metrics")
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def call(self) -> socket.socket:
        """A scraper that sends nothing."""
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=BOUND)


def answering() -> list[threading.Thread]:
    """The threads that answer scrapers."""
    return [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]


def all_have_answered() -> None:
    """Wait for them."""
    for thread in answering():
        thread.join(BOUND)
    assert not answering()


def test_a_scraper_gets_the_run_as_it_is() -> None:
    async def test() -> None:
        site = Site()
        async with site.open() as url:
            assert url == f"http://127.0.0.1:{site.server.port}/metrics"
            status, text = await asyncio.to_thread(site.get)
            assert (status, "edriver_max_np 3.0" in text, "process_open_fds" in text) == (200, True, True)
            failure = status_pb2.Round(round_id=round_id_message(RoundId(1, 1)), kind=status_pb2.ROUND_KIND_FAILURE)
            site.event_history.view.fold(status_pb2.Event(seq=1, round=failure))
            _, text = await asyncio.to_thread(site.get)
            assert 'edriver_rounds_total{cause="failure"} 1.0' in text
            assert (await asyncio.to_thread(site.get, "POST"))[0] == 405

    asyncio.run(test())


def test_the_run_is_looked_at_on_the_event_loop_alone() -> None:
    async def test() -> None:
        seen = set()

        class Watched(Polls):
            def __getattribute__(self, name: str) -> object:
                seen.add(threading.current_thread())
                return super().__getattribute__(name)

        site = Site(polls=Watched())
        seen.clear()
        async with site.open():
            await asyncio.to_thread(site.get)
        assert seen == {threading.current_thread()}

    asyncio.run(test())


def test_counters_and_gauges_are_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        site, loop = Site(), asyncio.get_running_loop()
        failure = status_pb2.Round(round_id=round_id_message(RoundId(1, 1)), kind=status_pb2.ROUND_KIND_FAILURE)
        schedule = loop.call_soon_threadsafe

        def meanwhile(*args: Any) -> None:
            """A round begins after the request arrives, before the event loop handles it."""
            if threading.current_thread() is not threading.main_thread():
                schedule(site.event_history.view.fold, status_pb2.Event(seq=1, round=failure))
            schedule(*args)

        async with site.open():
            monkeypatch.setattr(loop, "call_soon_threadsafe", meanwhile)
            scraping = asyncio.create_task(asyncio.to_thread(site.get))
            assert 'edriver_rounds_total{cause="failure"} 1.0' in (await scraping)[1]

    asyncio.run(test())


def test_a_driver_that_is_busy_is_not_waited_for() -> None:
    async def test() -> None:
        site = Site(answer_timeout=0.05)
        async with site.open():
            answers: list[tuple[int, str]] = []
            scraper = threading.Thread(target=lambda: answers.append(site.get()))
            scraper.start()
            scraper.join(BOUND)  # the loop stands still meanwhile
            assert answers == [(503, "the driver is busy\n")]
        async with (again := Site()).open():
            assert (await asyncio.to_thread(again.get))[0] == 200

    asyncio.run(test())


def test_an_internal_error_is_reported_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        site = Site()
        del site.membership.roster
        async with site.open():
            assert (await asyncio.to_thread(site.get))[0] == 500
        assert "no metrics: an internal error of edriver" in caplog.text

    asyncio.run(test())


def test_a_connection_beyond_the_limit_replaces_the_oldest() -> None:
    async def test() -> None:
        site = Site()
        async with site.open():
            silent = [site.call() for _ in range(MAX_CONCURRENT_REQUESTS)]
            assert (await asyncio.to_thread(site.get))[0] == 200
            assert await asyncio.to_thread(silent[0].recv, 1) == b""
            for connection in silent[1:]:
                assert not select.select([connection], [], [], 0)[0]
            for connection in silent:
                connection.close()
            await asyncio.to_thread(all_have_answered)

    asyncio.run(test())


def test_there_are_never_more_threads_than_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "EVICTION_TIMEOUT", 0.01)

    async def test() -> None:
        site = Site()
        async with site.open():
            asking = [site.call() for _ in range(MAX_CONCURRENT_REQUESTS)]
            for connection in asking:
                connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            with contextlib.closing(site.call()) as turned_away:  # the event loop, which they wait for, stands still
                assert turned_away.recv(1) == b""
            assert len(answering()) == MAX_CONCURRENT_REQUESTS
            await asyncio.to_thread(all_have_answered)
            for connection in asking:
                connection.close()
            assert (await asyncio.to_thread(site.get))[0] == 200

    asyncio.run(test())


@pytest.mark.parametrize("request_line", ["OPTIONS * HTTP/1.1", "CONNECT example.org:443 HTTP/1.1", "GET", "\0 \0 \0"])
def test_odd_requests_get_an_answer_and_no_traceback(request_line: str, capfd: pytest.CaptureFixture[str]) -> None:
    async def test() -> None:
        site = Site()
        async with site.open():
            with contextlib.closing(site.call()) as odd:
                odd.sendall(f"{request_line}\r\n\r\n".encode())
                assert await asyncio.to_thread(odd.recv, 1)
            await asyncio.to_thread(all_have_answered)

    asyncio.run(test())
    assert capfd.readouterr().err == ""


def dribble(connection: socket.socket) -> None:
    """Send one byte at a time until the server closes the connection."""
    with contextlib.suppress(OSError):
        connection.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        while not select.select([connection], [], [], 0.01)[0]:
            connection.sendall(b"x")


def test_a_whole_request_has_a_bound() -> None:
    async def test() -> None:
        site = Site(request_timeout=0.3)
        async with site.open():
            with contextlib.closing(site.call()) as slow:
                await asyncio.to_thread(dribble, slow)
            await asyncio.to_thread(all_have_answered)

    asyncio.run(test())


def test_slow_connections_are_closed_for_new_ones() -> None:
    async def test() -> None:
        site = Site()
        async with site.open():
            slow = [site.call() for _ in range(MAX_CONCURRENT_REQUESTS)]
            dribbling = [threading.Thread(target=dribble, args=(connection,)) for connection in slow]
            for thread in dribbling:
                thread.start()
            status = 0
            while status != 200:
                with contextlib.suppress(ConnectionError, http.client.HTTPException):
                    status, _ = await asyncio.to_thread(site.get)
            for connection in slow:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # wakes its thread, which a closed descriptor would confuse
            for thread in dribbling:
                thread.join(BOUND)
            for connection in slow:
                connection.close()

    asyncio.run(test())


def test_without_descriptors_it_waits_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    really, failures = TCPServer.get_request, [errno.EMFILE] * 3
    pauses: list[float] = []

    def accept(server: TCPServer) -> tuple[socket.socket, object]:
        if failures:
            raise OSError(failures.pop(), "Too many open files")
        return really(server)

    monkeypatch.setattr(TCPServer, "get_request", accept)
    monkeypatch.setattr(bounded_server, "pause", pauses.append)

    async def test() -> None:
        site = Site()
        async with site.open():
            assert (await asyncio.to_thread(site.get))[0] == 200

    asyncio.run(test())
    assert len(pauses) == 3


def test_silence_has_an_end(capfd: pytest.CaptureFixture[str]) -> None:
    async def test() -> None:
        site = Site(idle_timeout=0.05)
        async with site.open():
            with contextlib.closing(site.call()) as silent:
                assert await asyncio.to_thread(silent.recv, 1) == b""
            with contextlib.closing(site.call()) as half:
                half.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
                assert await asyncio.to_thread(half.recv, 1) == b""
            await asyncio.to_thread(all_have_answered)

    asyncio.run(test())
    assert capfd.readouterr().err == ""


async def waits_until_it_is_read(site: Site, hurry: asyncio.Event) -> None:
    waiting = asyncio.create_task(site.server.last_scrape(hurry))
    await asyncio.sleep(0)
    assert not waiting.done()
    await asyncio.to_thread(site.get)
    await waiting


def test_at_the_end_the_next_scrape_is_waited_for() -> None:
    async def test() -> None:
        site, hurry = Site(), asyncio.Event()
        async with site.open():
            await site.server.last_scrape(hurry)  # nothing has been read
            await asyncio.to_thread(site.get)
            await site.server.last_scrape(hurry)  # it is not known how often it will be
            site.now = 15.0
            await asyncio.to_thread(site.get)
            site.now = 20.0
            await waits_until_it_is_read(site, hurry)

    asyncio.run(asyncio.wait_for(test(), BOUND))


def test_the_end_does_not_wait_for_a_scraper_that_has_gone_or_an_operator_in_a_hurry() -> None:
    async def test() -> None:
        site, hurry = Site(), asyncio.Event()
        async with site.open():
            await asyncio.to_thread(site.get)
            site.now = 10.0
            await asyncio.to_thread(site.get)
            site.now = 41.0
            await site.server.last_scrape(hurry)
            site.now = 20.0
            waiting = asyncio.create_task(site.server.last_scrape(hurry))
            await asyncio.sleep(0)
            assert not waiting.done()
            hurry.set()
            await waiting

    asyncio.run(asyncio.wait_for(test(), BOUND / 10))  # the wait's own bound is 13 s


def test_the_end_waits_no_longer_than_to_the_next_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edriver.driver.observe.metrics.server.LAST_SCRAPE_TIMEOUT", 0.01)

    async def test() -> None:
        site = Site()
        async with site.open():
            await asyncio.to_thread(site.get)
            site.now = 2 * BOUND
            await asyncio.to_thread(site.get)
            waiting = asyncio.create_task(site.server.last_scrape(asyncio.Event()))
            await asyncio.sleep(0)
            assert not waiting.done()
            await waiting

    asyncio.run(asyncio.wait_for(test(), BOUND))


def test_several_scrapers_and_people_do_not_hide_the_interval() -> None:
    async def test() -> None:
        site, hurry = Site(), asyncio.Event()
        async with site.open():
            for now in (0.0, 0.2, 15.0, 15.2):  # two of Prometheus, as those have it who cannot do without one
                site.now = now
                await asyncio.to_thread(site.get)
            site.now = 17.0
            await waits_until_it_is_read(site, hurry)

    asyncio.run(asyncio.wait_for(test(), BOUND))


def test_what_is_read_less_often_than_prometheus_allows_is_not_waited_for() -> None:
    async def test() -> None:
        site, hurry = Site(), asyncio.Event()
        async with site.open():
            await asyncio.to_thread(site.get)
            site.now = 301.0
            await asyncio.to_thread(site.get)
            await site.server.last_scrape(hurry)

    asyncio.run(asyncio.wait_for(test(), BOUND / 10))


def test_a_request_that_has_been_read_is_answered_before_the_server_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    closing, rendered = threading.Event(), threading.Event()
    wait = BoundedServer.wait_for_answers

    def wait_for_answers(server: BoundedServer, timeout: float) -> bool:
        assert not wait(server, 0.0)
        closing.set()
        return wait(server, BOUND)

    def render(_: ProcessCollector) -> Iterator[Metric]:
        closing.wait(BOUND)
        rendered.set()
        yield from ()

    monkeypatch.setattr(BoundedServer, "wait_for_answers", wait_for_answers)
    monkeypatch.setattr(ProcessCollector, "collect", render)

    async def test() -> None:
        looked = asyncio.Event()

        class Watched(Polls):
            def __getattribute__(self, name: str) -> object:
                looked.set()
                return super().__getattribute__(name)

        site = Site(polls=Watched())
        looked.clear()
        await site.server.open()
        scraping = asyncio.create_task(asyncio.to_thread(site.get))
        await looked.wait()
        await site.server.close()
        assert rendered.is_set()
        assert (await scraping)[0] == 200

    asyncio.run(asyncio.wait_for(test(), BOUND))


def test_a_closed_server_refuses_connections() -> None:
    async def test() -> None:
        site = Site()
        async with site.open():
            pass
        with pytest.raises(OSError, match="refused"):
            site.call()
        await Site().server.close()  # one that was never open

    asyncio.run(test())
    assert not [thread for thread in threading.enumerate() if thread.name == "edriver-metrics"]


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        pytest.param("127.0.0.1", "Address already in use", id="taken"),
        pytest.param("192.0.2.1", "Cannot assign requested address", id="no-address-of-ours"),
        pytest.param("no such host", "Name or service not known|Temporary failure", id="no-name"),
    ],
)
def test_where_it_cannot_listen(address: str, sentence: str) -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            site = Site(address, taken.getsockname()[1])
            words = rf"metrics cannot be served at {address}:\d+: ({sentence}); give another --metrics-port \(0: any"
            with pytest.raises(OSError, match=words):
                await site.server.open()
            await site.server.close()

    asyncio.run(test())


def test_two_runs_do_not_share_a_port() -> None:
    async def test() -> None:
        first = Site()
        async with first.open():
            with pytest.raises(OSError, match="Address already in use"):
                await Site(port=first.server.port).server.open()

    asyncio.run(test())


@pytest.mark.needs(needs.IPV6)
def test_an_address_of_ip_version_6() -> None:
    async def test() -> None:
        async with Site("::1").open() as url:
            assert url.startswith("http://[::1]:")

    asyncio.run(test())
