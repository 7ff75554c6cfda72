"""Hosts that dial in: a host source of those whose agents wait for admission or have been
admitted.

The name of a host that is absent belongs to the first caller; a caller under the name of one that is present is
refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Final

from edriver.discovery.poll_filter import REMOVAL_POLLS
from edriver.model import limits
from edriver.model.hosts import Host, HostSet

ARRIVAL_WINDOW: Final = 0.02
"""Seconds within which hosts that dial in are taken in together,"""

ARRIVAL_WINDOW_PER_HOST: Final = 0.0002
"""and so much longer for each host that there is: what a new host costs grows with their number."""


@dataclass(slots=True, eq=False)
class _DialInHost:
    """A host whose agent has dialled in.

    Attributes:
        slots: how many workers it takes.
        admission: becomes the agent's id once the run has a place for it.
        agent_id: the same; 0 until then.
    """

    slots: int
    admission: asyncio.Future[int] = field(default_factory=asyncio.Future)
    agent_id: int = 0


class DialInHosts:
    """Who has dialled in; a HostSource. A host stays until its agent is lost or has ended.

    A host that the run has let go, because it was drained for instance, may be followed by another one of its name (a
    pod of a StatefulSet). That one is listed once REMOVAL_POLLS answers were without the name: the run has forgotten
    the first one by then, and that it was drained.
    """

    def __init__(self) -> None:
        """No host has dialled in yet."""
        self._hosts: dict[str, _DialInHost] = {}
        self._dismissed: set[int] = set()
        self._gone: dict[str, int] = {}  # hosts that the run has let go, and how many answers have been without each
        self._news = asyncio.Event()
        self._found: HostSet | None = None  # the last answer; None: something has changed since

    async def find(self) -> HostSet:
        """The current hosts, in the order in which they dialled in; never fails."""
        if self._found is not None and not self._gone:
            return self._found
        found = HostSet(tuple(Host(name, entry.slots) for name, entry in self._hosts.items() if name not in self._gone))
        self._found = None if self._gone else found
        self._gone = {name: answers + 1 for name, answers in self._gone.items() if answers + 1 < REMOVAL_POLLS}
        return found

    def register(self, host: str, slots: int) -> asyncio.Future[int]:
        """An agent waits to be admitted; returns its future ID.

        Raises:
            ValueError: the name or the number of slots is invalid, or all hosts together would have too many slots.
            KeyError: an agent of that name is there already.
        """
        limits.check_host(host, "a host's name (--host)")
        limits.check_slots(slots, f"the number of slots (--slots) of host {host}")
        if host in self._hosts:
            raise KeyError(host)
        total = slots + sum(entry.slots for entry in self._hosts.values())
        if total > limits.MAX_TOTAL_SLOTS:
            raise ValueError(
                f"with host {host}, all hosts together would have {total} slots: a run has {limits.MAX_TOTAL_SLOTS} "
                f"at most"
            )
        self._hosts[host] = _DialInHost(slots)
        self._found = None
        self._news.set()
        return self._hosts[host].admission

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds, or until there is news: a host has dialled in, and with it those that come then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
                await asyncio.sleep(ARRIVAL_WINDOW + ARRIVAL_WINDOW_PER_HOST * len(self._hosts))
        self._news.clear()

    def wake(self) -> None:
        """End the `sleep` that is on, or the next one: there is news of the hosts."""
        self._news.set()

    def admit(self, host: str, agent_id: int) -> bool:
        """Let a host's agent in under this id; returns whether one waits."""
        entry = self._hosts.get(host)
        if entry is None or entry.admission.done():
            return False
        entry.agent_id = agent_id
        entry.admission.set_result(agent_id)
        return True

    def resume(self, host: str, slots: int, agent_id: int) -> None:
        """A host has dialled in to another driver of this run, and was admitted under this id."""
        self._found = None
        entry = self._hosts[host] = _DialInHost(slots, agent_id=agent_id)
        entry.admission.set_result(agent_id)

    def dismissed(self, agent_id: int) -> None:
        """The run lets this agent go: it has no use for its host any more."""
        self._dismissed.add(agent_id)

    def leave(self, host: str, agent_id: int = 0) -> None:
        """The host's agent has ended.

        Args:
            host: the host.
            agent_id: the ID with which it was admitted; 0: it still waited. A later agent of the same host name stays.
        """
        if (entry := self._hosts.get(host)) and entry.agent_id == agent_id:
            del self._hosts[host]
            self._found = None
            if agent_id in self._dismissed:
                self._dismissed.discard(agent_id)
                self._gone[host] = 0
