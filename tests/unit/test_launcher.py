from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import IO, Any

import pytest

from edriver.driver.launch.agents import MAX_CONCURRENT_STARTS, MIXED_ADDRESSES_ERROR, UNKNOWN_NAME_ERROR, Agents
from edriver.driver.launch.choice import always, by_host
from edriver.driver.launch.dial_in import DialInLauncher
from edriver.driver.launch.launcher import AgentLaunchError, Bootstrap, Launcher
from edriver.driver.launch.local import LocalLauncher, OwnNames, address_among, address_here
from edriver.driver.launch.ssh import SshLauncher
from edriver.system.child import Child
from edriver.system.ssh_client import SshOptions
from tests.waiting import until_async


def soon(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


@pytest.mark.parametrize(
    ("name", "address"),
    [
        pytest.param("localhost", "127.0.0.1", id="localhost"),
        pytest.param("127.0.0.2", "127.0.0.2", id="loopback-address"),
        pytest.param("203.0.113.7", None, id="documentation-address"),
        pytest.param("no-such-host.invalid", None, id="unknown"),
        pytest.param("a" * 70 + ".invalid", None, id="no-name-at-all"),
        pytest.param("0.0.0.0", None, id="any-address"),
        pytest.param("224.0.0.1", None, id="multicast"),
        pytest.param("255.255.255.255", None, id="broadcast"),
    ],
)
def test_address_here(name: str, address: str | None) -> None:
    found = asyncio.run(address_here(name))
    assert found == address or (name == "localhost" and found == "::1")


def test_a_silent_name_server_does_not_delay_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    look_up = socket.getaddrinfo

    def silent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "silent":
            answers.wait(20)
        return look_up(name, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", silent)

    async def work() -> None:
        waiting = [asyncio.create_task(address_here("silent")) for _ in range(MAX_CONCURRENT_STARTS)]
        await asyncio.sleep(0)
        assert await address_here("127.0.0.2") == "127.0.0.2"
        assert not any(task.done() for task in waiting)

    soon(work())
    answers.set()


def test_this_machines_own_name_is_here() -> None:
    assert asyncio.run(address_here(socket.gethostname())) is not None


async def readable(descriptor: int) -> None:
    """Wait until there is something to read, or the other end is closed."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    await ready.wait()
    loop.remove_reader(descriptor)


@dataclass
class FakeAgents:
    """Starts a shell command in an agent's place, and collects what the launcher says."""

    command: str
    stdout: int | None = None
    stderr: int | None = None
    networked: bool = False
    started: list[int] = field(default_factory=list)
    spawned: list[tuple[str, int, str]] = field(default_factory=list)
    processes: list[Child] = field(default_factory=list)
    inputs: list[IO[bytes]] = field(default_factory=list)
    exits: list[tuple[str, int, str]] = field(default_factory=list)
    exited: asyncio.Event = field(default_factory=asyncio.Event)

    async def make_join_config(self, host: str, agent_id: int, address: str | None) -> bytes:
        return f"{agent_id} {address or 'by ssh'}".encode()

    def note(self, host: str, join_config: bytes) -> None:
        agent_id, where = join_config.decode().split(" ", 1)
        self.spawned.append((host, int(agent_id), where))

    def spawn(self, host: str, join_config: bytes) -> Child:
        self.note(host, join_config)
        command = ["sh", "-c", self.command]
        self.processes.append(Child(command, stdout=self.stdout, stderr=self.stderr))
        return self.processes[-1]

    def spawn_remote(self, host: str, join_config: bytes) -> Child:
        self.note(host, join_config)
        return self._shell()

    def _shell(self) -> Child:
        command = ["sh", "-c", self.command]
        reader, writer = os.pipe()
        self.processes.append(Child(command, stdin=reader, stderr=subprocess.PIPE))
        os.close(reader)
        self.inputs.append(os.fdopen(writer, "wb"))
        return self.processes[-1]

    def agents(self, launcher: Launcher | None = None) -> Agents:
        here, there = LocalLauncher(self.spawn), SshLauncher(SshOptions(), self.spawn_remote)
        return Agents(
            by_host(self.reach, here, there) if launcher is None else always(launcher),
            self.make_join_config,
            self.on_exit,
            on_start=self.started.append,
            network=self.network,
        )

    async def reach(self, host: str) -> str | None:
        return await address_among(host, ())

    async def network(self) -> None:
        self.networked = True

    def on_exit(self, host: str, agent_id: int, reason: str) -> None:
        self.exits.append((host, agent_id, reason))
        self.exited.set()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        pytest.param("exit 0", "its agent exited with code 0", id="in-order"),
        pytest.param("exit 3", "its agent exited with code 3", id="code"),
        pytest.param("kill -9 $$", "its agent was killed by SIGKILL", id="signal"),
    ],
)
def test_an_exit_is_noticed_and_reaped(command: str, reason: str) -> None:
    async def work() -> None:
        agents = FakeAgents(command)
        launcher = agents.agents()
        launcher.start("127.0.0.2", 5)
        await agents.exited.wait()
        assert agents.spawned == [("127.0.0.2", 5, "127.0.0.2")]
        assert agents.exits == [("127.0.0.2", 5, reason)]
        assert launcher.running == ()
        await launcher.wait_until_empty()
        assert agents.processes[0].code is not None

    soon(work())


