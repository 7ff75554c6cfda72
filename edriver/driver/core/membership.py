"""The core: every decision of the driver, and nothing else.

`Membership.step(event, now)` takes what happened and returns what to do. There is no clock, lock, log, randomness or
I/O in here; the shell (core_loop.py) feeds one event at a time and performs the actions in order.

How to read it: `step` first notes the event (`EventNotes`: records only), then looks at everything that is known
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

from edriver.common.ids import NO_VERSION, RoundId, Version
from edriver.driver.core import events
from edriver.driver.core.actions import AbandonAgent, Action, Explain, LookAgain, RunEnd
from edriver.driver.core.cause import Cause, CauseKind, ReportedText
from edriver.driver.core.failures.consistency import BreakageWatch, ErrorWatch, UnprovenConnectionWatch, disagreement
from edriver.driver.core.failures.long_work import Verdict as LongWorkVerdict
from edriver.driver.core.failures.script_error import script_error
from edriver.driver.core.failures.suspicion import Situation
from edriver.driver.core.failures.worker_losses import WorkerLosses
from edriver.driver.core.losses import loss_of
from edriver.driver.core.roster import Offer, WorkerState
from edriver.driver.core.rounds.ranks import RoundPlan, plan_round
from edriver.driver.core.rounds.round import Round
from edriver.driver.core.rounds.round_watch import RoundWatch
from edriver.driver.core.rounds.selection import Selection, prospect, select
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
        self._reported_unequal = False
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
        if isinstance(event, events.DriverResumed):
            self._incarnation = event.incarnation
        self._notes.note(event)
        if not run.ended:
            self._judge_suspects()
        if not run.ended:
            self._decide()
        ordered, run.actions = run.actions, []
        return ordered

    @property
    def next_deadline(self) -> float | None:
        """When to step with Ticked at the latest; None: nothing is due before the next event."""
        run = self.state
        return None if run.ended else min((t for t in self._deadlines() if run.now < t < math.inf), default=None)

    def _decide(self) -> None:
        run = self.state
        run.actions += run.staffing.tend_hosts(run.now)
        run.actions += run.staffing.dismiss(run.now)
        run.actions += map(Explain, run.staffing.quarantine.review(run.now))
        self._rounds.look_for_uneven_steps()
        if run.round and not self._reported_unequal and (unequal := run.round.unequal):
            self._reported_unequal = True
            run.actions.append(Explain(unequal))
        if run.round and run.round.finished:
            self._rounds.finishing(run.round)
        elif run.round and not run.round.running:
            self._rounds.rejoining(run.round)
        run.actions += run.staffing.skip_those_behind(run.ordinal, run.round)
        # The end of a run whose limit is spent may wait for the exit that has the reason.
        if self._forming and run.budgets.overspent(run.now) is None:
            if refused := run.sizes.judge(run.round, run.failures):
                run.actions.append(Explain(refused))
            if not run.settings.mode.members_survive:  # no survivor is in need of the processor
                run.actions += run.staffing.start_workers(run.now, background=False, looks_after=run.completed_round)
            self._form()
        if run.round and run.round.running:  # also one that has just been formed: it may have a state keeper
            self._rounds.running(run.round)
        if not run.ended and (overspent := run.budgets.overspent(run.now)):
            run.give_up(overspent)
        if run.ended:
            return
        if self._forming or (run.round and run.round.running and run.round.is_under_way(run.now)):
            # Not while members rejoin: the survivors have the processor until they are under way in the next one.
            run.actions += run.staffing.start_workers(
                run.now, background=not self._forming, looks_after=run.completed_round
            )
        run.actions += run.doing.news(run.suspects.standstill(run.now) or self._rounds.standstill, run.round)

    def _judge_suspects(self) -> None:
        """Kill suspected workers that the run can spare, abort the round of others, and bound how long they stay."""
        run = self.state
        suspects, current = run.suspects, run.round
        suspects.forget_the_gone()
        at = Situation(current, run.ordinal, run.best, run.now)
        for agent in suspects.agents_to_give_up(at):
            host, agent_id, fault = agent
            self._losses.lose_agent(host, agent_id, fault)
            run.actions.append(AbandonAgent(host, agent_id, Cause(CauseKind.HOST_LOST, host=host, detail=fault)))
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
        # One that was killed for its silence must have ended before others continue: it might wake up and write files.
        awaited = bool(current.members) or not current.expired.isdisjoint(run.roster.workers)
        late = current.rejoin_deadline is not None and run.now >= current.rejoin_deadline
        return not awaited or (late and current.abort_cause is not None)

    def _form(self) -> None:
        """Form the next round if it has enough workers; else report what is missing, or end the run."""
        run = self.state
        self._look_again()
        offers = run.roster.offers(run.ordinal)
        allowed = run.sizes.allowed(sum(count for kind, count in offers.items() if kind.fits))
        chosen = prospect(offers, allowed)
        ended = run.round if chosen.size or not run.checkpoints else None
        if trouble := self._errors.repeated_failure(ended, chosen.version, chosen.checkpoint):
            run.give_up(trouble)
            return
        parts = run.settings, run.roster, run.staffing, run.suspects
        disk = run.checkpoints, run.awaits_checkpoint
        situation = Waiting(*parts, run.round, run.best, *disk, run.started, run.now, lambda: self._newest_of(allowed))
        waiting_reason = situation.waiting_reason(chosen)
        keep = None
        if waiting_reason is None:
            version, equal = chosen.version, not run.unequal(chosen.version)
            trouble = self._breakage.repeated_failure(run.round, version, run.roster)
            waiting = run.roster.waiting_in(run.ordinal)
            keep = self._select(allowed)
            if trouble := trouble or (disagreement(waiting, version) if equal else None):
                run.give_up(trouble)
            else:
                self._assign(keep)
        elif waiting_reason.final:
            run.give_up(waiting_reason.cause)
            return
        else:
            run.doing.cause = waiting_reason.cause
            if run.idle_since is not None and run.now >= run.idle_since + run.settings.elastic_timeout:
                run.give_up(run.timed_out(waiting_reason.cause))
                return
        if run.suspects or chosen.waiting == chosen.size:
            return  # the places are known when these have shown themselves, or have ended
        keep = keep or self._select(allowed)
        places = {c.worker_id for c in keep.all}
        for worker in run.roster.waiting_in(run.ordinal):
            # Those without a place leave once the others are safe: now that all members have stopped.
            if worker.worker_id not in places:
                run.dismiss(worker)

    def _select(self, allowed: int) -> Selection:
        roster = self.roster
        waiting = roster.waiting_in(self.state.ordinal)
        by_place = not self.settings.mode.members_survive
        return select(roster.candidates(waiting, by_place), roster.fitting, allowed)

    def _newest_of(self, allowed: int) -> float:
        """Since when the latest of those that would be members has been waiting."""
        roster, ordinal = self.roster, self.state.ordinal
        if sum(count for kind, count in roster.offers(ordinal).items() if kind.fits) > allowed:
            return max(roster.workers[c.worker_id].waiting_since for c in self._select(allowed).members)
        latest_first = (roster.workers[w] for w in reversed(roster.waiting) if w in roster.fitting)
        return next(worker.waiting_since for worker in latest_first if worker.waits_in(ordinal))

    def _look_again(self) -> None:
        """Once no worker may hold state, have those look for the newest checkpoint that looked before."""
        run = self.state
        if not run.checkpoints or run.holds_state:
            return
        roster = run.roster
        if run.round and not any(run.round.had(w) for w in roster.ranked):
            run.best = max(run.best, Version(run.round.plan.round_id, 0))  # it may have been trained, and never offered
        if run.best == NO_VERSION or run.awaits_checkpoint:
            return
        before = [w for i in sorted(roster.looked_before) if (w := roster.workers[i]).waits_in(run.ordinal)]
        if before:
            run.actions.append(LookAgain(tuple(w.worker_id for w in before)))
            for worker in before:
                roster.look_again(worker, run.completed_round)

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
        guarded, fallback = run.budgets.unproven.total > 0, run.sizes.fallback_of(len(plan.seats))
        plan = replace(self._with_what_is_lost(plan), guarded=guarded, fallback_size=fallback)
        looks_after = plan.round_id if run.completed_round is not None else None
        for seat in plan.seats:
            run.roster.seat(run.roster.workers[seat.worker_id], seat.rank, looks_after)
        settings = run.settings
        run.round = Round(plan, set(plan.workers), run.now + settings.newcomer_delay, run.now + settings.resize_pause)
        run.idle_since = None
        run.survived, run.failures = run.failures or run.survived, {}  # the run will not end of what was survived
        run.doing.cause = run.round.runs
        run.actions.append(plan)

    def _with_what_is_lost(self, plan: RoundPlan) -> RoundPlan:
        """The plan, with the steps that its holders have lost; each reason is reported once."""
        offers = [offer for w in plan.workers if (offer := self.roster.workers[w].offer) is not None]
        lost = max((offer for offer in offers if offer.version == plan.version), key=lambda offer: offer.steps_lost)
        if not lost.steps_lost:
            return plan
        torn = "" if lost.torn in self._explained_losses else lost.torn
        self._explained_losses.add(lost.torn)
        return replace(plan, steps_lost=lost.steps_lost, torn=torn)

    def _deadlines(self) -> Iterator[float]:
        run = self.state
        yield from run.staffing.deadlines(run.now)
        yield from run.suspects.deadlines()
        if run.round:
            yield from run.round.deadlines()
            yield from run.round.blocked.deadlines(run.settings.uneven_steps_timeout, run.settings.idle_timeout)
        else:
            yield run.started + run.settings.start_timeout
        if run.idle_since is not None:
            yield run.idle_since + run.settings.elastic_timeout


class EventNotes:
    """Records what has happened, without a decision that looks beyond the event.

    Args:
        run: what the core knows.
        losses: takes the workers that the event has cost.
    """

    def __init__(self, run: RunState, losses: WorkerLosses) -> None:
        self._run = run
        self._losses = losses
        self._unproven = UnprovenConnectionWatch()

    def note(self, event: events.Event) -> None:
        """Note an event. Those of workers, agents and rounds that are not known any more change nothing."""
        run = self._run
        if run.suspects.note_sign_of_life(event, run.now) and run.round and run.round.rejoin_deadline is not None:
            run.round.rejoin_deadline = run.now + run.settings.rejoin_timeout
        match event:
            case events.HostsObserved(hosts):
                run.roster.observe(hosts)
                run.staffing.discovery.answered()
            case events.DiscoveryFailed(reason):
                run.staffing.discovery.failed(reason)
            case events.AgentConnected(host, agent_id):
                run.staffing.agent_connected(host, agent_id)
            case events.AgentLost(host, agent_id, fault):
                self._losses.lose_agent(host, agent_id, fault)
            case events.AgentSilent(host, agent_id, fault):
                if run.staffing.agent_silent(host, agent_id, fault):
                    run.suspects.note(event, run.round, run.now)
            case events.WorkerWaiting():
                self._note_waiting(event)
            case (
                events.BoundaryReached()
                | events.CheckpointSaved()
                | events.FirstBoundaryPassed()
                | events.WorkerDone()
                | events.WorkerBlocked()
            ):
                if current := run.round_of(event.worker_id, event.round_id):
                    current.note(event, run.now)
                    if event.worker_id in current.done:
                        run.roster.move(run.roster.workers[event.worker_id], WorkerState.DONE)
            case events.CollectiveRaised(worker_id, round_id, traceback):
                if current := run.round_of(worker_id, round_id):
                    current.note_raised(worker_id, traceback)
                    self._losses.abort(current, Cause(CauseKind.COLLECTIVE_FAILED, current.name(worker_id)))
            case events.PeerUnproven(worker_id, round_id, reason):
                if current := run.round_of(worker_id, round_id):
                    self._unproven.record(current, run.now)
                    self._losses.abort(
                        current, Cause(CauseKind.PEER_UNPROVEN, current.name(worker_id), detail=ReportedText(reason))
                    )
            case events.WorkerFailed(worker_id, traceback, rejoins):
                if (worker := run.roster.workers.get(worker_id)) and worker.live:
                    error = script_error(traceback)
                    cause = Cause(CauseKind.RAISED, worker.name, detail=error)
                    if run.round and worker_id in run.round.members:
                        run.round.errors[worker_id] = error
                        if rejoins:
                            self._losses.abort(run.round, cause)
                            return
                    worker.traceback = traceback
                    self._losses.lose(worker, cause)
                    run.roster.stop_at(worker, run.now + run.settings.leave_grace)  # it has last words to print
            case events.WorkerIdle(worker_id, round_id, seconds):
                if current := run.round_of(worker_id, round_id):
                    current.blocked.note_idle(worker_id, run.now, seconds)
            case events.WorkerStalled(worker_id, round_id):
                if (current := run.round_of(worker_id, round_id)) and worker_id not in run.suspects:
                    self._note_stall(event, current)
            case events.WorkerQuiet() | events.LeaseExpired() | events.WorkerStuck():
                run.suspects.note(event, run.round, run.now)
            case events.ExitOverdue(worker_id):
                if (worker := run.roster.workers.get(worker_id)) and worker.live:
                    self._losses.expire(worker, loss_of(event, worker.name))
            case events.WorkerEnding(worker_id):
                if run.round:
                    run.round.expired.discard(worker_id)
                if worker := run.roster.workers.get(worker_id):
                    run.roster.trainer_ended(worker, run.now + run.settings.leave_grace)
                    if worker.in_run:
                        run.roster.note_ending(worker)
                        self._losses.lose(
                            worker,
                            loss_of(event, worker.name),
                            own=not self._losses.dragged(worker),
                        )
            case events.WorkerExited(worker_id):
                if worker := run.roster.workers.get(worker_id):
                    self._losses.exited(worker, event)
                    run.roster.remove(worker_id)
            case events.DrainRequested() | events.UndrainRequested() | events.ResizeRequested():
                run.staffing.steer(event)
            case events.StopRequested(reason, requester):
                stopped = Cause(CauseKind.STOPPED, detail=ReportedText(reason), requester=requester)
                run.finish(RunEnd.STOPPED, stopped)
            case events.SourceUnusable(reason):
                run.finish(RunEnd.FAILED, Cause(CauseKind.SOURCE_UNUSABLE, detail=ReportedText(reason)))

    def _note_stall(self, event: events.WorkerStalled, current: Round) -> None:
        run = self._run
        verdict, cause = run.long_work.judge(event, current)
        if verdict is LongWorkVerdict.PATIENCE:
            return
        run.suspects.note(event, current, run.now)
        if verdict is LongWorkVerdict.HOPELESS and cause is not None:
            worker = run.roster.workers[event.worker_id]
            run.failures.setdefault(worker.worker_id, worker.failure(loss_of(event, worker.name)))
            run.finish(RunEnd.FAILED, cause)
        elif cause is not None:
            run.actions.append(Explain(cause))

    def _note_waiting(self, event: events.WorkerWaiting) -> None:
        run = self._run
        worker = run.roster.workers.get(event.worker_id)
        if worker is None or not worker.live:
            return
        current = run.round
        if current and not current.finished and worker.worker_id in current.members:
            if current.running:
                self._losses.abort(current, Cause(CauseKind.LEFT_ROUND, worker.name))
            current.members.discard(worker.worker_id)
            current.done.pop(worker.worker_id, None)
            current.blocked.waits_from = run.now
        if current and current.finished and worker.state is WorkerState.FINISHED:
            current.entered_next = True
            current.members.discard(worker.worker_id)
        offer = Offer(
            event.ordinal, event.version, event.store, event.digest, event.steps_lost, event.torn, event.checkpoint
        )
        run.roster.take_offer(worker, offer, run.now)
        offer.latest = run.completed_round is not None and run.completed_round == worker.looks_after
        run.roster.worker_changed(worker)
        if event.ordinal == run.ordinal:
            run.best = max(run.best, event.version)
            run.checkpoints = run.checkpoints or event.checkpoint is not None
