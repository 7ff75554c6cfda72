"""What the core keeps, so that no event looks through all hosts and workers, found by looking through all of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product

from edriver.driver.core.failures.suspicion import REPORT_DELAY, SIMULTANEITY_WINDOW
from edriver.driver.core.membership import TOGETHER, Membership
from edriver.driver.core.placement import MOST_JOIN_WINDOWS
from edriver.driver.core.replicas import fitting_slots, in_replicas, whole_replicas
from edriver.driver.core.roster import Roster
from edriver.driver.core.selection import prospect, select, summary
from edriver.driver.core.shardings import newest_cut
from edriver.model.ids import NO_VERSION
from edriver.model.records import HostRecord, OfferKind, Worker, WorkerState
from tests.sim.checking import check


def check_indexes(core: Membership) -> None:
    """Compare each index of the roster, each sum, what waiting workers offer, and the next deadline."""
    core.check()
    roster, run = core.roster, core.rounds
    workers, hosts = roster.workers, roster.hosts
    kept = {name: set(index) for name, index in vars(roster).items() if name in _WORKERS or name in _HOSTS}
    placed = _placed(roster)
    check(roster.placed == placed, f"{roster.placed} are said to have a slot, and {placed} do")
    leaving = {w.worker_id for w in roster.live() if w.worker_id not in placed and _leaving(roster, w)}
    check(roster.leaving == leaving, f"{roster.leaving} are said to be leaving, and {leaving} are")
    check(roster.unplaced == {w.worker_id for w in roster.live()} - placed - leaving, "workers without a slot")
    for name, belongs in _WORKERS.items():
        found = {number for number, worker in workers.items() if belongs(worker)}
        check(kept[name] == found, f"{name} has {kept[name]}, and not {found}")
    for name, holds in _HOSTS.items():
        those = {host for host, record in hosts.items() if holds(record)}
        check(kept[name] == those, f"{name} has {kept[name]}, and not {those}")
    overdue = {w for w, worker in workers.items() if worker.stop_at is not None and worker.stop_at <= core.now}
    check(roster.overdue(core.now) == overdue, f"{roster.overdue(core.now)} are said to be overdue, and {overdue} are")
    awaited = [roster.age_order(record.name) for record in _untroubled(core) if _awaited(record)]
    first = roster.first_unconnected({name for name in hosts if core.placement.has_problem(name)})
    check(first == min(awaited, default=math.inf), f"the first host that is awaited has place {first}")
    _check_suspects(core)
    with_room = {host for host in hosts if _has_room(roster, hosts[host])}
    check(roster.with_room == with_room, f"{roster.with_room} are said to have room, and {with_room} do")
    since = [workers[worker_id].waiting_since for worker_id in roster.waiting]
    check(since == sorted(since), "those that wait are in the order in which they became so")
    check(list(hosts) == [record.name for record in roster.in_order(hosts)], "hosts are in order of age")
    sums = roster.open_slots, roster.usable_slots, roster.connected_slots
    check(sums == _sums(roster), f"slots are {sums}, and not {_sums(roster)}")
    unfit = {name for name, r in hosts.items() if r.wanted and _capacity(roster, r) < r.open_count}
    check(roster.unfit == unfit, f"{roster.unfit} are said to have slots that are in no replica, and {unfit} do")
    _check_replicas(roster, placed)
    for ordinal in {run.call.ordinal, *(worker.offer.ordinal for worker in workers.values() if worker.offer)}:
        _check_offers(core, ordinal)
    wanted = min((at for at in _deadlines(core) if core.now < at < math.inf), default=None)
    check(core.ended or core.next_deadline == wanted, f"the next deadline is {core.next_deadline}, and not {wanted}")


def _check_replicas(roster: Roster, placed: set[int]) -> None:
    """The sums of those that are in whole replicas."""
    live = [roster.workers[worker_id] for worker_id in placed]
    counted = [(roster.occupied, live)]
    if roster.replica_size != 1:
        counted.append((roster.ready, [worker for worker in live if worker.in_run]))
    if roster.positions > 1:
        for (found, workers), at in zip(counted, (roster.at.live, roster.at.ready), strict=True):
            counts = [sum(worker.position == position for worker in workers) for position in range(roster.positions)]
            check(at == counts, f"{at} workers are said to be at the positions, and {counts} are")
            whole = roster.positions * min(counts)
            check(found == whole, f"{found} workers are said to be in whole replicas, and {whole} are")
        return
    for found, workers in counted:
        there = Counter(worker.host for worker in workers)
        hosts = [(record.name, record.slots, there[record.name]) for record in roster.hosts.values()]
        whole = sum(whole_replicas(roster.replica_size, hosts).values())
        check(found == whole, f"{found} workers are said to be in whole replicas, and {whole} are")


def _check_suspects(core: Membership) -> None:
    """No worker and no agent is suspected any more on which the run does not depend."""
    workers, last, now = core.roster.workers, core.rounds.current, core.now
    suspects = vars(core.suspects)
    suspicions, agents = suspects["_workers"], suspects["_agents"]
    since = [each.since for each in suspicions.values()]
    check(since == sorted(since), "those suspected first come first")

    def shows_itself(worker_id: int) -> bool:
        offer = workers[worker_id].offer if workers[worker_id].waits_in(core.rounds.call.ordinal) else None
        holds = offer is not None and (offer.version != NO_VERSION or core.rounds.call.best == NO_VERSION)
        return holds and last is not None and last.had(worker_id) and worker_id not in suspicions

    def is_needed(worker: Worker) -> bool:
        suspicion = suspicions.get(worker.worker_id)
        since = -math.inf if suspicion is None or suspicion.idle else suspicion.since
        alike = (w for w in workers if w != worker.worker_id and workers[w].position == worker.position)
        others = [workers[w] for w in alike if shows_itself(w)]
        if core.settings.one_replica:  # they have to have all of the state between them
            others = [w for w in others if w.host not in agents]
            offers = [worker.offer for worker in others if worker.offer is not None]
            sharded = core.rounds.call.best != NO_VERSION and any(offer.shards for offer in offers)
            if sharded and newest_cut(offers).version == NO_VERSION:
                others = []
            others = sorted(others, key=lambda w: w.waiting_since)[:1]
        shown = any(other.waiting_since >= since or now >= since + SIMULTANEITY_WINDOW for other in others)
        return last is not None and last.had(worker.worker_id) and (now < suspects["_spared_until"] or not shown)

    if core.ended:
        return
    for worker in [workers[w] for w in suspicions]:
        needed = not worker.live or worker.host in agents or is_needed(worker)
        check(needed, f"worker {worker.worker_id} is left alone, and the run does not depend on it")
    if core.roster.departures != suspects["_departures"]:  # the step itself stopped some: agents are judged in the next
        return
    for host in agents.keys() & core.roster.hosts.keys():
        needed = any(worker.live and is_needed(worker) for worker in core.roster.on(host))
        check(needed, f"the agent of {host} is left alone, and the run does not depend on it")


_WORKERS: dict[str, Callable[[Worker], bool]] = {
    "booting": lambda w: w.state is WorkerState.BOOTING,
    "waiting": lambda w: w.state is WorkerState.WAITING,
    "finished": lambda w: w.state is WorkerState.FINISHED,
    "ending": lambda w: w.ending,
    "may_hold": lambda w: w.may_hold,
    "may_write": lambda w: w.may_write,
    "ranked": lambda w: w.live and w.rank is not None,
    "looked_before": lambda w: w.state is WorkerState.WAITING and w.offer is not None and not w.offer.latest,
}

_HOSTS: dict[str, Callable[[HostRecord], bool]] = {
    "unwanted": lambda r: not r.wanted,
    "without_agent": lambda r: r.wanted and r.agent_id is None,
    "unconnected": lambda r: _awaited(r),
    "partly_drained": lambda r: bool(r.drained) and not r.drained_whole,
}


def _awaited(record: HostRecord) -> bool:
    return record.present and record.agent_id is not None and not record.connected


def _placed(roster: Roster) -> set[int]:
    room = {name: _capacity(roster, record) for name, record in roster.hosts.items()}
    placed = set()
    for worker in sorted(roster.live(), key=lambda w: w.trainer_gone):
        if room[worker.host] > 0 and not roster.hosts[worker.host].is_drained(worker.slot):
            room[worker.host] -= 1
            placed.add(worker.worker_id)
    return placed


def _leaving(roster: Roster, worker: Worker) -> bool:
    """Whether a worker without a slot trains on, for its own slot's sake or that of its replica."""
    record = roster.hosts[worker.host]
    if not record.present or record.is_drained(worker.slot) or not roster.of_hosts:
        return record.present and record.is_drained(worker.slot) and worker.leave_at is not None
    others = (w for w in roster.live() if w.host == worker.host and record.is_drained(w.slot))
    return worker.rank is not None and any(w.leave_at is not None for w in others)


