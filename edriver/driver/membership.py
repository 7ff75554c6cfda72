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

from collections.abc import Callable, Iterator

from edriver.discovery.hosts import HostUpdateResult
from edriver.driver import events
from edriver.driver.actions import (
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
    Skip,
    StopAt,
    StopWorker,
)
from edriver.driver.budgets import Budgets
from edriver.driver.obstacle import Waiting
from edriver.driver.ranks import plan_round
from edriver.driver.roster import Offer, Roster, Worker, WorkerState
from edriver.driver.round import Interrupt, Round
from edriver.driver.script_error import script_error
from edriver.driver.selection import Selection, select, wanted_members
from edriver.driver.settings import Settings
from edriver.driver.soundness import BreakageWatch, ErrorWatch, disagreement
from edriver.driver.staffing import Staffing
from edriver.driver.words import count_text, early_exit_text, failure_text, stall_text, worker_text
from edriver.version import NO_ROUND, NO_VERSION, RoundId, Version

EARLY_TO_END = (WorkerState.WAITING, WorkerState.TRAINING, WorkerState.DONE)
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
        self._incarnation = incarnation
        self._rounds = 0
        self._started = now
        self._idle_since: float | None = now
        self._previous_call = NO_ROUND  # the last round of the script's previous `run` call
        self._breakage = BreakageWatch()
        self._errors = ErrorWatch()
        self._late_failure: Failure | None = None
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
            self._decide()
        return self._actions

    @property
    def next_deadline(self) -> float | None:
        """When to step with Ticked at the latest; None: nothing is due before the next event."""
        return None if self.ended else min((t for t in self._deadlines() if t > self.now), default=None)

    # ---- events: write down what happened -------------------------------------------------------------------

    def _note(self, event: events.Event) -> None:
        match event:
            case events.HostsObserved(hosts):
                self.roster.observe(hosts)
            case events.AgentConnected(host, agent_id):
                self.staffing.agent_connected(host, agent_id)
            case events.AgentLost(host, agent_id, reason):
                for lost in self.staffing.agent_lost(host, agent_id, reason, self.now):
                    if lost.live:
                        self._lose(lost, f"was lost: {reason}", own=False)
                    del self.roster.workers[lost.worker_id]
            case events.WorkerWaiting():
                self._note_waiting(event)
            case events.BoundaryReached(worker_id, round_id, number, boundaries):
                current = self._round_of(worker_id, round_id)
                if current and current.interrupt and current.interrupt.number == number:
                    current.interrupt.reports[worker_id] = boundaries
            case events.FirstBoundaryPassed(worker_id, round_id):
                if current := self._round_of(worker_id, round_id):
                    current.under_way.add(worker_id)
            case events.WorkerDone(worker_id, round_id, boundaries):
                if current := self._round_of(worker_id, round_id):
                    current.done[worker_id] = boundaries
                    self.roster.workers[worker_id].state = WorkerState.DONE
                    if current.interrupt:  # it will pass no further boundary, and answers no further notice
                        current.interrupt.reports[worker_id] = boundaries
            case events.CollectiveRaised(worker_id, round_id, traceback):
                if current := self._round_of(worker_id, round_id):
                    current.raised[worker_id] = traceback
                    self._abort(current, f"a collective of {self._name(worker_id)} failed")
            case events.WorkerFailed(worker_id, traceback):
                if (worker := self.roster.workers.get(worker_id)) and worker.live:
                    worker.traceback = traceback
                    if self.round and worker_id in self.round.members:
                        self.round.errors[worker_id] = script_error(traceback)
                    self._lose(worker, "raised an exception")
                    worker.stop_at = self.now + self.settings.leave_grace  # it has last words to print
            case events.LeaseExpired(worker_id, lease):
                if (worker := self.roster.workers.get(worker_id)) and worker.live:
                    self._expire(worker, f"did not answer for {lease:g} s")
            case events.WorkerStalled(worker_id, round_id, phase, seconds, stacks):
                if self._round_of(worker_id, round_id):
                    worker = self.roster.workers[worker_id]
                    worker.traceback = stacks
                    self._expire(worker, stall_text(phase, seconds))
            case events.WorkerEnding(worker_id):
                if (worker := self.roster.workers.get(worker_id)) and worker.state in EARLY_TO_END:
                    worker.ending = True
                    self._lose(worker, "has ended", own=not self._dragged(worker))
            case events.WorkerExited(worker_id, code, tail):
                if worker := self.roster.workers.get(worker_id):
                    self._note_exit(worker, code, tail)
                    del self.roster.workers[worker_id]
            case events.DrainRequested() | events.UndrainRequested() | events.ResizeRequested():
                self.staffing.steer(event)
            case events.StopRequested(reason):
                self._finish_run(success=False, reason=reason)

    def _expire(self, worker: Worker, reason: str) -> None:
        """It lives, and nothing can be expected of it: it is killed."""
        if self.round and worker.worker_id in self.round.members:
            self.round.expired.add(worker.worker_id)
        self._lose(worker, reason)
        self._act(StopWorker(worker.worker_id, worker.host, grace=0.0))

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
        if current and current.finished and worker.state is WorkerState.FINISHED:
            current.entered_next = True
        worker.state = WorkerState.WAITING
        worker.waiting_since = self.now
        worker.offer = Offer(event.ordinal, event.version, event.store_host, event.store_port, event.digest)
        if event.ordinal == self.ordinal:
            self.best = max(self.best, event.version)

    def _note_exit(self, worker: Worker, code: int, tail: str) -> None:
        if not worker.live:
            if known := self.failures.get(worker.worker_id):  # now its last words are known
                reason = early_exit_text(code) if worker.ending else known.reason
                self.failures[worker.worker_id] = worker.failure(reason, tail)
        elif worker.state is WorkerState.FINISHED and code == 0:
            self.staffing.slot_of(worker).completed = True
        else:
            self._lose(worker, early_exit_text(code), tail, own=not self._dragged(worker))

    def _dragged(self, worker: Worker) -> bool:
        """Whether its process ended because its round had lost a peer: one that stays in a collective ends itself."""
        return self.round is not None and worker.worker_id in self.round.members and bool(self.round.lost)

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
                self._act(Abort(current.order(current.members), current.plan.round_id, failure_text(failure)))
        elif current and worker.worker_id in current.members:
            current.members.discard(worker.worker_id)
            current.done.pop(worker.worker_id, None)
            current.lost.add(worker.worker_id)
            self._abort(current, failure_text(failure), preempted)
        worker.state = WorkerState.STOPPING

    def _abort(self, current: Round, cause: str, preempted: bool = False) -> None:
        """Break the round, once. A round that ends so counts as a failure, or as a preemption."""
        if current.abort_cause is not None or current.finished:
            return
        current.abort_cause = cause
        current.settled_by = self.now + self.settings.rejoin_bound
        self._idle_since = self.now
        if current.members:
            self._act(Abort(current.order(current.members), current.plan.round_id, cause))
        (self.budgets.preemptions if preempted else self.budgets.failures).spend(self.now, cause)

    def _round_of(self, worker_id: int, round_id: RoundId) -> Round | None:
        """The current round, if this is its id and the worker is still in it; else the message is an old one."""
        current = self.round
        if current and current.plan.round_id == round_id and worker_id in current.members and not current.finished:
            return current
        return None

    # ---- decisions: look at everything, do what is due -------------------------------------------------------

    def _decide(self) -> None:
        fitting = self.roster.fitting()
        self._actions += self.staffing.tend_hosts(self.now)
        self._actions += self.staffing.dismiss(fitting, self.now)
        self._actions += map(Explain, self.quarantine.review(self.now))
        if self.round and self.round.finished:
            self._watch_finishing(self.round)
        elif self.round and not self.round.running:
            self._watch_settling(self.round)
        self._skip_those_behind()
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

    @property
    def _forming(self) -> bool:
        """Whether a round is to be formed: nobody is in one, and everybody who is expected back has come or is late."""
        if self.ended:
            return False
        current = self.round
        if current is None:
            return True
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
        newcomers = self._ready_newcomers(patient=interrupt is None)
        wanted = wanted_members(members, newcomers, fitting, self.staffing.most)
        if interrupt is None:
            if wanted != members:
                current.interrupts += 1
                current.interrupt = Interrupt(
                    current.interrupts, self.now + self.settings.report_bound, reports=dict(current.done)
                )
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
                interrupt.deadline = self.now + self.settings.elastic_timeout
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
        self.reason = "all workers are done; their processes end, or enter the script's next run"
        if len(counts := sorted(set(current.done.values()))) > 1:
            self.reason += f" (ranks passed unequal numbers of boundaries, {counts[0]} to {counts[-1]})"

    def _watch_finishing(self, current: Round) -> None:
        current.members = {
            w
            for w in current.members
            if (worker := self.roster.workers.get(w)) and worker.state is WorkerState.FINISHED
        }
        if current.members:
            return
        if self._late_failure:
            self._finish_run(
                success=False,
                reason=f"a worker failed after training was done: {failure_text(self._late_failure)}",
            )
        elif not current.entered_next:
            self._finish_run(success=True, reason="all workers are done and ended with 0")
        elif self._idle_since is None:
            self._idle_since = self.now

    def _ready_newcomers(self, patient: bool) -> list[int]:
        """Waiting workers that may join the running round now.

        Args:
            patient: whether to wait a while for those that still boot, so that all join in one go.
        """
        waiting = [w for w in self.roster.workers.values() if w.waits_in(self.ordinal)]
        window = self.settings.join_window
        if patient and self.staffing.booting() and all(self.now < w.waiting_since + window for w in waiting):
            return []
        return [w.worker_id for w in waiting]

    def _form(self, fitting: set[int]) -> None:
        """Form the next round if there is enough for one; else say what is missing, or give up."""
        waiting = [w for w in self.roster.workers.values() if w.waits_in(self.ordinal)]
        chosen = select([w.candidate() for w in waiting], fitting, self.staffing.most)
        if trouble := self._errors.hopeless(self.round, chosen.version):
            self._give_up(trouble)
            return
        view = Waiting(self.settings, self.roster, self.staffing, self.round, self.best, self._started, self.now)
        obstacle = view.obstacle(chosen)
        if obstacle is None:
            if self._sound(waiting, chosen.version):
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
        keep = {c.worker_id for c in chosen.all}
        for worker in waiting:
            # Those without a place leave once the others are safe: now that all members have stopped.
            if worker.worker_id not in keep:
                self._dismiss_waiting(worker)

    def _skip_those_behind(self) -> None:
        """A newcomer enters the script's first `run`; where the others are further on, that one is over."""
        current = self.round
        begun = current is not None and current.plan.ordinal == self.ordinal and not current.finished
        if not begun and not any(w.waits_in(self.ordinal) for w in self.roster.workers.values()):
            return
        for worker in self.roster.workers.values():
            if worker.state is WorkerState.WAITING and worker.offer and worker.offer.ordinal < self.ordinal:
                self._act(Skip(worker.worker_id, worker.offer.ordinal))
                worker.state = WorkerState.BOOTING

    def _sound(self, waiting: list[Worker], version: Version) -> bool:
        """Whether the waiting workers can be trained on; ends the run if they cannot."""
        trouble = self._breakage.hopeless(self.round, version, self.roster)
        if trouble is None and not self._unequal(version):
            trouble = disagreement(waiting, version)
        if trouble is not None:
            self._give_up(trouble)
        return trouble is None

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
        hosts = list(dict.fromkeys(seat.host for seat in plan.seats))
        self.reason = f"round {plan.round_id}: {count_text(len(plan.seats), 'worker')} on {', '.join(hosts)}"
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
        return f"worker {worker_id}" if worker is None else worker_text(worker)

    def _explain(self) -> None:
        if self.reason and self.reason != self._explained:
            self._explained = self.reason
            self._act(Explain(self.reason))

    _explained = ""

    def _give_up(self, reason: str) -> None:
        """The run has failed. If that is of a worker that has ended, its exit, which says why, is waited for."""
        if not any(w.ending for w in self.roster.workers.values()):
            self._finish_run(success=False, reason=reason)

    def _finish_run(self, success: bool, reason: str) -> None:
        self.ended = True
        self._act(FinishRun(success, reason, () if success else tuple(self.failures.values())))

    def _deadlines(self) -> Iterator[float]:
        yield from self.staffing.deadlines()
        current, settings = self.round, self.settings
        if current:
            yield from current.deadlines()
        else:
            yield self._started + settings.start_timeout
        if self._idle_since is not None:
            yield self._idle_since + settings.elastic_timeout
        for worker in self.roster.workers.values():
            if worker.state is WorkerState.WAITING:
                yield worker.waiting_since + settings.join_window
