"""The roster: the hosts and workers of a run, and who of them answers which question.

It alone changes their records. Only the quarantine keeps its own counts in them, and says so with `host_changed`.

At a thousand hosts of eight workers the first round takes 25,000 events, so a step must not look at each host and
worker. For each question of a step the roster keeps the hosts or workers that answer it: who has a slot, who waits,
which hosts have room. What waiting workers offer is counted by version, so that whether a round can form is known
without a list of its members (`Prospect` in selection.py), and times at which something is due are in heaps.
tests/sim/scanning.py finds the same by looking through all, and the tests compare.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import repeat
from typing import TypeVar

from edriver.driver.core.positions import PositionCounts, first_position, in_turn, in_whole_replicas
from edriver.driver.core.replicas import ReplicaCount, fitting_slots, in_replicas, replica_width, whole_replicas
from edriver.model.hosts import HostSet
from edriver.model.ids import RoundId, Version
from edriver.model.plan import Candidate
from edriver.model.records import (
    WORKER_TRANSITIONS,
    HostRecord,
    Offer,
    OfferKind,
    Slot,
    Worker,
    WorkerState,
    WorkerStep,
)
from edriver.model.settings import WHOLE_HOSTS
from edriver.model.transitions import next_state


class Roster:
    """All hosts in order of age, and all workers that are not known to have exited.

    Only the roster changes them. For each question that an event may raise it keeps an index of the hosts or workers
    that answer it, so that no event scans all of them.

    Args:
        replica_size: the number of workers in a replica, as in Settings.
        by_position: whether each worker has a position in its replica for life. Then replicas are made up of any
            workers of all positions, and else of hosts.

    Attributes:
        replica_size: as given.
        positions: the number of positions, 1 if they do not matter.
        of_hosts: whether replicas of several workers are made up of hosts.
        at: how many workers there are of each position, if these matter.
        hosts: the hosts by name, the oldest first.
        workers: the workers by id, which is the order of age.
        placed: the live workers that have a slot now: on each host as many as it has slots to use, the oldest first of
            those whose training process has not ended.
        leaving: the live workers whose slot is drained, and that train on until others can take over; and those of the
            same host that have no replica without them.
        unplaced: the other live workers.
        booting: the workers that are BOOTING.
        waiting: the workers that are WAITING, in the order in which they began to wait.
        finished: the workers that are FINISHED.
        ending: the workers whose process has ended and whose exit has not been reported yet.
        may_hold: the workers that may hold state of a round.
        may_write: the workers that the run no longer counts on but that may still write a checkpoint.
        ranked: the live workers that have had a rank.
        looked_before: the waiting workers that looked for a checkpoint while another worker could write one.
        unwanted: the hosts not to use.
        without_agent: the hosts to use that have no agent.
        unconnected: the hosts that discovery names and whose agent does not take orders.
        partly_drained: the hosts of which only some slots are drained.
        unfit: the hosts to use of which some slots, or all, make up no whole replica.
        with_room: the hosts with a connected agent and more slots to use than workers in them.
        open_slots: the number of usable slots on the hosts to use.
        usable_slots: the number of such slots on hosts whose agent runs, or has not failed to start.
        connected_slots: the number of open slots on hosts whose agent takes orders.
        revision: grows whenever a host changes in more than whether its agent takes orders.
        departures: grows whenever the run no longer counts on a worker, or it has exited.
    """

    STATE = ("hosts", "workers", "waiting", "revision")

    def __init__(self, replica_size: int = 1, by_position: bool = False) -> None:
        self.replica_size = replica_size
        self.positions = replica_size if by_position else 1
        self.of_hosts = replica_size != self.positions
        self.at = PositionCounts(self.positions)
        self.hosts: dict[str, HostRecord] = {}
        self.workers: dict[int, Worker] = {}
        self.placed: set[int] = set()
        self.leaving: set[int] = set()
        self.unplaced: set[int] = set()
        self.booting: set[int] = set()
        self.waiting: dict[int, None] = {}
        self.finished: set[int] = set()
        self.ending: set[int] = set()
        self.may_hold: set[int] = set()
        self.may_write: set[int] = set()
        self.ranked: set[int] = set()
        self.looked_before: set[int] = set()
        self.unwanted: set[str] = set()
        self.without_agent: set[str] = set()
        self.unconnected: set[str] = set()
        self.partly_drained: set[str] = set()
        self.unfit: set[str] = set()
        self.with_room: set[str] = set()
        self.open_slots = 0
        self.usable_slots = 0
        self.connected_slots = 0
        self.revision = 0
        self.departures = 0
        self._offers: dict[int, Counter[OfferKind]] = {}  # by ordinal: the waiting workers' offers by kind
        self._offered: dict[int, tuple[int, OfferKind]] = {}  # what each of them counts as there
        self._places: dict[str, int] = {}
        self._on: dict[str, dict[int, Worker]] = {}
        self._counted: dict[str, tuple[int, int, int]] = {}  # what each host counts for in the sums of slots
        # Whole replicas of the workers that have a slot, and of those of them that are ready or train. Where each
        # worker is its own replica, nothing is counted.
        self._live = ReplicaCount(replica_size)
        self._ready = ReplicaCount(replica_size)
        # Heaps, which also have some of whom that no longer holds:
        self._waits: list[tuple[float, int]] = []  # since when a worker has been waiting,
        self._boots: list[tuple[float, int]] = []  # when one that boots was started,
        self._stops: list[tuple[float, int]] = []  # when one is to be terminated,
        self._leaves: list[tuple[float, int]] = []  # when one that is leaving does so without a replacement,
        self._awaited: list[tuple[int, str]] = []  # and the unconnected hosts, by their places
        self._overdue: set[int] = set()  # the workers that are taken from _stops because their time has come

    def derive(self) -> None:
        """After a snapshot: make all that follows from the hosts, the workers, and the order in which they wait."""
        hosts, workers, waiting, revision = self.hosts, self.workers, self.waiting, self.revision
        self.__init__(self.replica_size, self.positions > 1)  # type: ignore[misc]
        self.hosts, self.workers = hosts, workers
        self._places = {name: place for place, name in enumerate(hosts)}
        for worker in workers.values():
            self._on.setdefault(worker.host, {})[worker.worker_id] = worker
        for record in hosts.values():
            self.host_changed(record)
        for worker in workers.values():
            self.worker_changed(worker)
        self.waiting, self.revision = waiting, revision
        self._waits = [(workers[worker_id].waiting_since, worker_id) for worker_id in waiting]
        heapify(self._waits)
        self._stops = [(worker.stop_at, w) for w, worker in workers.items() if worker.stop_at is not None]
        heapify(self._stops)
        self._leaves = [(worker.leave_at, w) for w, worker in workers.items() if worker.leave_at is not None]
        heapify(self._leaves)

    # ---- hosts -----------------------------------------------------------------------------------------------

    def observe(self, answer: HostSet) -> None:
        """Take over discovery's answer; records of removed hosts stay until their workers have ended."""
        before = {name: record.slots for name, record in self.hosts.items()}
        for record in self.hosts.values():
            record.slots = answer.slots(record.name)
        kept = {name: record for name, record in self.hosts.items() if not record.present}
        for host in answer:
            record = self.hosts.get(host.name) or HostRecord(host.name)
            record.slots = host.slots
            kept[host.name] = record
        self.hosts = kept
        self._places = {name: place for place, name in enumerate(kept)}
        self._index_new([record for name, record in kept.items() if name not in before])
        for name, slots in before.items():
            if slots != kept[name].slots:
                self.host_changed(kept[name])
        self._awaited = sorted((self._places[name], name) for name in self.unconnected)
        self.revision += 1  # their order may have changed

    def agents_started(self, agents: Mapping[str, int]) -> None:
        """Hosts to use that have no agent get these, by the hosts' names."""
        others = agents.keys() - self.without_agent
        assert not others, f"{', '.join(sorted(others))}: has an agent, or is not to be used"
        for name, agent_id in agents.items():
            self.hosts[name].agent_id = agent_id
        self._awaited += [(self._places[name], name) for name in agents]
        heapify(self._awaited)
        self.without_agent.difference_update(agents)
        self.unconnected.update(agents)
        self.revision += 1

    def has_agent(self, host: str, agent_id: int) -> bool:
        """Whether this is the host's agent, and not one of earlier."""
        record = self.hosts.get(host)
        return record is not None and record.agent_id == agent_id

    def is_reached(self, host: str) -> bool:
        """Whether a host's agent takes orders."""
        record = self.hosts.get(host)
        return record is not None and record.connected

    def agent_connected(self, record: HostRecord, connected: bool, processors: str = "") -> None:
        """A host's agent takes orders, or does so no longer; `processors` as in AgentConnected."""
        record.connected = connected
        record.processors = processors or record.processors
        self._index_host(record)

    def agent_gone(self, record: HostRecord) -> None:
        """A host has no agent any more."""
        record.agent_id, record.connected = None, False
        self.host_changed(record)

    def drain(self, record: HostRecord, slot: int | None, leave_at: float | None) -> None:
        """Leave a host's slot; None: all of them. Workers that have been members may stay until `leave_at`, or until
        they must leave by an earlier request; None: they leave at once.
        """
        for worker in self.on(record.name):
            if slot is None or worker.slot == slot:
                until = leave_at if worker.rank is not None else None
                if record.is_drained(worker.slot):
                    until = None if until is None or worker.leave_at is None else min(until, worker.leave_at)
                self._leave_at(worker, until)
        record.drain(slot)
        self.host_changed(record)

    def undrain(self, record: HostRecord, slot: int | None) -> None:
        """Use a host's slot again; None: all of them."""
        record.undrain(slot)
        for worker in self.on(record.name):
            if not record.is_drained(worker.slot):
                worker.leave_at = None
        self.host_changed(record)

    def _leave_at(self, worker: Worker, at: float | None) -> None:
        worker.leave_at = at
        if at is not None:
            heappush(self._leaves, (at, worker.worker_id))

    def wait_no_longer(self, worker: Worker) -> None:
        """A worker of a drained slot leaves as soon as it can, with or without a replacement."""
        worker.leave_at = None
        self._place_workers(self.hosts[worker.host])

    def end_waits(self, now: float) -> None:
        """Workers of drained slots whose time has come wait for their replacements no longer."""
        leaves = self._leaves
        while leaves and (leaves[0][0] <= now or not self._leaves_then(*leaves[0])):
            at, worker_id = heappop(leaves)
            if self._leaves_then(at, worker_id):
                self.wait_no_longer(self.workers[worker_id])

    def next_leave(self, now: float) -> float:
        """When the next worker of a drained slot leaves without a replacement; infinite: there is none."""
        self.end_waits(now)
        return self._leaves[0][0] if self._leaves else math.inf

    def _leaves_then(self, at: float, worker_id: int) -> bool:
        return worker_id in self.workers and self.workers[worker_id].leave_at == at

    def slot_completed(self, worker: Worker) -> None:
        """A worker has gone through the whole script: none is started in its place."""
        self.slot_of(worker).completed = True

    def slot_of(self, worker: Worker) -> Slot:
        """The record of a worker's slot."""
        return self.hosts[worker.host].places.setdefault(worker.slot, Slot())

    def host_changed(self, record: HostRecord) -> None:
        """Take in that a host's record has been changed: its slots, its agent, or what of it is drained."""
        self.revision += 1
        self._index_host(record)

    def _index_host(self, record: HostRecord) -> None:
        name, wanted, opened, connected = record.name, record.wanted, record.open_count, record.connected
        usable, started = self.capacity(record), record.agent_id is not None
        awaited = started and not connected and record.present
        if awaited and name not in self.unconnected:
            heappush(self._awaited, (self._places[name], name))
        _keep(self.without_agent, name, wanted and not started)
        _keep(self.unconnected, name, awaited)
        _keep(self.unwanted, name, not wanted)
        _keep(self.partly_drained, name, bool(record.drained) and not record.drained_whole)
        _keep(self.unfit, name, wanted and usable < opened)
        self._count(
            name,
            opened if wanted else 0,
            usable if connected or not record.start.failures else 0,
            usable if wanted and connected else 0,
        )
        self._place_workers(record)

    def _index_new(self, records: Sequence[HostRecord]) -> None:
        """Index hosts that have no agent, no workers and no drained slots yet: in the beginning all of a run."""
        slots = [record.slots for record in records]
        usable = slots if self.replica_size == 1 else [self.capacity(record) for record in records]
        names = [record.name for record in records]
        self.without_agent.update(names)
        self._counted.update(zip(names, zip(slots, usable, repeat(0)), strict=False))
        if usable is not slots:
            self.unfit.update(name for name, has, can in zip(names, slots, usable, strict=True) if can < has)
        self.open_slots += sum(slots)
        self.usable_slots += sum(usable)

    def _count(self, name: str, opened: int, usable: int, connected: int) -> None:
        """Have a host count for so many slots in the three sums."""
        before, counts = self._counted.get(name, (0, 0, 0)), (opened, usable, connected)
        if counts == before:
            return
        self._counted[name] = counts
        self.open_slots += opened - before[0]
        self.usable_slots += usable - before[1]
        self.connected_slots += connected - before[2]

    def forget_host(self, record: HostRecord) -> None:
        """Drop a host that discovery no longer names and that has no workers."""
        assert not record.present, f"discovery names {record.name}"
        assert not self._on.get(record.name), f"{record.name} has workers"
        for index in (self.unwanted, self.without_agent, self.unconnected, self.partly_drained, self.unfit):
            index.discard(record.name)
        self.with_room.discard(record.name)
        self._live.forget(record.name)
        self._ready.forget(record.name)
        self.at.forget(record.name)
        self._count(record.name, 0, 0, 0)
        self.revision += 1
        del self.hosts[record.name], self._places[record.name]
        self._counted.pop(record.name, None)
        self._on.pop(record.name, None)

    def in_order(self, hosts: Collection[str]) -> list[HostRecord]:
        """These hosts, each given once, in order of age."""
        if len(hosts) == len(self.hosts):
            return list(self.hosts.values())
        return [self.hosts[name] for name in sorted(hosts, key=self._places.__getitem__)]

    def age_order(self, host: str) -> int:
        """A host's place in the order of age: the oldest has the smallest."""
        return self._places[host]

    def first_unconnected(self, besides: Container[str]) -> float:
        """The place, in the order of age, of the oldest unconnected host other than these; infinite: there is none."""
        heap, skipped, found = self._awaited, list[tuple[int, str]](), math.inf
        while heap and found == math.inf:
            place, name = heap[0]
            if name not in self.unconnected:
                heappop(heap)
            elif name in besides:
                skipped.append(heappop(heap))
            else:
                found = place
        for entry in skipped:
            heappush(heap, entry)
        return found

    # ---- workers ---------------------------------------------------------------------------------------------

    def add(self, worker: Worker) -> None:
        """A worker is started: the youngest, and the only one in its slot."""
        on_host = self._on.get(worker.host, {}).values()
        assert all(other.slot != worker.slot for other in on_host), f"slot {worker.slot} of {worker.host} is taken"
        self.workers[worker.worker_id] = worker
        self._on.setdefault(worker.host, {})[worker.worker_id] = worker
        self.worker_changed(worker)
        self._place_workers(self.hosts[worker.host])

    def remove(self, worker_id: int) -> None:
        """A worker's process is gone."""
        worker = self.workers.pop(worker_id)
        self.departures += 1
        del self._on[worker.host][worker_id]
        for index in self._indexes():
            index.discard(worker_id)
        self._overdue.discard(worker_id)
        self.waiting.pop(worker_id, None)
        self._count_offer(worker_id, None)
        self.placed.discard(worker_id)
        self.leaving.discard(worker_id)
        self.unplaced.discard(worker_id)
        self._place_workers(self.hosts[worker.host])

    def _indexes(self) -> Iterator[set[int]]:
        yield from (self.booting, self.finished, self.ending)
        yield from (self.may_hold, self.may_write, self.ranked, self.looked_before)

    def move(self, worker: Worker, step: WorkerStep) -> None:
        """A worker goes from one state to the next.

        Raises:
            IllegalTransitionError: its state has no such step.
        """
        before = worker.state
        worker.state = after = next_state(WORKER_TRANSITIONS, before, step, f"worker {worker.worker_id}")
        self.worker_changed(worker)
        if (before is WorkerState.STOPPING) != (after is WorkerState.STOPPING):
            self.departures += 1
            self._place_workers(self.hosts[worker.host])

    def take_offer(self, worker: Worker, offer: Offer, now: float) -> None:
        """A worker waits for a round."""
        self.waiting.pop(worker.worker_id, None)  # it is the last in their order
        worker.offer, worker.waiting_since = offer, now
        heappush(self._waits, (now, worker.worker_id))
        self.move(worker, WorkerStep.OFFER)

    def revise_offer(self, worker: Worker, version: Version) -> None:
        """What a waiting worker holds counts as another version."""
        assert worker.offer is not None
        worker.offer.version = version
        self.worker_changed(worker)

    def looked_last(self, worker: Worker, completed: RoundId | None) -> None:
        """Record whether a newer checkpoint may have been written since a waiting worker looked for one.

        Args:
            worker: the worker.
            completed: the last round, once no worker can write a checkpoint of it any more; None before.
        """
        assert worker.offer is not None
        worker.offer.latest = completed is not None and completed == worker.looks_after
        self._index_look(worker)

    def seat(self, worker: Worker, rank: int, looks_after: RoundId | None) -> None:
        """A worker is a member of a round. If it comes back unsynced, it looks for a checkpoint again."""
        worker.rank, worker.looks_after = rank, looks_after
        self.move(worker, WorkerStep.JOIN)

    def note_trained(self, worker: Worker) -> None:
        """A worker has passed a boundary in a round."""
        worker.trained = True

    def find_newest_checkpoint(self, worker: Worker, looks_after: RoundId | None) -> None:
        """A worker looks for the newest checkpoint once more, and is not ready until it answers."""
        worker.offer, worker.looks_after = None, looks_after
        self.move(worker, WorkerStep.SEND_BACK)

    def dismiss(self, worker: Worker, stop_at: float) -> None:
        """A worker is ordered to leave, and is terminated then if it has not."""
        self.stop_at(worker, stop_at)
        self.move(worker, WorkerStep.STOP)

    def stop_at(self, worker: Worker, at: float | None) -> None:
        """A worker is to be terminated then; None: it has been."""
        worker.stop_at = at
        self._overdue.discard(worker.worker_id)
        if at is not None:
            heappush(self._stops, (at, worker.worker_id))

    def note_traceback(self, worker: Worker, text: str) -> None:
        """Keep an exception that a worker has reported, or the stacks of its threads."""
        worker.traceback = text

    def await_exit_code(self, worker: Worker, awaited: bool) -> None:
        """Note whether what a worker's end counts as is known only once its process is reaped."""
        worker.unexplained = awaited

    def note_ending(self, worker: Worker) -> None:
        """A worker's process has ended; its exit is still to be reported."""
        worker.ending = True
        self.worker_changed(worker)

    def trainer_ended(self, worker: Worker, stop_at: float) -> None:
        """A worker's training process has ended. A command that continues without it (a shell, a program that it became
        by exec) is terminated then; what it does after a script that was done, though, has --exit-timeout.
        """
        worker.trainer_gone = True
        if worker.state is not WorkerState.FINISHED and worker.stop_at is None:
            self.stop_at(worker, stop_at)
        self.worker_changed(worker)
        self._place_workers(self.hosts[worker.host])

    def worker_changed(self, worker: Worker) -> None:
        """Take in that a worker has been changed, other than whether it is live."""
        number, state = worker.worker_id, worker.state
        waits = state is WorkerState.WAITING
        if state is WorkerState.BOOTING and number not in self.booting:
            if len(self._boots) > 2 * len(self.booting) + 100:
                self._boots = [(started, w) for started, w in self._boots if w in self.booting]
                heapify(self._boots)
            heappush(self._boots, (worker.started, number))
        _keep(self.booting, number, state is WorkerState.BOOTING)
        _keep(self.finished, number, state is WorkerState.FINISHED)
        _keep(self.ending, number, worker.ending)
        _keep(self.may_hold, number, worker.may_hold)
        _keep(self.may_write, number, worker.may_write)
        _keep(self.ranked, number, worker.live and worker.rank is not None)
        self._index_look(worker)
        if waits:
            self.waiting[number] = None
        else:
            self.waiting.pop(number, None)
        self._count_offer(number, worker)
        if self.replica_size != 1:
            self._count_replicas(self.hosts[worker.host])

    def _index_look(self, worker: Worker) -> None:
        offer = worker.offer
        before = worker.state is WorkerState.WAITING and offer is not None and not offer.latest
        _keep(self.looked_before, worker.worker_id, before)

    def _count_offer(self, worker_id: int, worker: Worker | None) -> None:
        kind = None
        if worker is not None and worker.state is WorkerState.WAITING and (offer := worker.offer) is not None:
            placed, leaving = worker_id in self.placed, worker_id in self.leaving
            checkpoint, sealed = offer.checkpoint or 0, offer.sealed
            of_offer = OfferKind(offer.version, checkpoint, placed, leaving, sealed, worker.position, offer.shards)
            kind = offer.ordinal, of_offer
        before = self._offered.pop(worker_id, None)
        if kind is not None:
            self._offered[worker_id] = kind
        if kind == before:
            return
        if before is not None:
            counts = self._offers[before[0]]
            counts[before[1]] -= 1
            if not counts[before[1]]:
                del counts[before[1]]
            if not counts:
                del self._offers[before[0]]
        if kind is not None:
            if kind[0] not in self._offers:
                self._offers[kind[0]] = Counter()
            self._offers[kind[0]][kind[1]] += 1

    def _place_workers(self, record: HostRecord) -> None:
        """Find out which workers of a host have a slot."""
        opened = room = self.capacity(record)
        taken = 0
        others_wait = self.replica_size != 1 and self.positions == 1 and self._others_wait(record)
        for worker in sorted(self.on(record.name), key=lambda w: w.trainer_gone):
            drained = record.is_drained(worker.slot)
            taken += not drained
            placed = worker.live and room > 0 and not drained
            room -= placed
            number = worker.worker_id
            leaving = worker.live and drained and record.present and worker.leave_at is not None
            if others_wait and worker.live and not (placed or drained) and worker.rank is not None:
                leaving = True  # for want of a replica
            if placed != (number in self.placed) or leaving != (number in self.leaving):
                _keep(self.placed, number, placed)
                _keep(self.leaving, number, leaving)
                self._count_offer(number, worker)
            _keep(self.unplaced, number, worker.live and not placed and not leaving)
        _keep(self.with_room, record.name, record.connected and opened > taken and record.wanted)
        if self.replica_size != 1:
            self._count_replicas(record)

    def _others_wait(self, record: HostRecord) -> bool:
        """Whether workers of a host's drained slots train on until others can take their places."""
        there = self.on(record.name)
        return record.present and any(w.live and w.leave_at is not None and record.is_drained(w.slot) for w in there)

    def _count_replicas(self, record: HostRecord) -> None:
        placed = [worker for worker in self.on(record.name) if worker.worker_id in self.placed]
        if self.positions > 1:
            ready = [worker.position for worker in placed if worker.in_run]
            self.at.note(record.name, [worker.position for worker in placed], ready)
            return
        self._live.note(record.name, record.slots, len(placed))
        self._ready.note(record.name, record.slots, sum(worker.in_run for worker in placed))

    # ---- questions -------------------------------------------------------------------------------------------

    def on(self, host: str) -> Iterator[Worker]:
        """The workers on a host."""
        return iter(self._on.get(host, {}).values())

    def capacity(self, record: HostRecord) -> int:
        """The number of a host's slots to use: those that can be in whole replicas."""
        if self.replica_size == 1:
            return record.open_count
        if self.positions > 1:
            fitting = fitting_slots(self.positions, record.slots)
            return sum(slot < fitting for slot in record.open_slots)
        return in_replicas(self.replica_size, record.slots, record.open_count)

    def slot_positions(self, record: HostRecord, coverage: Sequence[int]) -> list[int]:
        """The positions of a host's slots, from slot 0: see positions.py.

        Args:
            record: the host.
            coverage: the number of workers of each position, of which a host without workers takes the fewest.
        """
        size, slots = self.positions, record.slots
        fitting = fitting_slots(size, slots)
        if slots >= size:
            live = {w.slot: w.position for w in self.on(record.name) if w.live and w.slot < fitting} if size > 1 else {}
            return in_turn(size, fitting, live)
        if not fitting:
            return []
        offset = record.offset
        if offset is None or offset % slots or not any(self.on(record.name)):
            offset = first_position(size, slots, coverage)
        return [offset + slot for slot in range(slots)]

    def choose_offset(self, record: HostRecord, offset: int) -> None:
        """The position of slot 0 of a host that has fewer slots than a replica has workers."""
        record.offset = offset

    def slots_in_replicas(self, record: HostRecord, count: int) -> int:
        """How many of so many slots of a host can be in whole replicas."""
        if self.positions > 1:
            return min(count, fitting_slots(self.positions, record.slots))
        return in_replicas(self.replica_size, record.slots, count)

    def width(self, record: HostRecord) -> int:
        """The number of workers in a replica of which a host is a part."""
        return replica_width(self.replica_size, record.slots)

    def unpaired(self, record: HostRecord) -> int:
        """How many hosts of this one's size have workers in all slots, and wait for others that make up a replica."""
        return self._live.unpaired(record.slots)

    @property
    def occupied(self) -> int:
        """The number of workers that have a slot and are in whole replicas, whether they are ready or not."""
        if self.positions > 1:
            return in_whole_replicas(self.at.live)
        return len(self.placed) if self.replica_size == 1 else self._live.total

    @property
    def ready(self) -> int:
        """The number of those that are in whole replicas of workers that are ready for a round, or in one."""
        return in_whole_replicas(self.at.ready) if self.positions > 1 else self._ready.total

    def with_slot(self, workers: Iterable[int]) -> int:
        """How many of these workers that have a slot make up whole replicas by their positions."""
        placed = [worker_id for worker_id in workers if worker_id in self.placed]
        if self.positions == 1:
            return len(placed)
        return self.whole(map(self.workers.__getitem__, placed))

    def whole(
        self,
        workers: Iterable[Worker],
        slots: Iterable[tuple[HostRecord, Collection[int]]] = (),
        most: float = math.inf,
    ) -> int:
        """How many workers make up whole replicas.

        Args:
            workers: workers that there are.
            slots: hosts with slots in which there could be more.
            most: the maximum number of workers.
        """
        if self.of_hosts:
            counts = Counter(worker.host for worker in workers)
            counts.update({record.name: len(free) for record, free in slots})
            hosts = ((record.name, record.slots, counts[record.name]) for record in self.hosts.values())
            return sum(whole_replicas(self.replica_size, hosts, most).values())
        coverage = [0] * self.positions
        for worker in workers:
            coverage[worker.position] += 1
        for record, free in slots:
            positions = self.slot_positions(record, coverage)
            for slot in free:
                if slot < len(positions):
                    coverage[positions[slot]] += 1
        whole = in_whole_replicas(coverage)
        return whole if whole <= most else int(most) - int(most) % self.positions

    def surplus(self, members: Container[int], most: int) -> set[int]:
        """Waiting workers, the youngest first, of which there are more than replicas could have at their position.

        Args:
            members: those that are in the round.
            most: the maximum number of workers.
        """
        found = set[int]()
        for position, count in enumerate(self.at.live):
            spare = [w for w in self.waiting if w in self.placed and w not in members]
            excess = max(0, count - most // self.positions)
            found |= set(sorted((w for w in spare if self.workers[w].position == position), reverse=True)[:excess])
        return found

    def position(self, worker_id: int) -> int:
        """A worker's position in its replica."""
        return self.workers[worker_id].position

    def fitting(self, most: int) -> int:
        """The largest number of workers up to this one that whole replicas of those that are ready make up."""
        if self.replica_size == 1 or (self.replica_size == WHOLE_HOSTS and self.ready <= most):
            return most
        if self.replica_size != WHOLE_HOSTS:
            return most - most % self.replica_size
        return len(self.in_replicas((w for w in self.live() if w.in_run and w.worker_id in self.placed), most))

    def in_replicas(self, workers: Iterable[Worker], most: float = math.inf) -> list[Worker]:
        """Those of these workers that make up whole replicas, `most` at most, in the order of their ranks."""
        on: dict[str, list[Worker]] = {}
        for worker in workers:
            on.setdefault(worker.host, []).append(worker)
        hosts = ((record.name, record.slots, len(on[record.name])) for record in self.in_order(on))
        counts = whole_replicas(self.replica_size, hosts, most)
        return [w for host, count in counts.items() for w in sorted(on[host], key=lambda w: w.slot)[:count]]

    def live(self) -> Iterator[Worker]:
        """The workers that the run may still count on, oldest first."""
        return (w for w in self.workers.values() if w.live)

    def offers(self, ordinal: int) -> Mapping[OfferKind, int]:
        """The number of workers ready for a round of this `run` call, by the kind of their offer."""
        return self._offers.get(ordinal, {})

    def ordinals(self) -> Iterable[int]:
        """The `run` calls that workers wait in."""
        return self._offers.keys()

    def waiting_in(self, ordinal: int) -> list[Worker]:
        """The workers that are ready for a round of this `run` call, oldest first."""
        return [self.workers[w] for w in sorted(self.waiting) if self.workers[w].waits_in(ordinal)]

    def next_wait_over(self, window: float, now: float) -> float:
        """When the next of those that wait will have waited for this long; infinite: all have."""
        waits = self._waits
        while waits and (waits[0][0] + window <= now or not self._waits_since(*waits[0])):
            heappop(waits)
        return waits[0][0] + window if waits else math.inf

    def _waits_since(self, since: float, worker_id: int) -> bool:
        return worker_id in self.waiting and self.workers[worker_id].waiting_since == since

    def next_boot_over(self, timeout: float, now: float) -> float:
        """When the next of those that boot will have been started this long ago; infinite: all have."""
        boots = self._boots
        while boots and (boots[0][0] + timeout <= now or boots[0][1] not in self.booting):
            heappop(boots)
        return boots[0][0] + timeout if boots else math.inf

    def overdue(self, now: float) -> set[int]:
        """The workers that were to be terminated by now."""
        stops = self._stops
        while stops and (stops[0][0] <= now or not self._stops_then(*stops[0])):
            at, worker_id = heappop(stops)
            if self._stops_then(at, worker_id):
                self._overdue.add(worker_id)
        return self._overdue

    def next_stop(self, now: float) -> float:
        """When the next worker is to be terminated; infinite: none is."""
        self.overdue(now)
        return self._stops[0][0] if self._stops else math.inf

    def _stops_then(self, at: float, worker_id: int) -> bool:
        return worker_id in self.workers and self.workers[worker_id].stop_at == at

    def candidates(
        self, waiting: Iterable[Worker], by_place: bool, ranks: Mapping[int, int] | None = None
    ) -> list[Candidate]:
        """What waiting workers offer.

        Args:
            waiting: workers that have made an offer.
            by_place: whether ranks follow hosts and slots, or the ranks of the round before: see Candidate.place.
            ranks: the ranks of the last round, by worker_id.
        """
        if by_place:
            return [worker.candidate((self._places[worker.host], worker.slot)) for worker in waiting]
        size, ranks = self.positions, ranks or {}
        return [
            worker.candidate(
                (1, 0) if worker.rank is None else (0, worker.rank),
                ranks[worker.worker_id] // size if worker.worker_id in ranks else None,
            )
            for worker in waiting
        ]

    def keeps(self, worker: Worker) -> bool:
        """Whether a worker's place is to be used: its host is named by discovery, and it is not drained."""
        record = self.hosts[worker.host]
        return record.present and not record.is_drained(worker.slot)

    def free_slots(self, record: HostRecord, now: float) -> Iterator[int]:
        """Slots of a host in which a worker may be started now."""
        if record.name not in self.with_room:  # most hosts are full
            return
        taken = {worker.slot for worker in self.on(record.name)}
        room = self.capacity(record) - sum(not record.is_drained(slot) for slot in taken)
        fitting = fitting_slots(self.positions, record.slots)
        for slot in record.ready_slots(now):
            if room > 0 and slot < fitting and slot not in taken and not record.places[slot].completed:
                room -= 1
                yield slot

    def reopen_slots(self) -> None:
        """Use all slots again, those included whose workers went through the whole script."""
        for record in self.hosts.values():
            for place in record.places.values():
                place.completed = False


_Name = TypeVar("_Name", int, str)


def _keep(index: set[_Name], name: _Name, belongs: bool) -> None:
    """Have an index contain a name, or not."""
    if belongs:
        index.add(name)
    else:
        index.discard(name)
