"""What is fuzzed: each target sends what a Fuzzer draws, and sees that nothing came of it and others are served."""

from __future__ import annotations

import abc
import asyncio
import gc
import logging
import random
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from edriver.common.join_config import SERVER_NAME
from edriver.common.release import PROTOCOL, VERSION
from edriver.driver.agents.agent_service import AgentServer
from edriver.driver.agents.dial_in_hosts import DialInHosts
from edriver.driver.agents.registry import AgentRegistry
from edriver.driver.core.membership import Membership
from edriver.driver.feeds.inbound import Inbound
from edriver.driver.feeds.mailbox import Mailbox
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.progress import ProgressTracker
from edriver.driver.services.control import ControlServer
from edriver.driver.services.status import StatusServer
from edriver.driver.services.tcp_endpoint import TcpEndpoint
from edriver.model import actions, events, limits
from edriver.model.cause import Cause, CauseKind
from edriver.model.hosts import Host, HostSet
from edriver.model.settings import Settings
from edriver.rendezvous.server.journal import ServerJournal
from edriver.rendezvous.server.runs import Runs
from edriver.rendezvous.server.service import RendezvousService, StoreService
from edriver.system.private_files import OwnFolder
from edriver.v1 import (
    agent_pb2,
    agent_pb2_grpc,
    control_pb2,
    control_pb2_grpc,
    notification_pb2,
    notification_pb2_grpc,
    rendezvous_pb2,
    rendezvous_pb2_grpc,
    status_pb2,
    status_pb2_grpc,
)
from edriver.wire.conversion import duration
from edriver.worker.rounds.notification import NotificationServer
from edriver.worker.rounds.participant import Participant
from tests.fuzz.messages import Fuzzer
from tests.serving import served

BOUND = 120.0
"""Seconds that one call may take."""

AGENT = "/edriver.v1.AgentService/"
CONTROL = "/edriver.v1.ControlService/"
NOTIFICATION = "/edriver.v1.NotificationService/"
STATUS = "/edriver.v1.StatusService/"


class Crashes(logging.Handler):
    """Collects the logged exceptions that were not caught, other than those for bytes that do not parse."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.name == "asyncio" or (text.startswith("Unexpected [") and "[DecodeError]" not in text):
            self.found.append(f"{record.name}: {text} {record.exc_info}")


class Target(abc.ABC):
    """One thing that is fuzzed.

    Args:
        seed: everything follows from it.
    """

    def __init__(self, seed: int) -> None:
        self.fuzzer = Fuzzer(random.Random(seed))

    async def run(self, inputs: int) -> None:
        """Send so many inputs; raises AssertionError if they had an effect that they must not have."""
        crashes, warnings = Crashes(), logging.getLogger("edriver")
        logging.getLogger().addHandler(crashes)
        level = warnings.level
        warnings.setLevel(logging.ERROR)  # there will be many
        try:
            await self.send(inputs)
            gc.collect()  # a task whose exception was never retrieved logs it when it is collected
        finally:
            logging.getLogger().removeHandler(crashes)
            warnings.setLevel(level)
        assert crashes.found == []

    @abc.abstractmethod
    async def send(self, inputs: int) -> None:
        """Send them, and see that nothing but what is allowed has happened."""


SECRETS = {1: b"of a", 2: b"of b"}


def hello(agent_id: int, host: str) -> agent_pb2.ConnectRequest:
    message = agent_pb2.Hello(
        protocol=PROTOCOL, run_id="run", host=host, agent_id=agent_id, pid=7, version=VERSION, secret=SECRETS[agent_id]
    )
    return agent_pb2.ConnectRequest(hello=message)


async def is_welcomed(channel: grpc.aio.Channel, agent_id: int, host: str) -> bool:
    """Whether an agent that does nothing wrong is let in."""
    stream = agent_pb2_grpc.AgentServiceStub(channel).Connect()
    await stream.write(hello(agent_id, host))
    first = await asyncio.wait_for(stream.read(), BOUND)
    stream.cancel()
    return isinstance(first, agent_pb2.ConnectResponse) and first.HasField("welcome")


class Agents(AgentServer):
    """A driver's service with an agent 1 on host a, whose worker is 1, and an agent 2 on host b."""

    def __init__(self) -> None:
        self.inbox: Mailbox[Inbound] = Mailbox(100_000)
        self.output: list[str] = []
        registry = AgentRegistry(self.inbox, lambda: 0.0, draw_secret=iter(SECRETS.values()).__next__)
        super().__init__(
            "run",
            agent_pb2.Welcome(driver_lease=duration(5.0)),
            registry,
            self.inbox,
            lambda host, _: self.output.append(host),
        )
        registry.expect("a", 1)
        registry.expect("b", 2)
        registry.send("a", agent_pb2.ConnectResponse(start_worker=agent_pb2.StartWorker(worker_id=1)))
        registry.send("b", agent_pb2.ConnectResponse(start_worker=agent_pb2.StartWorker(worker_id=2)))

    def check(self) -> int:
        """Assert that all events are ones that agent 1 may cause, about itself and its worker; returns their number."""
        found = self.inbox.drain()
        for event in found:
            assert getattr(event, "worker_id", 1) == 1, event
            assert getattr(event, "host", "a") == "a", event
        return len(found)


