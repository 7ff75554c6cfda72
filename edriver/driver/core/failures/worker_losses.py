"""What follows when a worker is lost: its failure is recorded, its round aborted, its slot rests. Part of the core."""

from __future__ import annotations

from dataclasses import replace

from edriver.driver.core import events
from edriver.driver.core.actions import Abort, StopWorker
from edriver.driver.core.cause import AgentFault, Cause, CauseKind
from edriver.driver.core.failures.root_cause import earlier_failure
from edriver.driver.core.losses import killed_from_outside, loss_of
from edriver.driver.core.roster import Worker, WorkerState
from edriver.driver.core.rounds.round import Round
from edriver.driver.core.run_state import RunState

FAILURES_KEPT = 32
"""How many failures the final report can name; the first ones, where the cause is."""


class WorkerLosses:
    """Takes lost workers out of the run.

    Args:
        run: what the core knows.

    Attributes:
        late_failure: why a worker failed after its function had returned; None: none has.
    """

    def __init__(self, run: RunState) -> None:
        self._run = run
        self.late_failure: Cause | None = None

    def lose(self, worker: Worker, cause: Cause, end: events.WorkerExited | None = None, own: bool = True) -> None:
        """The worker has failed. Its round, if it is in one, is void; its slot rests if the fault was the worker's own.

        One whose place is being taken away may well die of that: it is a preemption's, unless its script raised.
        """
        run = self._run
        cause = replace(cause, preempted=not worker.traceback and not run.roster.keeps(worker))
        if len(run.failures) < FAILURES_KEPT:
            run.failures[worker.worker_id] = worker.failure(cause, end)
        if own and not cause.preempted and not self._is_of_resize(worker, cause):
            self._charge(worker, cause)
        current = run.round
        if worker.state is WorkerState.FINISHED:
            self.late_failure = self.late_failure or cause
            if current:
                current.members.discard(worker.worker_id)
                run.actions.append(Abort(current.order(current.members), current.plan.round_id, cause))
        elif current and worker.worker_id in current.members:
            current.members.discard(worker.worker_id)
            current.done.pop(worker.worker_id, None)
            current.lost.add(worker.worker_id)
            self.abort(current, cause)
        run.roster.move(worker, WorkerState.STOPPING)

    def expire(self, worker: Worker, cause: Cause, own: bool = True) -> None:
        """It lives, and nothing can be expected of it: it is killed."""
        run = self._run
        if run.round and worker.worker_id in run.round.members:
            run.round.expired.add(worker.worker_id)
        self.lose(worker, cause, own=own)
        run.actions.append(StopWorker(worker.worker_id, worker.host, grace=0.0))

    def lose_agent(self, host: str, agent_id: int, fault: AgentFault) -> None:
        """An agent is lost, and with it all workers of its host. One that has been replaced is ignored."""
        run = self._run
        for lost in run.staffing.agent_lost(host, agent_id, fault, run.now):
            if lost.live:
                self.lose(lost, Cause(CauseKind.LOST_WITH_HOST, lost.name, detail=fault), own=False)
            run.roster.remove(lost.worker_id)

    def exited(self, worker: Worker, event: events.WorkerExited) -> None:
        """A worker's process has ended: after its function had returned, as it should, or lost."""
        run = self._run
        cause = loss_of(event, worker.name)
        if worker.unexplained:
            worker.unexplained = False
            if worker.stop_at is None:  # a command that went on without its training process was stopped by this run
                run.staffing.quarantine.worker_failed(worker, run.now)
            else:
                self._charge(worker, cause)
        if not worker.live:
            failures = run.survived if worker.worker_id in run.survived else run.failures
            if known := failures.get(worker.worker_id):  # now its last words are known
                failures[worker.worker_id] = worker.failure(cause if worker.ending else known.cause, event)
            elif earlier := earlier_failure(tuple(run.failures.values()), worker.name, event):
                run.failures[worker.worker_id] = earlier
        elif event.code == 0 and (worker.state is WorkerState.FINISHED or self._has_run(worker)):
            run.staffing.slot_of(worker).completed = True
            if run.round and run.round.finished:
                run.round.members.discard(worker.worker_id)
        else:
            self.lose(worker, cause, event, own=not self.dragged(worker))

    def _charge(self, worker: Worker, cause: Cause) -> None:
        """Count its end against its slot and its host."""
        quarantine = self._run.staffing.quarantine
        if cause.kind is CauseKind.ENDED:
            worker.unexplained = True
        elif killed_from_outside(cause):
            quarantine.worker_killed(worker, self._run.now)
        else:
            quarantine.worker_failed(worker, self._run.now)

    def _has_run(self, worker: Worker) -> bool:
        """Whether a member may end while others continue: in restart mode the script need not return together."""
        current = self._run.round
        if self._run.settings.mode.members_survive or current is None or worker.worker_id not in current.members:
            return False
        current.members.discard(worker.worker_id)
        current.done.pop(worker.worker_id, None)
        current.completed.add(worker.worker_id)
        current.blocked.waits_from = self._run.now
        return True

    def abort(self, current: Round, cause: Cause) -> None:
        """Break the round, once."""
        run = self._run
        if current.abort_cause is not None or current.finished:
            return
        cause = run.sizes.end_of(current, cause, run.now)
        current.abort_cause = cause
        current.rejoin_deadline = run.now + run.settings.rejoin_timeout
        run.idle_since = run.now
        if current.members:
            run.actions.append(Abort(current.order(current.members), current.plan.round_id, cause))
        if current.interrupt is None or cause is not current.interrupt.cause:  # which has been counted
            run.budgets.spend(run.now, cause)
        if not run.settings.mode.members_survive:
            self._stop_members(current)

    def _stop_members(self, current: Round) -> None:
        """End the processes of a round that none of them survives; the next one waits until they have ended."""
        run = self._run
        settings = run.settings
        current.long_lived = run.now >= current.newcomers_start_at + settings.failure_window
        current.rejoin_deadline = run.now + settings.leave_grace + settings.rejoin_timeout
        for worker_id in current.order(current.members):
            worker = run.roster.workers[worker_id]
            run.roster.move(worker, WorkerState.STOPPING)
            # One that is silent may be stopped: it would sleep through the grace.
            grace = 0.0 if worker_id in run.suspects else settings.leave_grace
            run.actions.append(StopWorker(worker_id, worker.host, grace))
        current.expired |= current.lost | current.members
        current.members.clear()
        current.done.clear()
        run.roster.reopen_slots()

    def _is_of_resize(self, worker: Worker, cause: Cause) -> bool:
        """Whether it fails of its round's size, and not of its slot or host."""
        current = self._run.round
        is_member = current is not None and worker.worker_id in current.members
        return is_member and self._run.sizes.is_to_blame(current, cause, self._run.now)

    def dragged(self, worker: Worker) -> bool:
        """Whether the worker's end follows from what its round has met, and is no fault of its slot."""
        run = self._run
        return run.round is not None and run.round.hits(worker.worker_id)