def test_kill_ends_the_whole_group_of_one_agent() -> None:
    async def work() -> None:
        (reader, writer), (received, message) = os.pipe(), os.pipe()
        agents = FakeAgents("sleep 30 & echo started; wait", stdout=message, stderr=writer)
        launcher = agents.agents()
        launcher.start("localhost", 1)
        await readable(received)
        os.close(writer)
        assert launcher.running == (1,)
        launcher.kill(1)
        await agents.exited.wait()
        assert agents.exits == [("localhost", 1, "its agent was killed by SIGKILL")]
        await readable(reader)
        assert os.read(reader, 1) == b""  # the sleep held the other end
        for descriptor in (reader, received, message):
            os.close(descriptor)

    soon(work())


def test_an_agent_that_cannot_be_started_is_reported() -> None:
    async def work() -> None:
        def no_spawn(host: str, join_config: bytes) -> Child:
            raise BlockingIOError(11, "Resource temporarily unavailable")

        agents = FakeAgents("")
        agents.spawn = no_spawn  # type: ignore[method-assign]
        agents.agents().start("localhost", 1)
        await agents.exited.wait()
        assert "cannot be started: [Errno 11] Resource temporarily unavailable" in agents.exits[0][2]

    soon(work())


def test_a_closed_launcher_starts_nothing() -> None:
    async def work() -> None:
        agents = FakeAgents("exit 0")
        launcher = agents.agents()
        launcher.start("localhost", 1)  # on its way, but not there yet
        launcher.close()
        launcher.start("localhost", 2)
        await launcher.wait_until_empty()
        assert agents.spawned == []
        assert agents.exits == []

    soon(work())


ELSEWHERE = "203.0.113.7"
SAYS_WHY = "echo 'Host key verification failed.' >&2; exit 255"
GOES_WHEN_TOLD = "read _; exit 255"


def test_another_host_is_reached_by_ssh_and_its_failure_is_explained() -> None:
    async def work() -> None:
        agents = FakeAgents(SAYS_WHY)
        launcher = agents.agents()
        launcher.start(ELSEWHERE, 1)
        await agents.exited.wait()
        assert agents.spawned == [(ELSEWHERE, 1, "by ssh")]
        assert "its host key is not known here" in agents.exits[0][2]
        agents.inputs[0].close()
        await launcher.wait_until_empty()

    soon(work())