class ControlStreams(Target):
    """AgentService.Connect: unauthenticated callers, and an agent that sends random messages."""

    async def send(self, inputs: int) -> None:
        """See Target."""
        agents = Agents()
        async with served((agent_pb2_grpc.add_AgentServiceServicer_to_server, agents)) as channel:
            connect: Any = channel.stream_stream(AGENT + "Connect")
            sent = received = 0
            while sent < inputs:
                sent += await self._converse(connect)
                received += agents.check()
            assert received > inputs / 600, "hardly anything has been looked at"
            assert await is_welcomed(channel, 2, "b")

    async def _converse(self, connect: Any) -> int:
        """One stream; returns how many messages went into it."""
        fuzzer = self.fuzzer
        first = hello(1, "a").SerializeToString() if fuzzer.chance(0.7) else fuzzer.payload(agent_pb2.ConnectRequest)
        payloads = [first, *(self._said() for _ in range(3))]  # the first bad one ends the stream

        async def pour() -> AsyncIterator[bytes]:
            for payload in payloads:
                yield payload

        await over(connect(pour()))
        return len(payloads)

    def _said(self) -> bytes:
        """Half of the time a message with a number in order: any other ends the stream before it is looked at."""
        if self.fuzzer.chance(0.5):
            return self.fuzzer.payload(agent_pb2.ConnectRequest)
        message = self.fuzzer.message(agent_pb2.ConnectRequest)
        assert isinstance(message, agent_pb2.ConnectRequest)
        message.seq = 0
        return message.SerializeToString()


