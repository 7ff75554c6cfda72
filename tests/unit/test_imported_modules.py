"""What workers have imported: which agents are sent it, and when."""

from __future__ import annotations

import asyncio
import contextlib

from edriver.driver.agents.agent_messages import AgentMessages
from edriver.driver.agents.fault_log import FaultLog
from edriver.driver.agents.imported_modules import ImportedModules
from edriver.driver.agents.registry import HEARTBEAT_INTERVAL, AgentRegistry
from edriver.driver.feeds.inbound import Inbound
from edriver.driver.feeds.mailbox import Mailbox
from edriver.model.limits import MAX_MODULE_NAME_LENGTH, MAX_MODULES
from edriver.v1 import agent_pb2, notification_pb2


class Driver:
    """A registry with two connected agents, 1 on host a and 2 on host b, and what it has sent to each."""

    def __init__(self) -> None:
        self.now = 0.0
        self.registry = AgentRegistry(Mailbox[Inbound](100), lambda: self.now, draw_secret=lambda: b"secret")
        self.messages = AgentMessages(
            agent_pb2.Welcome(),
            lambda _: None,
            lambda _: None,
            FaultLog(),
            on_modules_imported=self.registry.imported.note,
        )
        self.streams = {}
        for host, agent_id in (("a", 1), ("b", 2)):
            self.registry.expect(host, agent_id)
            peer = self.registry.peer(agent_id)
            assert peer is not None
            hello = agent_pb2.ConnectRequest(hello=agent_pb2.Hello(pid=agent_id + 1000))
            self.streams[host] = self.registry.connect(peer, hello, agent_pb2.Welcome())

    def start(self, host: str, worker_id: int) -> list[str]:
        """Order a worker to be started; returns the names of modules in the order."""
        self.registry.send(host, agent_pb2.ConnectResponse(start_worker=agent_pb2.StartWorker(worker_id=worker_id)))
        return list(self.streams[host].drain()[-1].start_worker.modules_imported.names)

    def report(self, agent_id: int, worker_id: int, *names: str, **environment: str) -> None:
        imported = notification_pb2.ModulesImported(names=names, environment=environment)
        report = agent_pb2.WorkerReport(worker_id=worker_id, report=notification_pb2.Report(modules_imported=imported))
        peer = self.registry.peer(agent_id)
        assert peer is not None
        assert self.messages.taken(peer, agent_pb2.ConnectRequest(worker_report=report)) == (None, b"")


def test_the_first_worker_of_an_agent_gets_what_others_have_imported_and_no_later_one() -> None:
    driver = Driver()
    assert driver.start("a", 1) == [], "nothing is known yet"
    driver.report(1, 1, "torch", "torch.nn", RANK="0")
    driver.report(1, 1, "slow", RANK="0")
    assert driver.start("a", 2) == [], "there its workers have records of their own"
    assert driver.start("b", 3) == ["torch", "torch.nn", "slow"]
    assert driver.start("b", 4) == []


def test_what_an_agent_says_of_anothers_worker_is_left_out() -> None:
    driver = Driver()
    driver.start("a", 1)
    driver.report(2, 1, "slow")
    assert driver.start("b", 2) == []


def test_no_snapshot_has_the_names_and_the_next_driver_sends_an_agent_none_again() -> None:
    driver = Driver()
    driver.start("a", 1)
    driver.report(1, 1, "slow", RANK="0")
    assert driver.start("b", 2) == ["slow"]
    agents = driver.registry.agents
    assert "slow" not in str(agents)
    [unacknowledged] = agents.peers[1].link.unacknowledged
    assert unacknowledged.start_worker == agent_pb2.StartWorker(worker_id=2)

    again = Driver()
    again.registry.restore(agents)
    for worker_id in (1, 2):
        again.report(worker_id, worker_id, "slow")
    for host, agent_id in (("a", 1), ("b", 2)):
        peer = again.registry.peer(agent_id)
        assert peer is not None
        hello = agent_pb2.ConnectRequest(hello=agent_pb2.Hello(pid=agent_id + 1000))
        again.streams[host] = again.registry.connect(peer, hello, agent_pb2.Welcome())
        assert again.start(host, 3 + agent_id) == []


def test_names_are_bounded_and_the_place_is_that_of_the_last_who_reported() -> None:
    imported = ImportedModules()
    for rank in range(3):
        names = [f"m{rank}_{n}" for n in range(MAX_MODULES // 2)]
        imported.note(notification_pb2.ModulesImported(names=names, environment={"RANK": str(rank)}))
    order = agent_pb2.StartWorker()
    imported.add_to(order)
    assert len(order.modules_imported.names) == MAX_MODULES
    assert dict(order.modules_imported.environment) == {"RANK": "2"}


def test_the_longest_names_fit_into_a_message_of_grpcs() -> None:
    imported = ImportedModules()
    names = [f"m{n}".ljust(MAX_MODULE_NAME_LENGTH, "_") for n in range(MAX_MODULES)]
    imported.note(notification_pb2.ModulesImported(names=names))
    order = agent_pb2.StartWorker()
    imported.add_to(order)
    assert order.ByteSize() < 4 << 20


def beats(driver: Driver, standbys: dict[str, int] | None) -> dict[str, agent_pb2.Heartbeat]:
    """The next heartbeat of each host."""
    driver.registry.standbys = lambda: standbys
    now = driver.now

    async def sleep(_seconds: float) -> None:
        if driver.now > now:
            raise asyncio.CancelledError
        driver.now += HEARTBEAT_INTERVAL

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(driver.registry.send_heartbeats(sleep))
    return {host: stream.drain()[-1].heartbeat for host, stream in driver.streams.items()}


def test_heartbeats_say_how_many_standbys_a_host_may_have() -> None:
    driver = Driver()
    assert not beats(driver, None)["a"].HasField("standbys"), "what it has stays"
    found = beats(driver, {"a": 2})
    assert (found["a"].standbys, found["b"].standbys) == (2, 0)
    assert found["b"].HasField("standbys")


def test_standbys_of_a_host_that_has_had_no_worker_learn_what_others_have_imported_once_on_each_connection() -> None:
    driver = Driver()
    driver.start("a", 1)
    driver.report(1, 1, "torch", MODE="fast")
    allowed = {"a": 1, "b": 1}
    found = beats(driver, {"a": 1, "b": 0})
    assert not found["a"].HasField("modules_imported"), "its worker has written it down there"
    assert not found["b"].HasField("modules_imported"), "it has no standby"
    found = beats(driver, allowed)
    assert list(found["b"].modules_imported.names) == ["torch"]
    assert dict(found["b"].modules_imported.environment) == {"MODE": "fast"}
    assert not beats(driver, allowed)["b"].HasField("modules_imported")
    driver.report(1, 1, "slow")
    assert list(beats(driver, allowed)["b"].modules_imported.names) == ["torch", "slow"]
    peer = driver.registry.peer(2)
    assert peer is not None
    hello = agent_pb2.ConnectRequest(hello=agent_pb2.Hello(pid=1002))
    driver.streams["b"] = driver.registry.connect(peer, hello, agent_pb2.Welcome())
    assert list(beats(driver, allowed)["b"].modules_imported.names) == ["torch", "slow"], "it may have missed the last"
