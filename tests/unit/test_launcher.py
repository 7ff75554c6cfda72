from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Coroutine
from dataclasses import dataclass, field

import pytest

from edriver.driver.launcher import NOT_HERE, LocalLauncher, address_here


def soon(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


@pytest.mark.parametrize(
    ("name", "address"),
    [
        pytest.param("localhost", "127.0.0.1", id="localhost"),
        pytest.param("127.0.0.2", "127.0.0.2", id="loopback-address"),
        pytest.param("203.0.113.7", None, id="documentation-address"),
        pytest.param("0.0.0.0", None, id="any-address"),
        pytest.param("224.0.0.1", None, id="multicast"),
        pytest.param("255.255.255.255", None, id="broadcast"),
    ],
)
def test_address_here(name: str, address: str | None) -> None:
    found = asyncio.run(address_here(name))
    assert found == address or (name == "localhost" and found == "::1")


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
    held: tuple[int, ...] = ()
    spawned: list[tuple[str, int, str]] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    exits: list[tuple[str, int, str]] = field(default_factory=list)
    exited: asyncio.Event = field(default_factory=asyncio.Event)

    def spawn(self, host: str, agent_id: int, address: str) -> subprocess.Popen[bytes]:
        self.spawned.append((host, agent_id, address))
        command = ["sh", "-c", self.command]
        self.processes.append(subprocess.Popen(command, stdout=self.stdout, start_new_session=True, pass_fds=self.held))
        return self.processes[-1]

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
        launcher = LocalLauncher(agents.spawn, agents.on_exit)
        launcher.start("127.0.0.2", 5)
        await agents.exited.wait()
        assert agents.spawned == [("127.0.0.2", 5, "127.0.0.2")]
        assert agents.exits == [("127.0.0.2", 5, reason)]
        assert launcher.running == ()
        await launcher.wait_until_empty()
        assert agents.processes[0].returncode is not None

    soon(work())


def test_kill_ends_the_whole_group_of_one_agent() -> None:
    async def work() -> None:
        (reader, writer), (heard, said) = os.pipe(), os.pipe()
        agents = FakeAgents("sleep 30 & echo started; wait", stdout=said, held=(writer,))
        launcher = LocalLauncher(agents.spawn, agents.on_exit)
        launcher.start("localhost", 1)
        await readable(heard)
        os.close(writer)
        assert launcher.running == (1,)
        launcher.kill(1)
        await agents.exited.wait()
        assert agents.exits == [("localhost", 1, "its agent was killed by SIGKILL")]
        await readable(reader)
        assert os.read(reader, 1) == b""  # the sleep held the other end
        for descriptor in (reader, heard, said):
            os.close(descriptor)

    soon(work())


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        pytest.param("203.0.113.7", NOT_HERE, id="elsewhere"),
        pytest.param("no-such-host.invalid", "its name cannot be resolved", id="unknown"),
        pytest.param("a" * 70 + ".invalid", "its name cannot be resolved", id="no-name-at-all"),
    ],
)
def test_a_host_that_is_not_this_machine_is_refused(host: str, reason: str) -> None:
    async def work() -> None:
        agents = FakeAgents("exit 0")
        launcher = LocalLauncher(agents.spawn, agents.on_exit)
        launcher.start(host, 1)
        await agents.exited.wait()
        assert agents.spawned == []
        assert agents.exits[0][:2] == (host, 1)
        assert reason in agents.exits[0][2]
        await launcher.wait_until_empty()

    soon(work())


def test_an_agent_that_cannot_be_started_is_reported() -> None:
    async def work() -> None:
        def no_spawn(host: str, agent_id: int, address: str) -> subprocess.Popen[bytes]:
            raise BlockingIOError(11, "Resource temporarily unavailable")

        agents = FakeAgents("")
        LocalLauncher(no_spawn, agents.on_exit).start("localhost", 1)
        await agents.exited.wait()
        assert "cannot be started: [Errno 11] Resource temporarily unavailable" in agents.exits[0][2]

    soon(work())


def test_a_closed_launcher_starts_nothing() -> None:
    async def work() -> None:
        agents = FakeAgents("exit 0")
        launcher = LocalLauncher(agents.spawn, agents.on_exit)
        launcher.start("localhost", 1)  # on its way, but not there yet
        launcher.close()
        launcher.start("localhost", 2)
        await launcher.wait_until_empty()
        assert agents.spawned == []
        assert agents.exits == []

    soon(work())
