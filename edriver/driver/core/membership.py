"""The core: every decision of the driver, and nothing else.

`Membership.step(event, now)` takes what happened and returns what to do. There is no clock, lock, log, randomness or
I/O in here; the shell (session.py) feeds one event at a time and performs the actions in order.

How to read it: `step` first writes the event down (`_note_*`: records only), then looks at everything that is known
and does what is due (`_decide`: level-triggered, so no decision depends on which event came last). A run moves
through these situations, of which `_decide` knows exactly one at a time:

    forming    no round runs; workers boot and wait       -> _form
    running    a round's members train                    -> _watch_running: done? wanted set changed?
    settling   a round has ended by StopAt or Abort; its  -> _watch_settling
               members come back one by one
    finishing  all were done; processes exit, or enter    -> _watch_finishing
               the script's next `run`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from edriver.common.ids import NO_ROUND, NO_VERSION, RoundId, Version
from edriver.discovery.hosts import HostUpdateResult
from edriver.driver.core import events
from edriver.driver.core.actions import (
    AbandonAgent,
    Abort,
    Action,
    AssignRound,
    Explain,
    Failure,
    Finish,
    FinishRun,
    GoOn,
    Leave,
    Notify,
    RunEnd,
    StopAt,
    StopWorker,
)
from edriver.driver.core.cause import Because, Cause, CauseKind, Change, GaveUp, Said
from edriver.driver.core.doing import Doing
from edriver.driver.core.failures.budgets import Budgets
from edriver.driver.core.failures.consistency import BreakageWatch, ErrorWatch, StrangerWatch, disagreement
from edriver.driver.core.failures.script_error import script_error
from edriver.driver.core.failures.suspicion import Situation, Suspects
from edriver.driver.core.failures.uneven_steps import UnevenWatch
from edriver.driver.core.losses import loss_of
from edriver.driver.core.ranks import plan_round
from edriver.driver.core.roster import Offer, Roster, Worker, WorkerState
from edriver.driver.core.round import Round
from edriver.driver.core.selection import Selection, select, wanted_members
from edriver.driver.core.settings import Settings
from edriver.driver.core.staffing import Staffing
from edriver.driver.core.waiting_reason import Waiting

FAILURES_KEPT = 32
"""How many failures the final report can name; the first ones, where the cause is."""


class Membership:
    """Who is in the run, in which round, with which rank.

    Args:
        settings: the operator's limits.
        now: the time at which the run starts, in seconds of the clock that `step` is given.
        incarnation: which start of the driver this is.
        draw: a random number from 0 up to 1 at each call, for the jitter of cooldowns; given the same numbers, the core
            decides the same. By default there is none.
    """

    def __init__(
        self, settings: Settings, now: float, incarnation: int = 1, draw: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.settings = settings
        self.roster = Roster()
        self.round: Round | None = None
        self.ordinal = 1
        self.best: Version = NO_VERSION
        self.ended = False
        self.doing = Doing()
        self.failures: dict[int, Failure] = {}
        self.budgets = Budgets(settings)
        self.staffing = Staffing(settings, self.roster, draw)
        self.quarantine = self.staffing.quarantine
        self.suspects = Suspects(settings, self.roster)
        self._incarnation = incarnation
        self._rounds = 0
        self._started = now
        self._idle_since: float | None = now
        self._standstill: Cause | None = None
        self._previous_call = NO_ROUND  # the last round of the script's previous `run` call
        self._breakage, self._errors, self._strangers = BreakageWatch(), ErrorWatch(), StrangerWatch()
        self._late_failure: Cause | None = None
        self._uneven = UnevenWatch(settings.uneven_bound)
        self.now = now
        self._actions: list[Action] = []

    def step(self, event: events.Event, now: float) -> list[Action]:
        """Take in one event and return the orders that follow from it, in the order in which they must be given.

        Events of workers, agents and rounds that the core no longer knows are ignored. After FinishRun nothing
        happens any more.
        """
        if self.ended:
            return []
        self.now = now
        self._actions = []
        self._note(event)
        if not self.ended:
            self._judge_suspects()
        if not self.ended:
            self._decide()
        return self._actions

    @property
    def next_deadline(self) -> float | None:
        """When to step with Ticked at the latest; None: nothing is due before the next event."""
        return None if self.ended else min((t for t in self._deadlines() if self.now < t < math.inf), default=None)

    # ---- events: write down what happened -------------------------------------------------------------------

    def _note(self, event: events.Event) -> None:
        if self.suspects.heard(event, self.now) and self.round and self.round.settled_by is not None:
            self.round.settled_by = self.now + self.settings.rejoin_bound
        match event:
            case events.HostsObserved() | events.DiscoveryFailed():
                self.staffing.discovered(event)
            case events.AgentConnected(host, agent_id):
                self.staffing.agent_connected(host, agent_id)
            case events.AgentLost(host, agent_id, reason):
                self._lose_agent(host, agent_id, reason)
            case events.AgentSilent(host, agent_id, reason):
                if self.staffing.agent_silent(host, agent_id, reason):
                    self.suspects.note(event, self.round, self.now)
            case events.WorkerWaiting():
                self._note_waiting(event)
            case events.BoundaryReached() | events.FirstBoundaryPassed() | events.WorkerDone() | events.WorkerBlocked():
                if current := self._round_of(event.worker_id, event.round_id):
                    current.note(event, self.now)
                    if event.worker_id in current.done:
                        self.roster.workers[event.worker_id].state = WorkerState.DONE
            case events.CollectiveRaised(worker_id, round_id, traceback):
                if current := self._round_of(worker_id, round_id):
                    current.note_raised(worker_id, traceback)
                    self._abort(current, Cause(CauseKind.COLLECTIVE_FAILED, current.name(worker_id)))
            case events.PeerUnproven(worker_id, round_id, reason):
                if current := self._round_of(worker_id, round_id):
                    self._strangers.met(current, self.now)
                    self._abort(current, Cause(CauseKind.PEER_UNPROVEN, current.name(worker_id), detail=Said(reason)))
            case events.WorkerFailed(worker_id, traceback):
                if (worker := self.roster.workers.get(worker_id)) and worker.live:
                    worker.traceback = traceback
                    error = script_error(traceback)
                    if self.round and worker_id in self.round.members:
                        self.round.errors[worker_id] = error
                    self._lose(worker, Cause(CauseKind.RAISED, worker.name, detail=error))
                    worker.stop_at = self.now + self.settings.leave_grace  # it has last words to print
            case events.LeaseExpired() | events.WorkerStalled() | events.WorkerStuck():
                self.suspects.note(event, self.round, self.now)
            case events.ExitOverdue(worker_id):
                if (worker := self.roster.workers.get(worker_id)) and worker.live:
                    self._expire(worker, loss_of(event, worker.name))
            case events.WorkerEnding(worker_id):
                if self.round:
                    self.round.expired.discard(worker_id)
                if worker := self.roster.workers.get(worker_id):
                    worker.trainer_ended(self.now + self.settings.leave_grace)
                    if worker.in_run:
                        worker.ending = True
                        self._lose(
                            worker,
                            loss_of(event, worker.name),
                            own=not self._dragged(worker),
                        )
            case events.WorkerExited(worker_id):
                if worker := self.roster.workers.get(worker_id):
                    self._note_exit(worker, event)
                    del self.roster.workers[worker_id]
            case events.DrainRequested() | events.UndrainRequested() | events.ResizeRequested():
                self.staffing.steer(event)
            case events.StopRequested(reason):
                self._finish_run(RunEnd.STOPPED, Cause(CauseKind.STOPPED, detail=Said(reason)))
            case events.SourceUnusable(reason):
                self._finish_run(RunEnd.FAILED, Cause(CauseKind.SOURCE_UNUSABLE, detail=Said(reason)))

    def _expire(self, worker: Worker, cause: Cause, own: bool = True) -> None:
        """It lives, and nothing can be expected of it: it is killed."""
        if self.round and worker.worker_id in self.round.members:
            self.round.expired.add(worker.worker_id)
        self._lose(worker, cause, own=own)
        self._act(StopWorker(worker.worker_id, worker.host, grace=0.0))

    def _lose_agent(self, host: str, agent_id: int, reason: str) -> None:
        for lost in self.staffing.agent_lost(host, agent_id, reason, self.now):
            if lost.live:
                self._lose(lost, Cause(CauseKind.LOST_WITH_HOST, lost.name, detail=Said(reason)), own=False)
            del self.roster.workers[lost.worker_id]

    def _note_waiting(self, event: events.WorkerWaiting) -> None:
        worker = self.roster.workers.get(event.worker_id)
        if worker is None or not worker.live:
            return
        current = self.round
        if current and not current.finished and worker.worker_id in current.members:
            if current.running:
                self._abort(current, Cause(CauseKind.LEFT_ROUND, worker.name))
            current.members.discard(worker.worker_id)
            current.done.pop(worker.worker_id, None)
            current.blocked.waits_from = self.now
        if current and current.finished and worker.state is WorkerState.FINISHED:
            current.entered_next = True
        worker.state = WorkerState.WAITING
        worker.waiting_since = self.now
        worker.offer = Offer(event.ordinal, event.version, event.store, event.digest)
        if event.ordinal == self.ordinal:
            self.best = max(self.best, event.version)

    def _note_exit(self, worker: Worker, event: events.WorkerExited) -> None:
        cause = loss_of(event, worker.name)
        if not worker.live:
            if known := self.failures.get(worker.worker_id):  # now its last words are known
                self.failures[worker.worker_id] = worker.failure(cause if worker.ending else known.cause, event.tail)
        elif worker.state is WorkerState.FINISHED and event.code == 0:
            self.staffing.slot_of(worker).completed = True
        else:
            self._lose(worker, cause, event.tail, own=not self._dragged(worker))

    def _dragged(self, worker: Worker) -> bool:
        return self.round is not None and self.round.drags(worker.worker_id)

    def _lose(self, worker: Worker, cause: Cause, tail: str = "", own: bool = True) -> None:
        """The worker has failed. Its round, if it is in one, is void; its slot rests if the fault was the worker's own.

        One whose place is being taken away may well die of that: it is a preemption's, unless its script raised.
        """
        cause = replace(cause, preempted=not worker.traceback and not self.roster.keeps(worker))
        if len(self.failures) < FAILURES_KEPT:
            self.failures[worker.worker_id] = worker.failure(cause, tail)
        if own and not cause.preempted:
            self.quarantine.worker_failed(worker, self.now)
        current = self.round
        if worker.state is WorkerState.FINISHED:
            self._late_failure = self._late_failure or cause
            if current:
                current.members.discard(worker.worker_id)
                self._act(Abort(current.order(current.members), current.plan.round_id, cause))
        elif current and worker.worker_id in current.members:
            current.members.discard(worker.worker_id)
            current.done.pop(worker.worker_id, None)
            current.lost.add(worker.worker_id)
            self._abort(current, cause)
        worker.state = WorkerState.STOPPING

    def _abort(self, current: Round, cause: Cause) -> None:
        """Break the round, once."""
        if current.abort_cause is not None or current.finished:
            return
        current.abort_cause = cause
        current.settled_by = self.now + self.settings.rejoin_bound
        self._idle_since = self.now
        if current.members:
            self._act(Abort(current.order(current.members), current.plan.round_id, cause))
        self.budgets.spend(self.now, cause)

    def _round_of(self, worker_id: int, round_id: RoundId) -> Round | None:
        """The current round, if this is its id and the worker is still in it; else the message is an old one."""
        current = self.round
        return current if current and current.has(worker_id, round_id) else None

    # ---- decisions: look at everything, do what is due -------------------------------------------------------

    def _decide(self) -> None:
        fitting = self.roster.fitting()
        self._actions += self.staffing.tend_hosts(self.now)
        self._actions += self.staffing.dismiss(fitting, self.now)
        self._actions += map(Explain, self.quarantine.review(self.now))
        self._watch_uneven()
        if self.round and self.round.finished:
            self._watch_finishing(self.round)
        elif self.round and not self.round.running:
            self._watch_settling(self.round)
        self._actions += self.staffing.skip_those_behind(self.ordinal, self.round)
        if self._forming:
            self._form(fitting)
        if self.round and self.round.running:  # also one that has just been formed: it may have a guest
            self._watch_running(self.round, fitting)
        if not self.ended and (overspent := self.budgets.overspent(self.now)):
            self._give_up(overspent)
        if self.ended:
            return
        if self._forming or (self.round and self.round.running and self.round.settled_in(self.now)):
            # Not while a round settles: the survivors have the processor until they are under way in the next one.
            self._actions += self.staffing.start_workers(self.now, background=not self._forming)
        self._actions += self.doing.news(self.suspects.standstill(self.now) or self._standstill, self.round)

    def _judge_suspects(self) -> None:
        """Kill those that the run can do without, break the round of the others, and bound for how long they stay."""
        suspects, current = self.suspects, self.round
        suspects.forget_the_gone()
        at = Situation(current, self.ordinal, self.best, self.now)
        for agent in suspects.agents_to_give_up(at):
            host, agent_id, reason = agent
            self._lose_agent(host, agent_id, reason)
            self._act(AbandonAgent(host, agent_id, Cause(CauseKind.HOST_LOST, host=host, detail=Said(reason))))
        for worker, suspicion in suspects.to_kill(at):
            self._expire(worker, suspicion.cause, suspicion.own)
        if current and (found := suspects.breaking(current)):
            worker, cause = found
            current.lost.add(worker.worker_id)
            self._abort(current, replace(cause, preempted=not self.roster.keeps(worker)))
        if overdue := suspects.overdue(self.now):
            for worker, suspicion in overdue:
                self.failures.setdefault(worker.worker_id, worker.failure(suspicion.cause))
            self._give_up(self._timed_out(suspects.standstill(self.now)))

    @property
    def _forming(self) -> bool:
        """Whether a round is to be formed: nobody is in one, and everybody who is expected back has come or is late."""
        if self.ended or (current := self.round) is None:
            return not self.ended
        if current.finished:
            return not current.members
        if current.running:
            return False
        # One that was killed for its silence must be gone before others go on: it might wake up and write files.
        awaited = current.members | (current.expired & self.roster.workers.keys())
        late = current.settled_by is not None and self.now >= current.settled_by
        return not awaited or (late and current.abort_cause is not None)

    def _unequal(self, version: Version) -> bool:
        """Whether holders of this version may differ: it is older than this `run` call, whose first sync is to come."""
        return version.round_id <= self._previous_call

    def _watch_running(self, current: Round, fitting: set[int]) -> None:
        if current.members == current.done.keys():
            self._finish(current)
            return
        for worker in self.roster.workers.values():
            if worker.state is WorkerState.WAITING and worker.worker_id not in fitting:
                self._dismiss_waiting(worker)
        members = current.members
        interrupt = current.interrupt
        newcomers = self.staffing.ready_newcomers(self.ordinal, self.now, patient=interrupt is None)
        wanted = wanted_members(members, newcomers, fitting, self.staffing.most)
        if interrupt is None:
            if wanted != members:
                current.begin_interrupt(self.now + self.settings.report_bound)
                result = HostUpdateResult.of(added=bool(wanted - members), removed=bool(members - wanted))
                self._act(Notify(current.order(members), current.plan.round_id, current.interrupts, result))
        elif interrupt.answered(members):
            if wanted == members:  # undone before anyone stopped: it costs nothing
                current.interrupt = None
                self._act(GoOn(current.order(members), current.plan.round_id, interrupt.number))
            else:
                preempted = any(not self.roster.keeps(self.roster.workers[w]) for w in members - wanted)
                change = Change(joined=len(wanted - members), left=len(members - wanted))
                cause = Cause(CauseKind.MEMBERS_CHANGE, detail=change, preempted=preempted)
                self.budgets.spend(self.now, cause)
                interrupt.boundary = interrupt.agree()
                interrupt.deadline = self.now + max(self.settings.elastic_timeout, self.settings.boundary_bound)
                verdict = interrupt.number, interrupt.boundary
                self._act(StopAt(current.order(members), current.plan.round_id, *verdict, cause))
        elif self.now >= interrupt.deadline:
            self._abort(current, current.unanswered(interrupt, self.settings.report_bound))

    def _watch_settling(self, current: Round) -> None:
        interrupt = current.interrupt
        if current.abort_cause is not None or interrupt is None:
            return
        if current.members and current.members == current.done.keys():
            if current.members == set(current.plan.workers):
                self._finish(current)  # nobody stopped: the functions returned before the boundary
            else:
                self._abort(current, Cause(CauseKind.BOUNDARIES_DIFFER))
        elif current.members and self.now >= interrupt.deadline:
            self._abort(current, current.missed(interrupt))
        elif not current.members and current.settled_by is None:
            current.settled_by = self.now
            self._idle_since = self.now

    def _watch_uneven(self) -> None:
        """Say who waits for members that are done; a round in which nothing else can happen is tried once more."""
        found = self._uneven.look(self.round, self.now) if self.round else None
        self._standstill = found.cause if found else None
        if self.round and found and found.over:
            if again := self._uneven.again(self.round, found.cause):
                self._give_up(again)
            else:
                self._abort(self.round, found.cause)

    def _finish(self, current: Round) -> None:
        current.finished = True
        self.doing.cause = current.all_done
        self._act(Finish(current.order(current.members), current.plan.round_id, current.all_done))
        for worker_id in current.members:
            self.roster.workers[worker_id].state = WorkerState.FINISHED
        self.ordinal += 1
        self.best = NO_VERSION
        self._previous_call = current.plan.round_id
        self._breakage.clear()
        self._errors.clear()

    def _watch_finishing(self, current: Round) -> None:
        current.members &= {w.worker_id for w in self.roster.workers.values() if w.state is WorkerState.FINISHED}
        if current.members:
            return
        if self._late_failure:
            late = Because(self._late_failure)
            self._finish_run(RunEnd.FAILED, Cause(CauseKind.FAILED_LATE, detail=late))
        elif not current.entered_next:
            self._finish_run(RunEnd.DONE, Cause(CauseKind.SUCCESS))
        elif self._idle_since is None:
            self._idle_since = self.now

    def _form(self, fitting: set[int]) -> None:
        """Form the next round if there is enough for one; else say what is missing, or give up."""
        waiting = [w for w in self.roster.workers.values() if w.waits_in(self.ordinal)]
        chosen = select([w.candidate() for w in waiting], fitting, self.staffing.most)
        if trouble := self._errors.hopeless(self.round, chosen.version):
            self._give_up(trouble)
            return
        parts = self.settings, self.roster, self.staffing, self.suspects
        obstacle = Waiting(*parts, self.round, self.best, self._started, self.now).obstacle(chosen)
        if obstacle is None:
            version, equal = chosen.version, not self._unequal(chosen.version)
            trouble = self._breakage.hopeless(self.round, version, self.roster)
            if trouble := trouble or (disagreement(waiting, version) if equal else None):
                self._give_up(trouble)
            else:
                self._assign(chosen)
        elif obstacle.final:
            self._give_up(obstacle.cause)
            return
        else:
            self.doing.cause = obstacle.cause
            if self._idle_since is not None and self.now >= self._idle_since + self.settings.elastic_timeout:
                self._give_up(self._timed_out(obstacle.cause))
                return
        if self.suspects:
            return  # who has a place is known when they have shown themselves, or are gone
        keep = {c.worker_id for c in chosen.all}
        for worker in waiting:
            # Those without a place leave once the others are safe: now that all members have stopped.
            if worker.worker_id not in keep:
                self._dismiss_waiting(worker)

    def _assign(self, chosen: Selection) -> None:
        self._rounds += 1
        plan = plan_round(
            RoundId(self._incarnation, self._rounds), self.ordinal, chosen.all, first=self._unequal(chosen.version)
        )
        for seat in plan.seats:
            worker = self.roster.workers[seat.worker_id]
            worker.state, worker.rank = WorkerState.TRAINING, seat.rank
        self.round = Round(plan, set(plan.workers), self.now + self.settings.settling_in)
        self._idle_since = None
        self.failures.clear()  # what was survived is not what the run will end of
        self.doing.cause = self.round.runs
        self._act(AssignRound(plan))

    def _dismiss_waiting(self, worker: Worker) -> None:
        self._act(Leave(worker.worker_id))
        worker.state = WorkerState.STOPPING
        worker.stop_at = self.now + self.settings.leave_grace

    # ---- reasons and times -----------------------------------------------------------------------------------

    def _act(self, action: Action) -> None:
        self._actions.append(action)

    def _timed_out(self, cause: Cause | None) -> Cause:
        return Cause(CauseKind.TIMED_OUT, detail=GaveUp(self.settings.elastic_timeout, cause))

    def _give_up(self, cause: Cause) -> None:
        """The run has failed. If that is of a worker that has ended, its exit, which says why, is waited for."""
        if not any(w.ending for w in self.roster.workers.values()):
            self._finish_run(RunEnd.FAILED, cause)

    def _finish_run(self, end: RunEnd, cause: Cause) -> None:
        self.ended = True
        self._act(FinishRun(end, cause, () if end is RunEnd.DONE else tuple(self.failures.values())))

    def _deadlines(self) -> Iterator[float]:
        yield from self.staffing.deadlines()
        yield from self.suspects.deadlines()
        if self.round:
            yield from self.round.deadlines()
            yield from self.round.blocked.deadlines(self.settings.uneven_bound)
        else:
            yield self._started + self.settings.start_timeout
        if self._idle_since is not None:
            yield self._idle_since + self.settings.elastic_timeout