class Crowd(DialInHosts):
    """Notes the hosts that register, and refuses all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Host] = []

    def register(self, host: str, slots: int) -> asyncio.Future[int]:
        """See DialInHosts, which refuses invalid hosts."""
        super().register(host, slots)
        self.leave(host)
        self.noted.append(Host(host, slots))
        raise ValueError("there is no place")


class Newcomers(Target):
    """AgentService.Connect: agents that dial in by themselves, as hosts with any name and any number of slots."""

    async def send(self, inputs: int) -> None:
        """See Target."""
        crowd = Crowd()
        inbox: Mailbox[Inbound] = Mailbox(100)
        registry = AgentRegistry(inbox, lambda: 0.0)
        agents = AgentServer("run", agent_pb2.Welcome(), registry, inbox, lambda *_: None, dial_in_hosts=crowd)
        async with served((agent_pb2_grpc.add_AgentServiceServicer_to_server, agents)) as channel:
            connect: Any = channel.stream_stream(AGENT + "Connect")
            for _ in range(inputs):
                message = self.fuzzer.message(agent_pb2.Hello)
                assert isinstance(message, agent_pb2.Hello)
                message.run_id, message.version, message.protocol, message.agent_id = "run", VERSION, PROTOCOL, 0

                async def pour(of: agent_pb2.Hello = message) -> AsyncIterator[bytes]:
                    yield agent_pb2.ConnectRequest(hello=of).SerializeToString()

                assert await over(connect(pour())) is not grpc.StatusCode.OK
        assert inbox.drain() == []
        assert crowd.noted, "hardly anything has been looked at"
        for host in crowd.noted:
            assert limits.check_host(host.name, "a name").isprintable()
            assert limits.check_slots(host.slots, "a number")


class Output(Target):
    """AgentService.ForwardOutput."""

    async def send(self, inputs: int) -> None:
        """See Target."""
        agents = Agents()
        async with served((agent_pb2_grpc.add_AgentServiceServicer_to_server, agents)) as channel:
            forward: Any = channel.stream_unary(AGENT + "ForwardOutput")
            for _ in range(0, inputs, 3):
                payloads = [self.fuzzer.payload(agent_pb2.ForwardOutputRequest) for _ in range(3)]

                async def pour(of: list[bytes] = payloads) -> AsyncIterator[bytes]:
                    for payload in of:
                        yield payload

                await over(forward(pour()))
            agents.check()
            assert set(agents.output) <= {"a", "b"}
            assert await is_welcomed(channel, 2, "b")


def membership_of_two() -> Membership:
    """A run on the hosts a and b, with two slots each."""
    membership = Membership(Settings(np=2, min_np=2, max_np=3), now=0.0)
    membership.step(events.HostsObserved(HostSet((Host("a", 2), Host("b", 2)))), 0.0)
    return membership


def status_of_two() -> StatusServer:
    """The status of such a run, which is over: a watcher is not kept waiting."""
    membership = membership_of_two()
    event_history = EventHistory(membership, ProgressTracker(lambda: 0.0), lambda: 0.0)
    event_history.end(actions.FinishRun(actions.RunEnd.DONE, Cause(CauseKind.SUCCESS)))
    return StatusServer("run", membership, event_history, lambda: 0.0)


def control_that_expects_no_call() -> ControlServer:
    """A service whose handlers must not be reached."""

    def refuse(*wish: object) -> None:
        raise AssertionError(wish)

    return ControlServer(membership_of_two(), refuse, refuse)


class Control(Target):
    """ControlService: all methods."""

    async def send(self, inputs: int) -> None:
        """See Target."""
        membership = membership_of_two()
        put: list[events.Event] = []
        stops: list[str] = []
        control = ControlServer(membership, put.append, lambda reason, _requester: stops.append(reason))
        async with served((control_pb2_grpc.add_ControlServiceServicer_to_server, control)) as channel:
            methods: dict[Any, Any] = {
                channel.unary_unary(CONTROL + "Drain"): control_pb2.DrainRequest,
                channel.unary_unary(CONTROL + "PreviewDrain"): control_pb2.PreviewDrainRequest,
                channel.unary_unary(CONTROL + "Undrain"): control_pb2.UndrainRequest,
                channel.unary_unary(CONTROL + "Resize"): control_pb2.ResizeRequest,
                channel.unary_unary(CONTROL + "Stop"): control_pb2.StopRequest,
                channel.unary_unary(CONTROL + "SaveCheckpoint"): control_pb2.SaveCheckpointRequest,
            }
            for _ in range(0, inputs, len(methods)):
                for method, kind in methods.items():
                    await over(method(self.fuzzer.payload(kind)))
            assert (
                await control_pb2_grpc.ControlServiceStub(channel).Drain(control_pb2.DrainRequest(host="a"))
            ).slots_left
        for event in put:
            match event:
                case events.ResizeRequested(size):
                    assert 2 <= size <= 3
                case events.DrainRequested(host, slot, within=within):
                    assert host in ("a", "b")
                    assert slot in (None, 0, 1)
                    assert within >= 0
                case events.UndrainRequested(host, slot):
                    assert host in ("a", "b")
                    assert slot in (None, 0, 1)
                case _:
                    raise AssertionError(event)
        assert stops, "no valid Stop request was drawn"


class Status(Target):
    """StatusService: all methods."""

    async def send(self, inputs: int) -> None:
        """See Target."""
        async with served((status_pb2_grpc.add_StatusServiceServicer_to_server, status_of_two())) as channel:
            stub = status_pb2_grpc.StatusServiceStub(channel)
            before = await stub.GetRun(status_pb2.GetRunRequest())
            methods: dict[Any, Any] = {
                channel.unary_unary(STATUS + "GetRun"): status_pb2.GetRunRequest,
                channel.unary_unary(STATUS + "ListRounds"): status_pb2.ListRoundsRequest,
                channel.unary_unary(STATUS + "ListProgress"): status_pb2.ListProgressRequest,
                channel.unary_unary(STATUS + "ListEvents"): status_pb2.ListEventsRequest,
                channel.unary_stream(STATUS + "Watch"): status_pb2.WatchRequest,
            }
            for _ in range(0, inputs, len(methods)):
                for method, kind in methods.items():
                    await over(method(self.fuzzer.payload(kind)))
            assert await stub.GetRun(status_pb2.GetRunRequest()) == before


class Rendezvous(Target):
    """RendezvousService and StoreService: all methods; what was made of them can be read again."""

    async def send(self, inputs: int) -> None:
        """See Target."""
        failures: list[OSError] = []
        with tempfile.TemporaryDirectory() as folder, OwnFolder(Path(folder)) as own:
            journal = ServerJournal(own, Path(folder))
            runs = Runs(journal, time.monotonic)
            rendezvous = RendezvousService(runs, time.monotonic, failures.append)
            store = StoreService(runs, failures.append)
            async with served(
                (rendezvous_pb2_grpc.add_RendezvousServiceServicer_to_server, rendezvous),
                (rendezvous_pb2_grpc.add_StoreServiceServicer_to_server, store),
            ) as channel:
                methods: list[tuple[Any, Any]] = [
                    (channel.unary_unary(f"/{service.full_name}/{method.name}"), GetMessageClass(method.input_type))
                    for service in rendezvous_pb2.DESCRIPTOR.services_by_name.values()
                    for method in service.methods
                ]
                for _ in range(0, inputs, len(methods)):
                    for method, kind in methods:
                        await over(method(self.fuzzer.payload(kind), timeout=0.5))  # a key that is never set
                listed = rendezvous_pb2_grpc.RendezvousServiceStub(channel).ListRendezvous
                before = await listed(rendezvous_pb2.ListRendezvousRequest())
            journal.close()
            again = ServerJournal(own, Path(folder))
            found = {run_id: len(run.keys) for run_id, run in Runs(again, time.monotonic)}
            again.close()
        kept = {run.run_id: run.store_keys for run in before.rendezvous}
        assert {run_id: count for run_id, count in found.items() if count} == {
            run_id: count for run_id, count in kept.items() if count
        }
        assert not failures


class Strangers(Target):
    """The driver's TCP port: callers without a token, or with the wrong one, and bytes that are no TLS."""

    async def send(self, inputs: int) -> None:
        """See Target."""
        agents = Agents()
        endpoint = TcpEndpoint("run", agents, status_of_two(), control_that_expects_no_call())
        await endpoint.open()
        assert endpoint.authority is not None
        tls_credentials = grpc.ssl_channel_credentials(endpoint.authority.certificate)
        options = (("grpc.ssl_target_name_override", SERVER_NAME), ("grpc.enable_http_proxy", 0))
        where = f"ipv4:127.0.0.1:{endpoint.port}"
        async with grpc.aio.secure_channel(where, tls_credentials, options=options) as channel:
            for _ in range(inputs):
                if self.fuzzer.chance(0.1):
                    self._knock(endpoint.port)
                payload = self.fuzzer.payload(agent_pb2.ConnectRequest)
                method, token = self.fuzzer.choice(
                    (AGENT + "Connect", endpoint.status_token),
                    (AGENT + "ForwardOutput", endpoint.control_token),
                    (STATUS + "GetRun", endpoint.token),
                    (CONTROL + "Stop", endpoint.status_token),
                    (CONTROL + "Drain", endpoint.token),
                )
                call: Any = channel.unary_unary(method)
                assert await over(call(payload, metadata=self._metadata(token))) is not grpc.StatusCode.OK
        trusted = grpc.composite_channel_credentials(
            tls_credentials, grpc.access_token_call_credentials(endpoint.token)
        )
        async with grpc.aio.secure_channel(where, trusted, options=options) as channel:
            assert await is_welcomed(channel, 2, "b")
        await endpoint.close(0)
        assert [type(event) for event in agents.inbox.drain()] == [events.AgentConnected]
        assert agents.output == []

    def _metadata(self, token: str) -> tuple[tuple[str, str], ...]:
        """No token, a random one, or a token of the run for another purpose."""
        shown = self.fuzzer.choice("", self.fuzzer.payload(agent_pb2.Hello).hex(), token)
        return (("authorization", f"Bearer {shown}"),) if shown else ()

    def _knock(self, port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), BOUND) as caller:
            caller.sendall(self.fuzzer.payload(agent_pb2.ConnectRequest) or b"?")


