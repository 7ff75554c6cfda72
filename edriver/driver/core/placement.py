"""Placement: which hosts get an agent, and which slots a worker; workers without a slot are dismissed.

Who is in a round is decided in round_control.py. Part of the core.

Only hosts whose slots the run can use get an agent, and SPARE_HOSTS more, so that what is lost is replaced at once.
Hosts that cannot be reached do not count, and go behind those that were not tried. Where there are more slots than
--max-np, those that come first in the order of discovery are used.

A drained slot is not used again until an operator undrains it, or discovery has dropped its host and names it again. If
others have to boot to take the places of its workers, these are *leaving*: they train on, are members of the next round
as well if this one fails and it would be smaller than the last one without them, but their slots take no newcomers, and
do not count when the run's free slots are filled. Once there are ready workers for all their places, all change places
in one round change. Nothing is waited for that cannot come: without a free slot, and without a worker or an agent that
is starting, they leave at once. And nothing is waited for without a bound, which is each worker's `leave_at`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from heapq import nlargest
from itertools import chain, islice
from typing import Final

from edriver.driver.core.failures.new_sizes import NewSizes
from edriver.driver.core.failures.quarantine import Quarantine
from edriver.driver.core.roster import Roster
from edriver.model import events
from edriver.model.actions import Action, StartAgent, StartWorker, StopAgent, StopWorker
from edriver.model.cause import AgentFault, Cause, CauseKind, Change, Count, DrainTarget, ReportedText, UnfitSlots
from edriver.model.ids import RoundId
from edriver.model.records import HostRecord, Worker, WorkerStep
from edriver.model.settings import Settings

SPARE_HOSTS: Final = 64
"""Hosts that have an agent beside those whose slots the run can use, so that what is lost is replaced at once."""

MOST_JOIN_WINDOWS: Final = 10
"""For how many times Settings.join_window newcomers that become ready, one after the other, hold up the first of them.
Each round that they join is one more pause for all."""

PLACEMENT_WINDOW: Final = 3.0
"""Seconds from the first agent's start within which workers are started in the order of discovery: for that long, a
host waits for those before it."""

MAX_REASONS: Final = 4
"""The maximum number of hosts, and of reasons, that the cause of a change of members names."""

LEAVE_TIME: Final = 30.0
"""Seconds before its deadline, or half of the time to it if that is less, at which a drained worker leaves without a
replacement: it has a step to end, and a process."""

BOOTS_KEPT: Final = 8
"""The number of boots from which the length of the next one is estimated."""

MAX_TROUBLES: Final = 8
"""The maximum number of reasons in a cause: thousands of hosts may be out of reach. Each host's status has its reason.
"""


class DiscoveryTrouble:
    """Why discovery fails while no hosts are known.

    Attributes:
        first: the first of its consecutive failures, which is reported while others follow; empty: no failure.
        last: the last failure, which is the cause if the run ends.
    """

    def __init__(self) -> None:
        """Nothing has failed yet."""
        self.first = self.last = ""

    def failed(self, reason: str) -> None:
        """A poll has failed."""
        self.first, self.last = self.first or reason, reason

    def answered(self) -> None:
        """A poll has answered."""
        self.first = self.last = ""


class Placement:
    """Decides which agents and workers are started and stopped.

    Args:
        settings: the operator's limits.
        roster: the hosts and workers.
        sizes: knows the allowed numbers of workers.
        draw: see Quarantine.

    Attributes:
        sizes: as given.
        quarantine: decides which slots and hosts are not used for a while.
        discovery: why no hosts are known.
        in_order_until: until when workers are started in the order of discovery; None before the first agent starts.
        boots: how long the last workers have taken to boot, in seconds.
    """

    def __init__(self, settings: Settings, roster: Roster, sizes: NewSizes, draw: Callable[[], float]) -> None:
        self.quarantine = Quarantine(settings, roster, draw)
        self.discovery = DiscoveryTrouble()
        self._settings = settings
        self._roster = roster
        self.sizes = sizes
        self._agents = 0
        self._workers = 0
        self._trouble: dict[str, Cause] = {}
        self._drains: dict[tuple[str, int | None], Cause] = {}  # by host and slot; None: all of the host
        self.in_order_until: float | None = None
        self.boots = deque[float](maxlen=BOOTS_KEPT)
        self._seen: tuple[int, int, frozenset[str]] | None = None
        self._nothing_due_until = -math.inf

    def agent_connected(self, host: str, agent_id: int, processors: str = "") -> None:
        """Record that a host's agent accepts orders, and which processors its workers compute with."""
        record = self._roster.hosts.get(host)
        if record and record.agent_id == agent_id:
            self._trouble.pop(host, None)
            self._roster.agent_connected(record, True, processors)

    def agent_silent(self, host: str, agent_id: int, fault: AgentFault) -> bool:
        """Record that a host's agent is silent; returns whether it is the host's current agent."""
        record = self._roster.hosts.get(host)
        if record is None or record.agent_id != agent_id:
            return False
        self._trouble[host] = Cause(CauseKind.HOST_UNUSED, host=host, detail=fault)
        self._roster.agent_connected(record, False)
        return True

    def agent_lost(self, host: str, agent_id: int, fault: AgentFault, now: float) -> list[Worker]:
        """Record that a host's agent is lost; returns its workers, which are lost with it."""
        record = self._roster.hosts.get(host)
        if record is None or record.agent_id != agent_id:
            return []
        self.quarantine.agent_failed(record, now)
        self._trouble[host] = Cause(CauseKind.HOST_UNUSED, host=host, detail=fault)
        self._roster.agent_gone(record)
        return list(self._roster.on(host))

    def tend_hosts(self, now: float, is_needed: Callable[[str], bool] = lambda _: False) -> list[Action]:
        """An agent for each host that the run can use, and for some more; none for a removed host without workers.

        Args:
            now: the time.
            is_needed: whether a removed host holds what no other one has, so that its agent stays.
        """
        roster, actions = self._roster, list[Action]()
        chosen = self._hosts_to_start(now)
        if not chosen and not roster.unwanted:
            return actions
        agents = {record.name: self._agents + n for n, record in enumerate(roster.in_order(chosen), start=1)}
        if agents:
            self._agents += len(agents)
            roster.agents_started(agents)
            if self.in_order_until is None:
                self.in_order_until = now + PLACEMENT_WINDOW
        for record in roster.in_order((*agents, *roster.unwanted)):
            if record.name in agents:
                actions.append(StartAgent(record.name, agents[record.name]))
            elif not any(roster.on(record.name)) and not is_needed(record.name):
                if record.agent_id is not None:
                    actions.append(StopAgent(record.name, record.agent_id))
                    roster.agent_gone(record)
                if not record.present:
                    roster.forget_host(record)
                    self._trouble.pop(record.name, None)
                    self._forget_drains(record.name, None)
        return actions

    def _hosts_to_start(self, now: float) -> list[str]:
        roster = self._roster
        if not roster.without_agent:
            return []
        unusable = frozenset(self.quarantine.excluded_hosts(now) | self._trouble.keys())
        seen = roster.revision, self.sizes.max_workers, unusable
        if seen == self._seen and now < self._nothing_due_until:
            return []
        chosen = hosts_to_start(roster, self.sizes.max_workers, unusable, now)
        if not chosen:  # nor will there be any until one of these is changed, or another host is due
            self._seen = seen
            resting = (roster.hosts[name].start.free_at for name in roster.without_agent)
            self._nothing_due_until = min((at for at in resting if at > now), default=math.inf)
        return chosen

    def steer(self, wish: events.DrainRequested | events.UndrainRequested | events.ResizeRequested, now: float) -> None:
        """Take in an operator's request. One that is out of range is ignored: the service has already refused it."""
        match wish:
            case events.ResizeRequested(size, requester):
                self.sizes.resize(size, requester)
            case events.DrainRequested(host, slot, reason, requester, within, notice):
                if record := self._roster.hosts.get(host):
                    self._roster.drain(record, slot, leave_at(now, within))
                    target = DrainTarget(slot, reason)
                    drained = Cause(CauseKind.DRAINED, host=host, detail=target, requester=requester)
                    self._drains.setdefault((host, slot), drained)
                    if slot is None:
                        record.to_be_lost = record.to_be_lost or notice
                        self._trouble[host] = drained
            case events.UndrainRequested(host, slot):
                if record := self._roster.hosts.get(host):
                    self._roster.undrain(record, slot)
                    self._trouble.pop(host, None)
                    self._forget_drains(host, slot)

    def dismiss(self, now: float) -> list[Action]:
        """Stop booting workers that are no longer needed, and terminate those that did not leave when ordered to.

        After a host has disappeared and returned, its workers and their replacements may be too many.
        """
        roster = self._roster
        unneeded = roster.booting & roster.unplaced
        excess = len(roster.placed) - self.sizes.max_workers
        if excess > 0 and roster.replica_size == 1:  # else the replica of which one is a part may not become whole
            unneeded |= set(nlargest(excess, roster.booting & roster.placed))
        stopped = [roster.workers[w] for w in sorted(unneeded | roster.overdue(now))]
        for worker in stopped:
            if worker.worker_id in unneeded:
                roster.move(worker, WorkerStep.STOP)
            else:
                roster.stop_at(worker, None)
        return [StopWorker(worker.worker_id, worker.host, self._settings.leave_grace) for worker in stopped]

    def start_workers(self, now: float, training: int, looks_after: RoundId | None) -> list[Action]:
        """Fill free slots, oldest host first, up to the largest number of workers that the run may use now.

        At the start a host waits for those before it: which workers are the oldest, and which hosts are used where
        there are more slots than that, does not depend on whose agent was the quickest.

        Args:
            now: the time.
            training: the number of workers that train meanwhile. These boot at a lower priority then.
            looks_after: see Worker.
        """
        roster = self._roster
        room = self.sizes.max_workers - roster.occupied
        if room <= 0 or not roster.with_room:
            return []
        excluded = self.quarantine.excluded_hosts(now)
        if roster.replica_size == 1:
            free = ((record, slot, 0) for record in self._in_turn(now) for slot in roster.free_slots(record, now))
            chosen = list(islice((of for of in free if of[0].name not in excluded), room))
        elif roster.of_hosts:
            found = self._slots_of_replicas(self._in_turn(now), excluded, room, now)
            chosen = [(record, slot, 0) for record, slot in found]
        else:
            chosen = self._slots_by_position(self._in_turn(now), excluded, now)
        actions = list[Action]()
        size = 0
        if training and self._settings.mode.members_survive:
            size = training if self._settings.one_replica else roster.positions
        for record, slot, position in chosen:
            self._workers += 1
            if record.slots < roster.positions:
                roster.choose_offset(record, position - slot)
            worker = Worker(self._workers, record.name, slot, started=now, looks_after=looks_after, position=position)
            roster.add(worker)
            actions.append(StartWorker(self._workers, record.name, slot, training > 0, position, size))
        return actions

    def _slots_by_position(
        self, hosts: Iterable[HostRecord], excluded: Container[str], now: float
    ) -> list[tuple[HostRecord, int, int]]:
        """The free slots, each with its position, with which there are more whole replicas of the workers that live."""
        roster = self._roster
        there, free = roster.at.live, list[tuple[HostRecord, int, int]]()
        coverage = list(there)
        for record in hosts:
            slots = [] if record.name in excluded else list(roster.free_slots(record, now))
            if not slots:
                continue
            positions = roster.slot_positions(record, coverage)
            for slot in slots:
                coverage[positions[slot]] += 1
                free.append((record, slot, positions[slot]))
        replicas = min(min(coverage), self.sizes.max_workers // roster.positions)
        lacking = [replicas - count for count in there]
        chosen = list[tuple[HostRecord, int, int]]()
        for record, slot, position in free:
            if lacking[position] > 0:
                lacking[position] -= 1
                chosen.append((record, slot, position))
        return chosen

    def _slots_of_replicas(
        self, hosts: Iterable[HostRecord], excluded: Container[str], room: int, now: float
    ) -> Iterator[tuple[HostRecord, int]]:
        """The free slots with which replicas become whole, for `room` workers at most.

        A slot whose replica lacks another one, which rests after a failure, say, stays empty until that can be used.
        """
        roster = self._roster
        begun: dict[int, list[tuple[HostRecord, int]]] = {}  # by the hosts' slots: what a replica of several gets,
        lacking: dict[int, int] = {}  # and how many hosts it still lacks
        for record in hosts:
            if record.name in excluded:
                continue
            width, free = roster.width(record), list(roster.free_slots(record, now))
            live = sum(worker.worker_id in roster.placed for worker in roster.on(record.name))
            if record.slots >= width:
                whole = live // width * width
                gained = min((live + len(free)) // width * width - whole, room // width * width)
                if gained > 0:
                    room -= gained
                    yield from ((record, slot) for slot in free[: whole + gained - live])
            elif live + len(free) == record.slots and width <= room:
                hosts_each = width // record.slots
                begun.setdefault(record.slots, []).extend((record, slot) for slot in free)
                missing = lacking.get(record.slots, hosts_each - roster.unpaired(record)) - 1
                if not missing:
                    room, missing = room - width, hosts_each
                    yield from begun.pop(record.slots)
                lacking[record.slots] = missing

    def _in_turn(self, now: float) -> Iterable[HostRecord]:
        """The hosts with free slots whose workers may be started."""
        roster = self._roster
        if self.in_order_until is None or now >= self.in_order_until:
            return roster.in_order(roster.with_room)
        before = roster.first_unconnected(self._trouble)
        return roster.in_order([name for name in roster.with_room if roster.age_order(name) < before])

    def note_boot(self, worker: Worker, now: float) -> None:
        """A worker is ready for the first time."""
        self.boots.append(now - worker.started)

    def booting(self) -> bool:
        """Whether a worker with a slot is starting."""
        return any(w in self._roster.placed or w in self._roster.leaving for w in self._roster.booting)

    def may_come(self, now: float) -> bool:
        """Whether there may soon be more workers that are ready: some boot, or slots or hosts for them are there."""
        roster = self._roster
        if self._awaited() or any(w in roster.placed for w in roster.booting):
            return True
        excluded = self.quarantine.excluded_hosts(now)
        if roster.replica_size == 1:
            return not roster.with_room <= excluded
        room, hosts = self.sizes.max_workers - roster.occupied, roster.in_order(roster.with_room)
        if roster.positions > 1:
            return bool(self._slots_by_position(hosts, excluded, now=math.inf))
        return any(self._slots_of_replicas(hosts, excluded, room, now=math.inf))

    def replacement_expected(self, now: float) -> bool:
        """Whether one is starting, and has not been for longer than a member may take to come back."""
        booting = (self._roster.workers[w] for w in self._roster.booting if w in self._roster.placed)
        return any(now < worker.started + self._settings.rejoin_timeout for worker in booting)

    def ready_newcomers(self, ordinal: int, now: float, patient: bool) -> list[int]:
        """Waiting workers that may join the running round now.

        Args:
            ordinal: the script's current `run` call.
            now: the time.
            patient: whether to wait for those that still boot, so that all join in one go: as long as one becomes ready
                within a window of the one before, and for MOST_JOIN_WINDOWS at most.
        """
        roster, window = self._roster, self._settings.join_window
        if not roster.offers(ordinal):
            return []
        if patient and self.booting():
            first, last = (
                next(w for i in order if (w := roster.workers[i]).waits_in(ordinal)).waiting_since
                for order in (roster.waiting, reversed(roster.waiting))
            )
            if now < last + window and now < first + self._longest_wait:
                return []
        return [w.worker_id for w in roster.waiting_in(ordinal)]

    @property
    def _longest_wait(self) -> float:
        """How long the first of several newcomers waits for the others."""
        return MOST_JOIN_WINDOWS * self._settings.join_window

    def no_slot_works(self, now: float) -> bool:
        """Whether every slot has been tried and failed: no worker waits, and none boots for the first time."""
        roster = self._roster
        if roster.unconnected or roster.waiting or not self.quarantine.any_tried():
            return False
        if any(roster.slot_of(w).failures == 0 for w in roster.live()):
            return False
        if roster.positions > 1 and self._more_may_start():
            return False
        free = (
            (record, slot) for record in roster.in_order(roster.with_room) for slot in roster.free_slots(record, now)
        )
        return not any(record.places[slot].failures == 0 for record, slot in free)

    def _more_may_start(self) -> bool:
        """Whether hosts without an agent have slots that have not failed. Alone, others may make up no replica: they
        are not tried again before these are there.
        """
        roster = self._roster
        lost = (roster.hosts[name] for name in roster.without_agent)
        tried = (((r.places.get(slot) for slot in r.open_slots) if roster.capacity(r) else ()) for r in lost)
        return any(place is None or place.failures == 0 for places in tried for place in places)

    def troubles(self, now: float, late: bool = False) -> tuple[Cause, ...]:
        """Why hosts and slots are not used, MAX_TROUBLES reasons at most; empty if all are.

        Args:
            now: the time.
            late: whether a host should have answered by now.
        """
        trouble = self.discovery.last if late else self.discovery.first
        discovery = [Cause(CauseKind.DISCOVERY_FAILED, detail=ReportedText(trouble))] if trouble else []
        return tuple(islice(chain(discovery, self.host_problems(now, late)), MAX_TROUBLES))

    def host_problems(self, now: float, late: bool = False) -> Iterator[Cause]:
        """Of each host that is not used, or not in all of its slots, why. Arguments as above."""
        roster = self._roster
        excluded = self.quarantine.excluded_hosts(now)
        awaited = self._awaited() if late else set()
        cooling = self.quarantine.cooling_hosts(now)
        with_problems = self._trouble.keys() | excluded | cooling | roster.partly_drained | roster.unfit | awaited
        for record in roster.in_order(with_problems & roster.hosts.keys()):
            if record.name in awaited:
                yield Cause(CauseKind.HOST_UNANSWERED, host=record.name)
            yield from self.unused_causes(record, now, excluded)

    def has_problem(self, host: str) -> bool:
        """Whether a host's agent has a fault, or the host is drained as a whole."""
        return host in self._trouble

    def has_fault(self, host: str) -> bool:
        """Whether a host's agent could not be started, was lost, or is silent."""
        trouble = self._trouble.get(host)
        return trouble is not None and trouble.kind is CauseKind.HOST_UNUSED

    def unused_causes(self, record: HostRecord, now: float, excluded: set[str]) -> Iterator[Cause]:
        """Why a host is not used, or not in all of its slots.

        Args:
            record: the host.
            now: the time.
            excluded: the hosts on which no worker is to be started now.
        """
        cooling = sum(place.free_at > now for place in record.places.values())
        if record.name in self._trouble:
            yield self._trouble[record.name]
        if record.name in excluded:
            yield Cause(CauseKind.HOST_QUARANTINED, host=record.name)
        elif record.present and cooling:
            yield Cause(CauseKind.SLOTS_COOLING, host=record.name, detail=Count(cooling))
        elif record.drained and not record.drained_whole:
            yield Cause(CauseKind.SLOTS_DRAINED, host=record.name, detail=Count(len(record.drained)))
        if record.name in self._roster.unfit:
            unfit = UnfitSlots(record.open_count - self._roster.capacity(record), self._roster.width(record))
            yield Cause(CauseKind.SLOTS_UNFIT, host=record.name, detail=unfit)

    def change(self, members: set[int], wanted: set[int]) -> Change:
        """What changes with a round's members, with its reasons as far as they are known.

        Args:
            members: the workers that are in the round.
            wanted: those that are to be in the next one.
        """
        roster = self._roster
        joined, left = sorted(wanted - members), sorted(members - wanted)
        hosts = [*dict.fromkeys(roster.workers[worker_id].host for worker_id in joined)]
        reasons = [*dict.fromkeys(filter(None, (self._why_without_place(roster.workers[w]) for w in left)))]
        if (request := self.sizes.request_behind(len(members), len(wanted))) is not None:
            reasons.append(request)
        return Change(
            len(joined),
            len(left),
            tuple(hosts[:MAX_REASONS]),
            len(hosts[MAX_REASONS:]),
            tuple(reasons[:MAX_REASONS]),
            len(reasons[MAX_REASONS:]),
        )

    def _why_without_place(self, worker: Worker) -> Cause | None:
        """Why a worker's place is no longer used; None: it is, as far as its host is concerned."""
        host, roster = worker.host, self._roster
        record = roster.hosts[host]
        if not record.present:
            return Cause(CauseKind.HOST_REMOVED, host=host)
        if record.is_drained(worker.slot):
            return self._drains.get((host, None)) or self._drains.get((host, worker.slot))
        if roster.of_hosts and record.drained:  # its replica is not whole without those slots
            return next((cause for (name, _), cause in self._drains.items() if name == host), None)
        if worker.worker_id in roster.unplaced:
            return Cause(CauseKind.HOST_RESIZED, host=host, detail=Count(record.slots))
        return None

    def _forget_drains(self, host: str, slot: int | None) -> None:
        """A host's slot, or (None) all of the host, is no longer drained: neither is the host as a whole."""
        self._drains = {
            place: cause
            for place, cause in self._drains.items()
            if place[0] != host or (slot is not None and place[1] not in (None, slot))
        }

    def deadlines(self, now: float) -> list[float]:
        """When something may be due here."""
        roster, settings = self._roster, self._settings
        due = [
            self.quarantine.next_deadline(now),
            roster.next_stop(now),
            roster.next_leave(now),
            roster.next_wait_over(settings.join_window, now),
        ]
        if roster.waiting:
            due.append(roster.workers[next(iter(roster.waiting))].waiting_since + self._longest_wait)
        until = self.in_order_until
        if until is not None and until > now and roster.first_unconnected(self._trouble) < math.inf:
            due.append(until)
        if not settings.mode.members_survive:
            due.append(roster.next_boot_over(settings.rejoin_timeout, now))
        return due

    def _awaited(self) -> set[str]:
        """Hosts whose first agent has been started and has not connected yet."""
        return self._roster.unconnected - self._trouble.keys()


def leave_at(now: float, within: float) -> float | None:
    """Until when workers that must have left `within` seconds may wait for their replacements; None: not at all."""
    return now + max(within / 2, within - LEAVE_TIME) if within > 0 else None


def hosts_to_start(roster: Roster, max_workers: int, unusable: Container[str], now: float) -> list[str]:
    """The hosts that get an agent now. Those that have failed least go first, then the oldest.

    Args:
        roster: the hosts.
        max_workers: maximum number of workers now.
        unusable: hosts that are not counted on, whether they have an agent or not.
        now: the time.
    """
    due = [record for record in roster.in_order(roster.without_agent) if record.start.free_at <= now]
    if not due:
        return []
    taken = [r for r in roster.hosts.values() if r.agent_id is not None and r.wanted and r.name not in unusable]
    room, spare, chosen = max_workers, SPARE_HOSTS, list[str]()
    for record in chain(taken, sorted(due, key=lambda record: record.start.failures)):
        if room <= 0 and spare <= 0:
            break
        capacity = roster.capacity(record)
        if not capacity:
            continue
        room, spare = (room - capacity, spare) if room > 0 else (room, spare - 1)
        if record.agent_id is None:
            chosen.append(record.name)
    return chosen
