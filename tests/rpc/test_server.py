"""The driver's service over real gRPC, with a fake agent in the same process."""

from __future__ import annotations

import asyncio
from typing import cast

import grpc
import grpc.aio
import pytest

from edriver.agent.control_stream import REFUSAL_CODES
from edriver.common.release import PROTOCOL, VERSION
from edriver.driver.agents import agent_service
from edriver.driver.agents.registry import AGENT_LEASE, BOOT_LEASE, HEARTBEAT_INTERVAL, OVERLOADED_DELAY
from edriver.driver.feeds.inbound import InboundMessage
from edriver.driver.launch.agents import Agents
from edriver.driver.run.shutdown import Shutdown
from edriver.model import events
from edriver.model.cause import AgentFault, AgentFaultKind, Halt
from edriver.v1 import agent_pb2, cause_pb2, notification_pb2
from edriver.v1.agent_pb2 import ConnectRequest
from tests.rpc.served_driver import WELCOME, Driver, connect, ended, exited, read, secret_of, serve, start
from tests.waiting import until_async


def test_an_agent_is_welcomed_and_gets_its_orders_in_order() -> None:
    async def work(made: Driver) -> None:
        stream = await connect(made)
        for worker_id in (1, 2, 3):
            made.registry.send("a", start(worker_id))
        got = [await read(stream) for _ in range(3)]
        assert [message.start_worker.worker_id for message in got] == [1, 2, 3]
        assert [message.seq for message in got] == [1, 2, 3]

    serve(work)


def test_orders_given_before_it_dials_wait_for_it() -> None:
    async def work(made: Driver) -> None:
        made.registry.expect("a", 1)
        made.registry.send("a", start(1))
        stream = await made.dial()
        assert (await read(stream)).HasField("welcome")
        assert (await read(stream)).start_worker.worker_id == 1

    serve(work)


def test_what_it_says_becomes_events() -> None:
    async def work(made: Driver) -> None:
        stream = await connect(made, 3, 4, 5)
        failed = notification_pb2.Report(worker_failed=notification_pb2.WorkerFailed(traceback="boom"))
        await stream.write(ConnectRequest(seq=1, worker_report=agent_pb2.WorkerReport(worker_id=4, report=failed)))
        await stream.write(
            ConnectRequest(seq=2, lease_expired=agent_pb2.LeaseExpired(worker_id=5, halt=cause_pb2.HALT_STOPPED))
        )
        await stream.write(exited(3))
        assert await made.event() == events.WorkerFailed(4, "boom")
        assert await made.event() == events.LeaseExpired(5, lease=9.0, halt=Halt.STOPPED)
        assert await made.event() == events.WorkerExited(3, -9, "bye")

    serve(work)


def test_a_broken_connection_loses_nothing_and_repeats_nothing() -> None:
    async def work(made: Driver) -> None:
        stream = await connect(made)
        made.registry.send("a", start(1))
        assert (await read(stream)).start_worker.worker_id == 1
        await stream.write(exited(1))
        assert await made.event() == events.WorkerExited(1, -9, "bye")
        stream.cancel()
        made.registry.send("a", start(2))  # whether the break was noticed by now or not

        again = await made.dial(ack=1)
        welcome = await read(again)
        assert welcome.HasField("welcome")
        assert welcome.ack == 1
        assert (await read(again)).start_worker.worker_id == 2
        await again.write(exited(1))  # the agent did not hear of the acknowledgement
        await again.write(exited(2))
        assert await made.event() == events.WorkerExited(2, -9, "bye")
        assert made.inbox.drain() == []

    serve(work)


def test_what_waits_for_room_as_its_connection_breaks_is_not_lost() -> None:
    async def work(made: Driver) -> None:
        stream = await connect(made, 1)
        peer = made.registry.peer(1)
        assert peer is not None
        while not made.inbox.full:
            made.inbox.put(events.Ticked())
        await stream.write(exited(1))
        await until_async(lambda: peer.unread)
        stream.cancel()
        await until_async(lambda: not peer.unread)
        assert len(made.inbox.drain()) == 100, "it was taken in without room"
        again = await made.dial(ack=1)
        assert (await read(again)).welcome.agent_id == 1
        await again.write(exited(1))
        assert await made.event() == events.WorkerExited(1, -9, "bye")

    serve(work)


