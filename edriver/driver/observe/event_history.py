"""The numbered events of a run, for observers and the event log. It decides nothing.

Each step of the core becomes some events (status.proto); what they say of a host, a worker or a round is how that is
afterwards, so that all of them together describe the run. The latest are remembered, up to a limit in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

from edriver.driver.core.membership import Membership
from edriver.driver.observe.cause_text import Line, cause_text, doing_text
from edriver.driver.observe.event_buffer import MAX_KEPT_BYTES, EventBuffer
from edriver.driver.observe.hosts.host_history import HostHistory
from edriver.driver.observe.newest_checkpoints import NewestCheckpoints
from edriver.driver.observe.pace.members import PaceMonitor
from edriver.driver.observe.progress import ProgressHistory, ProgressTracker
from edriver.driver.observe.script_warnings import ScriptWarnings
from edriver.driver.observe.snapshots import run_ended, worker_status
from edriver.driver.observe.time_ledger import TimeLedger
from edriver.driver.observe.timeline import Timeline
from edriver.driver.observe.warnings import Warnings
from edriver.model import actions, events
from edriver.model.cause import Cause, CauseKind, NoBoundary
from edriver.model.plan import RoundPlan
from edriver.runview.run_view import RunView
from edriver.v1 import agent_pb2, status_pb2
from edriver.wire.causes import cause_message
from edriver.wire.conversion import epoch_seconds, timestamp

_WAITS: Final = (
    CauseKind.WORKERS_AWAITED,
    CauseKind.HOLDER_AWAITED,
    CauseKind.PAUSE_AWAITED,
    CauseKind.RUN_CALL_AWAITED,
)
"""What a run does while it lacks hosts or workers for a round."""


class EventHistory:
    """A run's events, numbered.

    Args:
        membership: the core.
        tracker: receives each round's plan.
        clock: seconds since the epoch.
        limit: bytes of events that are remembered.

    Attributes:
        began: when the run began.
        over: whether the run has ended.
        workers: the status of all current workers, by worker_id; without what they have reported since it was made.
        tracker: as given.
        progress: how far training was.
        pace: who holds it up.
        events: the latest events.
        warnings: what has impaired the run although training continued.
        script_warnings: what looks like a mistake of the script.
        view: how the run stands after its events.
        checkpoints: the newest ones in memory.
    """

    def __init__(
        self, membership: Membership, tracker: ProgressTracker, clock: Callable[[], float], limit: int = MAX_KEPT_BYTES
    ) -> None:
        self._membership = membership
        self.tracker = tracker
        self.progress = ProgressHistory(tracker, clock)
        self._clock = clock
        self.events = EventBuffer(limit)
        self._hosts = HostHistory(membership)
        self.workers: dict[int, status_pb2.WorkerStatus] = {}
        self._unfilled: set[int] = set()  # workers that have reported since their status was filled
        self._announced: list[Cause] = []  # in this step
        self.began = clock()
        self.pace = PaceMonitor(clock)
        self._timeline = Timeline(self.began, membership.settings.mode.members_survive, self.pace)
        self.warnings = Warnings()
        self.script_warnings = ScriptWarnings(tracker.step_after)
        self.view = RunView()
        self.checkpoints = NewestCheckpoints()
        self.over = False

    def derive(self) -> None:
        """After a snapshot: the latest round is the core's."""
        current = self._membership.round
        plan = None if current is None else current.plan
        self.tracker.restore_plan(plan)
        self.pace.restore_members(plan)

    @property
    def last_seq(self) -> int:
        """The number of the last event; 0 before the first."""
        return self.events.last_seq

    @property
    def rounds(self) -> Sequence[status_pb2.Round]:
        """The latest rounds, oldest first."""
        return self._timeline.rounds.latest

    @property
    def ledger(self) -> TimeLedger:
        """How the run has spent its time."""
        return self._timeline.ledger

    # ---- for observers ---------------------------------------------------------------------------------------

    def since(self, seq: int, limit: int) -> list[status_pb2.Event]:
        """At most `limit` events after this number.

        Raises:
            ForgottenError: the number does not exist yet, or an event after it is forgotten.
        """
        return self.events.since(seq, limit)

    def now(self) -> float:
        """The time, in seconds since the epoch."""
        return self._clock()

    def lasted(self) -> float | None:
        """Seconds that the run took, from its beginning to its last event; None: it goes on."""
        ended = self.view.ended
        return None if ended is None else max(0.0, epoch_seconds(ended.time) - self.began)

    def discovered(self, host: str) -> float:
        """When discovery first named a host, in seconds since the epoch; 0: it does not."""
        return self._hosts.discovered(host)

    def current_workers(self) -> Collection[status_pb2.WorkerStatus]:
        """The status of all current workers, with what they have reported."""
        for worker_id in self._unfilled:
            self._fill(self.workers[worker_id])
        self._unfilled.clear()
        return self.workers.values()

    # ---- for the session -------------------------------------------------------------------------------------

    def record_progress(self, report: agent_pb2.WorkerHeartbeat) -> list[status_pb2.Event]:
        """Record a worker's progress; returns the new events.

        Raises:
            ValueError: a count is beyond any that training reaches.
        """
        self.pace.record(report)
        if not report.HasField("progress"):  # its process is stopped
            return self.check_pace()
        self.tracker.record_progress(report)
        self.progress.record_progress(report)
        if report.worker_id in self.workers:
            self._unfilled.add(report.worker_id)  # it reports more often than anyone asks
        now = self._clock()
        return self._added(self._timeline.record_progress(report.progress, now), now)

    def check_pace(self) -> list[status_pb2.Event]:
        """Look for what holds training up; returns the new events. To be called several times a second."""
        return self._added(self.pace.check(), self._clock())

    def progress_now(self) -> status_pb2.Progress | None:
        """The training progress, with how the run has spent its time; None before the first report of a member."""
        progress = self.tracker.progress()
        if progress is not None:
            progress.time_spent.CopyFrom(self.ledger.time_spent(self._clock()))
        return progress

    def take(
        self, event: events.Event, step: Sequence[actions.Action], loss: Cause | None, lines: Iterable[Line]
    ) -> list[status_pb2.Event]:
        """Record a step of the core; returns the new events.

        Args:
            event: the core's event.
            step: the resulting step.
            loss: the announcement of the event itself, or None.
            lines: all announcements of the step, in order.
        """
        now = self._clock()
        self._announced.clear()
        self.checkpoints.note(self._membership.memory, now)
        new_events = [*self._of_event(event, loss, now)]
        for action in step:
            new_events += self._of_action(action, now)
        current = self._membership.round
        abort_cause = current.abort_cause if current else None
        if abort_cause is not None and not self._timeline.rounds.aborted:  # by no order: no member is left
            new_events += self._timeline.round_ended(abort_cause, now, "")
        for line in lines:
            if not any(line.cause.same_as(announced) for announced in self._announced):
                message = cause_message(line.cause)
                new_events.append(status_pb2.Event(text=line.text, cause=message, remark=status_pb2.Remark()))
        doing = self._membership.activity
        self.ledger.waits(doing is not None and doing.kind in _WAITS, now)
        return self._added(new_events, now)

    def end(self, finish: actions.FinishRun) -> list[status_pb2.Event]:
        """The run has ended, and its workers' last reports have arrived; returns the last events."""
        now = self._clock()
        self.over = True
        new_events = self._added(self._timeline.run_ended(finish.cause, now), now)
        ended = run_ended(finish, self.view, self.ledger.time_spent(now))
        if (progress := self.progress_now()) is not None:
            ended.progress.CopyFrom(progress)
        ended.checkpoints.extend(self.checkpoints.messages())
        return [*new_events, *self._added([self._caused(status_pb2.Event(run_ended=ended), finish.cause)], now)]

    def _added(self, new_events: Iterable[status_pb2.Event], now: float) -> list[status_pb2.Event]:
        """The events, with their numbers, once they are in the view."""
        found = list(new_events)
        for entry in found:
            self.events.add(entry, now)
            self.view.fold(entry)
        return found

    def _of_event(self, event: events.Event, loss: Cause | None, now: float) -> Iterator[status_pb2.Event]:
        match event:
            case events.HostsObserved():
                for status, cause in self._hosts.observed(now):
                    yield self._caused(status_pb2.Event(host=status), cause)
            case (
                events.AgentConnected(host)
                | events.AgentLost(host)
                | events.AgentSilent(host)
                | events.DrainRequested(host)
                | events.UndrainRequested(host)
            ):
                yield from self._host(host, now, loss)
            case events.WorkerEnding(worker_id, seen):
                self._timeline.process_ended(worker_id, seen)
                yield from self._worker(worker_id)
            case events.WorkerExited(worker_id, code, _, reaped):
                if code:
                    self._timeline.process_ended(worker_id, reaped)
                if loss is not None:
                    self._timeline.explain(loss)
                self.tracker.gone(worker_id)
                yield from self._worker(worker_id, loss)
            case events.ScriptWarned(warning=NoBoundary()):
                self.tracker.without_boundary = True
            case events.FirstBoundaryPassed():
                if self.tracker.without_boundary:
                    self.tracker.without_boundary = False
                    self.warnings.withdraw(CauseKind.NO_BOUNDARY)
                yield from self._timeline.first_step(event, now)
            case (
                events.WorkerWaiting(worker_id)
                | events.WorkerDone(worker_id)
                | events.WorkerFailed(worker_id)
                | events.LeaseExpired(worker_id)
                | events.WorkerAnswered(worker_id)
                | events.ExitOverdue(worker_id)
                | events.WorkerStalled(worker_id)
            ):
                yield from self._worker(worker_id, loss)

    def _of_action(self, action: actions.Action, now: float) -> Iterator[status_pb2.Event]:
        match action:
            case actions.StartWorker(worker_id):
                self.workers[worker_id] = status_pb2.WorkerStatus(start_time=timestamp(now))
                yield from self._worker(worker_id)
            case actions.AbandonAgent(host, _, cause):
                yield from self._host(host, now, cause)
            case actions.StopAgent(host):  # its last worker has left
                yield from self._host(host, now)
            case actions.StopWorker(worker_id, _, 0.0):  # it was suspected, and is lost
                failure = self._membership.failures.latest.get(worker_id)
                yield from self._worker(worker_id, failure.cause if failure else None)
            case actions.StopWorker(worker_id) | actions.Leave(worker_id):
                yield from self._worker(worker_id)
            case actions.Finish(workers, _, cause):
                yield from self._timeline.round_ended(cause, now)
                for worker_id in workers:
                    yield from self._worker(worker_id)
            case actions.Abort(_, round_id, cause):
                for entry in self._timeline.round_ended(cause, now, Line(cause, round_id).text):
                    if entry.HasField("round"):
                        self._announced.append(cause)
                    yield entry
            case actions.StopAt(cause=cause):
                yield from self._timeline.round_ended(cause, now)
            case RoundPlan() as plan:
                doing = self._membership.activity
                if doing is not None:
                    self._announced.append(doing)
                lost = self.tracker.assigned(plan)
                yield from self._timeline.assigned(plan, lost, doing_text(doing), now)
                for seat in plan.seats:
                    status = self.workers[seat.worker_id]
                    status.state, status.rank = status_pb2.WORKER_STATE_TRAINING, seat.rank

    def _host(self, name: str, now: float, cause: Cause | None = None) -> Iterator[status_pb2.Event]:
        if name in self._hosts:
            yield self._caused(status_pb2.Event(host=self._hosts.status(name, now)), cause)

    def _worker(self, worker_id: int, cause: Cause | None = None) -> Iterator[status_pb2.Event]:
        if worker_id not in self.workers:
            return
        worker = self._membership.roster.workers.get(worker_id)
        if worker is None:
            status = self.workers.pop(worker_id)
            if worker_id in self._unfilled:
                self._fill(status)
            status.state = status_pb2.WORKER_STATE_GONE
        else:
            status = self.workers[worker_id] = worker_status(worker, self.workers[worker_id].start_time)
            self._fill(status)
        self._unfilled.discard(worker_id)
        if status.state != status_pb2.WORKER_STATE_TRAINING:
            self.pace.left(worker_id)
        yield self._caused(status_pb2.Event(worker=status), cause)

    def _fill(self, status: status_pb2.WorkerStatus) -> None:
        self.tracker.fill(status)
        self.pace.fill(status)

    def _caused(self, entry: status_pb2.Event, cause: Cause | None) -> status_pb2.Event:
        """The event with its cause, if it has one."""
        if cause is not None:
            self._announced.append(cause)
            entry.text = cause_text(cause)
            entry.cause.CopyFrom(cause_message(cause))
        return entry
