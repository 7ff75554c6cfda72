"""The dashboard's server: fed by a real status service, asked by a web client."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest

from edriver.client import Address, AsyncClient
from edriver.dashboard import callers as callers_module
from edriver.dashboard import feed as feed_module
from edriver.dashboard import server as server_module
from edriver.dashboard.feed import Feed
from edriver.dashboard.server import PageServer, is_ours, runner_of
from edriver.driver.core.membership import Membership
from edriver.driver.core.selection import plan_round
from edriver.driver.observe.cause_text import Line
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.progress import ProgressTracker
from edriver.driver.observe.worker_output import WorkerOutput
from edriver.driver.services.status import StatusServer
from edriver.model import events
from edriver.model.cause import Cause, CauseKind, ReportedText
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import NO_VERSION, RoundId
from edriver.model.plan import Candidate
from edriver.model.settings import Settings
from edriver.model.store_address import StoreAddress
from edriver.v1 import agent_pb2, notification_pb2, status_pb2_grpc
from edriver.wire.conversion import round_id_message
from tests.told_events import told
from tests.waiting import until_async

SECRET = "hush"


class Run:
    """A run on the given hosts; its driver can be stopped."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.now = 1000.0
        self.membership = Membership(Settings(np=1, min_np=1, max_np=3), now=0.0)
        self.event_history = EventHistory(self.membership, ProgressTracker(lambda: self.now), lambda: self.now, limit)
        self.output = WorkerOutput(lambda: self.now)
        self.status = StatusServer("abcd", self.membership, self.event_history, lambda: self.now, output=self.output)
        self.address = Address("abcd", f"unix:{folder / 's'}")
        self._server: grpc.aio.Server | None = None

    async def serve(self) -> None:
        self._server = grpc.aio.server()
        status_pb2_grpc.add_StatusServiceServicer_to_server(self.status, self._server)
        self._server.add_insecure_port(self.address.target)
        await self._server.start()

    async def vanish(self) -> None:
        assert self._server is not None
        await self._server.stop(None)

    def take(self, event: events.Event, text: str = "") -> None:
        self.now += 1.0
        message = Cause(CauseKind.STOPPED, detail=ReportedText(text)) if text else None
        told(self.event_history, event, self.membership.step(event, 0.0), message, [Line(message)] if message else [])
        self.status.announce()

    def hosts(self, *names: str) -> None:
        self.take(events.HostsObserved(HostSet(tuple(Host(name, 1) for name in names))))

    def reports(self, steps: int, **reported: float) -> None:
        """Worker 1, alone in round 1.1, reports that it has made so many steps."""
        if self.event_history.tracker.first is None:
            self.event_history.tracker.assigned(
                plan_round(RoundId(1, 1), 1, [Candidate(1, "a", 0, NO_VERSION, StoreAddress("a", 1))], first=True)
            )
        message = notification_pb2.WorkerProgress(
            round_id=round_id_message(RoundId(1, 1)), boundaries=steps, reported=reported
        )
        self.now += 1.0
        self.event_history.record_progress(agent_pb2.WorkerHeartbeat(worker_id=1, pid=7, progress=message))


class Page:
    """The page of a run, and a browser of it."""

    def __init__(self, run: Run, server: PageServer, session: aiohttp.ClientSession, url: str) -> None:
        self.run = run
        self.server = server
        self.session = session
        self.url = url

    def get(self, path: str, **headers: str) -> Any:
        return self.session.get(self.url + path, headers=headers)

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Callable[[], Coroutine[Any, Any, dict[str, Any]]]]:
        """An open stream; each call waits for the next message."""
        async with self.get(f"/{SECRET}/events") as response:
            assert (response.status, response.content_type) == (200, "text/event-stream")

            async def message() -> dict[str, Any]:
                while True:
                    line = await response.content.readline()
                    assert line, "the stream has ended"
                    if line.startswith(b"data: "):
                        reported: dict[str, Any] = json.loads(line[6:])
                        return reported

            yield message