class OneAgent:
    """The agents of a run, of which there is one, until it has said that it ends."""

    def __init__(self, ended: list[int]) -> None:
        self._ended = ended
        self.killed: list[int] = []

    @property
    def running(self) -> list[int]:
        return [] if self._ended else [1]

    def close(self) -> None:
        pass

    def kill(self, agent_id: int) -> None:
        self.killed.append(agent_id)

    async def wait_until_empty(self) -> None:
        await until_async(lambda: not self.running)


def test_at_the_end_agents_are_heard_though_nobody_takes_in_what_has_come_before() -> None:
    async def work(made: Driver) -> None:
        stream = await connect(made, 1)
        while not made.inbox.full:
            made.inbox.put(events.Ticked())
        await stream.write(exited(1))
        agents = OneAgent(made.ended)
        shutdown = Shutdown(made.registry, cast(Agents, agents), None, asyncio.Event(), made.inbox)
        ending = asyncio.create_task(shutdown.end())
        assert (await read(stream)).HasField("shutdown")
        await stream.write(ConnectRequest(seq=2, agent_ending=agent_pb2.AgentEnding()))
        await until_async(lambda: bool(made.ended))
        await ending
        assert agents.killed == []

    serve(work)


def test_messages_that_come_together_are_taken_in_up_to_the_one_that_must_not_be() -> None:
    async def work(made: Driver) -> None:
        stream = await connect(made, 1, 2, 3)
        first = exited(1)
        first.more.extend([exited(2), ConnectRequest(seq=9, worker_exited=exited(3).worker_exited)])
        await stream.write(first)
        assert [await made.event() for _ in range(2)] == [events.WorkerExited(n, -9, "bye") for n in (1, 2)]
        await ended(stream)
        again = await made.dial(ack=3)
        assert (await read(again)).ack == 2
        await again.write(exited(3))
        assert await made.event() == events.WorkerExited(3, -9, "bye")

    serve(work)


def test_the_core_learns_which_processors_a_hosts_workers_have() -> None:
    async def work(made: Driver) -> None:
        made.registry.expect("a", 1)
        stream = made.stub().Connect()
        hello = agent_pb2.Hello(
            run_id="run", host="a", agent_id=1, pid=7, protocol=PROTOCOL, secret=secret_of(1), processors="0a1b"
        )
        await stream.write(ConnectRequest(hello=hello))
        assert (await read(stream)).HasField("welcome")
        assert await made.event() == events.AgentConnected("a", 1, "0a1b")

    serve(work)


def test_an_agent_of_another_release_works_with_this_driver(caplog: pytest.LogCaptureFixture) -> None:
    """What only later releases send is left out, and the next message is read."""

    async def work(made: Driver) -> None:
        made.registry.expect("a", 1)
        stream = made.stub().Connect()
        hello = agent_pb2.Hello(
            run_id="run", host="a", agent_id=1, pid=7, version="0.0.1", protocol=PROTOCOL, secret=secret_of(1)
        )
        await stream.write(ConnectRequest(hello=hello))
        assert (await read(stream)).HasField("welcome")
        assert await made.event() == events.AgentConnected("a", 1)
        made.registry.send("a", start(2))
        assert (await read(stream)).start_worker.worker_id == 2
        await stream.write(ConnectRequest(seq=1))
        await stream.write(exited(2))
        assert await made.event() == events.WorkerExited(2, -9, "bye")

    serve(work)
    assert "the agent of host a sends a message that only later releases know" in caplog.text
    assert (
        caplog.text.count(f"the agent of host a runs edriver 0.0.1, and the driver {VERSION}: they work together") == 1
    )


