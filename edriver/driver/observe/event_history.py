"""What has happened in a run, numbered: for those who watch, and for the event log. It decides nothing.

Each step of the core becomes some events (status.proto); what they say of a host, a worker or a round is how that is
afterwards, so that all of them together describe the run. The latest are remembered, up to a limit in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from edriver.common.wire import timestamp
from edriver.driver.core import actions, events
from edriver.driver.core.cause import Cause, CauseKind, Count
from edriver.driver.core.host_state import host_standing
from edriver.driver.core.membership import Membership
from edriver.driver.observe.cause_message import cause_message
from edriver.driver.observe.cause_text import Line, cause_text, doing_text
from edriver.driver.observe.event_buffer import REMEMBERED, EventBuffer
from edriver.driver.observe.progress import ProgressTracker
from edriver.driver.observe.progress_history import ProgressHistory
from edriver.driver.observe.snapshots import host_status, run_ended, worker_status
from edriver.driver.observe.time_ledger import TimeLedger
from edriver.driver.observe.timeline import Timeline
from edriver.v1 import agent_pb2, status_pb2

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
        workers: all workers there are, by worker_id, as they stand.
        tracker: as given.
        progress: how far training was.
    """

    def __init__(
        self, membership: Membership, tracker: ProgressTracker, clock: Callable[[], float], limit: int = REMEMBERED
    ) -> None:
        self._membership = membership
        self.tracker = tracker
        self.progress = ProgressHistory(tracker, clock)
        self._clock = clock
        self._events = EventBuffer(limit)
        self._slots: dict[str, int] = {}
        self._host_since: dict[str, float] = {}
        self.workers: dict[int, status_pb2.WorkerStatus] = {}
        self._announced: list[Cause] = []  # in this step
        self.began = clock()
        self._timeline = Timeline(self.began, counts_steps=membership.settings.mode.members_survive)
        self.over = False

    @property
    def last_seq(self) -> int:
        """The number of the last event; 0: there was none."""
        return self._events.last_seq

    @property
    def rounds(self) -> Sequence[status_pb2.Round]:
        """The latest rounds, oldest first."""
        return self._timeline.rounds.latest

    @property
    def round_count(self) -> int:
        """How many rounds there were in all."""
        return self._timeline.rounds.count

    @property
    def ledger(self) -> TimeLedger:
        """Where the time has gone."""
        return self._timeline.ledger

    # ---- for those who ask -----------------------------------------------------------------------------------

    def since(self, seq: int, limit: int) -> list[status_pb2.Event]:
        """At most so many of the events after this number.

        Raises:
            ForgottenError: there is no such number yet, or an event after it is forgotten.
        """
        return self._events.since(seq, limit)

    def now(self) -> float:
        """The time, in seconds since the epoch."""
        return self._clock()

    def discovered(self, host: str) -> float:
        """When discovery first named a host, in seconds since the epoch; 0: it does not."""
        return self._host_since.get(host, 0.0)

    # ---- for the session -------------------------------------------------------------------------------------

    def record_progress(self, report: agent_pb2.WorkerHeartbeat) -> list[status_pb2.Event]:
        """Record a worker's progress; returns the new events.

        Raises:
            ValueError: a count is beyond any that training reaches.
        """
        self.tracker.record_progress(report)
        self.progress.record_progress(report)
        if status := self.workers.get(report.worker_id):
            self.tracker.fill(status)
        now = self._clock()
        return self._added(self._timeline.record_progress(report.progress, now), now)

    def progress_now(self) -> status_pb2.Progress | None:
        """How far training is, and where the time has gone; None before the first word of a member."""
        progress = self.tracker.progress()
        if progress is not None:
            progress.time_spent.CopyFrom(self.ledger.time_spent(self._clock()))
        return progress

    def take(
        self, event: events.Event, step: Sequence[actions.Action], loss: Cause | None, lines: Iterable[Line]
    ) -> list[status_pb2.Event]:
        """Write down what a step of the core has brought; returns the new events.

        Args:
            event: what happened.
            step: what was ordered then.
            loss: what is announced of the event itself; None: nothing.
            lines: what is announced of all of it, in order.
        """
        now = self._clock()
        self._announced.clear()
        new_events = [*self._of_event(event, loss, now)]
        for action in step:
            new_events += self._of_action(action, now)
        current = self._membership.state.round
        abort_cause = current.abort_cause if current else None
        if abort_cause is not None and self._timeline.rounds.goes_on:  # its only member has died: none is to be told
            new_events += self._timeline.round_ended(abort_cause, now)
        for line in lines:
            if not any(line.cause.same_as(announced) for announced in self._announced):
                message = cause_message(line.cause)
                new_events.append(status_pb2.Event(text=line.text, cause=message, remark=status_pb2.Remark()))
        for action in step:
            if isinstance(action, actions.FinishRun):
                new_events += self._of_end(action, now)
        doing = self._membership.state.doing.cause
        self.ledger.waits(doing is not None and doing.kind in _WAITS, now)
        return self._added(new_events, now)

    def _added(self, new_events: Iterable[status_pb2.Event], now: float) -> list[status_pb2.Event]:
        """The events, with their numbers."""
        found = list(new_events)
        for entry in found:
            self._events.add(entry, now)
        return found

    def _of_event(self, event: events.Event, loss: Cause | None, now: float) -> Iterator[status_pb2.Event]:
        match event:
            case events.HostsObserved():
                yield from self._hosts(now)
            case (
                events.AgentConnected(host)
                | events.AgentLost(host)
                | events.AgentSilent(host)
                | events.DrainRequested(host)
                | events.UndrainRequested(host)
            ):
                if host in self._slots:
                    yield self._host(host, now, loss)
            case events.WorkerEnding(worker_id, seen):
                self._timeline.process_ended(worker_id, seen)
                yield from self._worker(worker_id)
            case events.WorkerExited(worker_id, code, _, reaped):
                if code:
                    self._timeline.process_ended(worker_id, reaped)
                self.tracker.gone(worker_id)
                yield from self._worker(worker_id, loss)
            case events.FirstBoundaryPassed():
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
                if host in self._slots:
                    yield self._host(host, now, cause)
            case actions.StopAgent(host):  # its last worker has left
                if host in self._slots:
                    yield self._host(host, now)
            case actions.StopWorker(worker_id, _, 0.0):  # it was suspected, and is lost
                failure = self._membership.state.failures.get(worker_id)
                yield from self._worker(worker_id, failure.cause if failure else None)
            case actions.StopWorker(worker_id) | actions.Leave(worker_id):
                yield from self._worker(worker_id)
            case actions.Finish(workers, _, cause):
                yield from self._timeline.round_ended(cause, now)
                for worker_id in workers:
                    yield from self._worker(worker_id)
            case actions.Abort(_, round_id, cause):
                self._announced.append(cause)
                for entry in self._timeline.round_ended(cause, now, Line(cause, round_id).text):
                    if entry.HasField("round"):
                        entry.cause.CopyFrom(cause_message(cause))
                    yield entry
            case actions.StopAt(cause=cause):
                yield from self._timeline.round_ended(cause, now)
            case actions.AssignRound(plan):
                doing = self._membership.state.doing.cause
                if doing is not None:
                    self._announced.append(doing)
                lost = self.tracker.assigned(plan)
                yield from self._timeline.assigned(plan, lost, doing_text(doing), now)
                for seat in plan.seats:
                    status = self.workers[seat.worker_id]
                    status.state, status.rank = status_pb2.WORKER_STATE_TRAINING, seat.rank

    def _of_end(self, action: actions.FinishRun, now: float) -> Iterator[status_pb2.Event]:
        self.over = True
        yield from self._timeline.run_ended(action.cause, now)
        ended = run_ended(action, self._membership.state.budgets, self._timeline, now)
        if (progress := self.progress_now()) is not None:
            ended.progress.CopyFrom(progress)
        yield self._caused(status_pb2.Event(run_ended=ended), action.cause)

    def _hosts(self, now: float) -> Iterator[status_pb2.Event]:
        """Those whose slots have changed."""
        hosts = self._membership.roster.hosts
        for name in [*hosts, *(name for name in self._slots if name not in hosts)]:
            slots = hosts[name].slots if name in hosts else 0
            if (before := self._slots.get(name, 0)) != slots:
                self._slots[name] = slots
                kind = CauseKind.HOST_RESIZED if before else CauseKind.HOST_ADDED
                removed = Cause(CauseKind.HOST_REMOVED, host=name)
                yield self._host(name, now, Cause(kind, host=name, detail=Count(slots)) if slots else removed)

    def _host(self, name: str, now: float, cause: Cause | None = None) -> status_pb2.Event:
        state, record = self._membership.state, self._membership.roster.hosts.get(name)
        since = self._host_since.setdefault(name, now)
        status = host_status(name, record, host_standing(state, name), since, now - state.now)
        if record is None:
            self._slots.pop(name, None)
            del self._host_since[name]
        return self._caused(status_pb2.Event(host=status), cause)

    def _worker(self, worker_id: int, cause: Cause | None = None) -> Iterator[status_pb2.Event]:
        if worker_id not in self.workers:
            return
        worker = self._membership.roster.workers.get(worker_id)
        if worker is None:
            status = self.workers.pop(worker_id)
            status.state = status_pb2.WORKER_STATE_GONE
        else:
            status = self.workers[worker_id] = worker_status(worker, self.workers[worker_id].start_time)
            self.tracker.fill(status)
        yield self._caused(status_pb2.Event(worker=status), cause)

    def _caused(self, entry: status_pb2.Event, cause: Cause | None) -> status_pb2.Event:
        """The event with its cause, if it has one."""
        if cause is not None:
            self._announced.append(cause)
            entry.text = cause_text(cause)
            entry.cause.CopyFrom(cause_message(cause))
        return entry
