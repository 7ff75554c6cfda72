"""StatusService over real gRPC: all watchers receive every event, without a gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import pytest

from edriver.driver.core.membership import Membership
from edriver.driver.core.selection import plan_round
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.progress import ProgressTracker
from edriver.driver.observe.worker_output import WorkerOutput
from edriver.driver.services.status import StatusServer
from edriver.model import events
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import NO_VERSION, RoundId
from edriver.model.plan import Candidate
from edriver.model.settings import Settings
from edriver.model.store_address import StoreAddress
from edriver.v1 import agent_pb2, notification_pb2, status_pb2, status_pb2_grpc
from edriver.wire.conversion import epoch_seconds, round_id_message
from tests import serving
from tests.told_events import told

Following = grpc.aio.UnaryStreamCall[status_pb2.ReadOutputRequest, status_pb2.ReadOutputResponse]
Watching = grpc.aio.UnaryStreamCall[status_pb2.WatchRequest, status_pb2.WatchResponse]


@dataclass
class Run:
    """A run of one host or another, served."""

    event_history: EventHistory
    membership: Membership
    status: StatusServer
    output: WorkerOutput
    server: grpc.aio.Server
    stub: status_pb2_grpc.StatusServiceAsyncStub

    def take(self, event: events.Event) -> None:
        told(self.event_history, event, self.membership.step(event, 0.0))
        self.status.announce()

    def host(self, name: str) -> None:
        """Discovery finds this host, and no other."""
        self.take(events.HostsObserved(HostSet((Host(name, 1),))))

    def says(self, text: str) -> None:
        """A worker prints this line."""
        line = agent_pb2.OutputLine(worker_id=1, text=text.encode())
        self.output.add("a", agent_pb2.ForwardOutputRequest(lines=[line]))

    def watch(self, since: int = 0) -> Watching:
        return self.stub.Watch(status_pb2.WatchRequest(since=since))


@asynccontextmanager
async def served(limit: int = 1_000_000) -> AsyncIterator[Run]:
    membership = Membership(Settings(np=1, min_np=1, max_np=1), now=0.0)
    tracker = ProgressTracker(lambda: 0.0)
    event_history = EventHistory(membership, tracker, lambda: 0.0, limit)
    output = WorkerOutput(lambda: 0.0)
    status = StatusServer("run", membership, event_history, lambda: 0.0, output=output)
    service = (status_pb2_grpc.add_StatusServiceServicer_to_server, status)
    async with serving.server_and_channel(service) as (server, channel):
        stub = status_pb2_grpc.StatusServiceStub(channel)
        yield Run(event_history, membership, status, output, server, stub)


def serve(work: Callable[[Run], Coroutine[Any, Any, None]], limit: int = 1_000_000) -> None:
    async def whole() -> None:
        async with served(limit) as run:
            await work(run)

    asyncio.run(asyncio.wait_for(whole(), 20))


async def numbers(watching: Watching, count: int) -> list[int]:
    """The numbers of the next events."""
    found = []
    for _ in range(count):
        answer = await watching.read()
        assert isinstance(answer, status_pb2.WatchResponse)
        found.append(answer.event.seq)
    return found


async def refused(watching: Watching) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await watching.read()
    return caught.value.code(), caught.value.details() or ""


def test_a_watcher_receives_past_and_future_events() -> None:
    async def work(run: Run) -> None:
        run.host("a")
        known = run.event_history.last_seq
        watching = run.watch()
        assert await numbers(watching, known) == list(range(1, known + 1))
        run.host("b")
        assert await numbers(watching, run.event_history.last_seq - known) == list(
            range(known + 1, run.event_history.last_seq + 1)
        )

    serve(work)


def test_a_watcher_that_reads_more_receives_events_together() -> None:
    async def work(run: Run) -> None:
        for name in "abc":
            run.host(name)
        known = run.event_history.last_seq
        request = status_pb2.WatchRequest(since=1, reads_more=True)
        watchers = [aiter(run.stub.Watch(request)) for _ in range(2)]
        for watching in watchers:
            answer = await anext(watching)
            assert [event.seq for event in (answer.event, *answer.more)] == list(range(2, known + 1))
        run.host("d")
        run.take(events.StopRequested("enough"))
        for watching in watchers:
            seen = [event async for answer in watching for event in (answer.event, *answer.more)]
            assert [event.seq for event in seen] == list(range(known + 1, run.event_history.last_seq + 1))
        code, _ = await refused(run.stub.Watch(status_pb2.WatchRequest(since=1000, reads_more=True)))
        assert code is grpc.StatusCode.OUT_OF_RANGE

    serve(work)


def test_a_watcher_that_reconnects_misses_no_event() -> None:
    async def work(run: Run) -> None:
        run.host("a")
        first = run.watch()
        (seq,) = await numbers(first, 1)
        first.cancel()
        for name in "bcd":
            run.host(name)
        rest = run.event_history.last_seq - seq
        assert await numbers(run.watch(seq), rest) == list(range(seq + 1, run.event_history.last_seq + 1))

    serve(work)


def test_the_state_of_the_run_and_the_events_after_it() -> None:
    async def work(run: Run) -> None:
        run.host("a")
        answer = await run.stub.GetRun(status_pb2.GetRunRequest())
        assert [(host.name, host.slots) for host in answer.run.hosts] == [("a", 1)]
        watching = run.watch(answer.seq)
        run.host("b")
        assert await numbers(watching, 1) == [answer.seq + 1]

    serve(work)


def test_the_stream_ends_with_the_run() -> None:
    async def work(run: Run) -> None:
        watching = run.watch()
        run.host("a")
        run.take(events.StopRequested("enough"))
        reported = [answer.event async for answer in watching]
        assert reported[-1].WhichOneof("kind") == "run_ended"
        assert [event.seq for event in reported] == list(range(1, len(reported) + 1))

    serve(work)


def test_a_follower_has_the_end_of_the_output_before_the_server_stops() -> None:
    async def work(run: Run) -> None:
        following = run.stub.ReadOutput(status_pb2.ReadOutputRequest(follow=True))
        run.says("it trains")
        texts = [await text_of_next(following)]
        closing = asyncio.create_task(run.status.close())
        await asyncio.sleep(0)  # it has begun
        run.says("it is done")
        await closing
        await run.server.stop(None)  # what goes on is cancelled
        while (text := await text_of_next(following)) is not None:
            texts.append(text)
        assert texts == [b"it trains", b"it is done"]
        assert await following.code() is grpc.StatusCode.OK

    serve(work)


def test_output_of_a_worker_that_there_is_not() -> None:
    async def work(run: Run) -> None:
        run.says("it trains")
        for asked in ({"rank": 99}, {"host": "z"}, {"worker_id": 99}):
            request = status_pb2.ReadOutputRequest(**asked)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await run.stub.ReadOutput(request).read()
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
            assert caught.value.details() == "there is no such worker: the run has no workers now"
        assert await text_of_next(run.stub.ReadOutput(status_pb2.ReadOutputRequest())) == b"it trains"

    serve(work)


def test_a_follower_may_come_before_the_first_round_has_ranks() -> None:
    async def work(run: Run) -> None:
        following = run.stub.ReadOutput(status_pb2.ReadOutputRequest(rank=99, follow=True))
        await run.status.close()
        assert await text_of_next(following) is None
        assert await following.code() is grpc.StatusCode.OK

    serve(work)


async def text_of_next(following: Following) -> bytes | None:
    """The line in the next response, which has one; None: it was the last."""
    response = await following.read()
    if not isinstance(response, status_pb2.ReadOutputResponse):
        return None
    (line,) = response.lines
    return line.text


def test_a_watcher_that_asks_for_it_receives_progress_too() -> None:
    async def work(run: Run) -> None:
        plan = plan_round(RoundId(1, 1), 1, [Candidate(1, "a", 0, NO_VERSION, StoreAddress("a", 1))], first=True)
        run.event_history.tracker.assigned(plan)
        standing = notification_pb2.WorkerProgress(round_id=round_id_message(RoundId(1, 1)), boundaries=30)
        run.event_history.record_progress(agent_pb2.WorkerHeartbeat(worker_id=1, pid=7, progress=standing))
        known = (await run.stub.ListProgress(status_pb2.ListProgressRequest())).samples
        assert [(epoch_seconds(sample.time), sample.progress.steps) for sample in known] == [(0.0, 30)]
        watching = run.stub.Watch(status_pb2.WatchRequest(progress=True))
        answer = await watching.read()
        assert isinstance(answer, status_pb2.WatchResponse)
        assert (answer.HasField("event"), answer.progress.steps) == (False, 30)
        run.host("a")
        assert await numbers(watching, 1) == [1]

    serve(work)


def test_numbers_that_are_not_there() -> None:
    async def work(run: Run) -> None:
        for n in range(20):
            run.host(f"h{n}")
        code, sentence = await refused(run.watch(1000))
        assert (code, sentence) == (
            grpc.StatusCode.OUT_OF_RANGE,
            f"there is no event 1000 yet: the last one is {run.event_history.last_seq}",
        )
        code, sentence = await refused(run.watch(0))
        assert code is grpc.StatusCode.OUT_OF_RANGE
        assert "are no longer kept: call GetRun" in sentence
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await run.stub.ListEvents(status_pb2.ListEventsRequest(since=0))
        assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE

    serve(work, limit=300)


def test_events_and_rounds_in_portions() -> None:
    async def work(run: Run) -> None:
        for n in range(5):
            run.host(f"h{n}")
        answer = await run.stub.ListEvents(status_pb2.ListEventsRequest(since=2, limit=3))
        assert [event.seq for event in answer.events] == [3, 4, 5]
        assert list((await run.stub.ListRounds(status_pb2.ListRoundsRequest(limit=3))).rounds) == []

    serve(work)