@pytest.mark.parametrize("protocol", [PROTOCOL + 1, 0], ids=["another", "before-there-were-any"])
def test_an_agent_of_another_protocol_is_refused_with_a_sentence(protocol: int) -> None:
    async def work(made: Driver) -> None:
        made.registry.expect("a", 1)
        stream = made.stub().Connect()
        hello = agent_pb2.Hello(
            run_id="run", host="a", agent_id=1, pid=7, version="9.0", protocol=protocol, secret=secret_of(1)
        )
        await stream.write(ConnectRequest(hello=hello))
        assert await stream.code() is grpc.StatusCode.FAILED_PRECONDITION
        sentence = f"its agent runs edriver 9.0, whose protocol this driver does not speak: install {VERSION} there"
        assert await stream.details() == sentence
        assert await made.event() == events.AgentLost("a", 1, AgentFault(AgentFaultKind.OTHER_RELEASE, "9.0"))

    serve(work)


@pytest.mark.parametrize("in_order", [True, False], ids=["half-closed", "broken"])
def test_an_agent_has_ended_when_it_says_so_and_not_when_its_stream_ends(in_order: bool) -> None:
    async def work(made: Driver) -> None:
        stream = await connect(made, 1)
        if in_order:
            await stream.done_writing()
            assert await ended(stream)
        else:
            stream.cancel()
        assert made.ended == []
        again = await made.dial(ack=1)
        await read(again)
        await again.write(exited(1))
        await again.write(ConnectRequest(seq=2, agent_ending=agent_pb2.AgentEnding()))
        await again.done_writing()
        assert await ended(again)
        assert made.ended == [1]
        assert await made.event() == events.WorkerExited(1, -9, "bye")
        assert made.inbox.drain() == [InboundMessage(None, 1, seq=2, acknowledged=0)]

    serve(work)


@pytest.mark.parametrize("silent_before", [True, False])
def test_a_silent_agent_that_is_to_end_is_not_waited_for(silent_before: bool) -> None:
    async def falls_silent(made: Driver) -> None:
        while made.inbox.drain() == []:
            await made.time.advance(HEARTBEAT_INTERVAL)

    async def work(made: Driver) -> None:
        (await connect(made)).cancel()
        if silent_before:
            await falls_silent(made)
        assert made.ended == []
        assert made.registry.shut_down(1, grace=5.0)
        if not silent_before:
            assert made.ended == []
            await falls_silent(made)
        assert made.ended == [1]

    serve(work)


def test_a_new_connection_ends_the_old_one() -> None:
    async def work(made: Driver) -> None:
        old = await connect(made)
        new = await made.dial()
        assert (await read(new)).HasField("welcome")
        assert await ended(old)
        made.registry.send("a", start(1))
        assert (await read(new)).start_worker.worker_id == 1

    serve(work)


@pytest.mark.parametrize(
    ("run_id", "host", "agent_id", "sentence"),
    [
        pytest.param("other", "a", 1, "this is the driver of run run, not of 'other'", id="another-run"),
        pytest.param("run", "a", 2, "agent 2 was given up, or never belonged to this run", id="unknown-agent"),
        pytest.param("run", "b", 1, "agent 1 belongs to host a, not to 'b'", id="another-host"),
    ],
)
def test_strangers_are_refused(run_id: str, host: str, agent_id: int, sentence: str) -> None:
    async def work(made: Driver) -> None:
        made.registry.expect("a", 1)
        stream = await made.dial(run_id=run_id, host=host, agent_id=agent_id)
        assert await stream.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert sentence in (await stream.details() or "")
        assert made.inbox.drain() == []

    serve(work)


def test_an_agent_that_was_given_up_is_cut_off_and_refused() -> None:
    async def work(made: Driver) -> None:
        stream = await connect(made)
        made.registry.give_up(1)
        assert await ended(stream)
        assert await (await made.dial()).code() is grpc.StatusCode.FAILED_PRECONDITION
        made.registry.send("a", start(1))  # no agent is connected to take it

    serve(work)


def test_a_stream_that_does_not_begin_with_hello_is_refused() -> None:
    async def work(made: Driver) -> None:
        made.registry.expect("a", 1)
        stream = made.stub().Connect()
        await stream.write(exited(1))
        assert await stream.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "begin with Hello" in (await stream.details() or "")

    serve(work)


