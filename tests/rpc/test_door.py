"""The driver's TCP port: who is let in."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from edriver.common.invitation import SERVER_NAME
from edriver.common.release import VERSION
from edriver.driver.core import events
from edriver.driver.core.membership import Membership
from edriver.driver.core.settings import Settings
from edriver.driver.observe.event_history import Chronicle
from edriver.driver.observe.progress import Pace
from edriver.driver.rpc import tcp_endpoint
from edriver.driver.rpc.agent_service import MESSAGE_LIMIT, AgentServer
from edriver.driver.rpc.certificate_authority import Authority
from edriver.driver.rpc.control import ControlServer
from edriver.driver.rpc.mailbox import Mailbox
from edriver.driver.rpc.status import StatusServer
from edriver.driver.rpc.tcp_endpoint import Door
from edriver.driver.rpc.unauthenticated import Connection, Connections
from edriver.v1 import agent_pb2, agent_pb2_grpc, control_pb2, control_pb2_grpc, status_pb2, status_pb2_grpc
from edriver.v1.agent_pb2 import FromAgent, FromDriver

BOUND = 120.0
SECRET = b"of every agent"
Stream = grpc.aio.StreamStreamCall[FromAgent, FromDriver]


def soon(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, BOUND))


@asynccontextmanager
async def open_door() -> AsyncIterator[tuple[Door, AgentServer]]:
    server = AgentServer(
        "run",
        agent_pb2.Welcome(driver_lease=5.0),
        Mailbox[events.Event](10),
        lambda *_: None,
        lambda: 0.0,
        draw_secret=lambda: SECRET,
    )
    membership = Membership(Settings(np=1, min_np=1, max_np=1), now=0.0)
    status = StatusServer("run", membership, Chronicle(membership, Pace(lambda: 0.0), lambda: 0.0), lambda: 0.0)
    opened = Door("run", server, status, ControlServer(membership, lambda _: None, lambda _: None))
    await opened.open()
    try:
        yield opened, server
    finally:
        await opened.close(0)


@asynccontextmanager
async def channel_to(door: Door, authority: str, token: str | None) -> AsyncIterator[grpc.aio.Channel]:
    """A channel over TLS."""
    papers = grpc.ssl_channel_credentials(authority.encode())
    if token is not None:
        papers = grpc.composite_channel_credentials(papers, grpc.access_token_call_credentials(token))
    options = (("grpc.ssl_target_name_override", SERVER_NAME), ("grpc.enable_http_proxy", 0))
    async with grpc.aio.secure_channel(f"ipv4:127.0.0.1:{door.port}", papers, options=options) as channel:
        yield channel


@asynccontextmanager
async def dialled(door: Door, authority: str, token: str | None) -> AsyncIterator[Stream]:
    """A control stream over TLS."""
    async with channel_to(door, authority, token) as channel:
        yield agent_pb2_grpc.AgentServiceStub(channel).Connect()


def certificate_of(door: Door) -> str:
    assert door.authority is not None
    return door.authority.certificate.decode()


async def welcome(stream: Stream) -> agent_pb2.Welcome:
    """Say the Hello of agent 1 on host a; the answer."""
    hello = agent_pb2.Hello(run_id="run", host="a", agent_id=1, pid=7, version=VERSION, secret=SECRET)
    await stream.write(FromAgent(hello=hello))
    first = await stream.read()
    assert isinstance(first, FromDriver)
    return first.welcome


async def refusal(stream: Stream) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    return caught.value.code()


def test_an_agent_with_the_runs_papers_comes_in_and_learns_where_it_was_seen() -> None:
    async def work() -> None:
        async with open_door() as (door, server):
            server.expect("a", 1)
            async with dialled(door, certificate_of(door), door.token) as stream:
                assert (await welcome(stream)).seen_from == "127.0.0.1"

    soon(work())


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(None, id="none"),
        pytest.param("", id="empty"),
        pytest.param("guess", id="wrong"),
        pytest.param("x" * 4000, id="long"),
    ],
)
def test_without_the_runs_token_nobody_comes_in(token: str | None, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with open_door() as (door, server):
            server.expect("a", 1)
            for _ in range(3):
                async with dialled(door, certificate_of(door), token) as stream:
                    assert await refusal(stream) is grpc.StatusCode.UNAUTHENTICATED
            async with dialled(door, certificate_of(door), door.token) as stream:
                await welcome(stream)

    with caplog.at_level(logging.WARNING, "edriver.driver"):
        soon(work())
    said = [record.getMessage() for record in caplog.records]
    assert said == ["refused a call from ipv4:127.0.0.1: it did not show this run's token"]


async def asked(channel: grpc.aio.Channel) -> str:
    """The run that StatusService tells of."""
    answer = await status_pb2_grpc.StatusServiceStub(channel).GetRun(status_pb2.GetRunRequest())
    return answer.run.run_id


def test_the_status_token_opens_status_and_nothing_else() -> None:
    async def work() -> None:
        async with open_door() as (door, server):
            server.expect("a", 1)
            async with channel_to(door, certificate_of(door), door.status_token) as channel:
                assert await asked(channel) == "run"
                agent = agent_pb2_grpc.AgentServiceStub(channel).Connect()
                assert await refusal(agent) is grpc.StatusCode.PERMISSION_DENIED
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await agent_pb2_grpc.AgentServiceStub(channel).ForwardOutput(iter(()))
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED

    soon(work())


async def stopped(channel: grpc.aio.Channel) -> grpc.StatusCode:
    """What comes of asking for the run's end."""
    call = control_pb2_grpc.ControlServiceStub(channel).Stop(control_pb2.StopRequest())
    with contextlib.suppress(grpc.aio.AioRpcError):
        await call
    return await call.code()


