"""The core: every decision of the driver, and nothing else.

`Membership.step(event, now)` takes what happened and returns what to do. There is no clock, lock, log, randomness or
I/O in here; the shell (core_loop.py) feeds one event at a time and performs the actions in order.

How to read it: `step` first notes the event (event_notes.py: records only), then looks at everything that is known
(run_state.py) and does what is due (`_decide`: level-triggered, so no decision depends on which event came last). A run
moves through these situations, of which `_decide` knows exactly one at a time:

    forming    no round runs; workers boot and wait       -> _form
    running    a round's members train                    -> RoundWatch.running: done? wanted set changed?
    rejoining   a round has ended by StopAt or Abort; its  -> RoundWatch.rejoining
               members come back one by one
    finishing  all were done; processes exit, or enter    -> RoundWatch.finishing
               the script's next `run`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from edriver.common.ids import RoundId
from edriver.driver.core import events
from edriver.driver.core.actions import AbandonAgent, Action, AssignRound, Explain
from edriver.driver.core.cause import Cause, CauseKind
from edriver.driver.core.event_notes import EventNotes
from edriver.driver.core.failures.consistency import BreakageWatch, ErrorWatch, disagreement
from edriver.driver.core.failures.suspicion import Situation
from edriver.driver.core.failures.worker_losses import WorkerLosses
from edriver.driver.core.roster import WorkerState
from edriver.driver.core.rounds.ranks import RoundPlan, plan_round
from edriver.driver.core.rounds.round import Round
from edriver.driver.core.rounds.round_watch import RoundWatch
from edriver.driver.core.rounds.selection import Selection, select
from edriver.driver.core.rounds.waiting_reason import Waiting
from edriver.driver.core.run_state import RunState
from edriver.driver.core.settings import Settings


class Membership:
    """Who is in the run, in which round, with which rank.

    Args:
        settings: the operator's limits.
        now: the time at which the run starts, in seconds of the clock that `step` is given.
        incarnation: which start of the driver this is.
        draw: a random number from 0 up to 1 at each call, for the jitter of cooldowns; given the same numbers, the core
            decides the same. By default there is none.

    Attributes:
        settings: the same.
        roster: the workers.
        state: these and all else that is known.
    """

    def __init__(
        self, settings: Settings, now: float, incarnation: int = 1, draw: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.state = run = RunState(settings, now, draw)
        self.settings, self.roster = settings, run.roster
        self._incarnation = incarnation
        self._formed = 0
        self._explained_losses: set[str] = set()
        self._said_unequal = False
        self._breakage, self._errors = BreakageWatch(), ErrorWatch()
        self._losses = WorkerLosses(run)
        self._notes = EventNotes(run, self._losses)
        self._rounds = RoundWatch(run, self._losses, self._breakage, self._errors)

    def step(self, event: events.Event, now: float) -> list[Action]:
        """Take in one event and return the orders that follow from it, in the order in which they must be given.

        Events of workers, agents and rounds that the core no longer knows are ignored. After FinishRun nothing
        happens any more.
        """
        run = self.state
        if run.ended:
            return []
        run.now = now
        run.actions = []
        self._notes.note(event)
        if not run.ended:
            self._judge_suspects()
        if not run.ended:
            self._decide()
        return run.actions

    @property
    def next_deadline(self) -> float | None:
        """When to step with Ticked at the latest; None: nothing is due before the next event."""
        run = self.state
        return None if run.ended else min((t for t in self._deadlines() if run.now < t < math.inf), default=None)

    def _decide(self) -> None:
        run = self.state
        fitting = run.roster.fitting()
        run.actions += run.staffing.tend_hosts(run.now)
        run.actions += run.staffing.dismiss(fitting, run.now)
        run.actions += map(Explain, run.staffing.quarantine.review(run.now))
        self._rounds.look_for_uneven_steps()
        if run.round and not self._said_unequal and (unequal := run.round.unequal):
            self._said_unequal = True
            run.act(Explain(unequal))
        if run.round and run.round.finished:
            self._rounds.finishing(run.round)
        elif run.round and not run.round.running:
            self._rounds.rejoining(run.round)
        run.actions += run.staffing.skip_those_behind(run.ordinal, run.round)
        # The end of a run whose limit is spent may wait for the exit that says why.
        if self._forming and run.budgets.overspent(run.now) is None:
            if not run.settings.mode.members_survive:  # no survivor is in need of the processor
                run.actions += run.staffing.start_workers(run.now, background=False)
            self._form(fitting)
        if run.round and run.round.running:  # also one that has just been formed: it may have a state keeper
            self._rounds.running(run.round, fitting)
        if not run.ended and (overspent := run.budgets.overspent(run.now)):
            run.give_up(overspent)
        if run.ended:
            return
        if self._forming or (run.round and run.round.running and run.round.is_under_way(run.now)):
            # Not while members rejoin: the survivors have the processor until they are under way in the next one.
            run.actions += run.staffing.start_workers(run.now, background=not self._forming)
        run.actions += run.doing.news(run.suspects.standstill(run.now) or self._rounds.standstill, run.round)

    def _judge_suspects(self) -> None:
        """Kill those that the run can do without, break the round of the others, and bound for how long they stay."""
        run = self.state
        suspects, current = run.suspects, run.round
        suspects.forget_the_gone()
        at = Situation(current, run.ordinal, run.best, run.now)
        for agent in suspects.agents_to_give_up(at):
            host, agent_id, fault = agent
            self._losses.lose_agent(host, agent_id, fault)
            run.act(AbandonAgent(host, agent_id, Cause(CauseKind.HOST_LOST, host=host, detail=fault)))
        for worker, suspicion in suspects.to_kill(at):
            self._losses.expire(worker, suspicion.cause, suspicion.own)
        if current and (found := suspects.breaking(current, run.now)):
            worker, cause = found
            current.lost.add(worker.worker_id)
            self._losses.abort(current, replace(cause, preempted=not run.roster.keeps(worker)))
        if overdue := suspects.overdue(run.now):
            for worker, suspicion in overdue:
                run.failures.setdefault(worker.worker_id, worker.failure(suspicion.cause))
            run.give_up(run.timed_out(suspects.standstill(run.now)))

    @property
    def _forming(self) -> bool:
        """Whether a round is to be formed: no worker is in one, and all that are expected back have rejoined or are
        late.
        """
        run = self.state
        if run.ended or (current := run.round) is None:
            return not run.ended
        if current.finished:
            return not current.members
        if current.running:
            return False
        # One that was killed for its silence must be gone before others go on: it might wake up and write files.
        awaited = current.members | (current.expired & run.roster.workers.keys())
        late = current.rejoin_deadline is not None and run.now >= current.rejoin_deadline
        return not awaited or (late and current.abort_cause is not None)

    def _form(self, fitting: set[int]) -> None:
        """Form the next round if there is enough for one; else say what is missing, or give up."""
        run = self.state
        waiting = [w for w in run.roster.workers.values() if w.waits_in(run.ordinal)]
        chosen = select(run.candidates(waiting), fitting, run.staffing.most)
        if trouble := self._errors.repeated_failure(run.round, chosen.version):
            run.give_up(trouble)
            return
        parts = run.settings, run.roster, run.staffing, run.suspects
        waiting_reason = Waiting(*parts, run.round, run.best, run.started, run.now).waiting_reason(chosen)
        if waiting_reason is None:
            version, equal = chosen.version, not run.unequal(chosen.version)
            trouble = self._breakage.repeated_failure(run.round, version, run.roster)
            if trouble := trouble or (disagreement(waiting, version) if equal else None):
                run.give_up(trouble)
            else:
                self._assign(chosen)
        elif waiting_reason.final:
            run.give_up(waiting_reason.cause)
            return
        else:
            run.doing.cause = waiting_reason.cause
            if run.idle_since is not None and run.now >= run.idle_since + run.settings.elastic_timeout:
                run.give_up(run.timed_out(waiting_reason.cause))
                return
        if run.suspects:
            return  # who has a place is known when they have shown themselves, or are gone
        keep = {c.worker_id for c in chosen.all}
        for worker in waiting:
            # Those without a place leave once the others are safe: now that all members have stopped.
            if worker.worker_id not in keep:
                run.dismiss(worker)

    def _assign(self, chosen: Selection) -> None:
        run = self.state
        self._formed += 1
        plan = plan_round(
            RoundId(self._incarnation, self._formed),
            run.ordinal,
            chosen.all,
            first=run.unequal(chosen.version),
            failures=run.budgets.failures.total,
        )
        # Costs fractions of a second, so that only those runs are guarded that have met another process.
        plan = replace(self._with_what_is_lost(plan), guarded=run.budgets.unproven.total > 0)
        for seat in plan.seats:
            worker = run.roster.workers[seat.worker_id]
            worker.state, worker.rank = WorkerState.TRAINING, seat.rank
        run.round = Round(plan, set(plan.workers), run.now + run.settings.newcomer_delay)
        run.idle_since = None
        run.failures.clear()  # what was survived is not what the run will end of
        run.doing.cause = run.round.runs
        run.act(AssignRound(plan))

    def _with_what_is_lost(self, plan: RoundPlan) -> RoundPlan:
        """The plan, with the steps that its holders cannot go back to; why is said once for each reason."""
        offers = [offer for w in plan.workers if (offer := self.roster.workers[w].offer) is not None]
        lost = max((offer for offer in offers if offer.version == plan.version), key=lambda offer: offer.steps_lost)
        if not lost.steps_lost:
            return plan
        torn = "" if lost.torn in self._explained_losses else lost.torn
        self._explained_losses.add(lost.torn)
        return replace(plan, steps_lost=lost.steps_lost, torn=torn)

    def _deadlines(self) -> Iterator[float]:
        run = self.state
        yield from run.staffing.deadlines()
        yield from run.suspects.deadlines()
        if run.round:
            yield from run.round.deadlines()
            yield from run.round.blocked.deadlines(run.settings.uneven_steps_timeout)
        else:
            yield run.started + run.settings.start_timeout
        if run.idle_since is not None:
            yield run.idle_since + run.settings.elastic_timeout
