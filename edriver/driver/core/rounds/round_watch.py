"""When a round ends: all members are done, other members are wanted, or members wait in vain. Part of the core."""

from __future__ import annotations

from edriver.common.ids import NO_VERSION
from edriver.discovery.hosts import HostUpdateResult
from edriver.driver.core.actions import Finish, GoOn, Notify, RunEnd, StopAt
from edriver.driver.core.cause import Cause, CausedBy, CauseKind, Change
from edriver.driver.core.failures.consistency import BreakageWatch, ErrorWatch
from edriver.driver.core.failures.uneven_steps import UnevenWatch
from edriver.driver.core.failures.worker_losses import WorkerLosses
from edriver.driver.core.roster import WorkerState
from edriver.driver.core.rounds.agreed_restart import AgreedRestarts
from edriver.driver.core.rounds.round import Round
from edriver.driver.core.rounds.selection import wanted_members
from edriver.driver.core.run_state import RunState


class RoundWatch:
    """Watches the current round and ends it when that is due.

    Args:
        run: what the core knows.
        losses: aborts rounds.
        breakage: counts rounds that ended by a broken collective.
        errors: compares the errors of the script.

    Attributes:
        standstill: why members can only wait for others; None: they can do more.
    """

    def __init__(self, run: RunState, losses: WorkerLosses, breakage: BreakageWatch, errors: ErrorWatch) -> None:
        self._run = run
        self._losses = losses
        self._breakage, self._errors = breakage, errors
        self._restarts = AgreedRestarts(run, losses)
        self._uneven = UnevenWatch(run.settings.uneven_steps_timeout, run.settings.idle_timeout)
        self.standstill: Cause | None = None

    def look_for_uneven_steps(self) -> None:
        """Say who waits for members that are done; a round in which nothing else can happen is tried once more."""
        run = self._run
        found = self._uneven.look(run.round, run.now) if run.round else None
        self.standstill = found.cause if found else None
        if run.round and found and found.over:
            if again := self._uneven.again(run.round, found.cause):
                run.give_up(again)
            else:
                self._losses.abort(run.round, found.cause)

    def running(self, current: Round) -> None:
        """Finish a round whose members are all done; interrupt it when other members are wanted.

        Args:
            current: the round.
        """
        run = self._run
        if current.members == current.done.keys():
            self._finish(current)
            return
        roster = run.roster
        for worker_id in sorted(roster.unplaced & roster.waiting.keys()):
            run.dismiss(roster.workers[worker_id])
        members, fitting = current.members, roster.fitting
        interrupt = current.interrupt
        if interrupt is not None and not interrupt.answered(members) and run.now < interrupt.deadline:
            return
        newcomers = []
        if interrupt is not None or run.now >= current.open_at:
            newcomers = run.staffing.ready_newcomers(run.ordinal, run.now, patient=interrupt is None)
        survive = run.settings.mode.members_survive
        settled = not newcomers and members.isdisjoint(roster.unplaced)
        if settled and interrupt is None and len(members) <= run.sizes.allowed(len(members)):
            return  # the members are those that are wanted
        ready = sum(worker in fitting for worker in (*members, *newcomers))
        wanted = wanted_members(members, newcomers, fitting, run.sizes.allowed(ready), keeps_state=survive)
        if current.done and not survive:
            wanted = members  # a restart would have scripts that have run to their end make their last steps again
        if current.completed:
            return  # some have run the whole script: the others are to finish it
        if interrupt is None:
            if wanted != members:
                current.begin_interrupt(run.now + self._answer_timeout)
                result = HostUpdateResult.of(added=bool(wanted - members), removed=bool(members - wanted))
                run.actions.append(Notify(current.order(members), current.plan.round_id, current.interrupts, result))
        elif interrupt.answered(members):
            if wanted == members:  # undone before anyone stopped: it costs nothing
                current.interrupt = None
                run.actions.append(GoOn(current.order(members), current.plan.round_id, interrupt.number))
            else:
                cause = self._change_of(members, wanted)
                if not survive:
                    self._restarts.begin(current, interrupt, cause)
                    return
                run.budgets.spend(run.now, cause)
                interrupt.boundary, interrupt.cause = interrupt.agree(), cause
                interrupt.deadline = run.now + max(run.settings.elastic_timeout, run.settings.boundary_timeout)
                verdict = interrupt.number, interrupt.boundary
                run.actions.append(StopAt(current.order(members), current.plan.round_id, *verdict, cause))
        elif run.now >= interrupt.deadline:
            late = current.unanswered(interrupt, self._answer_timeout)
            self._losses.abort(current, late if survive else self._change_of(members, wanted))

    @property
    def _answer_timeout(self) -> float:
        """How long members may take to answer a notice; where all are to be stopped, no longer than for that."""
        settings = self._run.settings
        return settings.report_timeout if settings.mode.members_survive else settings.leave_grace

    def _change_of(self, members: set[int], wanted: set[int]) -> Cause:
        run = self._run
        preempted = any(not run.roster.keeps(run.roster.workers[w]) for w in members - wanted)
        change = Change(joined=len(wanted - members), left=len(members - wanted))
        return Cause(CauseKind.MEMBERS_CHANGE, detail=change, preempted=preempted)

    def rejoining(self, current: Round) -> None:
        """Bound how long members of an interrupted round may take to stop."""
        run = self._run
        interrupt = current.interrupt
        if current.abort_cause is not None or interrupt is None:
            return
        if not run.settings.mode.members_survive:
            self._restarts.look(current, interrupt)
            return
        if current.members and current.members == current.done.keys():
            if current.members == set(current.plan.workers):
                self._finish(current)  # no member stopped: the functions returned before the boundary
            else:
                self._losses.abort(current, Cause(CauseKind.BOUNDARIES_DIFFER))
        elif current.members and run.now >= interrupt.deadline:
            self._losses.abort(current, current.missed(interrupt))
        elif interrupt.cause is not None and current.cannot_stop:
            # Nothing is lost by it: those that have stopped are ahead, and the others take over their state.
            self._losses.abort(current, interrupt.cause)
        elif not current.members and current.rejoin_deadline is None:
            current.rejoin_deadline = run.now
            run.idle_since = run.now

    def finishing(self, current: Round) -> None:
        """End the run when all processes of a finished round have ended, unless its script continues."""
        run = self._run
        if current.members:
            return
        if self._losses.late_failure:
            late = CausedBy(self._losses.late_failure)
            run.finish(RunEnd.FAILED, Cause(CauseKind.FAILED_LATE, detail=late))
        elif not current.entered_next:
            run.finish(RunEnd.DONE, Cause(CauseKind.SUCCESS))
        elif run.idle_since is None:
            run.idle_since = run.now

    def _finish(self, current: Round) -> None:
        run = self._run
        current.finished = True
        run.doing.cause = current.all_done
        run.actions.append(Finish(current.order(current.members), current.plan.round_id, current.all_done))
        for worker_id in current.members:
            run.roster.move(run.roster.workers[worker_id], WorkerState.FINISHED)
        run.ordinal += 1
        run.best, run.checkpoints = NO_VERSION, False
        run.previous_call = current.plan.round_id
        self._breakage.clear()
        self._errors.clear()
        run.sizes.clear()
        if not current.members:  # no process is left whose end would be an event
            self.finishing(current)