def test_an_agent_outlives_the_connection_of_its_ssh_until_it_departs() -> None:
    async def work() -> None:
        agents = FakeAgents(GOES_WHEN_TOLD)
        launcher = agents.agents()
        launcher.start(ELSEWHERE, 1)
        await until_async(lambda: bool(launcher.running))
        launcher.connected(1)
        agents.inputs[0].close()
        await until_async(lambda: agents.processes[0].code is not None)
        assert launcher.running == (1,)
        assert agents.exits == []
        launcher.agent_ended(1)
        assert agents.exits == [(ELSEWHERE, 1, "its agent has ended")]
        await launcher.wait_until_empty()

    soon(work())


def test_an_agent_without_ssh_can_be_given_up() -> None:
    async def work() -> None:
        agents = FakeAgents(GOES_WHEN_TOLD)
        launcher = agents.agents()
        launcher.start(ELSEWHERE, 1)
        await until_async(lambda: bool(launcher.running))
        launcher.connected(1)
        agents.inputs[0].close()
        await until_async(lambda: agents.processes[0].code is not None)
        launcher.kill(1)
        await agents.exited.wait()
        assert launcher.running == ()
        assert agents.exits == [(ELSEWHERE, 1, "its agent was given up")]

    soon(work())


def test_an_agent_that_reports_its_end_has_ended_once_its_ssh_has() -> None:
    """Its exit code is still to come, and a driver that does not wait for it leaves a process behind."""

    async def work() -> None:
        agents = FakeAgents("read _; exit 0")
        launcher = agents.agents()
        launcher.start(ELSEWHERE, 1)
        await until_async(lambda: bool(launcher.running))
        launcher.connected(1)
        launcher.agent_ended(1)
        assert launcher.running == (1,)
        agents.inputs[0].close()
        await agents.exited.wait()
        assert agents.exits == [(ELSEWHERE, 1, "its agent exited with code 0")]

    soon(work())


def test_only_so_many_are_on_their_way_at_a_time() -> None:
    async def work() -> None:
        agents = FakeAgents("read _; exit 1")
        launcher = agents.agents()
        for number in range(MAX_CONCURRENT_STARTS + 2):
            launcher.start(ELSEWHERE, number)
        await until_async(lambda: len(agents.spawned) >= MAX_CONCURRENT_STARTS)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(agents.spawned) == len(agents.started) == MAX_CONCURRENT_STARTS
        launcher.connected(agents.spawned[0][1])  # has arrived
        agents.inputs[1].close()  # has failed
        await until_async(lambda: len(agents.spawned) >= MAX_CONCURRENT_STARTS + 2)
        for one in agents.inputs:
            one.close()
        await launcher.wait_until_empty()

    soon(work())


@pytest.mark.parametrize(
    ("host", "neighbours", "address"),
    [
        pytest.param("localhost", ("localhost", "127.0.0.2"), "127.0.0.1", id="all-are-here"),
        pytest.param("localhost", ("localhost", "no-such-host.invalid"), "127.0.0.1", id="the-other-is-not-known-here"),
    ],
)
def test_the_address_of_localhost(host: str, neighbours: tuple[str, ...], address: str) -> None:
    assert asyncio.run(address_among(host, neighbours)) == address


def test_a_host_that_the_running_ones_cannot_be_reached_from_is_not_used() -> None:
    async def work() -> None:
        agents = FakeAgents("sleep 30")
        launcher = agents.agents()
        launcher.start("localhost", 1)
        await until_async(lambda: bool(launcher.running))
        assert not agents.networked
        launcher.start(ELSEWHERE, 2)
        await agents.exited.wait()
        assert agents.exits == [(ELSEWHERE, 2, MIXED_ADDRESSES_ERROR)]
        launcher.kill(1)
        await launcher.wait_until_empty()

    soon(work())


def test_a_name_that_is_not_known_is_said_to_be_so() -> None:
    async def work() -> None:
        agents = FakeAgents("sleep 30")
        launcher = agents.agents()
        launcher.start("localhost", 1)
        await until_async(lambda: bool(launcher.running))
        launcher.start("no-such-host.invalid", 2)
        await agents.exited.wait()
        assert agents.exits == [("no-such-host.invalid", 2, UNKNOWN_NAME_ERROR.format("no-such-host.invalid"))]
        launcher.kill(1)
        await launcher.wait_until_empty()

    soon(work())


