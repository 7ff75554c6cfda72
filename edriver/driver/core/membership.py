"""The core: every decision of the driver, and nothing else.

`Membership.step(event, now)` takes what happened and returns what to do. There is no clock, lock, log, randomness or
I/O in here; the shell (run/core_loop.py) feeds one event at a time and performs the actions in order.

How to read it, from top to bottom: `step` first takes the event in (`_take_in`: what follows from it alone), then looks
at everything that is known and does what is due (`_decisions`: level-triggered, so no decision depends on which event
came last). What is known has one owner for each part, which alone changes it and returns the actions that follow:

    membership        the order of decisions, and whether the run has ended
    worker_losses     nothing: it takes lost workers out of what the others own
    round_control     the round, the script's `run` call, the budgets, what is reported of the run
    placement         which hosts get an agent and which slots a worker
    failures          who is suspected, which slots rest, which sizes fail, which failures there were
    memory            which checkpoints in memory are whole, and which hosts keep and copy them
    roster, round     the hosts and workers; the round's members
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from itertools import chain
from typing import Final, TypeAlias

from edriver.driver.core.failures.budgets import Budgets
from edriver.driver.core.failures.failure_log import FailureLog
from edriver.driver.core.failures.long_work import LongWork, StallVerdict
from edriver.driver.core.failures.new_sizes import NewSizes
from edriver.driver.core.failures.suspicion import Suspects
from edriver.driver.core.memory_checkpoints import MemoryCheckpoints
from edriver.driver.core.placement import Placement
from edriver.driver.core.roster import Roster
from edriver.driver.core.round import Report, Round
from edriver.driver.core.round_control import RoundControl
from edriver.driver.core.worker_losses import WorkerLosses
from edriver.model import events
from edriver.model.actions import AbandonAgent, Action, Explain, FinishRun, RunEnd, Skip, StartWorker, StopAgent
from edriver.model.cause import Cause, CauseKind, NoBoundary, ReportedText
from edriver.model.events import loss_of
from edriver.model.ids import NO_ROUND
from edriver.model.records import Offer, Worker, WorkerState, WorkerStep
from edriver.model.script_error import script_error
from edriver.model.settings import Settings

_MemberEvent: TypeAlias = (
    Report | events.WorkerStalled | events.CollectiveRaised | events.PeerUnproven | events.ScriptWarned
)

_WorkerEvent: TypeAlias = (
    events.WorkerWaiting | events.WorkerFailed | events.ExitOverdue | events.WorkerEnding | events.WorkerExited
)


_AGENT_GONE: Final = (StopAgent, AbandonAgent)
"""Actions after which a host's agent, and what its checkpoint server held, does not count any more."""


MANY: Final = 100
"""Reports of the same kind that are still to come from which on those before are decided upon together: what a large
run knows is looked at once for dozens of them,"""

TOGETHER: Final = 0.02
"""at most so many seconds after the last decisions."""


def _no_jitter() -> float:
    return 0.0


