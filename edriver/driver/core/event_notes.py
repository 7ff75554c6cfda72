"""Events are noted here: records only, no decisions that look beyond the event. Part of the core."""

from __future__ import annotations

from edriver.driver.core import events
from edriver.driver.core.actions import RunEnd
from edriver.driver.core.cause import Cause, CauseKind, ReportedText
from edriver.driver.core.failures.consistency import UnprovenConnectionWatch
from edriver.driver.core.failures.script_error import script_error
from edriver.driver.core.failures.worker_losses import WorkerLosses
from edriver.driver.core.losses import loss_of
from edriver.driver.core.roster import Offer, WorkerState
from edriver.driver.core.run_state import RunState


class EventNotes:
    """Notes what has happened.

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
                        run.roster.workers[event.worker_id].state = WorkerState.DONE
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
            case events.WorkerFailed(worker_id, traceback):
                if (worker := run.roster.workers.get(worker_id)) and worker.live:
                    worker.traceback = traceback
                    error = script_error(traceback)
                    if run.round and worker_id in run.round.members:
                        run.round.errors[worker_id] = error
                    self._losses.lose(worker, Cause(CauseKind.RAISED, worker.name, detail=error))
                    worker.stop_at = run.now + run.settings.leave_grace  # it has last words to print
            case events.WorkerQuiet() | events.LeaseExpired() | events.WorkerStalled() | events.WorkerStuck():
                run.suspects.note(event, run.round, run.now)
            case events.ExitOverdue(worker_id):
                if (worker := run.roster.workers.get(worker_id)) and worker.live:
                    self._losses.expire(worker, loss_of(event, worker.name))
            case events.WorkerEnding(worker_id):
                if run.round:
                    run.round.expired.discard(worker_id)
                if worker := run.roster.workers.get(worker_id):
                    worker.trainer_ended(run.now + run.settings.leave_grace)
                    if worker.in_run:
                        worker.ending = True
                        self._losses.lose(
                            worker,
                            loss_of(event, worker.name),
                            own=not self._losses.dragged(worker),
                        )
            case events.WorkerExited(worker_id):
                if worker := run.roster.workers.get(worker_id):
                    self._losses.exited(worker, event)
                    del run.roster.workers[worker_id]
            case events.DrainRequested() | events.UndrainRequested() | events.ResizeRequested():
                run.staffing.steer(event)
            case events.StopRequested(reason):
                run.finish(RunEnd.STOPPED, Cause(CauseKind.STOPPED, detail=ReportedText(reason)))
            case events.SourceUnusable(reason):
                run.finish(RunEnd.FAILED, Cause(CauseKind.SOURCE_UNUSABLE, detail=ReportedText(reason)))

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
        worker.state = WorkerState.WAITING
        worker.waiting_since = run.now
        worker.offer = Offer(event.ordinal, event.version, event.store, event.digest, event.steps_lost, event.torn)
        if event.ordinal == run.ordinal:
            run.best = max(run.best, event.version)