@asynccontextmanager
async def served(limit: int, before: Callable[[Run], None]) -> AsyncIterator[Page]:
    with tempfile.TemporaryDirectory(prefix="ed-") as folder:
        run = Run(Path(folder), limit)
        before(run)
        await run.serve()
        async with AsyncClient(run.address) as client:
            feed = Feed(client, lambda: run.now)
            await feed.begin()
            following = asyncio.create_task(feed.follow())
            server = PageServer(feed, SECRET)
            runner = runner_of(server.app, shutdown_timeout=0.1)
            await runner.setup()
            listening = await server.callers.listen(runner, "127.0.0.1", 0)
            async with aiohttp.ClientSession() as session:
                yield Page(run, server, session, f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
            listening.close()
            await runner.cleanup()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await run.vanish()


def serve(
    work: Callable[[Page], Coroutine[Any, Any, None]],
    limit: int = 1_000_000,
    before: Callable[[Run], None] = lambda run: run.take(
        events.HostsObserved(HostSet((Host("a", 1),))), "host a is there"
    ),
) -> None:
    async def whole() -> None:
        async with served(limit, before) as page:
            await work(page)

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_everything_first_and_then_what_has_changed() -> None:
    async def work(page: Page) -> None:
        async with page.stream() as message:
            first = await message()
            assert (first["whole"], first["link"], first["head"]["run_id"]) == (True, "live", "abcd")
            assert [host["name"] for host in first["hosts"]] == ["a"]
            assert [line[2] for line in first["log"]] == ["host a was added with 1 slot", "host a is there"]
            seq = first["log"][-1][0]
            page.run.hosts("a", "b")
            page.run.take(events.DrainRequested("b", None, "it runs hot"), "host b is drained: it runs hot")
            reported = await message()
            while "log" not in reported:
                reported = await message()
            assert reported["whole"] is False
            assert all(line[0] > seq for line in reported["log"])
            assert "host b is drained: it runs hot" in [line[2] for line in reported["log"]]
            assert "rounds" not in reported

    serve(work)


def test_what_workers_have_written_is_handed_out() -> None:
    async def work(page: Page) -> None:
        lines = [
            agent_pb2.OutputLine(worker_id=1, slot=number % 2, stderr=number == 1, text=text)
            for number, text in enumerate([b"one", b"two \xff\x1b[2J", b"three"])
        ]
        page.run.output.add("a", agent_pb2.ForwardOutputRequest(lines=lines))

        async def asked(query: str) -> Any:
            async with page.get(f"/{SECRET}/output?{query}") as answer:
                assert answer.status == 200
                return await answer.json()

        found = await asked("")
        assert found["why"] == ""
        assert [[seq, *rest] for seq, _, *rest in found["lines"]] == [
            [1, "a:0", False, "one", "a:0", 1, False],
            [2, "a:1", True, "two \ufffd\\x1b[2J", "a:1", 1, False],
            [3, "a:0", False, "three", "a:0", 1, False],
        ]
        assert [line[0] for line in (await asked("host=a&slot=0&since=1"))["lines"]] == [3]
        for wrong in ("slot=x", "since=-1", "slot=9999999999", "since="):
            async with page.get(f"/{SECRET}/output?{wrong}") as answer:
                assert answer.status == 400

    serve(work)


def test_a_late_browser_sees_progress_from_the_start() -> None:
    def before(run: Run) -> None:
        run.hosts("a")
        for steps in range(5):
            run.reports(steps * 10, loss=1.0 / (steps + 1))

    async def work(page: Page) -> None:
        async with page.stream() as message:
            curve = (await message())["curve"]
            assert [point[1] for point in curve["points"]] == [0, 10, 20, 30, 40]
            assert curve["progress"]["reported"] == {"loss": 0.2}

    serve(work, before=before)


def test_a_run_whose_first_events_are_forgotten() -> None:
    def before(run: Run) -> None:
        for number in range(30):
            run.hosts(f"h{number}")

    async def work(page: Page) -> None:
        async with page.stream() as message:
            first = await message()
            assert [host["name"] for host in first["hosts"]] == ["h29"]
            assert {line[2].split()[1] for line in first.get("log", [])} < {"h28", "h29"}
            page.run.take(events.HostsObserved(HostSet((Host("z", 1),))), "host h29 is gone")
            hosts: dict[str, int] = {}
            reported: dict[str, Any] = {}
            while "log" not in reported:
                reported = await message()
                hosts |= {host["name"]: host["slots"] for host in reported.get("hosts", [])}
            assert hosts == {"h29": 0, "z": 1}
            assert "host h29 is gone" in [line[2] for line in reported["log"]]

    serve(work, limit=300, before=before)


def test_the_end_of_the_run_is_shown_and_the_page_stays() -> None:
    async def work(page: Page) -> None:
        async with page.stream() as message:
            await message()
            page.run.take(events.StopRequested("enough"))
            reported = await message()
            while reported["link"] != "ended":
                reported = await message()
        async with page.stream() as message:
            later = await message()
            assert (later["link"], later["head"]["doing"]) == ("ended", "enough")
            assert later["head"]["ended"]["end"] == "stopped"

    serve(work)


def test_a_driver_that_is_lost_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLL_INTERVAL", "IDLE_POLL_INTERVAL", "RETRY_INTERVAL"):
        monkeypatch.setattr(feed_module, name, 0.05)

    async def work(page: Page) -> None:
        async with page.stream() as message:
            assert (await message())["link"] == "live"
            await page.run.vanish()
            reported = await message()
            while reported["link"] != "lost":
                reported = await message()
            assert "its driver does not answer" in reported["why"]
            page.run.hosts("a", "c")
            await page.run.serve()
            names: set[str] = set()
            while reported["link"] != "live" or "c" not in names:
                reported = await message()
                names |= {host["name"] for host in reported.get("hosts", [])}

    serve(work)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        f"/{SECRET}",
        f"/{SECRET}x/",
        "/hus/",
        f"/{SECRET}/no.js",
        f"/{SECRET}/..%2f..%2fcli.py",
        "/%00/",
        "//",
        "/ü/",
    ],
)
def test_every_other_path_is_unknown(path: str) -> None:
    async def work(page: Page) -> None:
        async with page.get(path) as response:
            assert response.status == 404
            assert SECRET not in await response.text()

    serve(work)