def test_the_network_is_made_ready_for_another_host() -> None:
    async def work() -> None:
        agents = FakeAgents(SAYS_WHY)
        launcher = agents.agents()
        launcher.start(ELSEWHERE, 1)
        await agents.exited.wait()
        assert agents.networked
        agents.inputs[0].close()

    soon(work())


class FakeLauncher:
    """Starts nothing, and does what a test wants."""

    def __init__(self, error: Exception | None = None, says: str = "") -> None:
        self.error = error
        self.says = says
        self.bootstraps: list[Bootstrap] = []
        self.stopped: list[int] = []

    async def start(self, host: str, bootstrap: Bootstrap) -> None:
        self.bootstraps.append(bootstrap)
        if self.error:
            raise self.error
        if self.says:
            bootstrap.ended(self.says)
            bootstrap.ended("it is said again")

    async def stop(self, agent_id: int, /) -> None:
        self.stopped.append(agent_id)
        if self.error:
            raise self.error

    def watches(self, _: int, /) -> bool:
        return False


@pytest.mark.parametrize(
    ("launcher", "reason"),
    [
        pytest.param(
            FakeLauncher(AgentLaunchError("the queue is full: wait")), "the queue is full: wait", id="why-not"
        ),
        pytest.param(FakeLauncher(ValueError("oops")), "a bug in its launcher: ValueError('oops')", id="a-bug"),
        pytest.param(FakeLauncher(says="the job was cancelled"), "the job was cancelled", id="over-at-once"),
        pytest.param(DialInLauncher(lambda _host, _agent_id: False), "it has not dialled in again", id="not-at-door"),
    ],
)
def test_a_launcher_says_why_there_is_no_agent(launcher: Launcher, reason: str) -> None:
    async def work() -> None:
        agents = FakeAgents("")
        every = agents.agents(launcher)
        every.start(ELSEWHERE, 3)
        await agents.exited.wait()
        ((host, agent_id, message),) = agents.exits
        assert (host, agent_id) == (ELSEWHERE, 3)
        assert reason in message
        await every.wait_until_empty()

    soon(work())


def test_an_agent_that_its_launcher_does_not_watch_ends_with_its_last_word() -> None:
    async def work() -> None:
        agents, launcher = FakeAgents(""), FakeLauncher()
        every = agents.agents(launcher)
        every.start("localhost", 3)
        await until_async(lambda: every.running == (3,))
        assert agents.networked
        assert await launcher.bootstraps[0].join_config() == b"3 by ssh"
        every.connected(3)
        assert launcher.bootstraps[0].connected.is_set()
        every.agent_ended(3)
        launcher.bootstraps[0].ended("it is said twice")
        assert agents.exits == [("localhost", 3, "its agent has ended")]
        await every.wait_until_empty()

    soon(work())


def test_an_agent_whose_launcher_cannot_stop_it_is_given_up() -> None:
    async def work() -> None:
        agents, launcher = FakeAgents(""), FakeLauncher()
        every = agents.agents(launcher)
        every.start(ELSEWHERE, 3)
        await until_async(lambda: every.running == (3,))
        launcher.error = AgentLaunchError("the scheduler does not answer")
        every.kill(3)
        await agents.exited.wait()
        assert launcher.stopped == [3]
        assert agents.exits == [(ELSEWHERE, 3, "its agent was given up")]
        await every.wait_until_empty()

    soon(work())


def test_two_names_of_this_machine_are_one_warning() -> None:
    used = {"localhost"}
    names = OwnNames()
    assert names.add("localhost", used.__contains__) == ""
    assert names.add("gone", used.__contains__) == ""
    used |= {"node7", "127.0.0.2"}
    assert names.add("node7", used.__contains__).startswith("localhost and node7 are both this machine. ")
    assert names.add("127.0.0.2", used.__contains__) == ""
