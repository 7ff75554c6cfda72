"""A driver's service for agents over real gRPC, for a test that is its agent."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

from edriver.common.release import PROTOCOL, VERSION
from edriver.driver.agents.agent_service import AgentServer
from edriver.driver.agents.dial_in_hosts import DialInHosts
from edriver.driver.agents.registry import AgentRegistry
from edriver.driver.feeds.inbound import Inbound, InboundMessage
from edriver.driver.feeds.mailbox import Mailbox
from edriver.model import events
from edriver.v1 import agent_pb2, agent_pb2_grpc
from edriver.v1.agent_pb2 import ConnectRequest, ConnectResponse
from edriver.wire.conversion import duration

WELCOME = agent_pb2.Welcome(
    command=["train"], driver_lease=duration(5.0), worker_lease=duration(9.0), output_folder="/out", agent_id=1
)

Stream = grpc.aio.StreamStreamCall[ConnectRequest, ConnectResponse]


def secret_of(agent_id: int) -> bytes:
    """The secret of an agent, where they are expected in the order of their ids."""
    return b"secret %d" % agent_id


class Time:
    """A clock and a sleep for the server's heartbeat: nothing passes until `advance`."""

    def __init__(self) -> None:
        self.now = 100.0
        self._sleepers: asyncio.Queue[tuple[float, asyncio.Future[None]]] = asyncio.Queue()

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.put_nowait((self.now + seconds, woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Let so much time pass at once; returns when the server sleeps until later."""
        self.now += seconds
        until, sleeper = await self._sleepers.get()
        while until <= self.now:
            sleeper.set_result(None)
            until, sleeper = await self._sleepers.get()
        self._sleepers.put_nowait((until, sleeper))


class KnownDialInHosts(DialInHosts):
    """Attributes:
    arrived: set once a host has.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arrived = asyncio.Event()

    def register(self, host: str, slots: int) -> asyncio.Future[int]:
        place = super().register(host, slots)
        self.arrived.set()
        return place


@dataclass
class Driver:
    """A served AgentServer with the agents that it knows, and what came out of it."""

    registry: AgentRegistry
    inbox: Mailbox[Inbound]
    time: Time
    channel: grpc.aio.Channel
    output: list[tuple[str, agent_pb2.ForwardOutputRequest]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    received: list[agent_pb2.WorkerHeartbeat] = field(default_factory=list)
    dial_in_hosts: KnownDialInHosts = field(default_factory=lambda: KnownDialInHosts())
    worker_count: list[int] = field(default_factory=lambda: [0])

    def stub(self) -> agent_pb2_grpc.AgentServiceAsyncStub:
        return agent_pb2_grpc.AgentServiceStub(self.channel)

    async def dial(
        self, ack: int = 0, run_id: str = "run", host: str = "a", agent_id: int = 1, secret: bytes | None = None
    ) -> Stream:
        stream = self.stub().Connect()
        shown = secret_of(agent_id) if secret is None else secret
        hello = agent_pb2.Hello(
            run_id=run_id, host=host, agent_id=agent_id, pid=7, version=VERSION, protocol=PROTOCOL, secret=shown
        )
        await stream.write(ConnectRequest(hello=hello, ack=ack))
        return stream

    async def arrive(self, host: str) -> Stream:
        """A host dials in by itself, and is let in as agent 1."""
        stream = self.stub().Connect()
        await stream.write(
            ConnectRequest(
                hello=agent_pb2.Hello(run_id="run", host=host, pid=7, version=VERSION, protocol=PROTOCOL, slots=1)
            )
        )
        await self.dial_in_hosts.arrived.wait()
        self.registry.expect(host, 1)
        assert self.dial_in_hosts.admit(host, 1)
        return stream

    async def event(self) -> events.Event:
        """The next event; what came with it is safe from then on."""
        while True:
            found = await self.inbox.get()
            assert found is not None
            if not isinstance(found, InboundMessage):
                return found
            self.registry.mark_durable(found.agent_id, found.seq)
            if found.event is not None:
                return found.event


@asynccontextmanager
async def driver(welcome: agent_pb2.Welcome = WELCOME) -> AsyncIterator[Driver]:
    with tempfile.TemporaryDirectory(prefix="ed-") as folder:
        address = f"unix:{Path(folder, 's')}"
        time = Time()
        inbox: Mailbox[Inbound] = Mailbox(100)
        output: list[tuple[str, agent_pb2.ForwardOutputRequest]] = []
        ended: list[int] = []
        received: list[agent_pb2.WorkerHeartbeat] = []
        dial_in_hosts = KnownDialInHosts()
        worker_count = [0]
        draw_secret = map(secret_of, itertools.count(1)).__next__
        registry = AgentRegistry(inbox, lambda: time.now, ended.append, draw_secret, lambda: worker_count[0])
        server = AgentServer(
            "run",
            welcome,
            registry,
            inbox,
            lambda host, batch: output.append((host, batch)),
            on_agent_ended=ended.append,
            dial_in_hosts=dial_in_hosts,
            on_progress=received.append,
        )
        service = grpc.aio.server()
        agent_pb2_grpc.add_AgentServiceServicer_to_server(server, service)
        service.add_insecure_port(address)
        await service.start()
        beating = asyncio.create_task(registry.send_heartbeats(time.sleep))
        async with grpc.aio.insecure_channel(address) as channel:
            yield Driver(registry, inbox, time, channel, output, ended, received, dial_in_hosts, worker_count)
        beating.cancel()
        await service.stop(grace=5)


def serve(work: Callable[[Driver], Coroutine[None, None, None]], welcome: agent_pb2.Welcome = WELCOME) -> None:
    async def served() -> None:
        async with driver(welcome) as made:
            await work(made)

    asyncio.run(asyncio.wait_for(served(), 30))


async def read(stream: Stream) -> ConnectResponse:
    message = await stream.read()
    assert isinstance(message, ConnectResponse), f"the stream has ended: {await stream.code()}"
    return message


async def ended(stream: Stream) -> bool:
    """Read on; returns whether there was no further message."""
    return not isinstance(await stream.read(), ConnectResponse)


async def connect(made: Driver, *workers: int) -> Stream:
    """A first connection of agent 1 on host a, past its Welcome; these workers have been started there."""
    made.registry.expect("a", 1)
    stream = await made.dial()
    assert (await read(stream)).welcome == WELCOME
    assert await made.event() == events.AgentConnected("a", 1)
    for worker_id in workers:
        made.registry.send("a", start(worker_id))
        await read(stream)
    return stream


def start(worker_id: int) -> ConnectResponse:
    return ConnectResponse(start_worker=agent_pb2.StartWorker(worker_id=worker_id, slot=0))


def exited(seq: int) -> ConnectRequest:
    return ConnectRequest(seq=seq, worker_exited=agent_pb2.WorkerExited(worker_id=seq, code=-9, tail="bye"))