def test_other_names_and_other_methods_are_refused() -> None:
    async def work(page: Page) -> None:
        async with page.get(f"/{SECRET}/", Host="evil.example") as response:
            assert response.status == 421
            assert "edriver" not in await response.text()
        async with page.session.post(f"{page.url}/{SECRET}/") as response:
            assert response.status == 405

    serve(work)


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("127.0.0.1:8000", True),
        ("localhost:8000", True),
        ("LOCALHOST", True),
        ("[::1]:8000", True),
        ("10.0.0.7:80", True),
        ("evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("", False),
        ("x:y", False),
    ],
)
def test_which_host_names_are_this_machines(host: str, ours: bool) -> None:
    assert is_ours(host) is ours


def test_files_come_with_a_strict_policy_and_from_nowhere_else() -> None:
    async def work(page: Page) -> None:
        for name in ("", "page.css", "page.js", "story.js", "figures.js", "tables.js", "plotly.js"):
            async with page.get(f"/{SECRET}/{name}") as response:
                text = await response.text()
                assert response.status == 200
                policy = response.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'none'; script-src 'self'; ")
                assert "http" not in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert name == "plotly.js" or ("innerHTML" not in text and "//cdn" not in text)

    serve(work)


def test_a_bounded_number_of_browsers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_STREAMS", 2)

    async def work(page: Page) -> None:
        async with page.stream() as first:
            await first()
            async with page.stream() as second:
                await second()
                async with page.get(f"/{SECRET}/events") as response:
                    assert response.status == 503
                    assert await response.text() == "2 pages are open already: close one\n"
        for _ in range(500):  # those that have left make room, as soon as that is noticed
            page.run.hosts("a", "b") if page.run.now % 2 else page.run.hosts("a")
            async with page.get(f"/{SECRET}/events") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.02)
        raise AssertionError("no room is made")

    serve(work)


