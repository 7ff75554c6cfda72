"""Hosts that dial in by themselves: a source of hosts, of those whose agents wait at the door or have been let in."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from edriver.common import limits
from edriver.discovery.hosts import Host, HostSet


@dataclass(slots=True, eq=False)
class _Arrival:
    """A host whose agent has dialled in.

    Attributes:
        slots: how many workers it takes.
        place: becomes the agent's id once the run has a place for it.
        agent_id: the same; 0 until then.
    """

    slots: int
    place: asyncio.Future[int] = field(default_factory=asyncio.Future)
    agent_id: int = 0


class Arrivals:
    """Who has dialled in; a HostSource. A host stays until its agent is lost or has ended."""

    def __init__(self) -> None:
        """Nobody has come yet."""
        self._hosts: dict[str, _Arrival] = {}

    async def find(self) -> HostSet:
        """The hosts there are now, in the order in which they came; never fails."""
        return HostSet(tuple(Host(name, arrival.slots) for name, arrival in self._hosts.items()))

    def arrive(self, host: str, slots: int) -> asyncio.Future[int]:
        """An agent waits to be let in; answers what becomes its id.

        Raises:
            ValueError: the name or the slots are none, or all hosts would have too many slots.
            KeyError: an agent of that name is there already.
        """
        limits.check_host(host, "a host's name (--host)")
        limits.check_slots(slots, f"the number of slots (--slots) of host {host}")
        if host in self._hosts:
            raise KeyError(host)
        total = slots + sum(arrival.slots for arrival in self._hosts.values())
        if total > limits.TOTAL_SLOTS:
            raise ValueError(
                f"with host {host} all hosts would have {total} slots: a run has {limits.TOTAL_SLOTS} at most"
            )
        self._hosts[host] = _Arrival(slots)
        return self._hosts[host].place

    def admit(self, host: str, agent_id: int) -> bool:
        """Let a host's agent in under this id; returns whether one waits."""
        arrival = self._hosts.get(host)
        if arrival is None or arrival.place.done():
            return False
        arrival.agent_id = agent_id
        arrival.place.set_result(agent_id)
        return True

    def leave(self, host: str, agent_id: int = 0) -> None:
        """The host's agent is gone.

        Args:
            host: the host.
            agent_id: under which id it was let in; 0: it still waited. Another of that name that has come since stays.
        """
        if (arrival := self._hosts.get(host)) and arrival.agent_id == agent_id:
            del self._hosts[host]
