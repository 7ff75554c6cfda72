"""Which agents and workers should run: hosts get an agent, free slots a worker; workers without a slot are
dismissed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice, takewhile
from typing import Final

from edriver.driver.core import events
from edriver.driver.core.actions import Action, Skip, StartAgent, StartWorker, StopAgent, StopWorker
from edriver.driver.core.cause import AgentFault, Cause, CauseKind, Count, DrainTarget, ReportedText
from edriver.driver.core.failures.new_sizes import NewSizes
from edriver.driver.core.failures.quarantine import Quarantine
from edriver.driver.core.hosts_to_start import hosts_to_start
from edriver.driver.core.roster import HostRecord, Roster, Slot, Worker, WorkerState
from edriver.driver.core.rounds.round import Round
from edriver.driver.core.settings import Settings

PLACEMENT_WINDOW: Final = 3.0
"""Seconds from the first agent's start within which workers are started in the order of discovery: for that long, a
host waits for those before it."""

MAX_TROUBLES: Final = 8
"""Reasons that are part of a cause, at most: thousands of hosts may be out of reach. A host's status has its own."""


class DiscoveryTrouble:
    """Why discovery fails while no hosts are known.

    Attributes:
        first: the first of its failures in a row, which is reported while others follow; empty: there is none.
        last: the last one, of which a run ends.
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


class Staffing:
    """Part of the core: it decides who is started and stopped; Membership decides who is in a round.

    Args:
        settings: the operator's limits.
        roster: who is there.
        sizes: how many workers there may be.
        draw: see Quarantine.

    Attributes:
        sizes: the same.
        quarantine: which slots and hosts are left alone for a while.
        discovery: why no hosts are known.
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
        self._in_order_until: float | None = None

    def slot_of(self, worker: Worker) -> Slot:
        """The record of the worker's slot."""
        return self._roster.hosts[worker.host].places.setdefault(worker.slot, Slot())

    def agent_connected(self, host: str, agent_id: int) -> None:
        """Record that a host's agent accepts orders."""
        record = self._roster.hosts.get(host)
        if record and record.agent_id == agent_id:
            record.connected = True
            self._trouble.pop(host, None)

    def agent_silent(self, host: str, agent_id: int, fault: AgentFault) -> bool:
        """Record that a host's agent is silent; returns whether it is the host's current agent."""
        record = self._roster.hosts.get(host)
        if record is None or record.agent_id != agent_id:
            return False
        record.connected = False
        self._trouble[host] = Cause(CauseKind.HOST_UNUSED, host=host, detail=fault)
        return True

    def agent_lost(self, host: str, agent_id: int, fault: AgentFault, now: float) -> list[Worker]:
        """Record that a host's agent is lost; returns its workers, which are lost with it."""
        record = self._roster.hosts.get(host)
        if record is None or record.agent_id != agent_id:
            return []
        record.agent_id, record.connected = None, False
        self.quarantine.agent_failed(record, now)
        self._trouble[host] = Cause(CauseKind.HOST_UNUSED, host=host, detail=fault)
        return list(self._roster.on(host))

    def tend_hosts(self, now: float) -> Iterator[Action]:
        """An agent for each host that the run can use, and for some more; none for a removed host without workers."""
        unusable = self.quarantine.excluded_hosts(now) | self._trouble.keys()
        chosen = hosts_to_start(self._roster, self.sizes.most, unusable, now)
        for record in list(self._roster.hosts.values()):
            if record.name in chosen:
                self._agents += 1
                if self._in_order_until is None:
                    self._in_order_until = now + PLACEMENT_WINDOW
                record.agent_id = self._agents
                yield StartAgent(record.name, record.agent_id)
            elif not record.wanted and not any(self._roster.on(record.name)):
                if record.agent_id is not None:
                    yield StopAgent(record.name, record.agent_id)
                    record.agent_id, record.connected = None, False
                if not record.present:
                    del self._roster.hosts[record.name]
                    self._trouble.pop(record.name, None)

    def steer(self, wish: events.DrainRequested | events.UndrainRequested | events.ResizeRequested) -> None:
        """Take in an operator's request. One that is out of range is ignored: the service has already refused it."""
        match wish:
            case events.ResizeRequested(size):
                self.sizes.resize(size)
            case events.DrainRequested(host, slot, reason, requester):
                if record := self._roster.hosts.get(host):
                    record.drain(slot)
                    if slot is None:
                        target = DrainTarget(None, reason)
                        self._trouble[host] = Cause(CauseKind.DRAINED, host=host, detail=target, requester=requester)
            case events.UndrainRequested(host, slot):
                if record := self._roster.hosts.get(host):
                    record.undrain(slot)
                    self._trouble.pop(host, None)

    def dismiss(self, fitting: set[int], now: float) -> Iterator[Action]:
        """Stop booting workers that are no longer needed, and terminate those that did not leave when ordered to.

        When a host disappears and returns, its workers and those started in their place may be too many.
        """
        booting = [i for i in sorted(fitting) if self._roster.workers[i].state is WorkerState.BOOTING]
        surplus = set(booting[::-1][: max(len(fitting) - self.sizes.most, 0)])
        for worker in self._roster.workers.values():
            if worker.state is WorkerState.BOOTING and (worker.worker_id not in fitting or worker.worker_id in surplus):
                worker.state = WorkerState.STOPPING
                yield StopWorker(worker.worker_id, worker.host, self._settings.leave_grace)
            elif worker.stop_at is not None and worker.stop_at <= now:
                worker.stop_at = None
                yield StopWorker(worker.worker_id, worker.host, self._settings.leave_grace)

    def start_workers(self, now: float, background: bool) -> Iterator[Action]:
        """Fill free slots, oldest host first, up to the largest number of workers that the run may use now.

        At the start a host waits for those before it: which workers are the oldest, and which hosts are used where
        there are more slots than that, does not depend on whose agent was the quickest.
        """
        room = self.sizes.most - len(self._roster.fitting())
        if room <= 0:
            return
        excluded = self.quarantine.excluded_hosts(now)
        turn = self._hosts_in_turn(now)
        free = [
            (record, slot)
            for record, slot in self._roster.free_slots(now)
            if record.name in turn and record.name not in excluded
        ]
        for record, slot in free[:room]:
            self._workers += 1
            worker = Worker(self._workers, record.name, slot, started=now)
            self._roster.workers[worker.worker_id] = worker
            yield StartWorker(worker.worker_id, record.name, slot, background)

    def _hosts_in_turn(self, now: float) -> set[str]:
        """The hosts whose workers may be started."""
        hosts = self._roster.hosts
        if self._in_order_until is None or now >= self._in_order_until:
            return set(hosts)
        awaited = set(self._awaited())
        return set(takewhile(lambda name: name not in awaited, hosts))

    def booting(self) -> bool:
        """Whether a worker with a slot is starting."""
        return any(self._booting())

    def replacement_expected(self, now: float) -> bool:
        """Whether one is starting, and has not been for longer than a member may take to come back."""
        return any(now < worker.started + self._settings.rejoin_timeout for worker in self._booting())

    def _booting(self) -> Iterator[Worker]:
        fitting = self._roster.fitting()
        workers = self._roster.workers.values()
        return (w for w in workers if w.state is WorkerState.BOOTING and w.worker_id in fitting)

    def ready_newcomers(self, ordinal: int, now: float, patient: bool) -> list[int]:
        """Waiting workers that may join the running round now.

        Args:
            ordinal: the script's current `run` call.
            now: the time.
            patient: whether to wait a while for those that still boot, so that all join in one go.
        """
        waiting = [w for w in self._roster.workers.values() if w.waits_in(ordinal)]
        window = self._settings.join_window
        if patient and self.booting() and all(now < w.waiting_since + window for w in waiting):
            return []
        return [w.worker_id for w in waiting]

    def skip_those_behind(self, ordinal: int, current: Round | None) -> Iterator[Action]:
        """A newcomer enters the script's first `run`; where the others are further on, that one is over."""
        if current is None or (current.finished and not current.entered_next):
            return
        for worker in self._roster.workers.values():
            if worker.state is WorkerState.WAITING and worker.offer and worker.offer.ordinal < ordinal:
                worker.state = WorkerState.BOOTING
                yield Skip(worker.worker_id, worker.offer.ordinal)

    def no_slot_works(self, now: float) -> bool:
        """Whether every slot has been tried and failed: no worker waits, and none boots for the first time."""
        hosts = [record for record in self._roster.hosts.values() if record.present]
        tried = [place for record in hosts for place in record.places.values() if place.failures]
        if not tried or any(record.agent_id is not None and not record.connected for record in hosts):
            return False
        if any(self.slot_of(w).failures == 0 or w.state is WorkerState.WAITING for w in self._roster.live()):
            return False
        return not any(self._untried(record, slot) for record, slot in self._roster.free_slots(now))

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
        excluded = self.quarantine.excluded_hosts(now)
        awaited = self._awaited() if late else []
        for record in self._roster.hosts.values():
            if record.name in awaited:
                yield Cause(CauseKind.HOST_UNANSWERED, host=record.name)
            yield from self.problems_of(record, now, excluded)

    def has_fault(self, host: str) -> bool:
        """Whether a host's agent could not be started, was lost, or is silent."""
        trouble = self._trouble.get(host)
        return trouble is not None and trouble.kind is CauseKind.HOST_UNUSED

    def problems_of(self, record: HostRecord, now: float, excluded: set[str]) -> Iterator[Cause]:
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

    def deadlines(self) -> Iterator[float]:
        """When something may be due here."""
        yield from self.quarantine.deadlines()
        if self._in_order_until is not None and self._awaited():
            yield self._in_order_until
        for worker in self._roster.workers.values():
            if worker.stop_at is not None:
                yield worker.stop_at
            if worker.state is WorkerState.WAITING:
                yield worker.waiting_since + self._settings.join_window
            if worker.state is WorkerState.BOOTING and not self._settings.mode.members_survive:
                yield worker.started + self._settings.rejoin_timeout

    def _awaited(self) -> list[str]:
        """Hosts whose first agent has been started and has not connected yet."""
        hosts = [
            record for record in self._roster.hosts.values() if record.present and record.name not in self._trouble
        ]
        return [record.name for record in hosts if record.agent_id is not None and not record.connected]

    @staticmethod
    def _untried(record: HostRecord, slot: int) -> bool:
        return record.places[slot].failures == 0