def test_a_browser_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "WRITE_TIMEOUT", 0.2)
    monkeypatch.setattr(server_module, "MESSAGE_INTERVAL", 0.0)

    async def work(page: Page) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(page.url.rpartition(":")[2]), limit=1024)
        writer.write(f"GET /{SECRET}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await writer.drain()
        await reader.readuntil(b"data: ")
        assert page.server.browsers == 1

        def dropped() -> bool:
            page.run.take(events.Ticked(), f"{page.run.now} {'x' * 100_000}")
            return not page.server.browsers

        await until_async(dropped)
        writer.close()

    serve(work, limit=64_000_000)


@pytest.mark.parametrize("payload", [b"", f"GET /{SECRET}/ HTTP/1.1\r\nHost: localhost\r\n".encode()])
def test_a_caller_without_a_whole_request_is_hung_up_on(monkeypatch: pytest.MonkeyPatch, payload: bytes) -> None:
    monkeypatch.setattr(server_module, "REQUEST_TIMEOUT", 0.2)

    async def work(page: Page) -> None:
        async with page.stream() as message:
            await message()
            reader, writer = await asyncio.open_connection("127.0.0.1", int(page.url.rpartition(":")[2]))
            writer.write(payload)
            assert await reader.read() == b""
            writer.close()
            page.run.hosts("a", "b")
            assert await message(), "a browser that reads is silent, too, and stays"

    serve(work)


def test_a_caller_that_asks_for_other_paths_is_hung_up_on_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers_module, "AUTHENTICATION_TIMEOUT", 0.2)

    async def work(page: Page) -> None:
        async with page.stream() as message:
            await message()
            reader, writer = await asyncio.open_connection("127.0.0.1", int(page.url.rpartition(":")[2]))
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    writer.write(b"GET /guess/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    await reader.readuntil(b"\r\n\r\nnot found\n")
            writer.close()
            page.run.hosts("a", "b")
            assert await message(), "a browser that has shown the path stays"

    serve(work)


def test_idle_callers_make_room_the_oldest_first_and_browsers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers_module, "MAX_UNAUTHENTICATED", 2)

    async def work(page: Page) -> None:
        port = int(page.url.rpartition(":")[2])
        async with page.stream() as message:
            await message()
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
            idle[-1][1].write(b"GET /guess/ HTTP/1.1\r\nHost: localhost\r\n\r\n")  # the last ones are still served
            assert b"404" in await idle[-1][0].readline()
            for reader, _ in idle[:2]:
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
            assert not idle[-1][0].at_eof()
            async with page.get(f"/{SECRET}/") as response:
                assert response.status == 200
            page.run.hosts("a", "b")
            assert await message()
            for _, writer in idle:
                writer.close()

    serve(work)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"OPTIONS * HTTP/1.1", id="options-of-the-server"),
        pytest.param(b"CONNECT example.org:443 HTTP/1.1", id="connect"),
        pytest.param(b"TRACE / HTTP/1.1", id="trace"),
        pytest.param(b"GET http://127.0.0.1 HTTP/1.1", id="no-path"),
        pytest.param(b"GET /%ff/ HTTP/1.1", id="no-utf-8"),
        pytest.param(b"GET /\xff\xfe HTTP/1.1", id="raw-bytes"),
        pytest.param(b"POST /hush/ HTTP/1.1", id="post"),
    ],
)
def test_a_strange_request_gets_an_answer_and_no_traceback(line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def work(page: Page) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(page.url.rpartition(":")[2]))
        writer.write(line + b"\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        answer = await reader.readline()
        assert 400 <= int(answer.split()[1]) < 500, answer
        writer.close()

    serve(work)
    assert [record.getMessage() for record in caplog.records if record.name.startswith(("aiohttp", "edriver"))] == []
