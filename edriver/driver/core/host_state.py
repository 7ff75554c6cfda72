"""The state of each host for observers: used, idle and why, leaving. Decides nothing. Part of the core."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from edriver.driver.core.membership import Membership
from edriver.model.cause import Cause, CauseKind, SpareSlots, UnfitSlots
from edriver.model.records import HostRecord


class HostState(enum.Enum):
    """The state of a host; the first one that applies."""

    LEAVING = "leaving"  # drained, or no longer named by discovery, and workers are still there
    DRAINED = "drained"  # as a whole
    GONE = "gone"  # discovery no longer names it
    UNREACHABLE = "unreachable"  # its agent cannot be started, was lost, or is silent
    QUARANTINED = "quarantined"  # left alone because its workers fail
    STARTING = "starting"  # its first agent has not connected yet
    USED = "used"  # a worker in each slot
    PARTLY_USED = "partly-used"  # in some of them
    IDLE = "idle"  # in none


@dataclass(frozen=True, slots=True)
class HostStanding:
    """The state of a host, with its reasons.

    Attributes:
        state: see HostState.
        workers: the number of its workers that the run counts on; for a host that is leaving, of all its workers.
        reasons: why the host, or part of it, is not used.
        quarantined_until: when it may be used again, in seconds of the core's clock; None: not quarantined.
    """

    state: HostState
    workers: int
    reasons: tuple[Cause, ...]
    quarantined_until: float | None


GONE: Final = HostStanding(HostState.GONE, 0, (), None)
"""How a host stands that the core no longer knows."""


def host_standings(run: Membership) -> dict[str, HostStanding]:
    """The state of every host."""
    there = Counter(worker.host for worker in run.roster.workers.values())
    live = Counter(worker.host for worker in run.roster.live())
    look = _Look(run)
    return {name: look.at(record, there[name], live[name]) for name, record in run.roster.hosts.items()}


def host_standing(run: Membership, host: str) -> HostStanding:
    """The state of one host; `gone` if the host is no longer known."""
    record = run.roster.hosts.get(host)
    if record is None:
        return GONE
    there = list(run.roster.on(host))
    return _Look(run).at(record, len(there), sum(worker.live for worker in there))


class _Look:
    """One look at the hosts, at one moment."""

    def __init__(self, run: Membership) -> None:
        self._run = run
        self._excluded = run.placement.quarantine.excluded_hosts(run.now)

    @cached_property
    def _room(self) -> int:
        """How many more workers the run may use."""
        return self._run.sizes.max_workers - self._run.roster.occupied

    @cached_property
    def _alike(self) -> Counter[int]:
        """The number of hosts that can be used, by the number of their slots."""
        roster, excluded = self._run.roster, self._excluded
        usable = (r for r in roster.hosts.values() if r.connected and roster.capacity(r) and r.name not in excluded)
        return Counter(record.slots for record in usable)

    def _missing(self, record: HostRecord) -> int:
        """How many more hosts of a host's size would make up a replica with it; 0: no others are needed."""
        if not self._run.roster.of_hosts:
            return self._missing_parts(record)
        hosts = self._run.roster.width(record) // record.slots
        return -self._alike[record.slots] % hosts if hosts > 1 and record.name not in self._run.roster.unfit else 0

    @cached_property
    def _coverage(self) -> list[int]:
        """How many workers there are of each position, or could be in the hosts that can be used."""
        roster = self._run.roster
        coverage = list(roster.at.live)
        for record in roster.hosts.values():
            if record.connected and record.wanted and record.name not in self._excluded:
                taken = {worker.slot for worker in roster.on(record.name)}
                positions = roster.slot_positions(record, coverage)
                for slot in record.ready_slots(self._run.now):
                    if slot < len(positions) and slot not in taken:
                        coverage[positions[slot]] += 1
        return coverage

    def _missing_parts(self, record: HostRecord) -> int:
        """The same where any workers of all positions are a replica: hosts for the positions that are too few."""
        size, slots = self._run.roster.positions, record.slots
        if slots >= size:
            return 0
        coverage = self._coverage
        parts = [coverage[first : first + slots] for first in range(0, size, slots)]
        return sum(min(part) == min(coverage) for part in parts) if min(coverage) < max(coverage) else 0

    def at(self, record: HostRecord, there: int, live: int) -> HostStanding:
        """The state of a host with this many workers, and this many that the run counts on."""
        state = self._state(record, there, live)
        until = record.rest.free_at if state is HostState.QUARANTINED else None
        workers = there if state is HostState.LEAVING else live
        return HostStanding(state, workers, tuple(self._reasons(record, state, live)), until)

    def _state(self, record: HostRecord, there: int, live: int) -> HostState:
        if not record.wanted:
            if there:
                return HostState.LEAVING
            return HostState.DRAINED if record.present else HostState.GONE
        if self._run.placement.has_fault(record.name):
            return HostState.UNREACHABLE
        if record.name in self._excluded:
            return HostState.QUARANTINED
        if not record.connected:
            return HostState.STARTING if record.agent_id is not None else HostState.IDLE
        if live >= record.slots:
            return HostState.USED
        return HostState.PARTLY_USED if live else HostState.IDLE

    def _reasons(self, record: HostRecord, state: HostState, live: int) -> Iterator[Cause]:
        run = self._run
        if not record.present:
            yield Cause(CauseKind.HOST_REMOVED, host=record.name)
        yield from run.placement.unused_causes(record, run.now, self._excluded)
        if state not in (HostState.PARTLY_USED, HostState.IDLE):
            return
        roster = run.roster
        spare = roster.slots_in_replicas(record, len(record.ready_slots(run.now))) - live
        has_most, missing = self._room < roster.width(record), self._missing(record)
        if spare > 0 and missing and not has_most:
            unfit = UnfitSlots(spare, roster.width(record), missing, record.slots)
            yield Cause(CauseKind.SLOTS_UNFIT, host=record.name, detail=unfit)
        elif spare > 0 and (has_most or record.agent_id is None):
            most, limit = run.sizes.max_workers, run.sizes.limit
            detail = SpareSlots(spare, most, resized=limit < run.settings.max_np, refused=run.sizes.refused)
            yield Cause(CauseKind.SLOTS_SPARE, host=record.name, detail=detail)
