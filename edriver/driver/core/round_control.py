"""Round control: when a round is formed, interrupted, aborted, finished, and what the run waits for. Part of the core.

It owns the round, the script's `run` call, what ends of rounds have cost, and what is reported of the run. Each method
returns the actions that follow. A round goes through these situations:

    forming     there is no round, or no member of the last one is expected back   -> form
    running     its members train                                                  -> run
    rejoining   it has ended by StopAt or Abort; its members come back one by one  -> rejoin
    finishing   all were done; processes exit, or enter the script's next `run`    -> finish

The first round waits for -np workers, and after --start-timeout for --min-np; later ones for --min-np. Survivors alone
are enough: they never wait for a worker that boots. No worker is started while members rejoin: the survivors have the
processor. A member that comes back too late is a waiting worker like any other, with the version that it offers.

Which orders lead from one to the next is a table: ROUND_TRANSITIONS in round.py. They stand in one long file because
all of them decide on the same round, and each is read with the one before it.

A cluster that gives one host after the other would interrupt training each time. So a round that newcomers have joined
runs for as long as their first step took before others interrupt it, and any round for `--resize-pause`; then it takes
in all that wait. A loss, or a host that leaves, does not wait, and those that wait join then, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from edriver.driver.core.failures.budgets import Budgets
from edriver.driver.core.failures.consistency import BreakageWatch, ErrorWatch, UnprovenConnectionWatch, disagreement
from edriver.driver.core.failures.failure_log import FailureLog
from edriver.driver.core.failures.suspicion import Suspects
from edriver.driver.core.failures.uneven_steps import UnevenWatch
from edriver.driver.core.memory_checkpoints import MemoryCheckpoints
from edriver.driver.core.obstacles import Obstacles
from edriver.driver.core.placement import Placement
from edriver.driver.core.roster import Roster
from edriver.driver.core.round import Interrupt, Round, RunCall
from edriver.driver.core.save_requests import SaveRequests
from edriver.driver.core.selection import (
    Prospect,
    Selection,
    placed_in_replicas,
    plan_round,
    prospect,
    select,
    still_needed,
    summary,
    wanted_members,
)
from edriver.driver.core.shardings import with_sharding
from edriver.model import events
from edriver.model.actions import (
    Abort,
    Action,
    Explain,
    FindNewestCheckpoint,
    Finish,
    FinishRun,
    GoOn,
    HostsUpdated,
    Leave,
    RunEnd,
    SaveCheckpoint,
    Skip,
    StopAt,
    StopWorker,
)
from edriver.model.cause import Cause, CausedBy, CauseKind, Exit, Mismatch, ReportedText, TimedOut, WorkerName
from edriver.model.hosts import HostUpdateResult
from edriver.model.ids import NO_ROUND, NO_VERSION, RoundId, Version
from edriver.model.memory_checkpoint import MemoryCheckpoint
from edriver.model.mode import CheckpointWay
from edriver.model.plan import Candidate, RoundPlan
from edriver.model.records import Worker, WorkerState, WorkerStep
from edriver.model.script_error import ScriptError
from edriver.model.settings import Settings


@dataclass(slots=True, eq=False)
class RoundControl:
    """Forms rounds and ends them.

    Attributes:
        settings: the operator's limits.
        roster: the hosts and workers.
        placement: knows which workers are starting, and the allowed number of workers.
        suspects: the suspected workers, which may still recover.
        failures: the failures of workers since the round was formed.
        memory: the checkpoints in memory, from which rounds start whose members hold no state.
        started: when the run began.
        incarnation: the number of the driver that now forms the run's rounds.
        current: the running round, or the last one; None before the first.
        call: the script's `run` call.
        budgets: the numbers of failures and changes that are still allowed.
        requests: of operators, for a checkpoint on disk.
        idle_since: since when no round has run; None while one runs. Before the first round, when --start-timeout ends.
        activity: what the run does, or waits for; None at its beginning.
        standstill: why members can only wait for others; None if they can do more.
        late_failure: why a worker failed after its function had returned; None without such a failure.
    """

    settings: Settings
    roster: Roster
    placement: Placement
    suspects: Suspects
    failures: FailureLog
    memory: MemoryCheckpoints
    started: float
    incarnation: int = 1
    current: Round | None = None
    call: RunCall = field(default_factory=RunCall)
    requests: SaveRequests = field(default_factory=SaveRequests)
    budgets: Budgets = field(init=False)
    idle_since: float | None = field(init=False)
    activity: Cause | None = None
    standstill: Cause | None = None
    late_failure: Cause | None = None
    _obstacles: Obstacles = field(init=False)
    _uneven: UnevenWatch = field(init=False)
    _breakage: BreakageWatch = field(init=False)
    _errors: ErrorWatch = field(default_factory=ErrorWatch)
    _unproven: UnprovenConnectionWatch = field(default_factory=UnprovenConnectionWatch)
    _formed: int = 0
    _explained_losses: set[str] = field(default_factory=set)
    _reported_unequal: bool = False
    _mismatch: Cause | None = None
    _places_before: tuple[tuple[WorkerName, ScriptError], ...] = ()
    _reported: Cause | None = None
    _reported_trouble: Cause | None = None

    def __post_init__(self) -> None:
        """Begin without a round."""
        settings = self.settings
        self.budgets = Budgets(settings)
        self._breakage = BreakageWatch(settings.elastic_timeout)
        self.idle_since = self.started + settings.start_timeout  # until then the other timeout counts
        self._obstacles = Obstacles(settings, self.roster, self.placement, self.suspects, self.started)
        self._uneven = UnevenWatch(settings.uneven_steps_timeout, settings.idle_timeout)

    # ---- questions -------------------------------------------------------------------------------------------

    def current_with_member(self, worker_id: int, round_id: RoundId) -> Round | None:
        """The current round, if this is its id and the worker is still in it; else the message is an old one."""
        current = self.current
        return current if current and current.has(worker_id, round_id) else None

    def has_member(self, worker_id: int) -> bool:
        """Whether a worker is in the current round."""
        return self.current is not None and worker_id in self.current.members

    def size_is_to_blame(self, worker_id: int, cause: Cause, now: float) -> bool:
        """Whether a member fails of its round's size, and not of its slot or host."""
        return self.has_member(worker_id) and self.placement.sizes.is_to_blame(self.current, cause, now)

    @property
    def holds_state(self) -> bool:
        """Whether a worker may hold state of a round."""
        return bool(self.roster.may_hold)

    @property
    def awaits_checkpoint(self) -> bool:
        """Whether a worker that is ending may still write a checkpoint."""
        return self.call.checkpoints and bool(self.roster.may_write)

    @property
    def completed(self) -> RoundId | None:
        """The last round, once no worker may hold its state or write it to disk; None: one may.

        Only a worker that was ordered to look after that sees every checkpoint: the messages in which others offer what
        they have found may be on their way for longer than the last holder lives.
        """
        if self.holds_state or self.awaits_checkpoint:
            return None
        return self.current.plan.round_id if self.current else NO_ROUND

    def forming(self, now: float) -> bool:
        """Whether a round is to be formed: no worker is in one, and all that are expected back have rejoined or are
        late.
        """
        current = self.current
        if current is None:
            return True
        if current.finished:
            return not current.members
        if current.running:
            return False
        # One that was killed for its silence must have ended before others continue: it might wake up and write files.
        awaited = bool(current.members) or current.awaits_exit(self.roster.workers)
        late = current.rejoin_deadline is not None and now >= current.rejoin_deadline
        return not awaited or (late and current.aborted)

    def deadlines(self) -> list[float]:
        """When something may be due here."""
        settings, current = self.settings, self.current
        if current is None:
            due = [self.started + settings.start_timeout]
        else:
            due = current.deadlines()
            due += current.blocked.deadlines(settings.uneven_steps_timeout, settings.idle_timeout)
        if self.idle_since is not None:
            due.append(self.idle_since + settings.elastic_timeout)
        return due

    # ---- the end of the run ----------------------------------------------------------------------------------

    def give_up(self, cause: Cause) -> list[Action]:
        """The run has failed. If a worker has ended, wait for its exit, which has the reason."""
        if self.roster.ending:
            return []
        explained = self.placement.sizes.explained(cause, self.current, self.failures.latest)
        return self.end_run(RunEnd.FAILED, explained)

    def time_out(self, waited_for: Cause | None) -> list[Action]:
        """The run has waited for too long."""
        limit = TimedOut(self.settings.elastic_timeout, waited_for)
        return self.give_up(Cause(CauseKind.TIMED_OUT, detail=limit))

    def end_run(self, end: RunEnd, cause: Cause) -> list[Action]:
        """The run's last action, after what it leaves undone."""
        finish = FinishRun(end, cause, () if end is RunEnd.DONE else self.failures.in_order())
        requests, memory = self.requests, self.memory
        if requests.open:
            requests.note_on_disk(memory.disk.on_disk)
        if not requests.open or requests.is_met_by(memory.newest_for_disk):  # that one is written at the run's end
            return [finish]
        return [Explain(Cause(CauseKind.SAVE_UNMET, requester=requests.requester)), finish]

    # ---- what happens to members -----------------------------------------------------------------------------

    def abort(self, cause: Cause, now: float) -> list[Action]:
        """Break the current round; one that is over already stays as it is."""
        current, settings = self.current, self.settings
        if current is None or current.aborted or current.finished:
            return []
        cause = self.placement.sizes.end_cause(current, cause, now)
        interrupt = current.interrupt
        current.abort(cause, now + settings.rejoin_timeout)
        self.idle_since = now
        actions: list[Action] = []
        if current.members:
            actions.append(Abort(current.order(current.members), current.plan.round_id, cause))
        if interrupt is None or not interrupt.counted or cause is not interrupt.cause:
            self.budgets.spend(now, cause)
        if not settings.mode.members_survive:
            actions += self._stop_members(current, now)
        return actions

    def _stop_members(self, current: Round, now: float) -> list[Action]:
        """End the processes of a round that none of them survives; the next one waits until they have ended."""
        settings = self.settings
        actions: list[Action] = []
        for worker_id in current.order(current.members):
            worker = self.roster.workers[worker_id]
            self.roster.move(worker, WorkerStep.STOP)
            # One that is silent may be stopped: it would sleep through the grace.
            grace = 0.0 if worker_id in self.suspects else settings.leave_grace
            actions.append(StopWorker(worker_id, worker.host, grace))
        long_lived = now >= current.newcomers_start_at + settings.failure_window
        current.stop_all(long_lived, now + settings.leave_grace + settings.rejoin_timeout)
        self.roster.reopen_slots()
        return actions

    def lose_member(self, worker_id: int, cause: Cause, now: float) -> list[Action]:
        """A worker has failed: its round, if it is in one, is void."""
        if self.current is None or not self.has_member(worker_id):
            return []
        self.current.lose(worker_id)
        return self.abort(cause, now)

    def lost_with_host(self, worker_id: int) -> None:
        """A worker that was being stopped is lost with its host. If it is of a round that has just broken, that may
        have been the reason: its peers' collectives fail at once, and the loss of the host is known once its lease is
        over.
        """
        if self.current is not None and self.current.aborted and worker_id in self.current.ranks:
            self.current.lose(worker_id)

    def fail_late(self, worker_id: int, cause: Cause) -> list[Action]:
        """A worker has failed whose function had returned: the others end, and the run has failed."""
        self.late_failure = self.late_failure or cause
        current = self.current
        # The next round is formed once all members of this one have ended, or have entered the script's next `run`. So
        # what is aborted is the finished round; also if it has no members left, for observers learn of it from that.
        assert current is not None, "its function has returned in a round"
        assert current.finished, f"worker {worker_id} has finished, and round {current.plan.round_id} has not"
        assert worker_id in current.members, f"worker {worker_id} is in the round that is finished"
        current.process_ended(worker_id)
        return [Abort(current.order(current.members), current.plan.round_id, cause)]

    def await_exit(self, worker_id: int) -> None:
        """A worker is killed: if it is a member, the next round waits until it has ended."""
        if self.current and self.has_member(worker_id):
            self.current.await_exit(worker_id)

    def complete_member(self, worker_id: int, now: float) -> bool:
        """Whether a member may end while others continue: in restart mode the script need not return together."""
        if self.settings.mode.members_survive or self.current is None or not self.has_member(worker_id):
            return False
        self.current.complete(worker_id, now)
        return True

    def note_step(self, worker_id: int, step: int) -> None:
        """A worker's process has ended after this step of its script: what follows the next checkpoint is lost."""
        if self.current and self.current.had(worker_id):
            self.current.last_step = max(self.current.last_step, step)

    def process_ended(self, worker_id: int) -> None:
        """A worker's process has ended, as it should."""
        if self.current and self.current.finished:
            self.current.process_ended(worker_id)

    def leave(self, worker: Worker, now: float) -> list[Action]:
        """A worker is about to wait for its next round: it is in the current one no more."""
        current, actions = self.current, list[Action]()
        if current is None:
            return actions
        if not current.finished and worker.worker_id in current.members:
            if current.running:
                actions += self.abort(Cause(CauseKind.LEFT_ROUND, worker.name), now)
            current.leave(worker.worker_id, now)
        elif current.finished and worker.state is WorkerState.FINISHED:
            current.enter_next(worker.worker_id)
        return actions

    def note_offer(self, event: events.WorkerWaiting) -> None:
        """A worker waits for a round of the script's `run` call, or of another one."""
        if event.ordinal == self.call.ordinal:
            self.call.note_offer(event.version, event.checkpoint)

    def note_no_boundary(self, current: Round, now: float) -> None:
        """The script makes steps without a boundary. An interrupt that waits for one is bounded from now on."""
        self.call.without_boundary = True
        current.hasten(now + self.settings.elastic_timeout)

    def note_boundary(self) -> None:
        """The script passes boundaries."""
        self.call.without_boundary = False

    def note_error(self, worker_id: int, error: ScriptError) -> None:
        """A worker's script has raised an exception: if it is a member, it may be that of its round."""
        if self.current and self.has_member(worker_id):
            self.current.note_error(worker_id, error)

    def note_unproven(self, current: Round, worker_id: int, reason: str, now: float) -> list[Action]:
        """A member has met a connection that does not lead to a member; the next round may be begun after a pause."""
        self._unproven.record(current, now)
        cause = Cause(CauseKind.PEER_UNPROVEN, current.name(worker_id), detail=ReportedText(reason))
        return self.abort(cause, now)

    def abort_for(self, worker: Worker, cause: Cause, now: float) -> list[Action]:
        """Break the current round for the sake of a member that is suspected."""
        assert self.current is not None, "it is a member of a round"
        self.current.blame(worker.worker_id)
        return self.abort(replace(cause, preempted=not self.roster.keeps(worker)), now)

    def trainer_ended(self, worker_id: int) -> None:
        """A worker trains no more: no round waits for its process."""
        if self.current:
            self.current.trainer_ended(worker_id)

    def extend_rejoin(self, now: float) -> None:
        """A suspected worker has come to life: members of a round that has ended are waited for once more."""
        if self.current and self.current.rejoin_deadline is not None:
            self.current.extend(now + self.settings.rejoin_timeout)

    def resume(self, incarnation: int) -> None:
        """Another driver has taken the run over: its rounds have its number."""
        self.incarnation = incarnation

    def dismiss(self, worker: Worker, now: float) -> Leave:
        """Have a waiting worker leave."""
        self.roster.dismiss(worker, now + self.settings.leave_grace)
        return Leave(worker.worker_id)

    # ---- running ---------------------------------------------------------------------------------------------

    def look_for_uneven_steps(self, now: float) -> list[Action]:
        """Say who waits for members that are done; a round in which nothing else can happen is tried once more."""
        current = self.current
        found = self._uneven.check(current, now) if current else None
        self.standstill = found.cause if found else None
        if current is None or found is None or not found.over:
            return []
        again = self._uneven.again(current, found.cause)
        return self.give_up(again) if again else self.abort(found.cause, now)

    def report_unequal(self) -> list[Action]:
        """Say, once in a run, that members' states differ."""
        if self._reported_unequal or self.current is None or (unequal := self.current.unequal) is None:
            return []
        self._reported_unequal = True
        return [Explain(unequal)]

    def note_mismatch(self, cause: Cause) -> None:
        """A worker has ended because ranks called different collectives."""
        self._mismatch = cause

    def report_mismatch(self) -> list[Action]:
        """Report which collectives ranks called, once the other members of that round have said where they were."""
        cause, current = self._mismatch, self.current
        if cause is None or cause.worker is None or current is None or not isinstance(cause.detail, Exit):
            return []
        in_current = current.had(cause.worker.worker_id)
        if in_current and current.members:
            return []
        self._mismatch = None
        others = current.places_left if in_current else self._places_before
        if not others:
            return []
        explained = replace(cause, detail=Mismatch(cause.detail.code, cause.detail.place, others))
        self.failures.explain(explained)
        return [Explain(explained)]

    def run(self, current: Round, now: float) -> list[Action]:
        """Finish a round whose members are all done; interrupt it when other members are wanted.

        Args:
            current: the round, which runs.
            now: the time.
        """
        if current.members == current.done.keys():
            return self._finish(current, now)
        roster, sizes = self.roster, self.placement.sizes
        actions: list[Action] = []
        # Else the ends of processes would compete with the members' first steps. Where all workers are one replica, a
        # loss before that step may lead back to shards that only those without a place still hold twice.
        if current.is_under_way(now) and not (self.settings.one_replica and current.awaits_first_step):
            without = (roster.unplaced | roster.leaving | current.without_place) & roster.waiting.keys()
            if roster.replica_size != 1 and current.members.isdisjoint(roster.unplaced | roster.leaving):
                without |= self._without_replica(len(current.members))
            actions += [self.dismiss(roster.workers[worker_id], now) for worker_id in sorted(without)]
        members, placed = current.members, roster.placed
        interrupt = current.interrupt
        if interrupt is not None and not interrupt.answered(members) and now < interrupt.deadline:
            return actions
        newcomers = []
        leaving = members & roster.leaving
        settled = members.isdisjoint(roster.unplaced)
        grows = roster.replica_size == 1 or leaving or not settled or roster.ready > len(members)
        # Without boundaries nobody could stop for them: they join when the round has ended for another reason.
        may_join = not self.call.without_boundary and (
            interrupt is not None or leaving or current.may_take_newcomers(now)
        )
        if grows and may_join:
            newcomers = self.placement.ready_newcomers(self.call.ordinal, now, patient=interrupt is None)
        survive = self.settings.mode.members_survive
        waits = bool(leaving) and not self.call.without_boundary and self._more_expected(leaving, now)
        staying = leaving if waits else set[int]()
        if settled and staying and self._needed_of_leaving(members, newcomers):
            newcomers = []  # all change places together
        else:
            settled = settled and not newcomers and not leaving
        if settled and interrupt is None and len(members) <= sizes.allowed(len(members)):
            return actions  # the members are those that are wanted
        if current.completed:
            return actions  # some have run the whole script: the others are to finish it
        if current.done and not survive:
            wanted = members  # a restart would have scripts that have run to their end make their last steps again
        elif roster.of_hosts:
            wanted = self._wanted_replicas(members, newcomers, staying)
        else:
            ready = roster.with_slot((*members, *newcomers))
            ready += min(len(staying), self._needed_of_leaving(members, newcomers))
            most = roster.fitting(sizes.allowed(ready))
            size = roster.positions
            wanted = wanted_members(members, newcomers, placed, most, survive, staying, roster.position, size)
        if interrupt is None:
            return actions + self._begin_interrupt(current, wanted, now)
        if interrupt.answered(members):
            return actions + self._give_verdict(current, interrupt, wanted, now)
        late = current.unanswered(interrupt, self._answer_timeout)  # for its deadline has come
        return actions + self.abort(late if survive else self._members_change(members, wanted), now)

    def _needed_of_leaving(self, members: set[int], newcomers: list[int]) -> int:
        """The number of places of members with drained slots that no newcomer can take yet."""
        roster = self.roster
        if roster.of_hosts:
            ready = len(roster.in_replicas(self._with_slot((*members, *newcomers))))
        elif roster.positions > 1:
            ready = roster.with_slot((*members, *newcomers))
        else:
            ready = len(members) - len(members & roster.leaving) - len(members & roster.unplaced)
            ready += sum(worker in roster.placed for worker in newcomers)
        return still_needed(ready, len(members), self.placement.sizes.max_workers)

    def _with_slot(self, workers: Iterable[int]) -> list[Worker]:
        return [self.roster.workers[worker_id] for worker_id in workers if worker_id in self.roster.placed]

    def _wanted_replicas(self, members: set[int], newcomers: list[int], leaving: set[int]) -> set[int]:
        """The members that a running round should have, in whole replicas: those of now first, then newcomers.

        Args:
            members: the members now.
            newcomers: workers that are ready.
            leaving: members with drained slots, which stay while others cannot take all of their places.
        """
        roster = self.roster
        staying = self._with_slot(members)
        if self._needed_of_leaving(members, newcomers):
            staying += [roster.workers[worker_id] for worker_id in leaving]
        kept = roster.in_replicas(staying)
        whole = {worker.worker_id for worker in kept}
        others = [worker for worker in self._with_slot((*members, *newcomers)) if worker.worker_id not in whole]
        most = self.placement.sizes.allowed(len(kept) + len(roster.in_replicas(others)))
        chosen = roster.in_replicas(kept, most)
        chosen += roster.in_replicas(others, most - len(chosen))
        return {worker.worker_id for worker in chosen}

    def _without_replica(self, size: int) -> set[int]:
        """Waiting workers that are in no round of this size, and for whose replica there will be no room, either.

        Others wait until their replica is whole.
        """
        roster, most = self.roster, self.placement.sizes.max_workers
        if roster.positions > 1:
            return roster.surplus(self.current.members if self.current else (), most)
        if len(roster.placed) <= most:
            return set()
        waiting = (roster.workers[worker_id] for worker_id in roster.waiting.keys() & roster.placed)
        return {w.worker_id for w in waiting if most - size < roster.width(roster.hosts[w.host])}

    def _more_expected(self, leaving: set[int], now: float) -> bool:
        """Whether workers with drained slots wait for more that can take their places.

        Where a host's source has given notice of its loss, they wait as long as that allows: hosts may come.
        """
        hosts, workers = self.roster.hosts, self.roster.workers
        noticed = any(hosts[workers[worker_id].host].to_be_lost for worker_id in leaving)
        return noticed or self.placement.may_come(now)

    def _begin_interrupt(self, current: Round, wanted: set[int], now: float) -> list[Action]:
        members = current.members
        if wanted == members:
            return []
        interrupt = current.ask(now + self._answer_timeout)
        result = HostUpdateResult.of(added=bool(wanted - members), removed=bool(members - wanted))
        return [HostsUpdated(current.order(members), current.plan.round_id, interrupt.number, result)]

    def _give_verdict(self, current: Round, interrupt: Interrupt, wanted: set[int], now: float) -> list[Action]:
        """All members have answered: they continue, or stop at one boundary.

        In restart mode they are stopped at once where no script can be asked for a checkpoint; else they get a boundary
        at which to save.
        """
        members, settings, round_id = current.members, self.settings, current.plan.round_id
        if wanted == members:  # undone before anyone stopped: it costs nothing
            current.go_on()
            return [GoOn(current.order(members), round_id, interrupt.number)]
        cause = self._members_change(members, wanted)
        survive = settings.mode.members_survive
        if not survive and not interrupt.ways:
            return self.abort(cause, now)
        by_call = survive or CheckpointWay.CALL in interrupt.ways.values()
        patience = max(settings.elastic_timeout, settings.boundary_timeout) if by_call else settings.leave_grace
        if self.call.without_boundary:
            patience = settings.elastic_timeout
        if survive:  # in restart mode it counts once it is aborted
            self.budgets.spend(now, cause)
        boundary = current.stop_at_boundary(cause, now + patience, counted=survive)
        return [StopAt(current.order(members), round_id, interrupt.number, boundary, cause)]

    @property
    def _answer_timeout(self) -> float:
        """How long members may take to answer a notice; where all are to be stopped, no longer than for that."""
        settings = self.settings
        return settings.report_timeout if settings.mode.members_survive else settings.leave_grace

    def _members_change(self, members: set[int], wanted: set[int]) -> Cause:
        preempted = any(not self.roster.keeps(self.roster.workers[w]) for w in members - wanted)
        return Cause(CauseKind.MEMBERS_CHANGE, detail=self.placement.change(members, wanted), preempted=preempted)

    # ---- rejoining and finishing -----------------------------------------------------------------------------

    def rejoin(self, current: Round, now: float) -> list[Action]:
        """Bound how long members of a round may take to stop at the agreed boundary."""
        interrupt, members = current.interrupt, current.members
        if current.handing_over and not members and current.rejoin_deadline is None:
            current.extend(now)
            self.idle_since = now
        if not current.stopping or interrupt is None:
            return []
        if not self.settings.mode.members_survive:
            return self._stop_saved(current, interrupt, now)
        if members and members == current.done.keys():
            if members == set(current.plan.workers):
                return self._finish(current, now)  # no member stopped: the functions returned before the boundary
            return self.abort(Cause(CauseKind.BOUNDARIES_DIFFER), now)
        if members and now >= interrupt.deadline:
            agreed = interrupt.cause if self.call.without_boundary else None  # then no member is to blame
            return self.abort(agreed or current.missed(interrupt), now)
        if interrupt.cause is not None and current.cannot_stop:
            # Nothing is lost by it: those that have stopped are ahead, and the others take over their state.
            return self.abort(interrupt.cause, now)
        if not members and current.rejoin_deadline is None:
            current.extend(now)
            self.idle_since = now
        return []

    def _stop_saved(self, current: Round, interrupt: Interrupt, now: float) -> list[Action]:
        """In restart mode, stop all members once those that can save have had the time to, or it is over."""
        assert interrupt.cause is not None, "the verdict has one"
        if now >= interrupt.deadline or not interrupt.awaits_save(current.members, current.done):
            return self.abort(interrupt.cause, now)
        return []

    def _finish(self, current: Round, now: float) -> list[Action]:
        current.finish()
        self.activity = current.all_done
        finish = Finish(current.order(current.members), current.plan.round_id, current.all_done)
        for worker_id in current.members:
            self.roster.move(self.roster.workers[worker_id], WorkerStep.FINISH)
        self.call.end(current.plan.round_id)
        self._breakage.clear()
        self._errors.clear()
        self.placement.sizes.clear()
        if current.members:
            return [finish]
        return [finish, *self.finish(current, now)]  # no process is left whose end would be an event

    @property
    def called(self) -> bool:
        """Whether a worker has come to the script's `run` call."""
        in_round = self.current is not None and not self.current.finished
        return in_round or bool(self.roster.offers(self.call.ordinal))

    def ask_for_checkpoint(self) -> list[Action]:
        """Have rank 0 of a round that trains write a checkpoint that was asked for, until one is on disk."""
        requests, current = self.requests, self.current
        if not requests.open:
            return []
        requests.note_on_disk(self.memory.disk.on_disk)
        if current is None or not current.running or not self.call.checkpoints:
            return []
        if not self.settings.mode.members_survive or not requests.ask(current.plan.round_id):
            return []
        first = next(seat for seat in current.plan.seats if seat.rank == 0)
        return [SaveCheckpoint(first.worker_id, current.plan.round_id, requests.last)]

    def finish(self, current: Round, now: float) -> list[Action]:
        """End the run when all processes of a finished round have ended, unless its script continues."""
        if current.members:
            return []
        if self.late_failure:
            return self.end_run(RunEnd.FAILED, Cause(CauseKind.FAILED_LATE, detail=CausedBy(self.late_failure)))
        if not current.entered_next:
            return self.end_run(RunEnd.DONE, Cause(CauseKind.SUCCESS))
        if self.idle_since is None:
            self.idle_since = now
        return []

    def skip_those_behind(self) -> list[Action]:
        """A newcomer enters the script's first `run`; where the others are further on, that one is over."""
        current, ordinal, roster = self.current, self.call.ordinal, self.roster
        if current is None or (current.finished and not current.entered_next):
            return []
        behind = [worker for other in roster.ordinals() if other < ordinal for worker in roster.waiting_in(other)]
        actions: list[Action] = []
        for worker in sorted(behind, key=lambda worker: worker.worker_id):
            assert worker.offer is not None
            actions.append(Skip(worker.worker_id, worker.offer.ordinal))
            roster.move(worker, WorkerStep.SEND_BACK)
        return actions

    # ---- forming ---------------------------------------------------------------------------------------------

    def newcomers_at_fault(self, now: float) -> list[Worker]:
        """Workers that have not trained yet, and with which rounds have failed that may succeed without them."""
        if self.current is None:
            return []
        ended, best = self.current, self.call.best
        return self._breakage.newcomers_at_fault(ended, lambda: self._progress_since(ended, best), self.roster, now)

    def _repeated_breakage(self, version: Version, now: float) -> Cause | None:
        if (ended := self.current) is None:
            return None
        return self._breakage.repeated_failure(ended, lambda: self._progress_since(ended, version), now)

    def _progress_since(self, ended: Round, version: Version) -> bool:
        """Whether a round that continues from this version starts further on than the last one, or that has lasted."""
        if version > Version(ended.plan.round_id, 0) or ended.long_lived:
            return True
        newest, start = self.memory.newest, ended.plan.memory_checkpoint
        return newest is not None and newest[0].step > (0 if start is None else start.checkpoint.step)

    def form(self, now: float) -> list[Action]:
        """Form the next round if it has enough workers; else note what is missing, or end the run."""
        actions = self._find_newest_checkpoint()
        roster, call, sizes = self.roster, self.call, self.placement.sizes
        offers = roster.offers(call.ordinal)
        ready = roster.ready if roster.of_hosts else placed_in_replicas(offers, roster.positions)
        leaving = sum(count for kind, count in offers.items() if kind.leaving)
        before = self._size_to_keep(now) if leaving else 0
        allowed = sizes.allowed(ready + min(leaving, still_needed(ready, before, sizes.max_workers)))
        allowed = roster.fitting(allowed)
        chosen = self._prospect(allowed, before)
        if chosen.lost and self._undo_first_sync():
            actions += self._find_newest_checkpoint()
            chosen = self._prospect(allowed, before)
        in_memory = self._in_memory(chosen.version)
        if in_memory is not None:
            chosen = replace(chosen, checkpoint=max(chosen.checkpoint, in_memory.checkpoint.step))
        if chosen.lost and call.checkpoints and not self.suspects and roster.ranked <= roster.waiting.keys():
            # What the others hold is of no use without these positions: their replacements look for a checkpoint.
            parts = [w for w in roster.waiting_in(call.ordinal) if w.offer and w.offer.version != NO_VERSION]
            return actions + [self.dismiss(worker, now) for worker in parts]
        ended = self.current if chosen.size or not call.checkpoints else None
        if trouble := self._errors.repeated_failure(ended, chosen.version, chosen.checkpoint):
            return actions + self.give_up(trouble)
        obstacle = self._obstacles.find(
            chosen, self.current, call, now, lambda: self._latest_waiting_since(allowed, before)
        )
        selected = None
        if obstacle is None:
            selected = self._select(allowed, before)
            trouble = self._repeated_breakage(chosen.version, now)
            if not trouble and not call.may_differ(chosen.version):
                trouble = disagreement(roster.waiting_in(call.ordinal), chosen.version)
            if not trouble:
                actions.append(self._assign(selected, now))
            elif end := self.give_up(trouble):
                return actions + end
        elif obstacle.final:
            return actions + self.give_up(obstacle.cause)
        else:
            self.activity = obstacle.cause
            if self.idle_since is not None and now >= self.idle_since + self.settings.elastic_timeout:
                return actions + self.time_out(obstacle.cause)
        if self.suspects or chosen.waiting == chosen.size:
            return actions  # the places are known when these have shown themselves, or have ended
        if roster.replica_size == 1:
            may_leave = set(roster.waiting)
        else:  # those whose replica is not whole wait for the others of it
            may_leave = roster.unplaced | self._without_replica(chosen.members)
            if roster.positions > 1:
                may_leave |= roster.leaving
            may_leave &= roster.waiting.keys()
            if not may_leave:
                return actions
        selected = selected or self._select(allowed, before)
        may_leave -= {c.worker_id for c in selected.all}
        without = [worker for worker in roster.waiting_in(call.ordinal) if worker.worker_id in may_leave]
        # Those without a place leave once the others are safe: they have made a step of the round that was just formed
        # (see `run`), or, without one, they have all stopped.
        if obstacle is None:
            assert self.current is not None, "it has just been formed"
            self.current.without_place = {worker.worker_id for worker in without}
            return actions
        return actions + [self.dismiss(worker, now) for worker in without]

    def _in_memory(self, version: Version) -> MemoryCheckpoint | None:
        """The newest checkpoint in memory that goes before this version, where members hold state by themselves.

        None of them holds state of this `run` call then. One worker of each position loads it, and the others of that
        position receive; where all are one replica, all load. A newer one that workers have found on disk goes before
        it.
        """
        if not self.settings.mode.members_survive or not self.call.may_differ(version):
            return None
        return self.memory.within_reach(self.roster.is_reached, self.call.previous)

    def _undo_first_sync(self) -> bool:
        """Begin anew a call whose first sync has left a position without a holder of its version, if a member was not
        synced: then no step has followed, and all are as good as before. Returns whether that has changed any offer.
        """
        last, call = self.current, self.call
        if last is None or not last.plan.first_sync or last.plan.round_id in call.undone:
            return False
        waiting = self.roster.waiting_in(call.ordinal)
        ids = {w.worker_id: w.offer.version.round_id for w in waiting if w.offer is not None}
        if all(round_id == last.plan.round_id for w, round_id in ids.items() if last.had(w)):
            return False
        call.undo_first_sync(last.plan)
        for worker in waiting:
            if ids[worker.worker_id] == last.plan.round_id:
                self.roster.revise_offer(worker, call.worth(Version(last.plan.round_id, 0)))
        return True

    def _prospect(self, allowed: int, before: int) -> Prospect:
        roster, offers = self.roster, self.roster.offers(self.call.ordinal)
        if self.settings.one_replica and any(kind.shards for kind in offers):
            return summary(self._select(allowed, before), sum(offers.values()))
        return prospect(offers, allowed, before, roster.positions)

    def _select(self, allowed: int, before: int) -> Selection:
        roster = self.roster
        waiting = roster.waiting_in(self.call.ordinal)
        if not roster.of_hosts:
            by_place = self.current is None or not self.settings.mode.members_survive
            candidates = roster.candidates(waiting, by_place, self.current.ranks if self.current else None)
        else:
            chosen = roster.in_replicas((w for w in waiting if w.worker_id in roster.placed), allowed)
            candidates = [worker.candidate((rank, 0)) for rank, worker in enumerate(chosen)]
        return select(candidates, roster.placed, allowed, roster.leaving, before, roster.positions)

    def _size_to_keep(self, now: float) -> int:
        """The size that workers with drained slots are to fill the next round up to; 0: they leave."""
        if self.current is None or not self._more_expected(self.roster.leaving, now):
            return 0
        return len(self.current.plan.seats)

    def _latest_waiting_since(self, allowed: int, before: int) -> float:
        """Since when the latest of those that would be members has been waiting."""
        roster, ordinal = self.roster, self.call.ordinal
        if before or sum(count for kind, count in roster.offers(ordinal).items() if kind.placed) > allowed:
            return max(roster.workers[c.worker_id].waiting_since for c in self._select(allowed, before).members)
        latest_first = (roster.workers[w] for w in reversed(roster.waiting) if w in roster.placed)
        return next(worker.waiting_since for worker in latest_first if worker.waits_in(ordinal))

    def _find_newest_checkpoint(self) -> list[Action]:
        """Once no worker may hold state, have those look for the newest checkpoint that looked before.

        A worker that was ordered to look (started, or given a place in a round) before the last holder died may have
        looked too early, also if its offer arrives later. It is not ready before it has answered. What has been looked
        for while a worker could still write does not count.
        """
        call, roster, current = self.call, self.roster, self.current
        if not call.checkpoints or self.holds_state:
            return []
        if current and not any(current.had(w) for w in roster.ranked):
            call.note_trained(current.plan.round_id)
        if call.best == NO_VERSION or self.awaits_checkpoint:
            return []
        before = [w for i in sorted(roster.looked_before) if (w := roster.workers[i]).waits_in(call.ordinal)]
        if not before:
            return []
        for worker in before:
            roster.find_newest_checkpoint(worker, self.completed)
        return [FindNewestCheckpoint(tuple(worker.worker_id for worker in before))]

    def _assign(self, chosen: Selection, now: float) -> RoundPlan:
        settings, sizes, before = self.settings, self.placement.sizes, self.current
        self._formed += 1
        for keeper in chosen.state_keepers:  # it leaves once the others have the state
            self.roster.wait_no_longer(self.roster.workers[keeper.worker_id])
        keepers = chosen.state_keepers
        # The others are a part of a replica, with which no script can train: such a round hands state over.
        guests = keepers if len(keepers) < self.roster.positions else ()  # as many as that are a replica
        survive = settings.mode.members_survive
        in_memory = self._in_memory(chosen.version)
        plan = plan_round(
            RoundId(self.incarnation, self._formed),
            self.call.ordinal,
            chosen.all[: len(chosen.all) - len(guests)],
            first=self.call.may_differ(chosen.version),
            failures=self.budgets.failures.total,
            version=chosen.version,
            replica_size=self.roster.positions,
            guests=guests,
            in_memory=0 if in_memory is None else in_memory.checkpoint.step,
            max_on_machine=self._max_on_machine(chosen.all),
        )
        assert self.forming(now), "one round runs at a time, and its members come back first"
        assert before is None or plan.round_id > before.plan.round_id, "the ids of rounds grow"
        if settings.one_replica:
            plan = with_sharding(plan, chosen.all)
        elif self.roster.positions == 1:
            newest = max(kind.version for kind in self.roster.offers(self.call.ordinal))
            assert plan.version >= newest, f"the round goes back behind {newest}, which a worker holds"
        # Costs fractions of a second, so that only those runs are guarded that have met another process.
        guarded = self.budgets.unproven.total > 0
        fallback = 0 if plan.hands_over else sizes.fallback_size(len(plan.seats))
        start = None
        if not survive:
            start = self.memory.start_from(self.roster.is_reached)
        elif in_memory is not None and plan.checkpoint == in_memory.checkpoint.step:  # else the one on disk is newer
            start = self.memory.start_from(self.roster.is_reached, self.call.previous)
        if survive or start is None:
            plan = self._with_what_is_lost(plan)
        elif before is not None:
            plan = replace(plan, steps_lost=max(0, before.last_step - start.checkpoint.step))
        size = len(chosen.members)
        assert settings.min_np <= size <= sizes.max_workers, f"{size} members are not within the limits"
        assert self.roster.fitting(size) == size, f"{size} workers make up no whole replicas"
        norm = self._gradient_norm(plan)
        plan = replace(plan, guarded=guarded, fallback_size=fallback, memory_checkpoint=start, gradient_norm=norm)
        if plan.first_sync:
            self.call.begin_first_sync()
        looks_after = plan.round_id if self.completed is not None else None
        for seat in plan.seats:
            self.roster.seat(self.roster.workers[seat.worker_id], seat.rank, looks_after)
        for worker_id in self.roster.waiting:  # what they have found on disk will be older than what this round writes
            self.roster.looked_last(self.roster.workers[worker_id], None)
        self._places_before = before.places_left if before else ()
        newcomers = set[int]()
        if survive and before is not None:  # in restart mode, scripts do not say when they make a step
            newcomers = {w for w in plan.workers if not before.had(w) or w in before.newcomers}
        self.current = Round(
            plan,
            set(plan.workers),
            now + settings.newcomer_delay,
            now + settings.resize_pause,
            newcomers=newcomers,
            joined_at=now,
            state_keepers=len(keepers),
        )
        self.idle_since = None
        self.failures.round_formed()
        if not plan.hands_over:
            sizes.note_size(len(plan.seats))
        self.activity = self.current.runs(self.roster.replica_size)
        return plan

    def _max_on_machine(self, members: Collection[Candidate]) -> dict[str, int]:
        """By the members' hosts, the number of workers that their machines can have at once: see Assignment.

        Slots count whether or not there are workers in them, or an agent on the host: what is lost is replaced.
        """
        roster, most = self.roster, self.placement.sizes.max_workers
        slots = Counter[str]()
        for record in roster.hosts.values():
            slots[record.machine] += roster.capacity(record)
        machines = {host: roster.hosts[host].machine for host in dict.fromkeys(member.host for member in members)}
        without_slot = Counter(machines[m.host] for m in members if m.worker_id not in roster.placed)
        return {host: min(slots[machine], most) + without_slot[machine] for host, machine in machines.items()}

    def _with_what_is_lost(self, plan: RoundPlan) -> RoundPlan:
        """The plan, with the steps that its holders have lost; each reason is reported once."""
        offers = [offer for w in plan.workers if (offer := self.roster.workers[w].offer) is not None]
        lost = max(
            (offer for offer in offers if plan.version in (offer.version, offer.sealed)),
            key=lambda offer: offer.steps_lost,
        )
        if not lost.steps_lost:
            return plan
        torn = "" if lost.torn in self._explained_losses else lost.torn
        self._explained_losses.add(lost.torn)
        return replace(plan, steps_lost=lost.steps_lost, torn=torn)

    def _gradient_norm(self, plan: RoundPlan) -> float | None:
        """The norm with which a round's version was reached, as one says that holds it, whether or not it is a member:
        all who hold it may have to leave, when those who can reach it stay.
        """
        offers = (w.offer for w in self.roster.waiting_in(plan.ordinal) if w.offer is not None)
        norms = (offer.gradient_norm for offer in offers if offer.version == plan.version)
        return next((norm for norm in norms if norm is not None), None)

    # ---- what is reported ------------------------------------------------------------------------------------

    def report(self, trouble: Cause | None) -> list[Action]:
        """Report what the run does or waits for, once, when it changes.

        Args:
            trouble: what keeps the members of a round from continuing; it goes before all else.
        """
        before, self._reported_trouble = self._reported_trouble, trouble
        if trouble:
            self.activity = trouble
        elif before and self.current and self.current.running:  # it is over, and nothing else has been reported since
            self.activity = self.current.runs(self.roster.replica_size)
        if self.activity is None or self.activity == self._reported:
            return []
        self._reported = self.activity
        return [Explain(self.activity)]