def _capacity(roster: Roster, record: HostRecord) -> int:
    """The number of a host's slots that can be in whole replicas, given others like it."""
    if roster.positions > 1:
        return sum(slot < fitting_slots(roster.positions, record.slots) for slot in record.open_slots)
    return in_replicas(roster.replica_size, record.slots, record.open_count)


def _has_room(roster: Roster, record: HostRecord) -> bool:
    there = [w for w in roster.workers.values() if w.host == record.name and not record.is_drained(w.slot)]
    return record.wanted and record.connected and _capacity(roster, record) > len(there)


def _sums(roster: Roster) -> tuple[int, int, int]:
    records = roster.hosts.values()
    return (
        sum(r.open_count for r in records if r.wanted),
        sum(_capacity(roster, r) for r in records if r.connected or not r.start.failures),
        sum(_capacity(roster, r) for r in records if r.wanted and r.connected),
    )


def _check_offers(core: Membership, ordinal: int) -> None:
    """What is counted of the offers, and what a round would be that is formed of them, with any number of members."""
    roster = core.roster
    waiting = [w for w in roster.workers.values() if w.waits_in(ordinal)]
    offers = Counter(_kind(roster, worker) for worker in waiting)
    check(roster.offers(ordinal) == offers, f"{dict(roster.offers(ordinal))} is offered, and not {dict(offers)}")
    check(roster.waiting_in(ordinal) == waiting, "those that wait in a call, oldest first")
    size = roster.positions
    if roster.replica_size != size:  # then a round has those of them that make up whole replicas
        return
    if core.settings.one_replica:  # then it is made of a selection
        return
    candidates = roster.candidates(waiting, by_place=not core.settings.mode.members_survive)
    for most, before in product(range(len(waiting) + 2), range(len(waiting) + 2) if roster.leaving else (0,)):
        chosen = select(candidates, roster.placed, most, roster.leaving, before, size)
        found = summary(chosen, len(waiting), size)
        ahead = prospect(roster.offers(ordinal), most, before, size)
        check(ahead == found, f"of {dict(offers)}, {most} at most, {before} before, follows {found}")


