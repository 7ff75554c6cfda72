"""The driver's TCP port: which callers it admits."""

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

from edriver.client import Address, AsyncClient, RunError
from edriver.common.join_config import SERVER_NAME
from edriver.common.release import PROTOCOL, VERSION
from edriver.driver.agents.agent_service import AgentServer
from edriver.driver.agents.registry import AgentRegistry
from edriver.driver.core.membership import Membership
from edriver.driver.feeds.inbound import Inbound
from edriver.driver.feeds.mailbox import Mailbox
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.progress import ProgressTracker
from edriver.driver.services.control import ControlServer
from edriver.driver.services.status import StatusServer
from edriver.driver.services.tcp_endpoint import TcpEndpoint
from edriver.model.settings import Settings
from edriver.v1 import agent_pb2, agent_pb2_grpc, control_pb2, control_pb2_grpc, status_pb2, status_pb2_grpc
from edriver.v1.agent_pb2 import ConnectRequest, ConnectResponse
from edriver.wire import guarded_server, port_watch
from edriver.wire.certificate_authority import Authority
from edriver.wire.conversion import duration
from edriver.wire.grpc_streams import MAX_MESSAGE_BYTES
from edriver.wire.port_watch import AcceptedSocket, PortSockets

BOUND = 120.0
SECRET = b"of every agent"
Stream = grpc.aio.StreamStreamCall[ConnectRequest, ConnectResponse]


def soon(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, BOUND))


@asynccontextmanager
async def open_door() -> AsyncIterator[tuple[TcpEndpoint, AgentRegistry]]:
    inbox = Mailbox[Inbound](10)
    registry = AgentRegistry(inbox, lambda: 0.0, draw_secret=lambda: SECRET)
    server = AgentServer("run", agent_pb2.Welcome(driver_lease=duration(5.0)), registry, inbox, lambda *_: None)
    membership = Membership(Settings(np=1, min_np=1, max_np=1), now=0.0)
    status = StatusServer(
        "run", membership, EventHistory(membership, ProgressTracker(lambda: 0.0), lambda: 0.0), lambda: 0.0
    )
    opened = TcpEndpoint("run", server, status, ControlServer(membership, lambda _: None, lambda *_: None))
    await opened.open()
    try:
        yield opened, registry
    finally:
        await opened.close(0)


@asynccontextmanager
async def channel_to(endpoint: TcpEndpoint, authority: str, token: str | None) -> AsyncIterator[grpc.aio.Channel]:
    """A channel over TLS."""
    tls_credentials = grpc.ssl_channel_credentials(authority.encode())
    if token is not None:
        tls_credentials = grpc.composite_channel_credentials(tls_credentials, grpc.access_token_call_credentials(token))
    options = (("grpc.ssl_target_name_override", SERVER_NAME), ("grpc.enable_http_proxy", 0))
    async with grpc.aio.secure_channel(f"ipv4:127.0.0.1:{endpoint.port}", tls_credentials, options=options) as channel:
        yield channel


@asynccontextmanager
async def dialled(endpoint: TcpEndpoint, authority: str, token: str | None) -> AsyncIterator[Stream]:
    """A control stream over TLS."""
    async with channel_to(endpoint, authority, token) as channel:
        yield agent_pb2_grpc.AgentServiceStub(channel).Connect()


def certificate_of(endpoint: TcpEndpoint) -> str:
    assert endpoint.authority is not None
    return endpoint.authority.certificate.decode()


async def welcome(stream: Stream) -> agent_pb2.Welcome:
    """Say the Hello of agent 1 on host a; the answer."""
    hello = agent_pb2.Hello(
        run_id="run", host="a", agent_id=1, pid=7, version=VERSION, protocol=PROTOCOL, secret=SECRET
    )
    await stream.write(ConnectRequest(hello=hello))
    first = await stream.read()
    assert isinstance(first, ConnectResponse)
    return first.welcome