def test_an_agent_that_is_not_heard_in_time_may_dial_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that was stopped finds the time over before it reads what has come: that is no refusal for good."""
    monkeypatch.setattr(agent_service, "AGENT_LEASE", 0.01)

    async def work(made: Driver) -> None:
        made.registry.expect("a", 1)
        code = await made.stub().Connect().code()
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert code not in REFUSAL_CODES

    serve(work)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        pytest.param(
            ConnectRequest(seq=5, heartbeat=agent_pb2.Heartbeat()), "message 5 came after message 0", id="gap"
        ),
        pytest.param(
            ConnectRequest(ack=7, heartbeat=agent_pb2.Heartbeat()),
            "message 7 is acknowledged, and 0 were",
            id="never-sent",
        ),
        pytest.param(ConnectRequest(hello=agent_pb2.Hello()), "of kind hello does not belong", id="second-hello"),
    ],
)
def test_a_fault_ends_the_connection_and_nothing_else(
    message: ConnectRequest, complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(made: Driver) -> None:
        made.registry.expect("a", 1)
        for _ in range(2):
            stream = await made.dial()
            assert (await read(stream)).HasField("welcome")
            await stream.write(message)
            assert await ended(stream)
        made.registry.expect("b", 2)
        other = await made.dial(host="b", agent_id=2)
        assert (await read(other)).HasField("welcome")

    serve(work)
    [record] = [each for each in caplog.records if each.name == "edriver.driver"]  # twice done, once logged
    assert complaint in record.getMessage()


def test_bytes_that_are_no_message_end_the_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    async def work(made: Driver) -> None:
        healthy = await connect(made)
        made.registry.expect("b", 2)
        hello = agent_pb2.Hello(
            run_id="run", host="b", agent_id=2, pid=7, version=VERSION, protocol=PROTOCOL, secret=secret_of(2)
        )
        raw: grpc.aio.StreamStreamCall[bytes, bytes] = made.channel.stream_stream("/edriver.v1.AgentService/Connect")()
        await raw.write(ConnectRequest(hello=hello).SerializeToString())
        assert isinstance(await raw.read(), bytes)
        await raw.write(b"\xff\xff\xff")
        assert not isinstance(await raw.read(), bytes)
        made.registry.send("a", start(1))
        assert (await read(healthy)).start_worker.worker_id == 1

    serve(work)
    assert "a message could not be read" in caplog.text


def test_silence_for_a_lease_is_reported_once_and_so_is_its_end() -> None:
    async def work(made: Driver) -> None:
        stream = await connect(made, 1)
        for _ in range(int(AGENT_LEASE / HEARTBEAT_INTERVAL)):
            assert made.inbox.drain() == []
            await made.time.advance(HEARTBEAT_INTERVAL)
        assert await made.event() == events.AgentSilent("a", 1, AgentFault(AgentFaultKind.SILENT, seconds=5.0))
        for _ in range(int(2 * AGENT_LEASE / HEARTBEAT_INTERVAL)):
            await made.time.advance(HEARTBEAT_INTERVAL)
        assert made.inbox.drain() == []
        await stream.write(exited(1))
        assert await made.event() == events.AgentConnected("a", 1)
        assert await made.event() == events.WorkerExited(1, -9, "bye")
        for _ in range(int(AGENT_LEASE / HEARTBEAT_INTERVAL)):
            await made.time.advance(HEARTBEAT_INTERVAL)
        assert await made.event() == events.AgentSilent("a", 1, AgentFault(AgentFaultKind.SILENT, seconds=5.0))

    serve(work)


def test_a_silent_agent_that_dials_again_is_accepted() -> None:
    async def work(made: Driver) -> None:
        await connect(made)
        for _ in range(int(AGENT_LEASE / HEARTBEAT_INTERVAL)):
            await made.time.advance(HEARTBEAT_INTERVAL)
        assert await made.event() == events.AgentSilent("a", 1, AgentFault(AgentFaultKind.SILENT, seconds=5.0))
        stream = await made.dial()
        assert (await read(stream)).welcome == WELCOME
        assert await made.event() == events.AgentConnected("a", 1)

    serve(work)


def test_an_agents_lease_ends_on_time_whenever_its_last_word_came() -> None:
    async def work(made: Driver) -> None:
        stream = await connect(made, 1)
        await made.time.advance(0.375)
        await stream.write(exited(1))
        assert await made.event() == events.WorkerExited(1, -9, "bye")
        for seconds in (0.75, 1.0, 1.0, 1.0, 1.0, 0.125):
            await made.time.advance(seconds)
        assert made.inbox.drain() == []
        await made.time.advance(0.125)
        assert await made.event() == events.AgentSilent("a", 1, AgentFault(AgentFaultKind.SILENT, seconds=5.0))

    serve(work)


def test_a_heartbeat_keeps_the_agent_and_acknowledges() -> None:
    async def work(made: Driver) -> None:
        stream = await connect(made, 1)
        await made.time.advance(HEARTBEAT_INTERVAL)
        await made.time.advance(HEARTBEAT_INTERVAL)
        await read(stream)
        await read(stream)
        await stream.write(exited(1))
        assert await made.event() == events.WorkerExited(1, -9, "bye")
        for _ in range(4):
            await made.time.advance(HEARTBEAT_INTERVAL)
            assert (await read(stream)).ack == 1
        assert made.inbox.drain() == []

    serve(work)


def test_a_driver_that_was_stopped_takes_no_agent_for_silent() -> None:
    async def work(made: Driver) -> None:
        await connect(made)
        await made.time.advance(HEARTBEAT_INTERVAL)
        await made.time.advance(3600.0)
        await made.time.advance(HEARTBEAT_INTERVAL)
        assert made.inbox.drain() == []

    serve(work)


def test_a_driver_that_is_late_counts_a_part_of_the_silence() -> None:
    async def work(made: Driver) -> None:
        await connect(made)
        for _ in range(int(2 * AGENT_LEASE)):
            await made.time.advance(HEARTBEAT_INTERVAL + OVERLOADED_DELAY)  # it has not come to what agents have sent
        assert made.inbox.drain() == []
        for _ in range(int(AGENT_LEASE / HEARTBEAT_INTERVAL)):
            await made.time.advance(HEARTBEAT_INTERVAL)
        assert await made.event() == events.AgentSilent("a", 1, AgentFault(AgentFaultKind.SILENT, seconds=5.0))

    serve(work)


def test_an_agent_that_never_dials_in_is_lost_counted_from_its_start() -> None:
    async def work(made: Driver) -> None:
        made.registry.expect("a", 1)
        for _ in range(int(2 * BOOT_LEASE / HEARTBEAT_INTERVAL)):
            await made.time.advance(HEARTBEAT_INTERVAL)
        made.registry.started(1)
        for _ in range(int(BOOT_LEASE / HEARTBEAT_INTERVAL)):
            assert made.inbox.drain() == []
            await made.time.advance(HEARTBEAT_INTERVAL)
        assert await made.event() == events.AgentLost("a", 1, AgentFault(AgentFaultKind.NEVER_ANSWERED, seconds=30.0))

    serve(work)


def test_an_agent_that_acknowledges_nothing_is_lost() -> None:
    async def work(made: Driver) -> None:
        await connect(made)
        for worker_id in range(10_001):
            made.registry.send("a", start(worker_id))
        lost = await made.event()
        assert isinstance(lost, events.AgentLost)
        assert lost.fault.kind is AgentFaultKind.OVERLOADED

    serve(work)


def test_output_is_passed_on_with_the_name_of_its_host() -> None:
    async def work(made: Driver) -> None:
        made.registry.expect("a", 1)
        made.registry.send("a", start(1))
        made.registry.give_up(1)  # its last lines arrive after its end
        batch = agent_pb2.ForwardOutputRequest(
            agent_id=1, secret=secret_of(1), lines=[agent_pb2.OutputLine(worker_id=1, text=b"hello")], dropped=2
        )
        call = made.stub().ForwardOutput()
        await call.write(batch)
        await call.done_writing()
        assert await call == agent_pb2.ForwardOutputResponse()
        assert made.output == [("a", batch)]
        refused = made.stub().ForwardOutput()
        await refused.write(agent_pb2.ForwardOutputRequest(agent_id=2))
        assert await refused.code() is grpc.StatusCode.FAILED_PRECONDITION

    serve(work)
