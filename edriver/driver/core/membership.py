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

from edriver.common.ids import NO_ROUND, NO_VERSION, RoundId, Version
from edriver.discovery.hosts import HostUpdateResult
from edriver.driver.core import events, wording
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
    StopAt,
    StopWorker,
)
from edriver.driver.core.failures.budgets import Budget, Budgets
from edriver.driver.core.failures.consistency import BreakageWatch, ErrorWatch, StrangerWatch, disagreement
from edriver.driver.core.failures.script_error import script_error
from edriver.driver.core.failures.suspicion import Situation, Suspects
from edriver.driver.core.failures.uneven_steps import UnevenWatch
from edriver.driver.core.ranks import plan_round
from edriver.driver.core.roster import Offer, Roster, Worker, WorkerState
from edriver.driver.core.round import Round
from edriver.driver.core.selection import Selection, select, wanted_members
from edriver.driver.core.settings import Settings
from edriver.driver.core.staffing import Staffing
from edriver.driver.core.waiting_reason import Waiting
from edriver.text.phrases import count_text

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
        self.reason = ""
        self.failures: dict[int, Failure] = {}
        self.budgets = Budgets(settings)
        self.staffing = Staffing(settings, self.roster, draw)
        self.quarantine = self.staffing.quarantine
        self.suspects = Suspects(settings, self.roster)
        self._incarnation = incarnation
        self._rounds = 0
        self._started = now
        self._idle_since: float | None = now
        self._explained = self._standstill = self._trouble = ""
        self._previous_call = NO_ROUND  # the last round of the script's previous `run` call
        self._breakage, self._errors, self._strangers = BreakageWatch(), ErrorWatch(), StrangerWatch()
        self._late_failure: Failure | None = None
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
                    self._abort(current, f"a collective of {self._name(worker_id)} failed")
            case events.PeerUnproven(worker_id, round_id, reason):
                if current := self._round_of(worker_id, round_id):
                    self._strangers.met(current, self.now)
                    self._abort(current, f"{self._name(worker_id)}: {reason}", self.budgets.unproven)
            case events.WorkerFailed(worker_id, traceback):
                if (worker := self.roster.workers.get(worker_id)) and worker.live:
                    worker.traceback = traceback
                    error = script_error(traceback)
                    if self.round and worker_id in self.round.members:
                        self.round.errors[worker_id] = error
                    self._lose(worker, wording.raised_text(error.kind))
                    worker.stop_at = self.now + self.settings.leave_grace  # it has last words to print
            case events.LeaseExpired() | events.WorkerStalled() | events.WorkerStuck():
                self.suspects.note(event, self.round, self.now)
            case events.ExitOverdue(worker_id):
                if (worker := self.roster.workers.get(worker_id)) and worker.live:
                    self._expire(worker, event.reason)
            case events.WorkerEnding(worker_id):
                if self.round:
                    self.round.expired.discard(worker_id)
                if worker := self.roster.workers.get(worker_id):
                    worker.trainer_ended(self.now + self.settings.leave_grace)
                    if worker.in_run:
                        worker.ending = True
                        self._lose(worker, "has ended", own=not self._dragged(worker))
            case events.WorkerExited(worker_id, code, tail, _, reason):
                if worker := self.roster.workers.get(worker_id):
                    self._note_exit(worker, wording.early_exit_text(code, reason), code, tail)
                    del self.roster.workers[worker_id]
            case events.DrainRequested() | events.UndrainRequested() | events.ResizeRequested():
                self.staffing.steer(event)
            case events.StopRequested(reason):
                self._finish_run(success=False, reason=reason)

    def _expire(self, worker: Worker, reason: str, own: bool = True) -> None:
        """It lives, and nothing can be expected of it: it is killed."""
        if self.round and worker.worker_id in self.round.members:
            self.round.expired.add(worker.worker_id)
        self._lose(worker, reason, own=own)
        self._act(StopWorker(worker.worker_id, worker.host, grace=0.0))

    def _lose_agent(self, host: str, agent_id: int, reason: str) -> None:
        for lost in self.staffing.agent_lost(host, agent_id, reason, self.now):
            if lost.live:
                self._lose(lost, f"was lost: {reason}", own=False)
            del self.roster.workers[lost.worker_id]

    def _note_waiting(self, event: events.WorkerWaiting) -> None:
        worker = self.roster.workers.get(event.worker_id)
        if worker is None or not worker.live:
            return
        current = self.round
        if current and not current.finished and worker.worker_id in current.members:
            if current.running:
                self._abort(current, f"{self._name(worker.worker_id)} left the round on its own")
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

    def _note_exit(self, worker: Worker, how: str, code: int, tail: str) -> None:
        if not worker.live:
            if known := self.failures.get(worker.worker_id):  # now its last words are known
                reason = how if worker.ending else known.reason
                self.failures[worker.worker_id] = worker.failure(reason, tail)
        elif worker.state is WorkerState.FINISHED and code == 0:
            self.staffing.slot_of(worker).completed = True
        else:
            self._lose(worker, how, tail, own=not self._dragged(worker))

    def _dragged(self, worker: Worker) -> bool:
        """Whether its process ended of what its round met: a lost peer (who stays in a collective ends), a stranger."""
        current = self.round
        return current is not None and worker.worker_id in current.members and (bool(current.lost) or current.besieged)

    def _lose(self, worker: Worker, reason: str, tail: str = "", own: bool = True) -> None:
        """The worker has failed. Its round, if it is in one, is void; its slot rests if the fault was the worker's own.

        One whose place is being taken away may well die of that: it is a preemption's, unless its script raised.
        """
        failure = worker.failure(reason, tail)
        if len(self.failures) < FAILURES_KEPT:
            self.failures[worker.worker_id] = failure
        preempted = not worker.traceback and not self.roster.keeps(worker)
        if own and not preempted:
            self.quarantine.worker_failed(worker, self.now)
        current = self.round
        if worker.state is WorkerState.FINISHED:
            self._late_failure = self._late_failure or failure
            if current:
                current.members.discard(worker.worker_id)
                self._act(Abort(current.order(current.members), current.plan.round_id, wording.failure_text(failure)))
        elif current and worker.worker_id in current.members:
            current.members.discard(worker.worker_id)
            current.done.pop(worker.worker_id, None)
            current.lost.add(worker.worker_id)
            self._abort(current, wording.failure_text(failure), self.budgets.preemptions if preempted else None)
        worker.state = WorkerState.STOPPING

    def _abort(self, current: Round, cause: str, budget: Budget | None = None) -> None:
        """Break the round, once. A round that ends so counts as a failure, or as what this budget is for."""
        if current.abort_cause is not None or current.finished:
            return
        current.abort_cause = cause
        current.settled_by = self.now + self.settings.rejoin_bound
        self._idle_since = self.now
        if current.members:
            self._act(Abort(current.order(current.members), current.plan.round_id, cause))
        (budget or self.budgets.failures).spend(self.now, cause)

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
        self._explain()

    def _judge_suspects(self) -> None:
        """Kill those that the run can do without, break the round of the others, and bound for how long they stay."""
        suspects, current = self.suspects, self.round
        suspects.forget_the_gone()
        at = Situation(current, self.ordinal, self.best, self.now)
        for agent in suspects.agents_to_give_up(at):
            self._lose_agent(*agent)
            self._act(AbandonAgent(*agent))
        for worker, suspicion in suspects.to_kill(at):
            self._expire(worker, suspicion.reason, suspicion.own)
        if current and (found := suspects.breaking(current)):
            worker, reason = found
            current.lost.add(worker.worker_id)
            budget = None if self.roster.keeps(worker) else self.budgets.preemptions
            self._abort(current, f"{wording.worker_text(worker)} {reason}", budget)
        for worker, suspicion in suspects.overdue(self.now):
            self.failures.setdefault(worker.worker_id, worker.failure(suspicion.reason))
            limit = f"--elastic-timeout {self.settings.elastic_timeout:g} s"
            self._give_up(f"gave up after {limit}: {suspects.text(self.now)}")

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
                change = f"{count_text(len(wanted - members), 'worker')} joined, {len(members - wanted)} left"
                (self.budgets.preemptions if preempted else self.budgets.resizes).spend(self.now, change)
                interrupt.boundary = interrupt.agree()
                interrupt.deadline = self.now + max(self.settings.elastic_timeout, self.settings.boundary_bound)
                self._act(StopAt(current.order(members), current.plan.round_id, interrupt.number, interrupt.boundary))
        elif self.now >= interrupt.deadline:
            silent = ", ".join(self._name(w) for w in current.order(members - interrupt.reports.keys()))
            self._abort(current, f"no answer to a notice within {self.settings.report_bound:g} s from {silent}")

    def _watch_settling(self, current: Round) -> None:
        interrupt = current.interrupt
        if current.abort_cause is not None or interrupt is None:
            return
        if current.members and current.members == current.done.keys():
            if current.members == set(current.plan.workers):
                self._finish(current)  # nobody stopped: the functions returned before the boundary
            else:
                self._abort(current, "some ranks passed more boundaries than others (uneven data loaders?)")
        elif current.members and self.now >= interrupt.deadline:
            missing = ", ".join(self._name(w) for w in current.order(current.members))
            self._abort(current, f"boundary {interrupt.boundary} was not reached in time by {missing}")
        elif not current.members and current.settled_by is None:
            current.settled_by = self.now
            self._idle_since = self.now

    def _watch_uneven(self) -> None:
        """Say who waits for members that are done; a round in which nothing else can happen is tried once more."""
        found = self._uneven.look(self.round, self.now, self._name) if self.round else None
        self._standstill = found.reason if found else ""
        if self.round and found:
            if found.cause and self._uneven.met_before(self.round):
                self._give_up(f"{found.cause}; so it was in the round before (do all ranks make the same steps?)", True)
            elif found.cause:
                self._abort(self.round, found.cause)

    def _finish(self, current: Round) -> None:
        current.finished = True
        self._act(Finish(current.order(current.members), current.plan.round_id))
        for worker_id in current.members:
            self.roster.workers[worker_id].state = WorkerState.FINISHED
        self.ordinal += 1
        self.best = NO_VERSION
        self._previous_call = current.plan.round_id
        self._breakage.clear()
        self._errors.clear()
        self.reason = wording.done_text(current.done.values())

    def _watch_finishing(self, current: Round) -> None:
        current.members &= {w.worker_id for w in self.roster.workers.values() if w.state is WorkerState.FINISHED}
        if current.members:
            return
        if self._late_failure:
            late = wording.failure_text(self._late_failure)
            self._finish_run(success=False, reason=f"a worker failed after training was done: {late}")
        elif not current.entered_next:
            self._finish_run(success=True, reason="all workers are done and ended with 0")
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
                self._give_up(trouble, itself=True)
            else:
                self._assign(chosen)
        elif obstacle.final:
            self._give_up(obstacle.text)
            return
        else:
            self.reason = f"waiting: {obstacle.text}"
            if self._idle_since is not None and self.now >= self._idle_since + self.settings.elastic_timeout:
                limit = f"--elastic-timeout {self.settings.elastic_timeout:g} s"
                self._give_up(f"gave up after {limit} of {self.reason}")
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
        self.reason = wording.round_text(plan)
        self._act(AssignRound(plan))

    def _dismiss_waiting(self, worker: Worker) -> None:
        self._act(Leave(worker.worker_id))
        worker.state = WorkerState.STOPPING
        worker.stop_at = self.now + self.settings.leave_grace

    # ---- words and times -------------------------------------------------------------------------------------

    def _act(self, action: Action) -> None:
        self._actions.append(action)

    def _name(self, worker_id: int) -> str:
        worker = self.roster.workers.get(worker_id)
        return f"worker {worker_id}" if worker is None else wording.worker_text(worker)

    def _explain(self) -> None:
        before, self._trouble = self._trouble, self.suspects.text(self.now) or self._standstill
        if self._trouble:
            self.reason = self._trouble
        elif before and self.round and self.round.running:  # it is over, and nothing else has been said since
            self.reason = wording.round_text(self.round.plan)
        if self.reason and self.reason != self._explained:
            self._explained = self.reason
            self._act(Explain(self.reason))

    def _give_up(self, reason: str, itself: bool = False) -> None:
        """The run has failed. If that is of a worker that has ended, its exit, which says why, is waited for."""
        if not any(w.ending for w in self.roster.workers.values()):
            self._finish_run(success=False, reason=reason, itself=itself)

    def _finish_run(self, success: bool, reason: str, itself: bool = False) -> None:
        self.ended = True
        self._act(FinishRun(success, reason, () if success else tuple(self.failures.values()), itself))

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