class Notices(Target):
    """NotificationService.Attach: streams that are not for this worker, then random notices."""

    async def send(self, inputs: int) -> None:
        """See Target."""
        with tempfile.TemporaryDirectory(prefix="ed-") as folder:
            ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            ready.bind(str(Path(folder, "ready")))
            worker = NotificationServer(str(Path(folder, "s")), "run", 1, Participant().take, orphaned=lambda: None)
            worker.start(str(Path(folder, "ready")))
            ready.close()
            try:
                async with grpc.aio.insecure_channel(f"unix:{Path(folder, 's')}") as channel:
                    await self._attach(channel, inputs)
            finally:
                worker.stop()

    async def _attach(self, channel: grpc.aio.Channel, inputs: int) -> None:
        attach: Any = channel.stream_stream(NOTIFICATION + "Attach")
        attached = notification_pb2.Notice(
            attached=notification_pb2.Attached(run_id="run", worker_id=1, protocol=PROTOCOL)
        )
        for _ in range(inputs // 2):
            payload = self.fuzzer.payload(notification_pb2.AttachRequest)
            if not is_for_this_worker(payload):

                async def pour(of: bytes = payload) -> AsyncIterator[bytes]:
                    yield of

                assert await over(attach(pour())) is not grpc.StatusCode.OK
        await asyncio.to_thread(_await_refused_calls)
        stream = notification_pb2_grpc.NotificationServiceStub(channel).Attach()
        await stream.write(notification_pb2.AttachRequest(notice=attached))
        for number in range(inputs // 2):
            # The agent passes on what the driver says: messages that are none never get so far.
            await stream.write(self.fuzzer.message(notification_pb2.AttachRequest))  # type: ignore[arg-type]
            ping = notification_pb2.Ping(number=1_000_000 + number)
            await stream.write(notification_pb2.AttachRequest(notice=notification_pb2.Notice(ping=ping)))
            while True:
                answer = await asyncio.wait_for(stream.read(), BOUND)
                assert isinstance(answer, notification_pb2.AttachResponse), "the worker hears no more"
                if answer.report.pong.number == ping.number:
                    break
        stream.cancel()


def _await_refused_calls() -> None:
    """Until the service has counted them as over: callers have their answers before that, and it takes two at once."""
    for thread in threading.enumerate():
        if thread.name == "edriver-service":
            thread.join(BOUND)
            assert not thread.is_alive(), "a call that was refused goes on"


def is_for_this_worker(payload: bytes) -> bool:
    """Whether a stream that begins with these bytes is rightly taken for the agent's."""
    try:
        first = notification_pb2.AttachRequest.FromString(payload).notice
    except DecodeError:
        return False
    return (first.attached.run_id, first.attached.worker_id, first.attached.protocol) == ("run", 1, PROTOCOL)


async def over(call: Any) -> grpc.StatusCode:
    """Read a call to its end; its status."""
    async with asyncio.timeout(BOUND):
        try:
            if hasattr(call, "read"):
                while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
                    pass
            else:
                await call
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        code: grpc.StatusCode = await call.code()
        return code


TARGETS: tuple[type[Target], ...] = (ControlStreams, Newcomers, Output, Control, Status, Rendezvous, Strangers, Notices)