@dataclass(slots=True, eq=False)
class Membership:
    """The membership of the run: which workers are in which round, with which rank.

    Args:
        settings: the operator's limits.
        now: the time at which the run starts, in seconds of the clock that `step` is given.
        incarnation: the number of this start of the driver.
        draw: returns a random number from 0 up to 1, for the jitter of cooldowns; with the same numbers, the core makes
            the same decisions. By default there is no jitter.

    Attributes:
        settings: as given.
        now: the time of the last event.
        ended: whether the run has ended.
        roster: the hosts and workers.
        placement: decides which of them are used.
        suspects: the suspected workers.
        failures: the failures of workers since the round was formed.
        memory: the checkpoints in memory.
        rounds: the round, the script's `run` call, and the run's activity.
    """

    settings: Settings
    now: float
    incarnation: InitVar[int] = 1
    draw: InitVar[Callable[[], float]] = _no_jitter
    ended: bool = field(default=False, init=False)
    roster: Roster = field(init=False)
    placement: Placement = field(init=False)
    suspects: Suspects = field(init=False)
    failures: FailureLog = field(default_factory=FailureLog, init=False)
    memory: MemoryCheckpoints = field(init=False)
    rounds: RoundControl = field(init=False)
    _losses: WorkerLosses = field(init=False)
    _long_work: LongWork = field(init=False)
    _decided: float = field(default=0.0, init=False)  # when all that is known was last looked at,
    _undecided: bool = field(default=False, init=False)  # and whether there is something new since

    def __post_init__(self, incarnation: int, draw: Callable[[], float]) -> None:
        """Begin, with no hosts."""
        settings = self.settings
        self.roster = roster = Roster(settings.replica_size, settings.mode.members_survive)
        self.placement = Placement(settings, roster, NewSizes(settings, roster), draw)
        self.suspects = Suspects(settings, roster)
        self.memory = MemoryCheckpoints(settings.checkpoint_copies)
        self.rounds = RoundControl(
            settings, roster, self.placement, self.suspects, self.failures, self.memory, self.now, incarnation
        )
        self._losses = WorkerLosses(settings, roster, self.placement, self.failures, self.rounds)
        self._long_work = LongWork(settings.long_work_timeout)

    def step(self, event: events.Event, now: float) -> list[Action]:
        """Take in one event and return the orders that follow from it, in the order in which they must be given.

        Events of workers, agents and rounds that the core no longer knows are ignored. FinishRun is the last action;
        after it nothing happens any more.
        """
        actions: list[Action] = []
        if self.ended:
            return actions
        assert now >= self.now, f"the clock goes back from {self.now} to {now}"
        self.now = now
        taken = self._take_in(event, now)
        self._undecided = not taken and self._others_follow(event, now)
        if self._undecided:
            return actions
        self._decided = now
        for decided in chain([taken], self._decisions(now)):
            if not decided:  # nearly all, in a large run
                continue
            actions += decided
            for action in decided:
                if isinstance(action, _AGENT_GONE):
                    self.memory.lose_host(action.host)
            if isinstance(decided[-1], FinishRun):
                self.ended = True
                break
        assert self.ended or FinishRun not in map(type, actions), "the last action ends the run"
        current = self.rounds.current
        if current is not None and current.running and not self.ended:
            assert current.members, f"round {current.plan.round_id} runs without members"
            assert self.rounds.idle_since is None, "a run is not idle while a round runs"
        elif current is not None and current.aborted and not self.rounds.forming(now) and not self.ended:
            started = any(isinstance(action, StartWorker) for action in actions)
            assert not started, f"a worker is started while members of round {current.plan.round_id} rejoin"
        return actions

    def check(self) -> None:
        """Assert what must hold of all parts together after each step. It looks at every worker: for simulations.

        Raises:
            AssertionError: something does not hold.
        """
        workers = self.roster.workers
        assert len({(worker.host, worker.slot) for worker in workers.values()}) == len(workers), (
            "a slot has two workers"
        )
        for worker_id in self.suspects:
            assert worker_id in workers, f"worker {worker_id} is suspected, and is gone"
        current = self.rounds.current
        for worker in workers.values():
            if current and worker.worker_id in current.members:
                may_be = (WorkerState.FINISHED,) if current.finished else (WorkerState.TRAINING, WorkerState.DONE)
                assert worker.state in may_be, f"worker {worker.worker_id} is a member, and {worker.state.value}"
                is_done = worker.worker_id in current.done
                assert current.finished or is_done == (worker.state is WorkerState.DONE), "who is done"

    @property
    def next_deadline(self) -> float | None:
        """When to step with Ticked at the latest; None: nothing is due before the next event."""
        if self.ended:
            return None
        now, soonest = self.now, self._decided + TOGETHER if self._undecided else math.inf
        for due in self.placement.deadlines(now) + self.suspects.deadlines(now) + self.rounds.deadlines():
            if now < due < soonest:
                soonest = due
        return soonest if soonest < math.inf else None

    # ---- for observers ---------------------------------------------------------------------------------------

    @property
    def round(self) -> Round | None:
        """The running round, or the last one; None before the first."""
        return self.rounds.current

    @property
    def sizes(self) -> NewSizes:
        """The maximum number of workers."""
        return self.placement.sizes

    @property
    def budgets(self) -> Budgets:
        """The number of rounds that have ended for each kind of cause."""
        return self.rounds.budgets

    @property
    def activity(self) -> Cause | None:
        """What the run does, or waits for; None: it has just begun."""
        return self.rounds.activity

    # ---- decisions -------------------------------------------------------------------------------------------

    def _others_follow(self, event: events.Event, now: float) -> bool:
        """Whether so many are about to report the same that no decision depends on this report: the workers that start
        before the first round, until they wait for it; the members of a new round, until they have made their first
        step; and those of a round that was aborted, until they are back.
        """
        current, to_come = self.rounds.current, 0
        if self.suspects or now - self._decided >= TOGETHER:
            return False
        match event:
            case events.WorkerWaiting() if current is None:
                to_come = len(self.roster.booting)
            case events.WorkerWaiting() if current is not None and current.aborted:
                to_come = len(current.members)
            case events.FirstBoundaryPassed() if current is not None and current.running and current.interrupt is None:
                to_come = len(current.members) - len(current.under_way)
        return to_come >= MANY

    def _decisions(self, now: float) -> Iterator[list[Action]]:
        """What follows from all that is known, in the order of importance; each part sees what those before it have
        done.
        """
        rounds, placement, settings = self.rounds, self.placement, self.settings
        yield from self._judge_suspects(now)
        self.roster.end_waits(now)
        yield placement.tend_hosts(now, self.memory.is_needed)
        yield placement.dismiss(now)
        yield self._review_quarantine(now)
        yield rounds.look_for_uneven_steps(now)
        yield rounds.report_unequal()
        yield rounds.report_mismatch()
        if current := rounds.current:
            if current.finished:
                yield rounds.finish(current, now)
            elif not current.running:
                yield rounds.rejoin(current, now)
        yield rounds.skip_those_behind()
        # The end of a run whose limit is spent may wait for the exit that has the reason.
        if rounds.forming(now) and rounds.budgets.overspent(now) is None:
            if refused := placement.sizes.judge(rounds.current, self.failures.latest):
                yield [Explain(refused)]
            if at_fault := rounds.newcomers_at_fault(now):
                for newcomer in at_fault:
                    yield self._losses.kill(newcomer, Cause(CauseKind.NEVER_TRAINED, newcomer.name), now)
                # A host that is quarantined for them may be needed.
                yield self._review_quarantine(now)
            if not settings.mode.members_survive:  # no survivor is in need of the processor
                yield placement.start_workers(now, training=0, looks_after=rounds.completed)
            yield rounds.form(now)
        if rounds.current and rounds.current.running:  # also one that was just formed: it may have a state keeper
            yield rounds.run(rounds.current, now)
        yield rounds.ask_for_checkpoint()
        if overspent := rounds.budgets.overspent(now):
            yield rounds.give_up(overspent)
        forming = rounds.forming(now)
        if forming or (rounds.current and rounds.current.running and rounds.current.is_under_way(now)):
            # Not while members rejoin: the survivors have the processor until they are under way in the next one.
            training = len(rounds.current.members) if rounds.current and not forming else 0
            yield placement.start_workers(now, training, looks_after=rounds.completed)
        round_id = rounds.current.plan.round_id if rounds.current else NO_ROUND
        yield self.memory.orders(self.roster.hosts, self.roster.revision, round_id)
        yield rounds.report(self.suspects.standstill(now) or rounds.standstill)

    def _review_quarantine(self, now: float) -> list[Action]:
        """Use quarantined hosts that the run needs, and report what has changed of the others."""
        return [Explain(cause) for cause in self.placement.quarantine.review(now)]

    def _judge_suspects(self, now: float) -> Iterator[list[Action]]:
        """Kill suspected workers that the run can spare, abort the round of others, and bound how long they stay."""
        suspects, rounds = self.suspects, self.rounds
        suspects.forget_the_gone()
        current, call = rounds.current, rounds.call
        for host, agent_id, fault in suspects.agents_to_give_up(current, call, now):
            lost = self._losses.lose_agent(host, agent_id, fault, now)
            yield [*lost, AbandonAgent(host, agent_id, Cause(CauseKind.HOST_LOST, host=host, detail=fault))]
        for worker, suspicion in suspects.to_kill(current, call, now):
            yield self._losses.kill(worker, suspicion.cause, now, suspicion.slot_at_fault)
        if current and (found := suspects.breaking(current, now)):
            worker, cause = found
            yield rounds.abort_for(worker, cause, now)
        if overdue := suspects.overdue(now):
            for worker, suspicion in overdue:
                self.failures.note_suspected(worker, suspicion.cause)
            yield rounds.time_out(suspects.standstill(now))

    # ---- events ----------------------------------------------------------------------------------------------

    def _take_in(self, event: events.Event, now: float) -> list[Action]:
        """Record what has happened, and do what follows from it alone.

        Events of workers, agents and rounds that are not known any more change nothing.
        """
        placement, rounds, roster, suspects = self.placement, self.rounds, self.roster, self.suspects
        if suspects.note_sign_of_life(event, now):
            rounds.extend_rejoin(now)
        match event:
            case (  # first, for these are nearly all events of a large run
                events.WorkerWaiting(worker_id)
                | events.WorkerFailed(worker_id)
                | events.ExitOverdue(worker_id)
                | events.WorkerEnding(worker_id)
                | events.WorkerExited(worker_id)
            ):
                if worker := roster.workers.get(worker_id):
                    return self._take_in_of_worker(event, worker, now)
            case events.HostsObserved(hosts):
                roster.observe(hosts)
                placement.discovery.answered()
            case events.DiscoveryFailed(reason):
                placement.discovery.failed(reason)
            case events.AgentConnected(host, agent_id, processors):
                placement.agent_connected(host, agent_id, processors)
            case events.AgentLost(host, agent_id, fault):
                if roster.has_agent(host, agent_id):
                    self.memory.lose_host(host)
                return self._losses.lose_agent(host, agent_id, fault, now)
            case events.CheckpointsHeld(host, agent_id):
                if roster.has_agent(host, agent_id):
                    self.memory.note(event)
            case events.CheckpointServerEnded(host, agent_id):
                if roster.has_agent(host, agent_id):
                    self.memory.server_ended(host)
            case events.AgentSilent(host, agent_id, fault):
                if placement.agent_silent(host, agent_id, fault):
                    suspects.note(event, rounds.current, now)
            case events.WorkerQuiet() | events.LeaseExpired() | events.WorkerStuck():
                suspects.note(event, rounds.current, now)
            case events.DrainRequested() | events.UndrainRequested() | events.ResizeRequested():
                placement.steer(event, now)
            case events.CheckpointRequested(requester):
                if self.settings.mode.members_survive:
                    rounds.requests.add(requester, self.memory.latest, newer=True)
                else:
                    newest = self.memory.newest_for_disk  # None: it was lost since the operator asked
                    on_disk = self.memory.disk.on_disk
                    rounds.requests.add(requester, newest or on_disk, newer=newest is None)
                    self.memory.write_to_disk()
            case events.CheckpointWritten(worker_id, number):  # of whichever round: it is on disk
                if worker_id in roster.workers:
                    rounds.requests.note_written(number)
            case events.StopRequested(reason, requester):
                stopped = Cause(CauseKind.STOPPED, detail=ReportedText(reason), requester=requester)
                return rounds.end_run(RunEnd.STOPPED, stopped)
            case events.SourceUnusable(reason):
                return rounds.end_run(RunEnd.FAILED, Cause(CauseKind.SOURCE_UNUSABLE, detail=ReportedText(reason)))
            case events.DriverResumed(incarnation):
                rounds.resume(incarnation)
            case (
                events.BoundaryReached(worker_id, round_id)
                | events.CheckpointSaved(worker_id, round_id)
                | events.FirstBoundaryPassed(worker_id, round_id)
                | events.StateDigest(worker_id, round_id)
                | events.WorkerDone(worker_id, round_id)
                | events.WorkerBlocked(worker_id, round_id)
                | events.WorkerIdle(worker_id, round_id)
                | events.WorkerStalled(worker_id, round_id)
                | events.CollectiveRaised(worker_id, round_id)
                | events.PeerUnproven(worker_id, round_id)
                | events.ScriptWarned(worker_id, round_id, warning=NoBoundary())
            ):
                if current := rounds.current_with_member(worker_id, round_id):
                    return self._take_in_of_member(event, current, now)
        return []

    def _take_in_of_member(self, event: _MemberEvent, current: Round, now: float) -> list[Action]:
        """Record what a member reports of the current round."""
        match event:
            case events.CollectiveRaised(worker_id, _, traceback):
                current.note_raised(worker_id, traceback)
                return self.rounds.abort(Cause(CauseKind.COLLECTIVE_FAILED, current.name(worker_id)), now)
            case events.PeerUnproven(worker_id, _, reason):
                return self.rounds.note_unproven(current, worker_id, reason, now)
            case events.WorkerStalled():
                return self._take_in_stall(event, current, now)
            case events.ScriptWarned():
                self.rounds.note_no_boundary(current, now)
                return []
            case _:
                current.note(event, now)
                if isinstance(event, events.FirstBoundaryPassed):
                    self.rounds.note_boundary()
                if isinstance(event, events.WorkerDone):
                    self.roster.move(self.roster.workers[event.worker_id], WorkerStep.RETURN)
                elif isinstance(event, events.FirstBoundaryPassed):
                    self.roster.note_trained(self.roster.workers[event.worker_id])
                return []

    def _take_in_stall(self, event: events.WorkerStalled, current: Round, now: float) -> list[Action]:
        worker = self.roster.workers[event.worker_id]
        if worker.worker_id in self.suspects:
            return []
        verdict, cause = self._long_work.judge(event, current)
        if verdict is StallVerdict.PATIENCE:
            return []
        self.suspects.note(event, current, now)
        if cause is None:
            return []
        if verdict is StallVerdict.HOPELESS:
            self.failures.note_suspected(worker, loss_of(event, worker.name))
            return self.rounds.end_run(RunEnd.FAILED, cause)
        return [Explain(cause)]

    def _take_in_of_worker(self, event: _WorkerEvent, worker: Worker, now: float) -> list[Action]:
        """Record what becomes of a worker, whether it is in a round or not."""
        match event:
            case events.WorkerExited():
                lost = self._losses.exited(worker, event, now)
                self._losses.remove(worker)
                return lost
            case events.WorkerEnding():
                self.suspects.note(event, self.rounds.current, now)
                return self._losses.ending(worker, event, now)
            case _ if not worker.live:
                return []
            case events.WorkerWaiting():
                return self._take_offer(event, worker, now)
            case events.ExitOverdue():
                return self._losses.kill(worker, loss_of(event, worker.name), now)
            case events.WorkerFailed(worker_id, traceback, rejoins):
                error = script_error(traceback)
                cause = Cause(CauseKind.RAISED, worker.name, detail=error)
                self.rounds.note_error(worker_id, error)
                if rejoins and self.rounds.has_member(worker_id):
                    return self.rounds.abort(cause, now)
                self.roster.note_traceback(worker, traceback)
                lost = self._losses.lose(worker, cause, now)
                self.roster.stop_at(worker, now + self.settings.leave_grace)  # it has last words to print
                return lost

    def _take_offer(self, event: events.WorkerWaiting, worker: Worker, now: float) -> list[Action]:
        """A worker waits for a round."""
        rounds = self.rounds
        if worker.state is WorkerState.FINISHED and event.ordinal < rounds.call.ordinal:
            # This is not the script's next `run`. It left its round for the loss of a peer, while there was no driver,
            # and does not get Finish there: its `run` call is over all the same.
            return [Skip(worker.worker_id, event.ordinal)]
        if event.left_at is not None and rounds.current is not None and rounds.has_member(worker.worker_id):
            rounds.current.note_left(worker.worker_id, event.left_at)
        actions = rounds.leave(worker, now)
        if not worker.live:  # in restart mode its round has been aborted by that, and its members are stopped
            return actions
        offer = Offer(
            event.ordinal,
            rounds.call.worth(event.version),
            event.store,
            event.digest,
            event.steps_lost,
            event.torn,
            event.checkpoint,
            event.sealed,
            event.gradient_norm,
            event.shards,
        )
        if worker.offer is None and worker.rank is None:
            self.placement.note_boot(worker, now)
        self.roster.take_offer(worker, offer, now)
        self.roster.looked_last(worker, rounds.completed)  # of which the offer is a part
        rounds.note_offer(event)
        return actions
