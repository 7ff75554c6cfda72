"""The clients against a served run: what they return, how they resume after a disconnect, which errors they raise."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from edriver.client import Address, AsyncClient, Client, RunError, elsewhere
from edriver.client.requester import own_name
from edriver.driver.core.membership import Membership
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.progress import ProgressTracker
from edriver.driver.services.control import ControlServer
from edriver.driver.services.status import StatusServer
from edriver.model import events
from edriver.model.hosts import Host, HostSet
from edriver.model.settings import Settings
from edriver.v1 import control_pb2_grpc, status_pb2, status_pb2_grpc
from tests.told_events import told


class Run:
    """A run on the given hosts, with at least one worker and at most three; its server can be stopped."""

    def __init__(self, folder: Path) -> None:
        self.membership = Membership(Settings(np=1, min_np=1, max_np=3), now=0.0)
        self.event_history = EventHistory(self.membership, ProgressTracker(lambda: 0.0), lambda: 0.0)
        self.status = StatusServer("abcd", self.membership, self.event_history, lambda: 0.0)
        self.control = ControlServer(self.membership, self.take, lambda *wish: self.take(events.StopRequested(*wish)))
        self.address = Address("abcd", f"unix:{folder / 's'}")
        self._server: grpc.aio.Server | None = None

    async def serve(self) -> None:
        self._server = grpc.aio.server()
        status_pb2_grpc.add_StatusServiceServicer_to_server(self.status, self._server)
        control_pb2_grpc.add_ControlServiceServicer_to_server(self.control, self._server)
        self._server.add_insecure_port(self.address.target)
        await self._server.start()

    async def vanish(self) -> None:
        assert self._server is not None
        await self._server.stop(None)

    def take(self, event: events.Event) -> None:
        told(self.event_history, event, self.membership.step(event, 0.0))
        self.status.announce()

    def hosts(self, *names: str) -> None:
        self.take(events.HostsObserved(HostSet(tuple(Host(name, 1) for name in names))))


@asynccontextmanager
async def running() -> AsyncIterator[Run]:
    with tempfile.TemporaryDirectory(prefix="ed-") as folder:
        run = Run(Path(folder))
        run.hosts("a", "b")
        await run.serve()
        try:
            yield run
        finally:
            await run.vanish()


def serve(work: Callable[[Run], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with running() as run:
            await work(run)

    asyncio.run(asyncio.wait_for(whole(), 30))


def blocking(run: Run, work: Callable[[Client], None]) -> Coroutine[Any, Any, None]:
    """Something that the blocking client does, in a thread."""

    def whole() -> None:
        with Client(run.address) as client:
            work(client)

    return asyncio.to_thread(whole)


def test_the_blocking_client_looks_and_steers() -> None:
    def work(client: Client) -> None:
        assert [host.name for host in client.status().hosts] == ["a", "b"]
        assert client.rounds() == []
        assert client.progress_history() == []
        assert client.preview_drain("b").slots_left == 1
        assert client.drain("b", reason="it runs hot") == 1
        client.undrain("b")
        client.resize(2)
        known = client.events()
        assert [event.seq for event in known] == list(range(1, len(known) + 1))
        assert client.events(known[-1].seq) == []
        client.stop("enough")
        reported = list(client.watch(known[-1].seq))
        assert reported[-1].run_ended.end == status_pb2.RUN_END_STOPPED
        assert reported[-1].text == f"enough (requested by {own_name()})"
        assert reported[-1].cause.requester == own_name()

    serve(lambda run: blocking(run, work))


def test_the_client_for_asyncio_looks_and_steers() -> None:
    async def work(run: Run) -> None:
        async with AsyncClient(run.address, requester="ada") as client:
            assert [host.name for host in (await client.status()).hosts] == ["a", "b"]
            assert await client.rounds() == []
            assert await client.progress_history() == []
            assert (await client.preview_drain("b")).slots_left == 1
            assert await client.drain("b", reason="it runs hot") == 1
            await client.undrain("b")
            await client.resize(2)
            known = await client.events()
            assert [event.seq for event in known] == list(range(1, len(known) + 1))
            await client.stop("enough")
            reported = [event async for event in client.watch(known[-1].seq)]
            assert reported[-1].text == "enough (requested by ada)"

    serve(work)


def test_whether_it_may_steer_is_found_out_without_steering() -> None:
    async def work(run: Run) -> None:
        before = run.event_history.last_seq
        async with AsyncClient(run.address) as client:
            await client.check_may_steer()
        await blocking(run, lambda client: client.check_may_steer())
        assert run.event_history.last_seq == before

    serve(work)


def test_a_watch_goes_on_without_a_gap_when_the_driver_comes_back() -> None:
    async def work(run: Run) -> None:
        async with AsyncClient(run.address) as client:
            watching = client.watch()
            seen = [(await anext(watching)).seq]
            await run.vanish()
            run.hosts("a", "c")
            await run.serve()
            run.take(events.StopRequested("enough"))
            seen += [event.seq async for event in watching]
            assert seen == list(range(1, run.event_history.last_seq + 1))

    serve(work)


def test_a_blocking_watch_goes_on_without_a_gap_in_whichever_thread_it_is_read() -> None:
    async def work(run: Run) -> None:
        with Client(run.address) as client:
            watching: Iterator[status_pb2.Event] = client.watch()
            loop = asyncio.get_running_loop()
            with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
                seen = [(await loop.run_in_executor(first, next, watching)).seq]
                await run.vanish()
                await run.serve()
                run.take(events.StopRequested("enough"))
                seen += [event.seq for event in await loop.run_in_executor(second, list, watching)]
            assert seen == list(range(1, run.event_history.last_seq + 1))

    serve(work)


@pytest.mark.parametrize(
    ("ask", "code", "sentence"),
    [
        pytest.param(lambda c: c.events(99), grpc.StatusCode.OUT_OF_RANGE, "there is no event 99 yet", id="future"),
        pytest.param(
            lambda c: list(c.watch(99)), grpc.StatusCode.OUT_OF_RANGE, "there is no event 99 yet", id="watch-future"
        ),
        pytest.param(lambda c: c.drain("z"), grpc.StatusCode.NOT_FOUND, "this run has no host 'z'", id="no-host"),
        pytest.param(
            lambda c: (c.drain("a"), c.drain("b")), grpc.StatusCode.FAILED_PRECONDITION, "the run needs 1", id="last"
        ),
        pytest.param(lambda c: c.resize(9), grpc.StatusCode.INVALID_ARGUMENT, "9 is not in this range", id="too-large"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(
    ask: Callable[[Client], object], code: grpc.StatusCode, sentence: str
) -> None:
    def work(client: Client) -> None:
        with pytest.raises(RunError, match=sentence) as caught:
            ask(client)
        assert caught.value.code is code
        assert str(caught.value).startswith("run abcd: ")

    serve(lambda run: blocking(run, work))


def test_a_driver_that_is_gone(tmp_path: Path) -> None:
    with Client(Address("abcd", f"unix:{tmp_path / 's'}")) as client:
        with pytest.raises(RunError, match="run abcd: its driver does not answer") as caught:
            client.status()
        assert caught.value.code is grpc.StatusCode.UNAVAILABLE


def test_credentials_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="No such file"):
        elsewhere(tmp_path / "nothing")
    (tmp_path / "file").write_text("{}")
    with pytest.raises(RunError, match="not a join config of edriver's driver"):
        elsewhere(tmp_path / "file")


class NeverEnding(StatusServer):
    """A driver that dies between its last event and the end of the stream: that never comes."""

    async def Watch(self, request: status_pb2.WatchRequest, context: Any) -> AsyncIterator[status_pb2.WatchResponse]:
        async for response in super().Watch(request, context):
            yield response
        await asyncio.Event().wait()


def test_a_watch_ends_with_the_last_event() -> None:
    def watch(client: Client) -> None:
        assert list(client.watch())[-1].HasField("run_ended")

    async def work() -> None:
        with tempfile.TemporaryDirectory(prefix="ed-") as folder:
            run = Run(Path(folder))
            run.status = NeverEnding("abcd", run.membership, run.event_history, lambda: 0.0)
            run.hosts("a")
            run.take(events.StopRequested("enough"))
            await run.serve()
            async with AsyncClient(run.address) as client:
                assert [event async for event in client.watch()][-1].HasField("run_ended")
            await blocking(run, watch)
            await run.vanish()

    asyncio.run(asyncio.wait_for(work(), 30))
