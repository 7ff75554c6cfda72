"""What must hold of drained hosts and slots: when their workers may leave, and when they must have.

What was asked for is kept here, by itself: the core's own notes of who is leaving may be wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from edriver.driver.core.membership import Membership
from edriver.driver.core.placement import LEAVE_TIME
from edriver.driver.core.round import RoundState
from edriver.model import actions, events
from edriver.model.cause import Cause, Change
from edriver.model.plan import RoundPlan
from edriver.model.records import HostRecord, Worker
from tests.sim.checking import check


class Bounds(NamedTuple):
    """When the workers of a drained place leave.

    Attributes:
        earliest: before that they may stay, as long as others may take their places.
        latest: by then they must have begun to leave.
    """

    earliest: float
    latest: float


class Drains:
    """The drains of a run, and what they allow."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, int | None], Bounds] = {}
        self._size = 0
        self._state_keepers: set[int] = set()

    def note(self, event: events.Event, core: Membership, now: float) -> None:
        """Take in what is asked for, before the core does."""
        match event:
            case events.DrainRequested(host, slot, within=within) if record := core.roster.hosts.get(host):
                new = Bounds(now + max(within / 2, within - LEAVE_TIME), now + within)
                if before := self._of(record, slot):
                    new = Bounds(min(before.earliest, new.earliest), max(before.latest, new.latest))
                self._asked[host, slot] = new
            case events.UndrainRequested(host, None):
                self._forget(host)
            case events.UndrainRequested(host, slot):
                self._asked.pop((host, None), None)
                self._asked.pop((host, slot), None)
            case events.HostsObserved(hosts):
                for host in {host for host, _ in self._asked if host not in hosts}:
                    self._forget(host)

    def _forget(self, host: str) -> None:
        self._asked = {place: asked for place, asked in self._asked.items() if place[0] != host}

    def _of(self, record: HostRecord, slot: int | None) -> Bounds | None:
        """What was asked for a place that is drained; None: it is not, or nothing is known of that."""
        if not record.present or not (record.drained_whole if slot is None else record.is_drained(slot)):
            return None
        asked = [bounds for place in ((record.name, None), (record.name, slot)) if (bounds := self._asked.get(place))]
        return Bounds(min(b.earliest for b in asked), max(b.latest for b in asked)) if asked else None

    def check(self, orders: Iterable[actions.Action], core: Membership) -> None:
        """What must hold after a step.

        Raises:
            Violation: members leave before they must, although others may take their places, or they stay too long.
        """
        size = self._size
        for order in orders:
            match order:
                case RoundPlan(seats=seats):
                    self._size = len(seats)
                    kept = core.roster.placed | core.roster.leaving
                    self._state_keepers |= {seat.worker_id for seat in seats} - kept
                case actions.StopAt(members, _, _, _, Cause(detail=Change(joined, left))) if left > joined:
                    size = len(members)
                    gone = {w for w in members if w not in core.roster.placed}
                    if gone and all(self._may_stay(w, core) for w in gone):
                        _none_can_come(core, size, f"{gone} leave, and {joined} take their places")
                case actions.Leave(worker_id) if self._may_stay(worker_id, core) and (left := _left(core)) < size:
                    if _is_spare(worker_id, core):
                        continue
                    _none_can_come(core, size, f"worker {worker_id} leaves, and {left} of {size} are left")
        current, roster = core.round, core.roster
        if core.ended or current is None or current.state is not RoundState.RUNNING:
            return
        if not core.settings.mode.members_survive and (current.done or current.completed):
            return  # a restart would have scripts that have run to their end make their last steps again
        whole = have_places(current.members, core)
        for worker in map(roster.workers.__getitem__, current.members):
            bounds = self._of(roster.hosts[worker.host], worker.slot)
            late = bounds is not None and core.now >= bounds.latest and whole
            check(not late, f"worker {worker.worker_id} trains on although its place is to be left by now")

    def _may_stay(self, worker_id: int, core: Membership) -> bool:
        """Whether a worker of the last round need not leave yet."""
        worker, current = core.roster.workers.get(worker_id), core.round
        if worker is None or current is None or worker.rank is None or worker_id in self._state_keepers:
            return False
        survivors = {w.position for w in core.roster.live() if current.had(w.worker_id)}
        if len(survivors) < core.roster.positions:  # what the others hold is of no use: they begin from a checkpoint
            return False
        bounds = self._of(core.roster.hosts[worker.host], worker.slot)
        return bounds is not None and core.now < bounds.earliest


def have_places(members: Iterable[int], core: Membership) -> bool:
    """Whether a member of each position has a slot. Else others hold that position's state until one comes."""
    roster = core.roster
    return len({roster.position(w) for w in members if w in roster.placed}) == roster.positions


def _left(core: Membership) -> int:
    """The number of workers in the round, or of those that wait for one and may be in it."""
    current, roster = core.round, core.roster
    waiting = (roster.placed | roster.leaving) & roster.waiting.keys()
    return len(current.members) if current and current.running else len(waiting)


def _is_spare(worker_id: int, core: Membership) -> bool:
    """Whether no more replicas would be whole with a worker."""
    roster, current = core.roster, core.round
    running = current is not None and current.running
    waiting = (roster.placed | roster.leaving) & roster.waiting.keys()
    there = [roster.workers[w] for w in (current.members if current is not None and running else waiting)]
    return roster.positions > 1 and roster.whole([*there, roster.workers[worker_id]]) == roster.whole(there)


def _free_slots(record: HostRecord, there: Collection[Worker], now: float) -> list[int]:
    """The slots of a host in which workers could be started: one beyond the slots that are left takes one of them."""
    room = record.open_count - sum(not record.is_drained(worker.slot) for worker in there)
    return sorted(set(record.ready_slots(now)) - {worker.slot for worker in there})[: max(room, 0)]


def _none_can_come(core: Membership, size: int, text: str) -> None:
    """Check that there is no slot in which a worker boots, or could."""
    now, roster = core.now, core.roster
    if core.sizes.allowed(size) < size:
        return
    excluded = core.placement.quarantine.excluded_hosts(now)
    if roster.positions > 1:  # a slot may have a position of which there are enough
        usable = [r for r in roster.hosts.values() if r.wanted and r.connected and r.name not in excluded]
        free = [(r, _free_slots(r, [*roster.on(r.name)], now)) for r in usable]
        placed = [roster.workers[w] for w in roster.placed]
        most = core.sizes.max_workers
        ready = roster.whole([w for w in placed if w.worker_id not in roster.booting], most=most)
        check(roster.whole(placed, free, most) <= ready, f"{text}, although others can make up a replica")
        return
    for record in roster.hosts.values():
        if record.wanted and record.connected and record.name not in excluded:
            there = [w for w in roster.on(record.name) if not record.is_drained(w.slot)]
            if record.slots >= roster.width(record):  # else it has only together with others
                check(roster.capacity(record) <= len(there), f"{text}, although {record.name} has room")
            check(not any(w.worker_id in roster.booting for w in there), f"{text}, although one boots on {record.name}")
