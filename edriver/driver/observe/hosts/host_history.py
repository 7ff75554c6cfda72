"""How the hosts of a run stand, as events of status.proto."""

from __future__ import annotations

from collections.abc import Iterator

from edriver.driver.core.host_state import GONE, HostStanding, host_standing, host_standings
from edriver.driver.core.membership import Membership
from edriver.driver.observe.snapshots import host_status
from edriver.model.cause import Cause, CauseKind, Count
from edriver.v1 import status_pb2


class HostHistory:
    """Remembers which hosts discovery has named, and since when.

    Args:
        membership: the core.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._slots: dict[str, int] = {}
        self._since: dict[str, float] = {}

    def __contains__(self, name: str) -> bool:
        """Whether discovery names a host."""
        return name in self._slots

    def discovered(self, name: str) -> float:
        """When discovery first named a host, in seconds since the epoch; 0: it does not."""
        return self._since.get(name, 0.0)

    def observed(self, now: float) -> Iterator[tuple[status_pb2.HostStatus, Cause]]:
        """Discovery has answered: the hosts whose slots have changed, each with what has happened to it."""
        hosts, standings = self._membership.roster.hosts, host_standings(self._membership)
        for name in [*hosts, *(name for name in self._slots if name not in hosts)]:
            slots = hosts[name].slots if name in hosts else 0
            if (before := self._slots.get(name, 0)) != slots:
                self._slots[name] = slots
                kind = CauseKind.HOST_RESIZED if before else CauseKind.HOST_ADDED
                removed = Cause(CauseKind.HOST_REMOVED, host=name)
                status = self._status(name, now, standings.get(name, GONE))
                yield status, Cause(kind, host=name, detail=Count(slots)) if slots else removed

    def status(self, name: str, now: float) -> status_pb2.HostStatus:
        """How a host stands. One that the core no longer knows is forgotten."""
        return self._status(name, now, host_standing(self._membership, name))

    def _status(self, name: str, now: float, standing: HostStanding) -> status_pb2.HostStatus:
        record = self._membership.roster.hosts.get(name)
        since = self._since.setdefault(name, now)
        status = host_status(name, record, standing, since, now - self._membership.now)
        if record is None:
            self._slots.pop(name, None)
            del self._since[name]
        return status
