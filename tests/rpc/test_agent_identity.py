"""An agent reports only about itself and its workers, and within bounds: the driver's service over real gRPC."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest

from edriver.common.release import PROTOCOL
from edriver.model import events
from edriver.v1 import agent_pb2, notification_pb2, rounds_pb2
from edriver.v1.agent_pb2 import ConnectRequest, ConnectResponse
from tests.rpc.served_driver import Driver, connect, exited, read, secret_of, serve, start


def of_a_stranger(kind: str) -> ConnectRequest:
    """Messages that an agent may send about a worker, about one that is not its own."""
    match kind:
        case "worker_report":
            report = notification_pb2.Report(worker_failed=notification_pb2.WorkerFailed(traceback="boom"))
            return ConnectRequest(seq=1, worker_report=agent_pb2.WorkerReport(worker_id=2, report=report))
        case "worker_exited":
            return ConnectRequest(seq=1, worker_exited=agent_pb2.WorkerExited(worker_id=2, code=1))
        case "worker_ending":
            return ConnectRequest(seq=1, worker_ending=agent_pb2.WorkerEnding(worker_id=2))
        case "lease_expired":
            return ConnectRequest(seq=1, lease_expired=agent_pb2.LeaseExpired(worker_id=2))
        case _:
            standing = agent_pb2.WorkerHeartbeat(worker_id=2, pid=1)
            return ConnectRequest(seq=1, heartbeat=agent_pb2.Heartbeat(workers=[standing]))


@pytest.mark.parametrize("kind", ["worker_report", "worker_exited", "worker_ending", "lease_expired", "heartbeat"])
def test_it_speaks_for_its_own_workers_only(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def work(made: Driver) -> None:
        made.registry.expect("b", 1)
        made.registry.send("b", start(2))
        made.registry.expect("a", 2)
        made.registry.send("a", start(1))
        stream = await made.dial(agent_id=2)
        for number in range(3):
            message = of_a_stranger(kind)
            message.seq = number + 1
            await stream.write(message)
        await stream.write(ConnectRequest(seq=4, lease_expired=agent_pb2.LeaseExpired(worker_id=1)))
        assert await made.event() == events.AgentConnected("a", 2)
        assert await made.event() == events.LeaseExpired(1, lease=9.0)
        assert made.received == []

    serve(work)
    message = [record.getMessage() for record in caplog.records if record.name == "edriver.driver"]
    assert message == ["the agent of host a reports on worker 2, which it does not own: that is left out"]


def test_lines_of_other_agents_workers_are_left_out() -> None:
    async def work(made: Driver) -> None:
        made.registry.expect("a", 1)
        made.registry.send("a", start(1))
        seats = [rounds_pb2.Seat(worker_id=1, rank=1)]
        made.registry.send("a", ConnectResponse(assign_round=agent_pb2.AssignRound(seats=seats)))
        line = agent_pb2.OutputLine
        lines = [
            line(worker_id=2, text=b"no worker of its own"),
            line(worker_id=1, text=b"before its first round"),
            line(worker_id=1, rank=1, text=b"its own"),
            line(worker_id=1, rank=0, text=b"not its rank"),
            line(worker_id=1, slot=1, text=b"not its slot"),
        ]
        await made.stub().ForwardOutput(
            iter([agent_pb2.ForwardOutputRequest(agent_id=1, secret=secret_of(1), lines=lines)])
        )
        assert [(host, [line.text for line in batch.lines]) for host, batch in made.output] == [
            ("a", [b"before its first round", b"its own"])
        ]

    serve(work)


@pytest.mark.parametrize("secret", [b"", b"secret 2", b"x" * 64], ids=["none", "another-agents", "wrong"])
def test_an_agent_without_its_secret_is_refused_and_the_real_one_goes_on(
    secret: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(made: Driver) -> None:
        real = await connect(made, 1)
        for _ in range(2):
            impostor = await made.dial(secret=secret)
            assert await impostor.code() is grpc.StatusCode.PERMISSION_DENIED
            assert await impostor.details() == "agent 1 of host a must show its secret"
        batch = agent_pb2.ForwardOutputRequest(agent_id=1, secret=secret, lines=[agent_pb2.OutputLine(worker_id=1)])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await made.stub().ForwardOutput(iter([batch]))
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        await real.write(exited(1))
        assert await made.event() == events.WorkerExited(1, -9, "bye")
        assert made.output == []

    serve(work)
    [record] = [each for each in caplog.records if each.name == "edriver.driver"]
    assert "it claimed to be the agent of host a and did not know its secret" in record.getMessage()
    assert "secret 1" not in caplog.text


def test_an_impostor_before_the_agents_first_word_is_refused_and_costs_nothing() -> None:
    async def work(made: Driver) -> None:
        made.registry.expect("a", 1)
        impostor = made.stub().Connect()
        hello = agent_pb2.Hello(run_id="run", host="a", agent_id=1, pid=7, version="another")
        await impostor.write(ConnectRequest(hello=hello))
        assert await impostor.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert made.inbox.drain() == []
        assert (await read(await made.dial())).HasField("welcome")

    serve(work)


def test_a_host_that_dials_in_gets_a_secret_and_shows_it_from_then_on() -> None:
    async def work(made: Driver) -> None:
        first = await made.arrive("h")
        welcome = (await read(first)).welcome
        assert (welcome.agent_id, welcome.secret) == (1, secret_of(1))
        first.cancel()
        again = await made.dial(host="h", agent_id=1)
        assert not (await read(again)).welcome.secret
        impostor = await made.dial(host="h", agent_id=1, secret=b"")
        assert await impostor.code() is grpc.StatusCode.PERMISSION_DENIED

    serve(work)


@pytest.mark.parametrize(
    ("hello", "sentence"),
    [
        pytest.param({"slots": 4294967295}, "Hello.slots is 4294967295: at most 4096 is allowed", id="slots"),
        pytest.param({"slots": 0}, "the number of slots (--slots) of host h is 0: a host has 1 to 4096", id="no-slots"),
        pytest.param({"host": "x" * 300}, "Hello.host has 300 characters: at most 253 are allowed", id="long-host"),
        pytest.param({"host": "a\x1b[2J"}, "Hello.host has a control character in it", id="control-character"),
        pytest.param({"host": "../../etc"}, "'../../etc', which is not a host name", id="a-path"),
        pytest.param(
            {"version": "9" * 2000}, "Hello.version has 2000 characters: at most 1024 are allowed", id="version"
        ),
    ],
)
def test_a_hello_out_of_bounds_is_refused_by_a_sentence(hello: dict[str, Any], sentence: str) -> None:
    async def work(made: Driver) -> None:
        stream = made.stub().Connect()
        message = {"run_id": "run", "host": "h", "protocol": PROTOCOL, "slots": 1, **hello}
        await stream.write(ConnectRequest(hello=agent_pb2.Hello(**message)))
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert sentence in (await stream.details() or "")
        assert list(await made.dial_in_hosts.find()) == []

    serve(work)


def test_a_message_out_of_bounds_ends_the_connection_by_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    async def work(made: Driver) -> None:
        stream = await connect(made, 1)
        await stream.write(ConnectRequest(seq=1, drain_requested=agent_pb2.DrainRequested(reason="\x1b[2J")))
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "DrainRequested.reason has a control character in it" in (await stream.details() or "")
        assert made.inbox.drain() == []

    serve(work)
    assert "DrainRequested.reason" in caplog.text