def test_the_control_token_opens_control_and_status() -> None:
    async def work() -> None:
        async with open_door() as (door, _):
            for token, expected in (
                (door.control_token, grpc.StatusCode.OK),
                (door.status_token, grpc.StatusCode.PERMISSION_DENIED),
                (door.token, grpc.StatusCode.PERMISSION_DENIED),
                ("guess", grpc.StatusCode.UNAUTHENTICATED),
            ):
                async with channel_to(door, certificate_of(door), token) as channel:
                    assert await stopped(channel) is expected
            async with channel_to(door, certificate_of(door), door.control_token) as channel:
                assert await asked(channel) == "run"
                assert await refusal(agent_pb2_grpc.AgentServiceStub(channel).Connect()) is (
                    grpc.StatusCode.PERMISSION_DENIED
                )

    soon(work())


def test_generic_tools_find_out_what_there_is() -> None:
    async def work() -> None:
        async with open_door() as (door, _):
            async with channel_to(door, certificate_of(door), door.status_token) as channel:
                answer = await health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(service="edriver.v1.StatusService")
                )
                assert answer.status is health_pb2.HealthCheckResponse.SERVING
                assert await services(channel) >= {"edriver.v1.StatusService", "grpc.health.v1.Health"}
            async with channel_to(door, certificate_of(door), "guess") as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await services(channel)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED

    soon(work())


