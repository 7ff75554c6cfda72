"""What has happened in a run, numbered: for those who watch, and for the event log. It decides nothing.

Each step of the core becomes some events (status.proto); what they say of a host, a worker or a round is how that is
afterwards, so that all of them together describe the run. The latest are remembered, up to a limit in bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from edriver.common.wire import round_id_message
from edriver.driver.core import actions, events
from edriver.driver.core.cause import Cause, RoundEnd
from edriver.driver.core.membership import Membership
from edriver.driver.observe.cause_message import cause_message
from edriver.driver.observe.cause_text import Line, cause_text, doing_text, obstacles_text
from edriver.driver.observe.progress import Pace
from edriver.driver.observe.progress_history import ProgressHistory
from edriver.driver.observe.recovery_phases import recovery_phases
from edriver.driver.observe.snapshots import host_status, worker_status
from edriver.v1 import agent_pb2, notification_pb2, status_pb2

REMEMBERED: Final = 32 * 1024 * 1024
"""Bytes of events that are remembered."""

ROUNDS_REMEMBERED: Final = 1000
"""Rounds that are remembered."""


_KINDS: Final = {
    RoundEnd.FAILURE: status_pb2.ROUND_CAUSE_FAILURE,
    RoundEnd.STRANGER: status_pb2.ROUND_CAUSE_UNPROVEN,
    RoundEnd.PREEMPTION: status_pb2.ROUND_CAUSE_PREEMPTION,
    RoundEnd.RESIZE: status_pb2.ROUND_CAUSE_RESIZE,
    RoundEnd.DONE: status_pb2.ROUND_CAUSE_START,
}
"""What kind of cause the end of a round is for the next one."""

_ENDS: Final = {
    actions.RunEnd.DONE: status_pb2.RUN_END_DONE,
    actions.RunEnd.STOPPED: status_pb2.RUN_END_STOPPED,
    actions.RunEnd.FAILED: status_pb2.RUN_END_FAILED,
}


class ForgottenError(LookupError):
    """What is asked for is not remembered, or has not happened yet; the message is one sentence for the caller."""


class Chronicle:
    """A run's events.

    Args:
        membership: the core.
        pace: is told which rounds there are.
        clock: seconds since the epoch.
        limit: bytes of events that are remembered.

    Attributes:
        last_seq: the number of the last event; 0: there was none.
        rounds: the latest rounds, oldest first,
        round_count: and how many there were in all.
        began: when the run began.
        over: whether the run has ended.
        workers: all workers there are, by worker_id, as they stand.
        pace: as given.
        progress: how far training was.
    """

    def __init__(self, membership: Membership, pace: Pace, clock: Callable[[], float], limit: int = REMEMBERED) -> None:
        self._membership = membership
        self.pace = pace
        self.progress = ProgressHistory(pace, clock)
        self._clock = clock
        self._limit = limit
        self._size = 0
        self._events: deque[tuple[status_pb2.Event, int]] = deque()
        self._slots: dict[str, int] = {}
        self._host_since: dict[str, float] = {}
        self.workers: dict[int, status_pb2.WorkerStatus] = {}
        self._said: list[Cause] = []  # in this step
        self._noticed: float | None = None
        self._cause = ("the run began", status_pb2.ROUND_CAUSE_START)
        self._before_ended: float | None = None
        self._members: dict[int, status_pb2.Member] = {}  # of the latest round
        self._times: dict[int, Mapping[str, float]] = {}
        self._unfinished: status_pb2.Round | None = None
        self.last_seq = 0
        self.rounds: deque[status_pb2.Round] = deque(maxlen=ROUNDS_REMEMBERED)
        self.round_count = 0
        self.began = clock()
        self.over = False

    # ---- for those who ask -----------------------------------------------------------------------------------

    def since(self, seq: int, limit: int) -> list[status_pb2.Event]:
        """At most so many of the events after this number.

        Raises:
            ForgottenError: there is no such number yet, or an event after it is forgotten.
        """
        first = self.last_seq - len(self._events) + 1
        if seq > self.last_seq:
            raise ForgottenError(f"there is no event {seq} yet: the last one is {self.last_seq}")
        if seq + 1 < first:
            raise ForgottenError(
                f"the events before {first} are forgotten: ask how the run stands (GetRun), and go on from there"
            )
        start = seq + 1 - first
        return [self._events[place][0] for place in range(start, min(start + limit, len(self._events)))]

    def known_since(self, host: str) -> float:
        """When the run first knew of a host, in seconds since the epoch; 0: it does not."""
        return self._host_since.get(host, 0.0)

    # ---- for the session -------------------------------------------------------------------------------------

    def heard(self, said: agent_pb2.WorkerStanding) -> None:
        """A worker has said how far it has come.

        Raises:
            ValueError: a count is beyond any that training reaches.
        """
        self.pace.heard(said)
        self.progress.heard(said)
        if told := self.workers.get(said.worker_id):
            self.pace.fill(told)

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
        self._said.clear()
        told = [*self._of_event(event, loss, now)]
        for action in step:
            told += self._of_action(action, now)
        for line in lines:
            if not any(line.cause.same_as(said) for said in self._said):
                message = cause_message(line.cause)
                told.append(status_pb2.Event(text=line.text, cause=message, remark=status_pb2.Remark()))
        for action in step:
            if isinstance(action, actions.FinishRun):
                told += self._of_end(action, now)
        for entry in told:
            self._write(entry, now)
        return told

    def _write(self, entry: status_pb2.Event, now: float) -> None:
        self.last_seq += 1
        entry.seq, entry.time = self.last_seq, now
        size = entry.ByteSize()
        self._events.append((entry, size))
        self._size += size
        while self._size > self._limit and len(self._events) > 1:
            self._size -= self._events.popleft()[1]

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
                self._notice(worker_id, seen)
                yield from self._worker(worker_id)
            case events.WorkerExited(worker_id, code, _, reaped):
                if code:
                    self._notice(worker_id, reaped)
                self.pace.gone(worker_id)
                yield from self._worker(worker_id, loss)
            case events.FirstBoundaryPassed():
                yield from self._under_way(event, now)
            case (
                events.WorkerWaiting(worker_id)
                | events.WorkerDone(worker_id)
                | events.WorkerFailed(worker_id)
                | events.LeaseExpired(worker_id)
                | events.WorkerHeard(worker_id)
                | events.ExitOverdue(worker_id)
                | events.WorkerStalled(worker_id)
            ):
                yield from self._worker(worker_id, loss)

    def _of_action(self, action: actions.Action, now: float) -> Iterator[status_pb2.Event]:
        match action:
            case actions.StartWorker(worker_id):
                self.workers[worker_id] = status_pb2.WorkerStatus(since=now)
                yield from self._worker(worker_id)
            case actions.AbandonAgent(host, _, cause):
                if host in self._slots:
                    yield self._host(host, now, cause)
            case actions.StopWorker(worker_id, _, 0.0):  # it was suspected, and is lost
                failure = self._membership.failures.get(worker_id)
                yield from self._worker(worker_id, failure.cause if failure else None)
            case actions.StopWorker(worker_id) | actions.Leave(worker_id):
                yield from self._worker(worker_id)
            case actions.Finish(workers, _, cause):
                yield from self._ended(cause, now)
                for worker_id in workers:
                    yield from self._worker(worker_id)
            case actions.Abort(_, round_id, cause):
                self._said.append(cause)
                for entry in self._ended(cause, now, Line(cause, round_id).text):
                    entry.cause.CopyFrom(cause_message(cause))
                    yield entry
            case actions.StopAt(cause=cause):
                yield from self._ended(cause, now)
            case actions.AssignRound(plan):
                latest = status_pb2.Round(
                    round_id=round_id_message(plan.round_id),
                    cause=self._cause[0],
                    kind=self._cause[1],
                    members=[
                        status_pb2.Member(worker_id=seat.worker_id, host=seat.host, slot=seat.slot)
                        for seat in plan.seats
                    ],
                    noticed=self._noticed,
                    before_ended=self._before_ended,
                    assigned=now,
                    steps_lost=self.pace.assigned(plan),
                )
                for seat in plan.seats:
                    told = self.workers[seat.worker_id]
                    told.state, told.rank = status_pb2.WORKER_STATE_TRAINING, seat.rank
                self._unfinished, self._noticed, self._times = latest, None, {}
                self._members = {member.worker_id: member for member in latest.members}
                self.rounds.append(latest)
                self.round_count += 1
                doing = self._membership.doing.cause
                if doing is not None:
                    self._said.append(doing)
                yield _told(latest, doing_text(doing))

    def _of_end(self, action: actions.FinishRun, now: float) -> Iterator[status_pb2.Event]:
        self.over = True
        yield from self._ended(action.cause, now)
        yield self._caused(status_pb2.Event(run_ended=status_pb2.RunEnded(end=_ENDS[action.end])), action.cause)

    def _hosts(self, now: float) -> Iterator[status_pb2.Event]:
        """Those whose slots have changed."""
        hosts = self._membership.roster.hosts
        for name in [*hosts, *(name for name in self._slots if name not in hosts)]:
            slots = hosts[name].slots if name in hosts else 0
            if self._slots.get(name) != slots:
                self._slots[name] = slots
                yield self._host(name, now)
                if not slots:
                    del self._slots[name], self._host_since[name]

    def _host(self, name: str, now: float, cause: Cause | None = None) -> status_pb2.Event:
        since = self._host_since.setdefault(name, now)
        membership = self._membership
        obstacle = obstacles_text(membership.staffing.obstacles_of(name, membership.now))
        told = host_status(name, membership.roster.hosts.get(name), obstacle, since)
        return self._caused(status_pb2.Event(host=told), cause)

    def _worker(self, worker_id: int, cause: Cause | None = None) -> Iterator[status_pb2.Event]:
        if worker_id not in self.workers:
            return
        worker = self._membership.roster.workers.get(worker_id)
        if worker is None:
            told = self.workers.pop(worker_id)
            told.state = status_pb2.WORKER_STATE_GONE
        else:
            told = self.workers[worker_id] = worker_status(worker, self.workers[worker_id].since)
            self.pace.fill(told)
        yield self._caused(status_pb2.Event(worker=told), cause)

    def _caused(self, entry: status_pb2.Event, cause: Cause | None) -> status_pb2.Event:
        """The event with its cause, if it has one."""
        if cause is not None:
            self._said.append(cause)
            entry.text = cause_text(cause)
            entry.cause.CopyFrom(cause_message(cause))
        return entry

    def _notice(self, worker_id: int, seen: float) -> None:
        """A process has ended. A peer may have noticed before, so that the round has ended already."""
        if self._noticed is None and worker_id in self._members:
            self._noticed = seen

    def _ended(self, cause: Cause, now: float, text: str = "") -> Iterator[status_pb2.Event]:
        """The round has ended; `text` tells of it if it was aborted."""
        kind = _KINDS[cause.round_end]
        self._cause, self._before_ended = (cause_text(cause), kind), now
        if self.rounds and not self.rounds[-1].HasField("ended"):
            self.rounds[-1].ended = now
            if text:
                self.rounds[-1].aborted_for = kind
            self._unfinished = None
            yield _told(self.rounds[-1], text)

    def _under_way(self, event: events.FirstBoundaryPassed, now: float) -> Iterator[status_pb2.Event]:
        latest, member = self._unfinished, self._members.get(event.worker_id)
        if latest is None or member is None or round_id_message(event.round_id) != latest.round_id:
            return
        self._times[event.worker_id] = event.times
        member.times.CopyFrom(notification_pb2.RoundTimes(**event.times))  # type: ignore[arg-type]
        if len(self._times) < len(self._members):
            return
        self._unfinished = None
        noticed = latest.noticed if latest.HasField("noticed") else None
        before = latest.before_ended if latest.HasField("before_ended") else None
        latest.under_way = now
        latest.phases.CopyFrom(
            status_pb2.RecoveryPhases(**recovery_phases(noticed, before, latest.assigned, self._times.values()))
        )
        yield _told(latest)


def _told(latest: status_pb2.Round, text: str = "") -> status_pb2.Event:
    """An event of a round."""
    told = status_pb2.Event(text=text)
    told.round.CopyFrom(latest)
    if latest.HasField("ended") and latest.HasField("under_way"):
        told.round.ClearField("members")  # of thousands they are long, and have been told
    return told
