"""What must hold after every step of every run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from edriver.driver.core.shardings import latest_sharding
from edriver.model import actions, events
from edriver.model.cause import Cause, CauseKind, FailedResize, RepeatedError
from edriver.model.hosts import HostUpdateResult
from edriver.model.ids import NO_ROUND, NO_VERSION, RoundId, Version
from edriver.model.plan import RoundPlan, Seat
from edriver.model.records import WorkerState
from edriver.model.shards import HeldShards, Sharding, shadow_keeper
from edriver.wire.conversion import round_id_of
from edriver.worker.rounds.participant import Stage
from tests.sim.checking import check
from tests.sim.drains import Drains, have_places
from tests.sim.trainee import BUG_LINE, SIZE_LINE

if TYPE_CHECKING:
    from tests.sim.sim_hosts import SimHost
    from tests.sim.sim_shards import Held, Row
    from tests.sim.trainee import Model, Trainee
    from tests.sim.world import World


BUG_BOUND = 5
"""Rounds that a bug may end with no step between them: above what the core allows, which a late survivor clears."""

SIZE_BOUND = 12
"""Rounds that may fail of their size: above two attempts in each of a script's `run` calls, and some cut short."""

OUTLIVED_BOUND = 20.0
"""Virtual seconds that an order may take to reach a host: none is cut off for longer."""

FREED_WITHIN = 0.1
"""Seconds that an agent may take to free the members of a round when it knows that one is lost."""

AVOIDABLE = {CauseKind.NO_ANSWER, CauseKind.BOUNDARY_MISSED, CauseKind.LEFT_ROUND}
"""Causes of an abort that only a bug has here: no simulated fault lasts as long as these bounds."""

UNEVEN = {CauseKind.BOUNDARIES_DIFFER, CauseKind.UNEVEN_STEPS}
"""Causes that only a script has whose ranks make unequal numbers of steps. Not MEMBERS_CHANGE: a member that a slow
network keeps in its last collective, while all others have stopped, looks the same; it takes over their state."""


def check_seats(plan: RoundPlan) -> None:
    """A round's ranks and slots by themselves."""
    seats = plan.seats
    check([seat.rank for seat in seats] == list(range(len(seats))), "ranks are not 0..n-1")
    # A replica follows its member at position 0.
    hosts = [seat.host for seat in leaders_of(plan)]
    runs = [host for place, host in enumerate(hosts) if place == 0 or hosts[place - 1] != host]
    check(len(runs) == len(set(runs)), f"ranks of a host are not contiguous: {hosts}")
    check(len({(seat.host, seat.slot) for seat in seats}) == len(seats), "two members share a slot")


def replicas_of(plan: RoundPlan) -> tuple[Seat, ...]:
    """The members that are in replicas: all but the guests."""
    return plan.seats[: len(plan.seats) - len(plan.seats) % plan.replica_size]


def leaders_of(plan: RoundPlan) -> tuple[Seat, ...]:
    """The members of position 0, in order of rank."""
    return replicas_of(plan)[:: plan.replica_size]


def shards_cut(offers: Iterable[tuple[Version, Version, Sequence[HeldShards]]]) -> Version:
    """The newest version that is held and of which each position is held or reached, in one sharding; NO_VERSION: none.

    Args:
        offers: of each worker the version that it holds, the one that it reaches, and what it holds.
    """
    found: dict[tuple[Version, Sharding], set[int]] = {}
    for version, sealed, shards in offers:
        for latest, held in enumerate(shards):
            found.setdefault((version, held.sharding), set()).update(held.positions)
            if latest == 0 and sealed != NO_VERSION:
                found.setdefault((sealed, held.sharding), set()).update(held.positions)
    held_ones = {version for version, _, _ in offers}
    whole = (v for (v, sharding), positions in found.items() if len(positions) == sharding.size and v in held_ones)
    return max(whole, default=NO_VERSION)


class FailedSizes:
    """A run does not try a size again and again with which its script fails."""

    def __init__(self) -> None:
        self._rounds = 0

    def note_failed(self) -> None:
        """A round has ended of its size."""
        self._rounds += 1
        check(self._rounds <= SIZE_BOUND, f"sizes with which the script fails end {self._rounds} rounds")