async def services(channel: grpc.aio.Channel) -> set[str]:
    """The services that reflection tells of."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    answer = await call.read()
    return {service.name for service in answer.list_services_response.service}


def test_no_other_token_opens_status() -> None:
    async def work() -> None:
        async with open_door() as (door, _):
            for token, expected in (
                (None, grpc.StatusCode.UNAUTHENTICATED),
                ("guess", grpc.StatusCode.UNAUTHENTICATED),
                (door.token, grpc.StatusCode.PERMISSION_DENIED),
            ):
                async with channel_to(door, certificate_of(door), token) as channel:
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await asked(channel)
                    assert caught.value.code() is expected

    soon(work())


def test_a_driver_of_another_run_is_not_believed() -> None:
    async def work() -> None:
        other = Authority.of_run("other", datetime.datetime.now(datetime.UTC))
        async with open_door() as (door, server):
            server.expect("a", 1)
            async with dialled(door, other.certificate.decode(), door.token) as stream:
                assert await refusal(stream) is grpc.StatusCode.UNAVAILABLE

    soon(work())


def test_who_speaks_no_tls_hears_nothing() -> None:
    async def work() -> None:
        async with (
            open_door() as (door, _),
            grpc.aio.insecure_channel(f"ipv4:127.0.0.1:{door.port}") as channel,
        ):
            stream = agent_pb2_grpc.AgentServiceStub(channel).Connect()
            assert await refusal(stream) is grpc.StatusCode.UNAVAILABLE

    soon(work())


def test_a_caller_who_says_nothing_disturbs_nobody() -> None:
    async def work() -> None:
        async with open_door() as (door, server):
            server.expect("a", 1)
            silent = [socket.create_connection(("127.0.0.1", door.port)) for _ in range(50)]
            async with dialled(door, certificate_of(door), door.token) as stream:
                await welcome(stream)
            for connection in silent:
                connection.close()

    soon(work())


def test_callers_without_a_token_are_hung_up_on_and_one_with_a_token_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tcp_endpoint, "MOST_STRANGERS", 20)
    monkeypatch.setattr(tcp_endpoint, "LOOK", (0.01, 0.01))

    async def work() -> None:
        async with open_door() as (opened, server):
            server.expect("a", 1)
            async with dialled(opened, certificate_of(opened), opened.token) as stream:
                await welcome(stream)
                callers = [await asyncio.open_connection("127.0.0.1", opened.port) for _ in range(50)]
                ending = [asyncio.create_task(ends(reader)) for reader, _ in callers]
                while sum(task.done() for task in ending) < 30:
                    left = [task for task in ending if not task.done()]
                    await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                server.send("a", FromDriver(stop_worker=agent_pb2.StopWorker(worker_id=7)))
                order = await stream.read()
                assert isinstance(order, FromDriver)
                assert order.stop_worker.worker_id == 7
                assert sum(task.done() for task in ending) == 30  # in the order in which gRPC accepted them
                for _, writer in callers:
                    writer.close()
                await asyncio.wait(ending)

    soon(work())
    assert len(caplog.messages) == 1
    assert "from 127.0.0.1, and perhaps others, show no token: they are hung up on" in caplog.messages[0]


def test_who_calls_again_and_again_without_a_token_is_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_endpoint, "PATIENCE", 0.2)
    monkeypatch.setattr(tcp_endpoint, "LOOK", (0.01, 0.01))

    async def work() -> None:
        async with open_door() as (opened, _):
            papers = ssl.create_default_context(cadata=certificate_of(opened))
            papers.set_alpn_protocols(["h2"])
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", opened.port, ssl=papers, server_hostname=SERVER_NAME
            )
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            await ends(reader)
            writer.close()

    soon(work())


def test_a_look_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    really, failures = Connections.look, [errno.EMFILE] * 3

    def look(connections: Connections) -> list[Connection]:
        if failures:
            raise OSError(failures.pop(), "Too many open files")
        return really(connections)

    monkeypatch.setattr(Connections, "look", look)
    monkeypatch.setattr(tcp_endpoint, "MOST_STRANGERS", 0)
    monkeypatch.setattr(tcp_endpoint, "LOOK", (0.01, 0.01))

    async def work() -> None:
        async with open_door() as (opened, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", opened.port)
            await ends(reader)
            writer.close()
        assert failures == []

    soon(work())


def test_there_are_never_more_connections_than_half_of_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_endpoint, "MOST_CONNECTIONS", 10)

    async def work() -> None:
        async with open_door() as (opened, _):
            callers = [await asyncio.open_connection("127.0.0.1", opened.port) for _ in range(30)]
            for reader, _ in callers[10:]:
                await ends(reader)
            for _, writer in callers:
                writer.close()

    soon(work())


async def ends(reader: asyncio.StreamReader) -> None:
    """Wait until the other end hangs up."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while await reader.read(1000):
            pass


def test_a_caller_who_shakes_hands_and_then_asks_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    shorter = tuple(
        (name, 100 if name == "grpc.max_connection_idle_ms" else value) for name, value in tcp_endpoint._OPTIONS
    )
    monkeypatch.setattr(tcp_endpoint, "_OPTIONS", shorter)

    async def work() -> None:
        async with open_door() as (opened, _):
            papers = ssl.create_default_context(cadata=certificate_of(opened))
            papers.set_alpn_protocols(["h2"])
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", opened.port, ssl=papers, server_hostname=SERVER_NAME
            )
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            while await reader.read(1000):
                pass
            writer.close()

    soon(work())


def test_a_message_that_is_too_long_ends_one_connection_and_no_other() -> None:
    async def work() -> None:
        async with open_door() as (door, server):
            server.expect("a", 1)
            authority = certificate_of(door)
            async with (
                dialled(door, authority, door.token) as good,
                dialled(door, authority, door.token) as bad,
            ):
                await welcome(good)
                reason = "x" * (MESSAGE_LIMIT + 1)
                await bad.write(FromAgent(seq=1, host_leaving=agent_pb2.HostLeaving(reason=reason)))
                assert await refusal(bad) is grpc.StatusCode.RESOURCE_EXHAUSTED
                server.send("a", FromDriver(stop_worker=agent_pb2.StopWorker(worker_id=7)))
                order = await good.read()
                assert isinstance(order, FromDriver)
                assert order.stop_worker.worker_id == 7

    soon(work())


def test_it_is_opened_once() -> None:
    async def work() -> None:
        async with open_door() as (door, _):
            port, certificate = door.port, certificate_of(door)
            await asyncio.gather(door.open(), door.open())
            assert (door.port, certificate_of(door)) == (port, certificate)

    soon(work())
