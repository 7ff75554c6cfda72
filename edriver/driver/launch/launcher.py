"""Starts agents, here and over ssh, notices at once when one exits, and leaves none behind."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from edriver.driver.launch import ssh
from edriver.driver.launch.local import is_loopback
from edriver.system.child import Child
from edriver.system.ssh_client import OWN_FAILURE
from edriver.text.phrases import exit_text

_log = logging.getLogger("edriver.driver")

SIDE_BY_SIDE: Final = 64
"""How many agents may be on their way over ssh at a time; and how many names may be looked up."""

LINES_KEPT: Final = 20
"""Of what a process says on standard error, for the reason of its end."""

LONGEST_LINE: Final = 8192

APART: Final = (
    "some hosts of this run are called by a loopback address (localhost, 127.0.0.1), by which only this machine can "
    "reach them, and others are not: name this machine by an address that the others reach, or give --network-interface"
)

LocalSpawn = Callable[[str, int, str], Child]
"""Starts an agent here: (host, agent_id, address) -> process."""

RemoteSpawn = Callable[[str, int], Awaitable[Child]]
"""Starts an agent on another host: (host, agent_id) -> the process of ssh, whose standard error is a pipe."""

OnExit = Callable[[str, int, str], None]
"""Told that an agent has exited, or could not be started: (host, agent_id, reason)."""


@dataclass(slots=True, eq=False)
class _Agent:
    """An agent that was started, by the process that we see of it.

    Attributes:
        host: its host.
        process: the agent's own, or ssh's; None: ssh's connection is gone, and the agent is not.
        remote: whether it is ssh's.
        confined: whether only hosts of this machine can reach it.
        killed: whether we have given it up.
        met: whether it has dialled in.
        settled: set when it has, or has ended.
        said: its last lines on standard error.
        unread: what has come of the next one.
    """

    host: str
    process: Child | None
    remote: bool
    confined: bool
    killed: bool = False
    met: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    said: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_KEPT))
    unread: bytes = b""


class Launcher:
    """All agents of a run. Every name or address of this machine is a host of its own; all others are ssh's.

    Args:
        local: starts an agent on this machine.
        remote: starts an agent on another.
        on_exit: told of every agent's end, asked for or not.
        on_start: told of every agent that is on its way.
        version: the driver's, for what an operator is told to install.
        admit: lets in the agent of a host that has dialled in by itself; returns whether there is one.
        reach: tells by which address the others reach a host of this machine; None: it is another machine.
        network: called before hosts other than by loopback addresses are used.
    """

    def __init__(
        self,
        local: LocalSpawn,
        remote: RemoteSpawn,
        on_exit: OnExit,
        version: str,
        on_start: Callable[[int], None],
        reach: Callable[[str], Awaitable[str | None]],
        network: Callable[[], Awaitable[None]],
        admit: Callable[[str, int], bool] | None = None,
    ) -> None:
        self._admit = admit
        self._reach = reach
        self._network = network
        self._local = local
        self._remote = remote
        self._on_exit = on_exit
        self._on_start = on_start
        self._version = version
        self._starting: dict[int, asyncio.Task[None]] = {}
        self._running: dict[int, _Agent] = {}
        self._lookups = asyncio.Semaphore(SIDE_BY_SIDE)
        self._ways = asyncio.Semaphore(SIDE_BY_SIDE)
        self._empty = asyncio.Event()
        self._empty.set()
        self._closed = False

    @property
    def running(self) -> tuple[int, ...]:
        """The ids of agents that run."""
        return tuple(self._running)

    def start(self, host: str, agent_id: int) -> None:
        """Start an agent, soon; `on_exit` hears of it if that fails."""
        if not self._closed:
            self._empty.clear()
            task = self._starting[agent_id] = asyncio.create_task(self._start(host, agent_id))
            task.add_done_callback(lambda _: self._note_started(agent_id))

    def met(self, agent_id: int) -> None:
        """The agent has dialled in."""
        if agent := self._running.get(agent_id):
            agent.met = True
            agent.settled.set()

    def departed(self, agent_id: int) -> None:
        """The agent has said its last word to the driver. Of one whose ssh is gone, nothing else tells."""
        if (agent := self._running.get(agent_id)) and agent.process is None:
            self._end(agent_id, "its agent has ended")

    def kill(self, agent_id: int) -> None:
        """Kill what we see of an agent, with its process group, or do not start it any more.

        An agent on another host ends when it finds that the driver knows it no more, or is silent.
        """
        if task := self._starting.get(agent_id):
            task.cancel()
        if agent := self._running.get(agent_id):
            if agent.process is None:
                self._end(agent_id, "its agent was given up")
                return
            agent.killed = True
            agent.process.signal_group(signal.SIGKILL)

    def close(self) -> None:
        """Start no more."""
        self._closed = True
        for task in self._starting.values():
            task.cancel()

    async def wait_until_empty(self) -> None:
        """Wait until no agent runs or is being started."""
        await self._empty.wait()

    def _let_in(self, host: str, agent_id: int, admit: Callable[[str, int], bool]) -> None:
        self._running[agent_id] = _Agent(host, None, remote=True, confined=False, met=True)
        self._on_start(agent_id)
        if not admit(host, agent_id):
            self._end(agent_id, "it has not dialled in again")

    async def _start(self, host: str, agent_id: int) -> None:
        if self._admit is not None:
            self._let_in(host, agent_id, self._admit)
            return
        try:
            async with self._lookups:
                address = await self._reach(host)
            confined = address is not None and is_loopback(address)
            if any(agent.confined is not confined for agent in self._running.values()):
                self._on_exit(host, agent_id, APART)
                return
            if not confined:
                await self._network()
            if address is not None:
                process = self._local(host, agent_id, address)
                self._watch(agent_id, _Agent(host, process, remote=False, confined=confined))
                return
            async with self._ways:
                agent = _Agent(host, await self._remote(host, agent_id), remote=True, confined=False)
                self._watch(agent_id, agent)
                await agent.settled.wait()  # bounded: the driver gives up an agent that does not dial in
        except OSError as error:
            self._on_exit(host, agent_id, f"its agent cannot be started: {error}")

    def _watch(self, agent_id: int, agent: _Agent) -> None:
        process = agent.process
        assert process is not None
        loop = asyncio.get_running_loop()

        def reap() -> None:
            code = process.reap()  # and kill the rest of its group: ssh's proxy may not have noticed
            if process.stderr is not None:
                self._listen(agent)
                loop.remove_reader(process.stderr)
                process.stderr.close()
            self._reaped(agent_id, agent, code)

        process.watch(reap)
        if process.stderr is not None:
            os.set_blocking(process.stderr.fileno(), False)
            loop.add_reader(process.stderr, self._listen, agent)
        self._running[agent_id] = agent
        self._on_start(agent_id)

    def _listen(self, agent: _Agent) -> None:
        """Take in what has come on standard error."""
        assert agent.process is not None
        assert agent.process.stderr is not None
        while True:
            try:
                data = os.read(agent.process.stderr.fileno(), LONGEST_LINE)
            except BlockingIOError:
                return
            if not data:
                asyncio.get_running_loop().remove_reader(agent.process.stderr)
            *lines, rest = (agent.unread + data).split(b"\n")
            if not data or len(rest) > LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            agent.unread = rest
            for line in filter(None, (line.decode(errors="replace").strip() for line in lines)):
                agent.said.append(line)
                if agent.met:  # what is said before that is part of the reason why it does not come
                    _log.warning("host %s: %s", agent.host, line)
            if not data:
                return

    def _reaped(self, agent_id: int, agent: _Agent, code: int) -> None:
        if not agent.remote:
            self._end(agent_id, f"its agent {exit_text(code)}")
        elif agent.met and not agent.killed and (code == OWN_FAILURE or code < 0):  # ssh's own end
            agent.process = None
            _log.warning("host %s: the connection of ssh is gone; its agent goes on without", agent.host)
        else:
            self._end(agent_id, ssh.failure(agent.host, code, tuple(agent.said), self._version))

    def _end(self, agent_id: int, reason: str) -> None:
        agent = self._running.pop(agent_id)
        agent.settled.set()
        self._note_empty()
        self._on_exit(agent.host, agent_id, reason)

    def _note_started(self, agent_id: int) -> None:
        """Not in a `finally` of the task: one that is cancelled before its first step never gets there."""
        del self._starting[agent_id]
        self._note_empty()

    def _note_empty(self) -> None:
        if not self._starting and not self._running:
            self._empty.set()
