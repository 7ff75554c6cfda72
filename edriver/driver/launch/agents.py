"""All agents of a run: has launchers start and stop them, and leaves none behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from edriver.driver.launch.choice import Choose
from edriver.driver.launch.launcher import AgentLaunchError, Bootstrap, Launcher
from edriver.driver.launch.local import address_towards
from edriver.system.own_addresses import is_loopback

_log = logging.getLogger("edriver.driver")

MAX_CONCURRENT_STARTS: Final = 64
"""The maximum number of agents being started at a time, and of names being looked up."""

MIXED_ADDRESSES_ERROR: Final = (
    "some hosts of this run are named by a loopback address (localhost, 127.0.0.1), by which only this machine can "
    "reach them, and others are not: name this machine by an address that the others reach, or give --network-interface"
)

UNKNOWN_NAME_ERROR: Final = (
    "no address is known here for the name {}: check the spelling. If ssh alone knows it, name this machine by an "
    "address that the other hosts reach, or give --network-interface"
)

MakeJoinConfig = Callable[[str, int, "str | None"], Awaitable[bytes]]
"""Writes a join config: (host, agent_id, the host's address if it is this machine)."""

OnExit = Callable[[str, int, str], None]
"""Called when an agent has exited, or could not be started: (host, agent_id, reason)."""


@dataclass(slots=True, eq=False)
class _Agent:
    """An agent that has been started, or is about to be.

    Attributes:
        host: its host.
        launcher: the launcher that starts it.
        confined: whether only hosts of this machine can reach it.
        connected: set when it has connected.
        start_done: set when it has, or has ended.
        reason: why it has ended; None: it has not.
    """

    host: str
    launcher: Launcher
    confined: bool
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    start_done: asyncio.Event = field(default_factory=asyncio.Event)
    reason: str | None = None


class _Adopted:
    """In place of a launcher, for agents that another driver has launched: each ends on its own when it is refused."""

    async def start(self, host: str, bootstrap: Bootstrap) -> None:
        raise AgentLaunchError(f"host {host}: its agent {bootstrap.agent_id} has been started by another driver")

    async def stop(self, _: int, /) -> None:
        pass

    def watches(self, _: int, /) -> bool:
        return False


class Agents:
    """All agents of a run.

    Args:
        choose: by whom a host's agent is started.
        make_join_config: writes their join configs.
        on_exit: called when an agent has ended, whether it was asked to or not.
        on_start: called when an agent has been launched.
        network: called before hosts other than by loopback addresses are used.
    """

    def __init__(
        self,
        choose: Choose,
        make_join_config: MakeJoinConfig,
        on_exit: OnExit,
        on_start: Callable[[int], None],
        network: Callable[[], Awaitable[None]],
    ) -> None:
        self._choose = choose
        self._make_join_config = make_join_config
        self._on_exit = on_exit
        self._on_start = on_start
        self._network = network
        self._starting: dict[int, asyncio.Task[None]] = {}
        self._running: dict[int, _Agent] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._lookups = asyncio.Semaphore(MAX_CONCURRENT_STARTS)
        self._start_slots = asyncio.Semaphore(MAX_CONCURRENT_STARTS)
        self._empty = asyncio.Event()
        self._empty.set()
        self._closed = False
        self._replays = False

    def begin_replay(self) -> None:
        """Launch nothing until `adopt`: what is ordered now, another driver of this run has done."""
        self._replays = True

    async def adopt(self, found: Iterable[tuple[str, int]]) -> None:
        """Go on with agents that another driver of this run has launched; from now on launch what is ordered.

        Args:
            found: the host and the id of each.
        """
        for host, agent_id in found:
            try:
                confined = (address := (await self._choose(host)).address) is not None and is_loopback(address)
            except AgentLaunchError:
                confined = False
            self._running[agent_id] = agent = _Agent(host, _Adopted(), confined)
            agent.connected.set()
            agent.start_done.set()
            self._empty.clear()
        self._replays = False

    @property
    def running(self) -> tuple[int, ...]:
        """The ids of agents that run."""
        return tuple(self._running)

    def start(self, host: str, agent_id: int) -> None:
        """Start an agent, soon; `on_exit` hears of it if that fails."""
        if not (self._closed or self._replays):
            self._empty.clear()
            task = self._starting[agent_id] = asyncio.create_task(self._start(host, agent_id))
            task.add_done_callback(lambda _: self._note_started(agent_id))

    def connected(self, agent_id: int) -> None:
        """The agent has dialled in."""
        if agent := self._running.get(agent_id):
            agent.connected.set()
            agent.start_done.set()

    def agent_ended(self, agent_id: int) -> None:
        """The agent has sent its last message: the end of one that its launcher does not watch."""
        if (agent := self._running.get(agent_id)) and not agent.launcher.watches(agent_id):
            self._end(agent_id, agent, "its agent has ended")

    def kill(self, agent_id: int) -> None:
        """Kill an agent, if its launcher can, or cancel its start.

        An agent on another host ends on its own when the driver refuses it, or is silent.
        """
        if task := self._starting.get(agent_id):
            task.cancel()
        if agent := self._running.get(agent_id):
            stopping = asyncio.create_task(self._stop(agent_id, agent))
            self._stopping.add(stopping)
            stopping.add_done_callback(self._stopping.discard)

    def close(self) -> None:
        """Start no further agents."""
        self._closed = True
        for task in self._starting.values():
            task.cancel()

    async def wait_until_empty(self) -> None:
        """Wait until no agent runs or is being started."""
        await self._empty.wait()

    async def _start(self, host: str, agent_id: int) -> None:
        try:
            async with self._lookups:
                choice = await self._choose(host)
            confined = choice.address is not None and is_loopback(choice.address)
            if others := [agent.host for agent in self._running.values() if agent.confined is not confined]:
                raise AgentLaunchError(await _mixed_addresses_text(others if confined else [host]))
            if not confined:
                await self._network()
            async with self._start_slots:
                await self._launch(agent_id, _Agent(host, choice.launcher, confined), choice.address)
        except AgentLaunchError as error:
            self._on_exit(host, agent_id, str(error))
        except OSError as error:
            self._on_exit(host, agent_id, f"its agent cannot be started: {error}")
        except Exception as error:  # noqa: BLE001  a launcher may be the user's own
            _log.exception("host %s: its launcher failed", host)
            self._on_exit(host, agent_id, f"its agent cannot be started: a bug in its launcher: {error!r}")

    async def _launch(self, agent_id: int, agent: _Agent, address: str | None) -> None:
        bootstrap = Bootstrap(
            agent_id,
            join_config=partial(self._make_join_config, agent.host, agent_id, address),
            ended=partial(self._end, agent_id, agent),
            connected=agent.connected,
        )
        await agent.launcher.start(agent.host, bootstrap)
        self._running[agent_id] = agent
        self._on_start(agent_id)
        if agent.reason is not None:  # it was faster than its launcher
            self._forget(agent_id, agent.reason)
        elif not agent.connected.is_set():
            await agent.start_done.wait()  # bounded: the driver gives up an agent that does not dial in

    async def _stop(self, agent_id: int, agent: _Agent) -> None:
        try:
            await agent.launcher.stop(agent_id)
        except Exception as error:  # noqa: BLE001  a launcher may be the user's own
            _log.warning("host %s: its agent could not be stopped: %s", agent.host, error)
        self._end(agent_id, agent, "its agent was given up")

    def _end(self, agent_id: int, agent: _Agent, reason: str) -> None:
        """An agent is over; only the first reason counts."""
        if agent.reason is None:
            agent.reason = reason
            if self._running.get(agent_id) is agent:
                self._forget(agent_id, reason)

    def _forget(self, agent_id: int, reason: str) -> None:
        agent = self._running.pop(agent_id)
        agent.start_done.set()
        self._note_empty()
        self._on_exit(agent.host, agent_id, reason)

    def _note_started(self, agent_id: int) -> None:
        """Not in a `finally` of the task: one that is cancelled before its first step never gets there."""
        del self._starting[agent_id]
        self._note_empty()

    def _note_empty(self) -> None:
        if not self._starting and not self._running:
            self._empty.set()


async def _mixed_addresses_text(elsewhere: Sequence[str]) -> str:
    """Why loopback addresses and hosts elsewhere do not go together; a name that is not known is the reason itself."""
    for host in elsewhere:
        if await address_towards(host) is None:
            return UNKNOWN_NAME_ERROR.format(host)
    return MIXED_ADDRESSES_ERROR
