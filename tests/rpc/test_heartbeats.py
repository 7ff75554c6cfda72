"""How often driver and agents speak in a large run, over real gRPC; one of them may be of an older release."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from edriver.agent.control_stream import HEARTBEAT_PERIOD, ControlStream
from edriver.agent.heartbeat_times import until_next
from edriver.common.release import PROTOCOL, VERSION
from edriver.driver.agents.periods import LARGE_RUN_PERIOD, SMALL_RUN
from edriver.driver.agents.registry import AGENT_LEASE, HEARTBEAT_INTERVAL
from edriver.driver.feeds.inbound import InboundMessage
from edriver.model import events
from edriver.v1 import agent_pb2, notification_pb2
from edriver.v1.agent_pb2 import ConnectRequest, ConnectResponse
from edriver.wire.conversion import duration
from tests.rpc.served_driver import WELCOME, Driver, Stream, connect, exited, read, secret_of, serve, start
from tests.waiting import until_async

BASELINE = Path(__file__).parents[2] / "proto" / "baseline.binpb"

RUN_TIME = 1000.7
"""Seconds since the epoch."""

PATIENT = agent_pb2.Welcome()
"""Of a driver whose lease is long, as it is by default."""
PATIENT.CopyFrom(WELCOME)
PATIENT.driver_lease.CopyFrom(duration(600.0))


def expect_others(made: Driver) -> None:
    """The run is a large one, with agent 1 on host a."""
    made.registry.expect("a", 1)
    for agent_id in range(2, SMALL_RUN + 2):
        made.registry.expect(f"host-{agent_id}", agent_id)
    made.worker_count[0] = 8000


async def dial_as_one_of_many(made: Driver) -> Stream:
    expect_others(made)
    stream = await made.dial()
    assert (await read(stream)).HasField("welcome")
    assert await made.event() == events.AgentConnected("a", 1)
    return stream


async def heard_until_order(made: Driver, stream: Stream) -> list[ConnectResponse]:
    """What the driver has sent up to now."""
    made.registry.send("a", start(1))
    found = []
    while not (message := await read(stream)).HasField("start_worker"):
        found.append(message)
    return found


class Agent:
    """The agent's own end of a control stream."""

    def __init__(self, made: Driver) -> None:
        self.ordered = asyncio.Event()
        hello = agent_pb2.Hello(
            run_id="run", host="a", agent_id=1, pid=7, version=VERSION, protocol=PROTOCOL, secret=secret_of(1)
        )
        self.stream = ControlStream(
            made.stub(),
            hello,
            asyncio.get_running_loop().time,
            lambda _welcome: None,
            lambda _order: self.ordered.set(),
            lambda _shutdown: None,
            run_clock=lambda: RUN_TIME,
        )
        self.running = asyncio.create_task(self.stream.run())

    async def take_order(self, made: Driver) -> None:
        """Receive an order, and with it all that was sent before."""
        self.ordered.clear()
        made.registry.send("a", start(1))
        await self.ordered.wait()


async def one_of_many(made: Driver) -> Agent:
    """A connected agent of a large run, which has had a heartbeat of the driver's."""
    expect_others(made)
    agent = Agent(made)
    assert await made.event() == events.AgentConnected("a", 1)
    await made.time.advance(HEARTBEAT_INTERVAL)
    await agent.take_order(made)
    return agent


def test_an_agent_of_a_large_run_speaks_as_often_as_it_is_asked_to() -> None:
    async def work(made: Driver) -> None:
        agent = await one_of_many(made)
        assert (agent.stream.heartbeat_period, agent.stream.progress_period) == (LARGE_RUN_PERIOD, 32.0)
        for agent_id in range(2, SMALL_RUN + 2):
            made.registry.give_up(agent_id)
        await made.time.advance(HEARTBEAT_INTERVAL)
        await agent.take_order(made)
        assert (agent.stream.heartbeat_period, agent.stream.progress_period) == (HEARTBEAT_PERIOD, 0.0)
        agent.running.cancel()
        await asyncio.wait({agent.running})

    serve(work)


def test_agents_of_a_large_run_send_their_heartbeats_in_step() -> None:
    async def work(made: Driver) -> None:
        agent = await one_of_many(made)
        assert agent.stream.until_heartbeat == until_next(RUN_TIME, LARGE_RUN_PERIOD, 1) != LARGE_RUN_PERIOD
        for agent_id in range(2, SMALL_RUN + 2):
            made.registry.give_up(agent_id)
        await made.time.advance(HEARTBEAT_INTERVAL)
        await agent.take_order(made)
        assert agent.stream.until_heartbeat == HEARTBEAT_PERIOD
        agent.running.cancel()
        await asyncio.wait({agent.running})

    serve(work)