class Invariants:
    """Watches a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._states: dict[tuple[Version, int], tuple[int, int]] = {}  # by version and position: chain and shard
        self._chains: dict[Version, int] = {}
        self._rows: dict[Version, dict[Row, int]] = {}  # of parameters that are sharded over all workers of a round
        self._seats: dict[RoundId, tuple[int, ...]] = {}
        self._synced: dict[RoundId, tuple[Version, set[int]]] = {}  # first syncs: what of, and who is yet to be synced
        self._completed: RoundId = NO_ROUND
        self._assigned: RoundId = NO_ROUND
        self._plan: RoundPlan | None = None
        self._ranks: dict[int, int] = {}
        self._open_at = 0.0
        self._newcomers: set[int] = set()  # with whom others have made no step yet
        self._joined_at = 0.0
        self._finished: set[RoundId] = set()
        self._begun = False
        self._sent_off: set[int] = set()
        self._leaving: set[int] = set()  # by orders of this step that are yet to be looked at
        self._models: dict[int, set[Model]] = {}  # by position
        self._rounds = 0
        self._struck: set[RoundId] = set()
        self._failed_alone: set[int] = set()
        self._positions: dict[int, int] = {}
        self._sizes = FailedSizes()
        self._drains = Drains()

    # ---- as it goes -------------------------------------------------------------------------------------------

    def before_step(self, event: events.Event) -> None:
        """Take in what the core is about to be told."""
        self._drains.note(event, self._world.driver.core, self._world.driver.now)

    def after_step(self, orders: list[actions.Action]) -> None:
        """Check what the core knows and what it orders."""
        self._drains.check(orders, self._world.driver.core)
        self._check_roster()
        self._check_quarantine()
        self._check_outlived()
        self._leaving = {order.worker_id for order in orders if isinstance(order, actions.Leave)}
        self._note_first_steps()
        for order in orders:
            match order:
                case RoundPlan() as plan:
                    self._note_opening(plan)
                    self._check_plan(plan)
                case actions.HostsUpdated(members, round_id, _, HostUpdateResult.ADDED):
                    waited = self._world.driver.now >= self._open_at
                    # The last one with a position's state stays until they have it, and its host is drained.
                    waited = waited or not have_places(members, self._world.driver.core)
                    check(waited, f"round {round_id} is interrupted for newcomers before {self._open_at:g} s")
                case actions.StartWorker(worker_id):
                    roster = self._world.driver.core.roster
                    position = roster.workers[worker_id].position
                    kept = sum(roster.workers[w].position == position for w in roster.placed)
                    most = self._world.driver.core.settings.max_np // self._world.job.replica_size
                    check(kept <= most, f"a worker is started: {kept} of position {position} are too many")
                case actions.StopWorker(worker_id, _, 0.0):
                    self._check_spared({worker_id})
                case actions.AbandonAgent(host, agent_id):
                    self._check_spared(self._world.agents.workers_of(host, agent_id))
                case actions.Leave(worker_id):
                    self._sent_off.add(worker_id)
                    self._leaving.discard(worker_id)
                    self._check_not_needed(worker_id)
                case actions.Abort(_, _, Cause(kind=CauseKind.RESIZE_FAILED)):
                    self._sizes.note_failed()
                case actions.Abort(_, _, cause):
                    avoidable = cause.kind in AVOIDABLE
                    if self._world.job.bug != "uneven":
                        avoidable = avoidable or cause.kind in UNEVEN
                    check(not avoidable, f"nothing but the protocol itself aborts a round: {cause}")
                case actions.Finish(_, round_id):
                    self._finished.add(round_id)
                case actions.FinishRun():
                    self._check_end(order)

    def boundary_passed(self, trainee: Trainee, version: Version, model: Model) -> None:
        """Equal versions mean equal state, of each position and of what all positions hold alike."""
        self._begun = self._begun or version.boundaries > 0
        if version.boundaries > 0:
            self._struck.clear()
        elif version.round_id in self._synced:
            self._synced[version.round_id][1].discard(trainee.worker_id)
        known = self._chains.setdefault(version, model.chain)
        check(known == model.chain, f"two states have version {version} (worker {trainee.worker_id})")
        state = model.chain, model.shard
        assert trainee.position is not None, "it is in a round"
        known_of = self._states.setdefault((version, trainee.position), state)
        check(known_of == state, f"two states of position {trainee.position} have version {version}")
        rows = self._rows.setdefault(version, {})
        for position, shard in trainee.shards.latest.shards.items():
            for row, value in shard.items():
                known_row = rows.setdefault(row, value)
                check(known_row == value, f"worker {trainee.worker_id} mixes versions in {position}: {version}, {row}")

    def _effective(self, version: Version) -> Version:
        """What a version is worth. In replicas, a first sync that was broken before all had its state has come to
        nothing: no step can follow it, and what its round began with is as good.
        """
        while version.round_id in self._synced and self._world.job.sharded:
            before, unsynced = self._synced[version.round_id]
            if not unsynced:
                break
            version = before
        return version

    def round_begun(self, trainee: Trainee) -> None:
        """A worker begins a round with the state that it has offered.

        What it entered its `run` call with is its own, whatever the version: the core knows that those may differ.
        """
        worker, rounds, model = trainee.worker_id, trainee.rounds, trainee.model
        if rounds.sealed != NO_VERSION and rounds.sealed == trainee.participant.live:
            same = (model.chain, model.shard) == self._states.get((rounds.sealed, trainee.position or 0))
            check(same, f"worker {worker} has made the step to {rounds.sealed} alone, and holds another state")
            self._check_claims(worker, rounds.sealed, trainee.shards.held()[:1])
            return
        if NO_VERSION != rounds.offered == trainee.participant.live != rounds.entered_at:
            self._check_claims(worker, rounds.offered, trainee.shards.held())
        if rounds.offered == rounds.entered_at:
            chain = trainee.entered_with.chain
        else:
            check(rounds.offered in self._chains, f"worker {worker} offers {rounds.offered}, which has never been")
            chain = self._chains[rounds.offered]
        if rounds.offered == rounds.entered_at and trainee.loaded is not None:  # in a round that was broken in its sync
            return
        if rounds.offered == NO_VERSION and self._world.job.one_replica:  # so may one have taken over what is common
            return
        check(model.chain == chain, f"worker {worker} has offered {rounds.offered}, and holds another state")
        message = rounds.digest or (str(model.cursor) if rounds.offered == NO_VERSION else "")
        check(message == str(model.cursor), f"worker {worker} says {rounds.digest!r} of {model.cursor}")

    def _check_claims(self, worker: int, version: Version, held: Iterable[Held]) -> None:
        """What a worker says that it holds of a version is that version's."""
        rows = self._rows.get(version, {})
        for each in held:
            for position, shard in each.shards.items():
                same = all(rows.get(row, value) == value for row, value in shard.items())
                check(same, f"worker {worker} has offered position {position} of {version}, and holds another state")

    def failed_by_itself(self, worker_id: int) -> None:
        """A worker has had an accident, or met a bug or a bad host: nothing that its round's size is to blame for."""
        self._failed_alone.add(worker_id)

    def bug_met(self, round_id: RoundId) -> None:
        """A run does not retry one bug again and again."""
        self._struck.add(round_id)
        check(len(self._struck) <= BUG_BOUND, f"one error ends {len(self._struck)} rounds without a step between them")

    def collective_completed(self, round_id: RoundId, parties: frozenset[int]) -> None:
        """At most one round runs. Some of its members may be left that have collectives of their own, and no step."""
        if self._world.job.sharded and len(parties) < len(self._world.driver.seats[round_id]):
            return
        check(round_id >= self._completed, f"round {round_id} computes after round {self._completed}")
        self._completed = round_id

    def process_ended(self, trainee: Trainee) -> None:
        """Keep what a worker that went through its whole script ended with."""
        if trainee.outcome and trainee.participant.stage is Stage.FINISHED:
            assert trainee.position is not None, "it was in a round"
            self._models.setdefault(trainee.position, set()).add(trainee.outcome[-1])

    def freed_without_driver(self, host: SimHost, since: float) -> None:
        """While there was no driver, no member waited in a round that another member of its host had left."""
        lost = round_id_of(host.lost_round.round_id)
        if self._world.clockwork.now - max(since, host.lost_at) < FREED_WITHIN:
            return
        for process in host.processes.values():
            participant = process.trainee.participant
            if participant.round_id == lost and participant.stage is Stage.ASSIGNED and not process.frozen:
                check(participant.abort_cause is not None, f"worker {process.worker_id} waits in round {lost}")

    # ---- the parts --------------------------------------------------------------------------------------------

    def _check_roster(self) -> None:
        places = Counter((w.host, w.slot) for w in self._world.driver.core.roster.workers.values())
        check(not places or max(places.values()) == 1, f"two workers share a slot: {places}")

    def _check_spared(self, killed: set[int]) -> None:
        """No holder of the state is killed on a suspicion, unless another one waits for its next round."""
        plan = self._plan
        if plan is None or plan.round_id in self._finished:
            return
        processes = self._world.processes()
        unsynced = {p.worker_id for p in processes if p.trainee.participant.committed == NO_VERSION}
        # A member that was never synced holds nothing, and one that was sent off nothing that is of use.
        holders = (killed - unsynced - self._sent_off) & set(plan.workers)
        if self._world.job.one_replica:
            if holders:
                self._check_others_hold(plan, killed)
            return
        for position in {self._positions[w] for w in holders}:
            self._check_another_holds(plan, killed, position)

    def _check_not_needed(self, leaves: int) -> None:
        """Where all workers of a round are one replica, who holds what it continues from leaves once it is cut anew."""
        plan, current = self._plan, self._world.driver.core.round
        if not self._world.job.one_replica or plan is None or current is None or not current.running:
            return
        trainees = {p.worker_id: p.trainee for p in self._world.processes()}
        if leaves not in trainees or plan.version == NO_VERSION or trainees[leaves].rounds.offered != plan.version:
            return
        for member in current.members & trainees.keys():
            cut = trainees[member].shards.now.sharding.round_id == plan.round_id
            check(cut, f"worker {leaves} leaves, and worker {member} does not have its shard yet")

    def _check_others_hold(self, plan: RoundPlan, killed: set[int]) -> None:
        """Those that wait, for all that the driver can know, have all of the state between them."""
        core = self._world.driver.core
        trainees = {p.worker_id: p.trainee for p in self._world.processes()}
        able = [w for w in core.roster.workers if w in plan.workers and w not in killed]
        waiting = (trainees[w] for w in able if w in trainees and trainees[w].participant.stage is Stage.WAITING)
        offers = [(t.rounds.offered, t.rounds.sealed, t.rounds.shards) for t in waiting]
        ended = (w for w in map(core.roster.workers.__getitem__, able) if w.waits_in(core.rounds.call.ordinal))
        offers += [(w.offer.version, w.offer.sealed or NO_VERSION, w.offer.shards) for w in ended if w.offer]
        whole = shards_cut(offers) != NO_VERSION or not self._begun
        check(whole, f"workers {killed} are killed, without whom a position is lost")

    def _check_another_holds(self, plan: RoundPlan, killed: set[int], position: int) -> None:
        known = {
            w: worker for w, worker in self._world.driver.core.roster.workers.items() if worker.position == position
        }
        trainees = (p.trainee for p in self._world.processes() if p.worker_id in known and p.worker_id not in killed)
        alive = {w for w, worker in known.items() if worker.live} | self._leaving
        holders = [t for t in trainees if t.worker_id in plan.workers and t.worker_id in alive]
        waiting = [t.rounds.offered for t in holders if t.participant.stage is Stage.WAITING]
        ended = known.keys() - {t.worker_id for t in holders} - killed  # for all that the driver can know, they wait
        waiting += [
            w.offer.version
            for w in map(known.__getitem__, ended)
            if w.offer and w.waits_in(self._world.driver.core.rounds.call.ordinal)
        ]
        offered = any(version != NO_VERSION or not self._begun for version in waiting)
        check(offered, f"of workers {killed}, which are killed, one is the last holder of the state of its position")

    def _check_quarantine(self) -> None:
        """Quarantine never keeps a run from having --min-np workers."""
        core, now = self._world.driver.core, self._world.driver.now
        left_out = core.placement.quarantine.excluded_hosts(now)
        if not left_out or core.ended or self._world.job.replica_size > 1:  # whose slots count by what they hold
            return
        placed = core.roster.placed
        staying = [w for w in core.roster.workers.values() if w.worker_id in placed and w.host in left_out]
        connected = [record for record in core.roster.hosts.values() if record.wanted and record.connected]
        room = len(staying) + sum(len(r.ready_slots(now)) for r in connected if r.name not in left_out)
        if room < core.settings.min_np:
            for record in connected:
                taken = sum(w.host == record.name for w in staying)
                unused = record.name in left_out and len(record.ready_slots(now)) > taken
                check(not unused, f"host {record.name} is left alone while there are only {room} slots")

    def _check_outlived(self) -> None:
        """A command that goes on without its training process keeps its slot for a while only."""
        core, now = self._world.driver.core, self._world.driver.now
        for host in self._world.agents.hosts.values():
            for worker_id, since in host.outlived.items():
                worker = core.roster.workers.get(worker_id)
                if worker and worker.state is not WorkerState.FINISHED:  # then it has --exit-timeout
                    kept = now - since <= core.settings.leave_grace + OUTLIVED_BOUND
                    check(kept, f"worker {worker_id} trains no more since {since:.1f}, and its command keeps its slot")

    def _note_opening(self, plan: RoundPlan) -> None:
        driver = self._world.driver
        self._open_at = driver.now + driver.core.settings.resize_pause
        known = {*plan.workers} if self._plan is None else {*self._plan.workers} - self._newcomers
        self._newcomers = {*plan.workers} - known if driver.core.settings.mode.members_survive else set()
        self._joined_at = driver.now

    def _note_first_steps(self) -> None:
        """A round that newcomers have joined trains for as long as that took."""
        driver = self._world.driver
        if self._newcomers and driver.core.round is not None and not driver.core.round.awaits_first_step:
            self._open_at = max(self._open_at, driver.now + (driver.now - self._joined_at))
            self._newcomers = set()

    def _check_plan(self, plan: RoundPlan) -> None:
        settings, roster = self._world.driver.core.settings, self._world.driver.core.roster
        check(plan.round_id > self._assigned, f"round {plan.round_id} follows round {self._assigned}")
        check_seats(plan)
        self._check_positions(plan)
        keepers = [seat for seat in plan.seats if seat.worker_id not in roster.placed | roster.leaving]
        positions = {self._positions[seat.worker_id] for seat in keepers}
        alone = self._world.job.one_replica or len(keepers) == len(positions)
        check(alone, "more than one member of a position without a slot")
        size = len(plan.seats) - len(keepers)
        check(size % plan.replica_size == 0, f"{size} workers with a slot make up no whole replicas")
        fits = size <= settings.max_np or (self._world.job.one_replica and self._is_needed_by_all(plan))
        check(settings.min_np <= size and fits, f"size {size} is not within the limits")
        self._check_state_goes_on(plan)
        budgets = self._world.driver.core.budgets
        spent = (budgets.failures, budgets.preemptions, budgets.resizes, budgets.unproven)
        ended = sum(budget.total for budget in spent)
        check(self._rounds <= ended + len(self._finished), f"round {plan.round_id}: what ended the last is not counted")
        self._rounds += not plan.hands_over
        self._assigned = plan.round_id
        self._plan = plan
        self._seats[plan.round_id] = plan.workers
        self._ranks.update({seat.worker_id: seat.rank for seat in plan.seats})

    def _is_needed_by_all(self, plan: RoundPlan) -> bool:
        """Whether a member of a round holds a shard that no other one does."""
        workers = [self._world.driver.core.roster.workers[worker_id] for worker_id in plan.workers]
        offers = [worker.offer for worker in workers if worker.offer]
        return any(
            latest_sharding(plan.version, [o for o in offers if o is not left_out]) is None for left_out in offers
        )

    def _check_positions(self, plan: RoundPlan) -> None:
        """Rank = replica * S + position, each worker keeps its position for life, and guests only send."""
        size = plan.replica_size
        workers = self._world.driver.core.roster.workers
        check(size == self._world.job.replica_size, f"replicas have {size} workers")
        for seat in plan.seats:
            guest = seat.rank >= len(plan.seats) - len(plan.seats) % size
            check(not guest or seat.rank in plan.sources, f"guest {seat.worker_id} sends nothing")
            check(not guest or seat.rank not in plan.receivers, f"guest {seat.worker_id} receives state")
            position = plan.sources.index(seat.rank) if guest else seat.rank % size
            known = self._positions.setdefault(seat.worker_id, position)
            check(known == position, f"worker {seat.worker_id} changes from position {known} to {position}")
            check(workers[seat.worker_id].position == position, f"worker {seat.worker_id} has another position")
        held = [self._positions[plan.seats[rank].worker_id] for rank in plan.sources]
        check(held == list(range(size)), f"the sources of positions 0 to {size - 1} hold {held}")

    def _age(self, worker_id: int) -> tuple[float, int]:
        """The order of age: by the last ranks, then those that have had none."""
        return self._ranks.get(worker_id, math.inf), worker_id

    def _check_state_goes_on(self, plan: RoundPlan) -> None:
        roster = self._world.driver.core.roster
        trainees = {p.worker_id: p.trainee for p in self._world.processes()}
        known, ordinal = roster.workers, self._world.driver.core.rounds.call.ordinal
        heard_of = [w for w in trainees if w in plan.workers or (w in known and known[w].waits_in(ordinal))]
        offers = {w: trainees[w].rounds.offered for w in heard_of}
        sealed = {w: trainees[w].rounds.sealed for w in heard_of}
        for worker_id, worker in known.items():  # those that have ended, for all that the driver knows, wait
            if worker.offer and worker_id not in trainees and (worker_id in plan.workers or worker.waits_in(ordinal)):
                offers[worker_id] = worker.offer.version
                sealed[worker_id] = worker.offer.sealed or NO_VERSION
        zero = plan.seats[0].worker_id
        if self._world.job.one_replica:
            ended = {w: worker.offer.shards for w, worker in known.items() if worker.offer}
            shards = {w: trainees[w].rounds.shards if w in trainees else ended[w] for w in offers}
            self._check_no_step_lost(plan, offers)

        def found() -> Version:
            if self._world.job.one_replica:
                return shards_cut([(version, sealed[w], shards[w]) for w, version in offers.items()])
            return self._best(offers, sealed, plan.replica_size)

        best = found()
        if best < max(offers.values(), default=NO_VERSION):
            offers = {worker: self._effective(version) for worker, version in offers.items()}
            best = found()
        able = {w for w, v in offers.items() if best in (v, sealed[w])}
        check(plan.checkpoint > 0 or not offers.keys() >= set(plan.workers) or plan.version == best, f"not from {best}")
        if plan.checkpoint:
            others = len(plan.seats) - plan.replica_size
            check(len(plan.receivers) == others, "a member goes on with a state that is not the checkpoint's")
        elif zero in offers and not able.isdisjoint(seat.worker_id for seat in leaders_of(plan)):
            check(zero in able, f"rank 0 offers {offers[zero]}, another member {best}")
            by_age = zero == min(able & {seat.worker_id for seat in leaders_of(plan)}, key=self._age)
            places = [(roster.age_order(seat.host), seat.slot) for seat in leaders_of(plan)]
            by_place = places == sorted(places)
            if plan.round_id == RoundId(1, 1):
                check(by_place, f"the first round's ranks are not in the order of discovery: {places}")
            elif self._plan is None:  # a killed driver formed the first round, and its members may not know of it
                check(by_place or by_age, f"rank 0 is neither the oldest holder nor first in discovery: {places}")
            else:
                check(by_age, "rank 0 is not the oldest holder")
        for seat in plan.seats:
            loads = seat.rank in plan.sources and plan.checkpoint > 0
            if seat.worker_id in offers and seat.worker_id not in able and not loads:
                check(seat.rank in plan.receivers, f"worker {seat.worker_id} is behind and receives nothing")
            sends = seat.rank in plan.sources
            check(not sends or loads or seat.worker_id in able or seat.worker_id not in offers, "a source is behind")
        check(not self._begun or plan.version != NO_VERSION or plan.checkpoint > 0, "training starts from scratch")
        if plan.first_sync or plan.version == NO_VERSION:
            self._synced[plan.round_id] = plan.version, set(plan.workers)
        newest = self._world.disk.newest()
        if plan.checkpoint:
            steps = 0 if newest is None else newest.steps
            check(plan.checkpoint == steps, f"it goes on from step {plan.checkpoint}, and step {steps} is on disk")
            self._begun = True
        last = self._plan
        if last is None or last.round_id in self._finished or self._world.job.one_replica:
            return
        survivors = [trainees[w] for w in last.workers if w in trainees and w in known]
        if len({self._positions[survivor.worker_id] for survivor in survivors}) < plan.replica_size:
            return  # what spares still hold of an earlier round is the newest that there is of each position
        for survivor in survivors:
            reported = survivor.worker_id in plan.workers or known[survivor.worker_id].state is WorkerState.WAITING
            if reported and survivor.participant.stage is Stage.WAITING:
                offered = survivor.rounds.offered
                least = min(offered, self._effective(offered))
                check(least <= plan.version, f"round {plan.round_id} goes back from {offered}")

    def _check_no_step_lost(self, plan: RoundPlan, offers: dict[int, Version]) -> None:
        """The newest version goes on, unless of a position both its worker and the keeper of its shadow are lost."""
        newest = max(offers.values(), default=NO_VERSION)
        if newest.boundaries == 0 or self._world.job.write_every:
            return
        safe = self._pairs_are_safe(newest, offers.keys())
        check(not safe or plan.version == newest, f"round {plan.round_id} goes back from {newest} to {plan.version}")

    def _pairs_are_safe(self, version: Version, left: Set[int]) -> bool:
        """Whether of each position of a version its worker or the keeper of its shadow is left."""
        seats = self._seats[version.round_id]
        size = len(seats)
        return all(left & {seats[position], seats[shadow_keeper(position, size)]} for position in range(size))

    def _best(self, offers: dict[int, Version], sealed: dict[int, Version], size: int) -> Version:
        """The newest version that one of these holds and that one of each position holds or reaches."""
        reached: list[set[Version]] = [set() for _ in range(size)]
        for worker, version in offers.items():
            reached[self._world.driver.core.roster.position(worker)] |= {version, sealed[worker]} - {NO_VERSION}
        return max(set(offers.values()).intersection(*reached), default=NO_VERSION)

    def _check_end(self, end: actions.FinishRun) -> None:
        bug = self._world.job.bug
        if end.end is actions.RunEnd.DONE:
            check(bool(self._finished), "success without a finished round")
            check(bug in ("", "uneven"), "success of a script that cannot succeed")  # one rank alone is never uneven
            self._check_history()
            return
        match end.cause.kind:
            case CauseKind.STATE_LOST:
                assert self._plan is not None
                trainees_of = {p.worker_id: p.trainee for p in self._world.processes()}
                trainees = trainees_of.values()
                # Where a first sync of replicas was broken, all hold what the call has begun with.
                broken = self._world.job.sharded and bool(self._synced.get(self._plan.round_id, (0, ()))[1])
                holders = {
                    t.worker_id
                    for t in trainees
                    if t.worker_id not in self._sent_off and (broken or t.participant.committed != NO_VERSION)
                }
                failed = {f.worker.worker_id for f in end.failures}
                left = {w for w in self._plan.workers if w in holders - self._world.agents.given_up - failed}
                # One that was to receive the state of a position, and has not, holds an older one at most.
                held = {t.worker_id: t.participant.live for t in (p.trainee for p in self._world.processes())}
                positions = {self._positions[w] for w in left if held[w] >= self._plan.version}
                lost = len(positions) < self._plan.replica_size
                if self._world.job.one_replica:
                    lost = self._is_lost(self._plan, [trainees_of[w] for w in left], broken)
                check(lost, f"the run was given up although {left} hold its state")
                check(self._world.disk.newest() is None, "the run was given up although a checkpoint is on disk")
            case CauseKind.START_FAILED:
                check(self._plan is None, "given up as if training had never begun")
            case CauseKind.UNEVEN_STEPS:
                check(bug == "uneven", f"a run whose ranks make the same steps ends of it: {end.cause}")
            case CauseKind.SAME_ERROR:
                assert isinstance(end.cause.detail, RepeatedError)
                line = end.cause.detail.error.line
                has_it = bug if line == BUG_LINE else self._world.job.bad_size and line == SIZE_LINE
                check(bool(has_it), f"a run without a bug ends of one: {end.cause}")
            case CauseKind.RESIZE_FAILED:
                detail, bad = end.cause.detail, self._world.job.bad_size
                assert isinstance(detail, FailedResize)
                # Where each member fails by itself before the first step of a size, it looks as if the size were to
                # blame, also if the errors differ: ranks may well run out of memory at different lines.
                assert self._plan is not None
                each_alone = self._failed_alone.issuperset(self._plan.workers)
                # So it does where one member of each replica does, for the replica that is left meets the bug, too.
                blamed = each_alone or detail.size == bad or (bool(bug) and self._world.job.replica_size > 1)
                check(blamed, f"a run ends of a size that its script can train with: {end.cause}")
                check(detail.size < detail.before, f"a run ends of a size from which there is a way back: {end.cause}")
            case CauseKind.COLLECTIVES_BROKEN:
                pass  # only where a link is bad, which the nemesis knows
            case kind:
                check(kind is CauseKind.FAILED_LATE, f"the run failed: {end.cause}")

    def _is_lost(self, last: RoundPlan, left: list[Trainee], broken: bool) -> bool:
        """Whether these do not have all of the state between them; a first sync is undone if one has not got it."""
        left_ids = {t.worker_id for t in left}
        undone = broken and any(t.participant.live.round_id != last.round_id for t in left)
        versions = (t.participant.live for t in left)
        held = map(self._effective, versions) if undone else versions
        offers = [(v, t.participant.sealed, t.shards_held(False)) for v, t in zip(held, left, strict=True)]
        newest = max((t.participant.live for t in left), default=NO_VERSION)
        if newest.boundaries > 0 and not self._world.job.write_every and self._pairs_are_safe(newest, left_ids):
            return False
        return shards_cut(offers) == NO_VERSION and (self._begun or not undone)

    def _check_history(self) -> None:
        found = self._models
        if len(found) < self._world.job.replica_size and self._world.workers.any_outlived:
            return  # all members were killed once they were done, and their commands ended well all the same
        most = max(len(models) for models in found.values())
        check(most == 1, f"{most} different results of a position")
        check(len(found) == self._world.job.replica_size, f"only positions {sorted(found)} have a result")
        models = {replace(model, shard=0) for each in found.values() for model in each}
        check(len(models) == 1, f"{len(models)} different results")
        job = self._world.job
        seen: dict[int, Counter[int]] = {}
        step = models.pop().trained
        while step is not None:
            seen.setdefault(step.epoch, Counter()).update(step.positions)
            step = step.before
        check(sorted(seen) == list(range(job.epochs * job.runs)), f"epochs trained: {sorted(seen)}")
        for epoch, counts in seen.items():
            check(len(counts) == job.samples, f"epoch {epoch} leaves out {job.samples - len(counts)} samples")
            padding = counts.total() - job.samples
            check(padding <= self._world.driver.core.settings.max_np, f"epoch {epoch} repeats {padding} samples")