def _kind(roster: Roster, worker: Worker) -> OfferKind:
    offer = worker.offer
    assert offer is not None
    placed, leaving = worker.worker_id in roster.placed, worker.worker_id in roster.leaving
    return OfferKind(offer.version, offer.checkpoint or 0, placed, leaving, offer.sealed, worker.position, offer.shards)


def _untroubled(core: Membership) -> Iterator[HostRecord]:
    """The hosts that have no problem."""
    return (record for record in core.roster.hosts.values() if not core.placement.has_problem(record.name))


def _deadlines(core: Membership) -> Iterator[float]:
    run, settings, roster = core.rounds, core.settings, core.roster
    if core._undecided:
        yield core._decided + TOGETHER
    for record in roster.hosts.values():
        if record.agent_id is None:
            yield record.start.free_at
        yield record.rest.free_at
        yield from (place.free_at for place in record.places.values())
    awaited = any(map(_awaited, _untroubled(core)))
    if core.placement.in_order_until is not None and awaited:
        yield core.placement.in_order_until
    for worker in roster.workers.values():
        if worker.stop_at is not None:
            yield worker.stop_at
        if worker.leave_at is not None:
            yield worker.leave_at
        if worker.state is WorkerState.WAITING:
            yield worker.waiting_since + settings.join_window
            if worker.worker_id == next(iter(roster.waiting)):
                yield worker.waiting_since + MOST_JOIN_WINDOWS * settings.join_window
        if worker.state is WorkerState.BOOTING and not settings.mode.members_survive:
            yield worker.started + settings.rejoin_timeout
    suspicions = vars(core.suspects)["_workers"].values()
    for each in suspicions:
        yield from (each.since + after for after in (REPORT_DELAY, SIMULTANEITY_WINDOW, settings.elastic_timeout))
    if suspicions:
        yield vars(core.suspects)["_spared_until"]
    if run.current:
        yield from run.current.deadlines()
        yield from run.current.blocked.deadlines(settings.uneven_steps_timeout, settings.idle_timeout)
    else:
        yield run.started + settings.start_timeout
    if run.idle_since is not None:
        yield run.idle_since + settings.elastic_timeout