def test_a_heartbeat_that_has_no_news_acknowledges_and_renews_the_lease() -> None:
    async def work(made: Driver) -> None:
        stream = await connect(made, 1)
        for _ in range(int(2 * AGENT_LEASE / HEARTBEAT_INTERVAL)):
            await stream.write(ConnectRequest(ack=1, heartbeat=agent_pb2.Heartbeat()))
            await until_async(lambda: made.registry.peer(1).lease.silence == 0.0)  # type: ignore[union-attr]
            await made.time.advance(HEARTBEAT_INTERVAL)
        assert made.inbox.drain() == []
        again = await made.dial()
        assert (await read(again)).HasField("welcome")
        made.registry.send("a", start(2))
        assert (await read(again)).start_worker.worker_id == 2  # the first has arrived

    serve(work)


def test_a_heartbeat_that_is_numbered_is_acknowledged() -> None:
    async def work(made: Driver) -> None:
        stream = await connect(made)
        await stream.write(ConnectRequest(seq=1, heartbeat=agent_pb2.Heartbeat()))
        assert await made.inbox.get() == InboundMessage(None, 1, 1, 0)

    serve(work)


def test_what_follows_a_heartbeat_in_the_same_message_is_read() -> None:
    async def work(made: Driver) -> None:
        stream = await connect(made, 1)
        await stream.write(ConnectRequest(heartbeat=agent_pb2.Heartbeat(), more=[exited(1)]))
        assert await made.event() == events.WorkerExited(1, -9, "bye")

    serve(work)


def test_a_driver_of_an_older_release_that_takes_over_hears_everything_every_second() -> None:
    """Its first words ask for nothing."""

    async def work(made: Driver) -> None:
        agent = await one_of_many(made)
        assert agent.stream.progress_period == 32.0
        peer = made.registry.peer(1)
        assert peer is not None
        peer.close()  # the agent dials again, and another driver answers
        await until_async(lambda: not agent.stream.progress_period)
        assert agent.stream.heartbeat_period == HEARTBEAT_PERIOD
        agent.running.cancel()
        await asyncio.wait({agent.running})

    serve(work)


def test_the_driver_of_a_large_run_leaves_out_what_says_nothing() -> None:
    async def work(made: Driver) -> None:
        stream = await dial_as_one_of_many(made)
        for _ in range(60):
            await made.time.advance(HEARTBEAT_INTERVAL)
        heard = await heard_until_order(made, stream)
        assert [message.WhichOneof("kind") for message in heard] == ["heartbeat"] * 3  # what it asks for, and two more
        await stream.write(exited(1))
        while await made.event() != events.WorkerExited(1, -9, "bye"):
            pass  # it was silent, and is there again
        await made.time.advance(HEARTBEAT_INTERVAL)
        assert (await read(stream)).ack == 1  # as soon as in a small run

    serve(work, PATIENT)


def test_a_driver_with_a_short_lease_speaks_every_second_at_any_size() -> None:
    async def work(made: Driver) -> None:
        stream = await dial_as_one_of_many(made)
        for _ in range(20):
            await made.time.advance(HEARTBEAT_INTERVAL)
        assert len(await heard_until_order(made, stream)) == 20

    serve(work)


def test_an_agent_of_an_older_release_takes_part_in_a_large_run() -> None:
    """It reads what it is asked for with the messages that it knows, and goes on as before."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(BASELINE.read_bytes()).file:
        pool.Add(file)
    response: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("edriver.v1.ConnectResponse"))
    assert "progress_period" not in pool.FindMessageTypeByName("edriver.v1.Heartbeat").fields_by_name

    async def work(made: Driver) -> None:
        stream = await dial_as_one_of_many(made)
        made.registry.send("a", start(1))
        await read(stream)
        await made.time.advance(HEARTBEAT_INTERVAL)
        read_by_it = response.FromString((await read(stream)).SerializeToString())
        assert read_by_it.WhichOneof("kind") == "heartbeat"
        beat = agent_pb2.Heartbeat()
        beat.workers.add(worker_id=1, pid=8, progress=notification_pb2.WorkerProgress(boundaries=5))
        for _ in range(int(2 * AGENT_LEASE)):
            await stream.write(ConnectRequest(heartbeat=beat))
            await until_async(lambda: made.received)
            assert made.received.pop().progress.boundaries == 5
            await made.time.advance(HEARTBEAT_INTERVAL)
        assert made.inbox.drain() == []

    serve(work, PATIENT)
