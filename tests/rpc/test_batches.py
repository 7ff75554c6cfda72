"""Messages of a control stream that wait at the same time go as one, to a side that reads that; in order, and once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from edriver.agent import control_stream
from edriver.agent.control_stream import ControlStream
from edriver.common.release import PROTOCOL, VERSION
from edriver.model import events
from edriver.v1 import agent_pb2
from edriver.v1.agent_pb2 import ConnectRequest, ConnectResponse
from edriver.wire.batches import MAX_BATCH, batched, parts_of
from edriver.wire.conversion import duration
from tests.rpc.served_driver import WELCOME, Driver, Stream, exited, read, secret_of, serve, start

READS_MORE = agent_pb2.Welcome(reads_more=True)
READS_MORE.MergeFrom(WELCOME)


def hello(reads_more: bool) -> agent_pb2.Hello:
    return agent_pb2.Hello(
        run_id="run",
        host="a",
        agent_id=1,
        pid=7,
        version=VERSION,
        protocol=PROTOCOL,
        secret=secret_of(1),
        reads_more=reads_more,
    )


async def dial(made: Driver, reads_more: bool = True) -> Stream:
    stream = made.stub().Connect()
    await stream.write(ConnectRequest(hello=hello(reads_more)))
    return stream


@pytest.mark.parametrize(
    ("reads_more", "sizes"), [(True, [1, MAX_BATCH, 2]), (False, [1] * (MAX_BATCH + 3))], ids=["as-one", "older-agent"]
)
def test_orders_that_wait(reads_more: bool, sizes: list[int]) -> None:
    async def work(made: Driver) -> None:
        made.registry.expect("a", 1)
        for worker_id in range(1, MAX_BATCH + 3):
            made.registry.send("a", start(worker_id))
        stream = await dial(made, reads_more)
        got = [await read(stream) for _ in sizes]
        assert [1 + len(message.more) for message in got] == sizes
        parts = [part for message in got for part in parts_of(message)]
        assert parts[0].HasField("welcome")
        assert [part.start_worker.worker_id for part in parts[1:]] == [*range(1, MAX_BATCH + 3)]
        assert [part.seq for part in parts] == [*range(MAX_BATCH + 3)]

    serve(work)


def test_what_an_agent_sends_as_one_is_taken_in_one_by_one_and_once() -> None:
    async def work(made: Driver) -> None:
        made.registry.expect("a", 1)
        stream = await dial(made)
        assert (await read(stream)).HasField("welcome")
        assert await made.event() == events.AgentConnected("a", 1)
        for worker_id in (1, 2, 3):
            made.registry.send("a", start(worker_id))
            await read(stream)
        await stream.write(batched(exited(1), [exited(2)]))
        await stream.write(batched(exited(1), [exited(2), exited(3)]))  # as after a reconnect
        assert [await made.event() for _ in range(3)] == [events.WorkerExited(n, -9, "bye") for n in (1, 2, 3)]
        assert made.inbox.drain() == []
        await stream.write(batched(exited(4), [exited(6)]))
        assert not isinstance(await stream.read(), ConnectResponse)  # a message is missing: the agent dials again

    serve(work)


class Call:
    """A stream whose driver only lets the agent in, and says this."""

    def __init__(self, welcome: agent_pb2.Welcome, expected: int, *said: ConnectResponse) -> None:
        self.written: list[ConnectRequest] = []
        self.all_there = asyncio.Event()
        self._answers = [*said, ConnectResponse(welcome=welcome)]
        self._expected = expected

    async def write(self, message: ConnectRequest) -> None:
        self.written.append(message)
        if sum(1 + len(each.more) for each in self.written) == self._expected:
            self.all_there.set()

    async def read(self) -> Any:
        if self._answers:
            return self._answers.pop()
        return await asyncio.get_running_loop().create_future()

    def cancel(self) -> None:
        pass


class Stub:
    """Opens it."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def Connect(self, **_: object) -> Call:
        return self._call


@pytest.mark.parametrize(
    ("welcome", "sizes"),
    [
        pytest.param(READS_MORE, [1, MAX_BATCH, 2], id="as one"),
        pytest.param(WELCOME, [1] * (MAX_BATCH + 3), id="older driver"),
    ],
)
def test_reports_that_wait(welcome: agent_pb2.Welcome, sizes: list[int]) -> None:
    async def work() -> None:
        call = Call(welcome, sum(sizes))
        stub: Any = Stub(call)
        clock = asyncio.get_running_loop().time
        control = ControlStream(stub, hello(False), clock, lambda _: None, lambda _: None, lambda _: None)
        for seq in range(1, MAX_BATCH + 3):
            control.send(exited(seq))
        running = asyncio.create_task(control.run())
        await asyncio.wait_for(call.all_there.wait(), 30)
        assert call.written[0].hello.reads_more
        assert [1 + len(message.more) for message in call.written] == sizes
        parts = [part for message in call.written[1:] for part in parts_of(message)]
        assert [part.seq for part in parts] == [*range(1, MAX_BATCH + 3)]
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(work())


@pytest.mark.parametrize(
    ("welcome", "period", "sizes"),
    [
        pytest.param(READS_MORE, 2.0, [1, 3], id="a large run"),
        pytest.param(READS_MORE, 0.0, [1, 1, 1, 1], id="a small run"),
        pytest.param(WELCOME, 2.0, [1, 1, 1, 1], id="older driver"),
    ],
)
def test_reports_that_follow_one_another(
    welcome: agent_pb2.Welcome, period: float, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_stream, "GATHER_SECONDS", 0.3)

    async def work() -> None:
        asked = agent_pb2.Heartbeat(heartbeat_period=duration(period) if period else None)
        call = Call(welcome, sum(sizes), ConnectResponse(heartbeat=asked))
        heard = asyncio.Event()
        stub: Any = Stub(call)
        clock = asyncio.get_running_loop().time
        control = ControlStream(
            stub,
            hello(False),
            clock,
            lambda _: None,
            lambda _: None,
            lambda _: None,
            on_heartbeat=lambda _: heard.set(),
        )
        running = asyncio.create_task(control.run())
        await asyncio.wait_for(heard.wait(), 30)
        for seq in range(1, sum(sizes)):
            control.send(exited(seq))
            for _ in range(5):
                await asyncio.sleep(0)  # what is sent at once, is sent by then
        await asyncio.wait_for(call.all_there.wait(), 30)
        assert [1 + len(message.more) for message in call.written] == sizes
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(work())


def test_as_many_reports_as_go_in_one_message_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_stream, "GATHER_SECONDS", 1000.0)

    async def work() -> None:
        large = agent_pb2.Heartbeat(heartbeat_period=duration(2.0))
        call = Call(READS_MORE, 1 + MAX_BATCH, ConnectResponse(heartbeat=large))
        heard = asyncio.Event()
        stub: Any = Stub(call)
        clock, ignored = asyncio.get_running_loop().time, lambda _: None
        control = ControlStream(
            stub, hello(False), clock, ignored, ignored, ignored, on_heartbeat=lambda _: heard.set()
        )
        running = asyncio.create_task(control.run())
        await asyncio.wait_for(heard.wait(), 30)
        for seq in range(1, MAX_BATCH + 1):
            control.send(exited(seq))
        await asyncio.wait_for(call.all_there.wait(), 30)
        assert [1 + len(message.more) for message in call.written] == [1, MAX_BATCH]
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(work())