async def shake_hands(endpoint: TcpEndpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Set up TLS and HTTP/2, up to where a call could follow."""
    tls_credentials = ssl.create_default_context(cadata=certificate_of(endpoint))
    tls_credentials.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    tls_credentials.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", endpoint.port, ssl=tls_credentials, server_hostname=SERVER_NAME
    )
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    return reader, writer


def driver_log(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the driver has logged. gRPC's poller logs a BlockingIOError now and then, which it survives."""
    return [record.getMessage() for record in caplog.records if record.name == "edriver.driver"]


async def refusal(stream: Stream) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    return caught.value.code()


def test_a_client_finds_out_whether_its_credentials_let_it_steer() -> None:
    async def work() -> None:
        async with open_door() as (endpoint, _):

            def address(token: str) -> Address:
                return Address("run", f"127.0.0.1:{endpoint.port}", certificate_of(endpoint), token)

            async with AsyncClient(address(endpoint.control_token)) as client:
                await client.check_may_steer()
            async with AsyncClient(address(endpoint.status_token)) as client:
                with pytest.raises(RunError, match="do not allow this call; the file of --control-credentials would"):
                    await client.check_may_steer()

    soon(work())


def test_an_agent_with_the_runs_credentials_is_admitted_and_learns_its_observed_address() -> None:
    async def work() -> None:
        async with open_door() as (endpoint, registry):
            registry.expect("a", 1)
            async with dialled(endpoint, certificate_of(endpoint), endpoint.token) as stream:
                assert (await welcome(stream)).observed_address == "127.0.0.1"

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
def test_a_caller_without_the_runs_token_is_refused(token: str | None, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with open_door() as (endpoint, registry):
            registry.expect("a", 1)
            for _ in range(3):
                async with dialled(endpoint, certificate_of(endpoint), token) as stream:
                    assert await refusal(stream) is grpc.StatusCode.UNAUTHENTICATED
            async with dialled(endpoint, certificate_of(endpoint), endpoint.token) as stream:
                await welcome(stream)

    with caplog.at_level(logging.WARNING, "edriver.driver"):
        soon(work())
    message = driver_log(caplog)
    assert message == ["refused a call from ipv4:127.0.0.1: it did not show this run's token"]


async def asked(channel: grpc.aio.Channel) -> str:
    """The run that StatusService reports."""
    answer = await status_pb2_grpc.StatusServiceStub(channel).GetRun(status_pb2.GetRunRequest())
    return answer.run.run_id


def test_the_status_token_opens_status_and_nothing_else() -> None:
    async def work() -> None:
        async with open_door() as (endpoint, registry):
            registry.expect("a", 1)
            async with channel_to(endpoint, certificate_of(endpoint), endpoint.status_token) as channel:
                assert await asked(channel) == "run"
                agent = agent_pb2_grpc.AgentServiceStub(channel).Connect()
                assert await refusal(agent) is grpc.StatusCode.PERMISSION_DENIED
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await agent_pb2_grpc.AgentServiceStub(channel).ForwardOutput(iter(()))
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED

    soon(work())


async def stopped(channel: grpc.aio.Channel) -> grpc.StatusCode:
    """The result of a Stop request."""
    call = control_pb2_grpc.ControlServiceStub(channel).Stop(control_pb2.StopRequest())
    with contextlib.suppress(grpc.aio.AioRpcError):
        await call
    return await call.code()


def test_the_control_token_opens_control_and_status() -> None:
    async def work() -> None:
        async with open_door() as (endpoint, _):
            for token, expected in (
                (endpoint.control_token, grpc.StatusCode.OK),
                (endpoint.status_token, grpc.StatusCode.PERMISSION_DENIED),
                (endpoint.token, grpc.StatusCode.PERMISSION_DENIED),
                ("guess", grpc.StatusCode.UNAUTHENTICATED),
            ):
                async with channel_to(endpoint, certificate_of(endpoint), token) as channel:
                    assert await stopped(channel) is expected
            async with channel_to(endpoint, certificate_of(endpoint), endpoint.control_token) as channel:
                assert await asked(channel) == "run"
                assert await refusal(agent_pb2_grpc.AgentServiceStub(channel).Connect()) is (
                    grpc.StatusCode.PERMISSION_DENIED
                )

    soon(work())


def test_generic_tools_find_out_what_there_is() -> None:
    async def work() -> None:
        async with open_door() as (endpoint, _):
            async with channel_to(endpoint, certificate_of(endpoint), endpoint.status_token) as channel:
                answer = await health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(service="edriver.v1.StatusService")
                )
                assert answer.status is health_pb2.HealthCheckResponse.SERVING
                assert await services(channel) >= {"edriver.v1.StatusService", "grpc.health.v1.Health"}
            async with channel_to(endpoint, certificate_of(endpoint), "guess") as channel:
                # It sends nothing: what is refused before it has sent all gets another error.
                call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
                assert await refusal(call) is grpc.StatusCode.UNAUTHENTICATED

    soon(work())


async def services(channel: grpc.aio.Channel) -> set[str]:
    """The services that reflection lists."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    answer = await call.read()
    return {service.name for service in answer.list_services_response.service}


def test_no_other_token_opens_status() -> None:
    async def work() -> None:
        async with open_door() as (endpoint, _):
            for token, expected in (
                (None, grpc.StatusCode.UNAUTHENTICATED),
                ("guess", grpc.StatusCode.UNAUTHENTICATED),
                (endpoint.token, grpc.StatusCode.PERMISSION_DENIED),
            ):
                async with channel_to(endpoint, certificate_of(endpoint), token) as channel:
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await asked(channel)
                    assert caught.value.code() is expected

    soon(work())


def test_a_driver_of_another_run_is_refused() -> None:
    async def work() -> None:
        other = Authority.of_run("other", datetime.datetime.now(datetime.UTC))
        async with open_door() as (endpoint, registry):
            registry.expect("a", 1)
            async with dialled(endpoint, other.certificate.decode(), endpoint.token) as stream:
                assert await refusal(stream) is grpc.StatusCode.UNAVAILABLE

    soon(work())


def test_a_caller_without_tls_gets_no_answer() -> None:
    async def work() -> None:
        async with (
            open_door() as (endpoint, _),
            grpc.aio.insecure_channel(f"ipv4:127.0.0.1:{endpoint.port}") as channel,
        ):
            stream = agent_pb2_grpc.AgentServiceStub(channel).Connect()
            assert await refusal(stream) is grpc.StatusCode.UNAVAILABLE

    soon(work())


def test_silent_callers_do_not_keep_an_agent_from_connecting() -> None:
    async def work() -> None:
        async with open_door() as (endpoint, registry):
            registry.expect("a", 1)
            silent = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(50)]
            async with dialled(endpoint, certificate_of(endpoint), endpoint.token) as stream:
                await welcome(stream)
            for connection in silent:
                connection.close()

    soon(work())


def test_callers_without_a_token_are_disconnected_and_one_with_a_token_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guarded_server, "MAX_UNAUTHENTICATED", 20)
    monkeypatch.setattr(port_watch, "CHECK_INTERVALS", (0.01, 0.01))

    async def work() -> None:
        async with open_door() as (opened, registry):
            registry.expect("a", 1)
            async with dialled(opened, certificate_of(opened), opened.token) as stream:
                await welcome(stream)
                callers = [await asyncio.open_connection("127.0.0.1", opened.port) for _ in range(50)]
                ending = [asyncio.create_task(ends(reader)) for reader, _ in callers]
                while sum(task.done() for task in ending) < 30:
                    left = [task for task in ending if not task.done()]
                    await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                registry.send("a", ConnectResponse(stop_worker=agent_pb2.StopWorker(worker_id=7)))
                order = await stream.read()
                assert isinstance(order, ConnectResponse)
                assert order.stop_worker.worker_id == 7
                assert sum(task.done() for task in ending) == 30  # in the order in which gRPC accepted them
                for _, writer in callers:
                    writer.close()
                await asyncio.wait(ending)

    soon(work())
    assert len(driver_log(caplog)) == 1
    assert "from 127.0.0.1, and perhaps others, showed no token: their connections are closed" in driver_log(caplog)[0]


def test_a_caller_that_keeps_calling_without_a_token_stays_unauthenticated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_server, "AUTHENTICATION_TIMEOUT", 0.2)
    monkeypatch.setattr(port_watch, "CHECK_INTERVALS", (0.01, 0.01))

    async def work() -> None:
        async with open_door() as (opened, _):
            reader, writer = await shake_hands(opened)
            await ends(reader)
            writer.close()

    soon(work())


def test_a_look_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    really, failures = PortSockets.look, [errno.EMFILE] * 3

    def look(sockets: PortSockets) -> list[AcceptedSocket]:
        if failures:
            raise OSError(failures.pop(), "Too many open files")
        return really(sockets)

    monkeypatch.setattr(PortSockets, "look", look)
    monkeypatch.setattr(guarded_server, "MAX_UNAUTHENTICATED", 0)
    monkeypatch.setattr(port_watch, "CHECK_INTERVALS", (0.01, 0.01))

    async def work() -> None:
        async with open_door() as (opened, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", opened.port)
            await ends(reader)
            writer.close()
        assert failures == []

    soon(work())


def test_there_are_never_more_connections_than_half_of_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_server, "MAX_CONNECTIONS", 10)
    # Else those without a token make room for others.
    monkeypatch.setattr(port_watch, "CHECK_INTERVALS", (BOUND, BOUND))

    async def work() -> None:
        async with open_door() as (opened, _):
            connections = [await asyncio.open_connection("127.0.0.1", opened.port) for _ in range(30)]
            for reader, _ in connections[10:]:
                await ends(reader)
            assert not any(reader.at_eof() for reader, _ in connections[:10])  # nor has their handshake taken too long
            for _, writer in connections:
                writer.close()

    soon(work())


async def ends(reader: asyncio.StreamReader) -> None:
    """Wait until the other end closes the connection."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while await reader.read(1000):
            pass


def test_a_caller_who_shakes_hands_and_then_asks_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    shorter = tuple(
        (name, 100 if name == "grpc.max_connection_idle_ms" else value)
        for name, value in guarded_server._TCP_SERVER_OPTIONS
    )
    monkeypatch.setattr(guarded_server, "_TCP_SERVER_OPTIONS", shorter)

    async def work() -> None:
        async with open_door() as (opened, _):
            reader, writer = await shake_hands(opened)
            while await reader.read(1000):
                pass
            writer.close()

    soon(work())


def test_a_message_that_is_too_long_ends_one_connection_and_no_other() -> None:
    async def work() -> None:
        async with open_door() as (endpoint, registry):
            registry.expect("a", 1)
            authority = certificate_of(endpoint)
            async with (
                dialled(endpoint, authority, endpoint.token) as good,
                dialled(endpoint, authority, endpoint.token) as bad,
            ):
                await welcome(good)
                reason = "x" * (MAX_MESSAGE_BYTES + 1)
                await bad.write(ConnectRequest(seq=1, drain_requested=agent_pb2.DrainRequested(reason=reason)))
                assert await refusal(bad) is grpc.StatusCode.RESOURCE_EXHAUSTED
                registry.send("a", ConnectResponse(stop_worker=agent_pb2.StopWorker(worker_id=7)))
                order = await good.read()
                assert isinstance(order, ConnectResponse)
                assert order.stop_worker.worker_id == 7

    soon(work())


def test_it_is_opened_once() -> None:
    async def work() -> None:
        async with open_door() as (endpoint, _):
            port, certificate = endpoint.port, certificate_of(endpoint)
            await asyncio.gather(endpoint.open(), endpoint.open())
            assert (endpoint.port, certificate_of(endpoint)) == (port, certificate)

    soon(work())
