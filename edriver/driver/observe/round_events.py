"""Makes the events of rounds: when each was assigned, under way and over, and why."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from edriver.driver.observe.cause_text import cause_with_text
from edriver.driver.observe.open_interruption import Opening
from edriver.driver.observe.recovery_phases import recovery_phases
from edriver.model import events
from edriver.model.cause import Cause, CauseKind, RoundEnd, explained
from edriver.model.plan import RoundPlan
from edriver.v1 import cause_pb2, status_pb2
from edriver.wire.causes import cause_message
from edriver.wire.conversion import duration, epoch_seconds, round_id_message, round_times_message, timestamp

ROUNDS_REMEMBERED: Final = 1000
"""Rounds that are remembered."""

_KINDS: Final = {
    RoundEnd.FAILURE: status_pb2.ROUND_KIND_FAILURE,
    RoundEnd.UNPROVEN: status_pb2.ROUND_KIND_UNPROVEN,
    RoundEnd.PREEMPTION: status_pb2.ROUND_KIND_PREEMPTION,
    RoundEnd.RESIZE: status_pb2.ROUND_KIND_RESIZE,
    RoundEnd.DONE: status_pb2.ROUND_KIND_START,
}
"""What kind of cause the end of a round is for the next one."""


SNAPSHOT_MEMBERS: Final = 10_000
"""Members, over all rounds, from which on a snapshot has no further round: each has them all, and its size is that of
the run, however many rounds there were. The records have the rest."""


class RoundEvents:
    """Follows the round that is on.

    Attributes:
        latest: the latest rounds, oldest first, as they were told.
        synced: when the last member of the latest round held the state, once that is under way.
    """

    STATE = ("for_snapshot", "synced", "_cause", "_detected", "_previous_end", "_times")

    def __init__(self) -> None:
        """No round has been assigned."""
        self.latest: deque[status_pb2.Round] = deque(maxlen=ROUNDS_REMEMBERED)
        self.synced = 0.0
        self._cause = Cause(CauseKind.RUN_BEGAN)
        self._detected: float | None = None
        self._previous_end: float | None = None
        self._members: dict[int, status_pb2.Member] = {}  # of the latest round
        self._times: dict[int, Mapping[str, float]] = {}
        self._unfinished: status_pb2.Round | None = None

    @property
    def for_snapshot(self) -> list[status_pb2.Round]:
        """The latest rounds that the next driver still knows, oldest first; at least one."""
        found: list[status_pb2.Round] = []
        members = 0
        for each in reversed(self.latest):
            members += len(each.members)
            if found and members > SNAPSHOT_MEMBERS:
                break
            found.append(each)
        return found[::-1]

    @for_snapshot.setter
    def for_snapshot(self, rounds: list[status_pb2.Round]) -> None:
        self.latest.clear()
        self.latest.extend(rounds)

    def derive(self) -> None:
        """After a snapshot: find what refers to the latest round."""
        latest = self.latest[-1] if self.latest else None
        self._members = {member.worker_id: member for member in latest.members} if latest else {}
        self._unfinished = latest if self.goes_on and latest and not latest.HasField("first_step_time") else None

    @property
    def goes_on(self) -> bool:
        """Whether the latest round has not ended."""
        return bool(self.latest) and not self.latest[-1].HasField("end_time")

    def process_ended(self, worker_id: int, when: float) -> None:
        """A process has ended. A peer may have noticed before, so that the round has ended already."""
        if self._detected is None and worker_id in self._members:
            self._detected = when

    @property
    def detected(self) -> float | None:
        """When the death that ended the latest round was noticed; None if no death ended it."""
        return self._detected

    def explain(self, end: Cause) -> None:
        """Why a worker's process has ended is known now."""
        self._cause = explained(self._cause, end)
        cause = self.latest[-1].cause if self.latest else None
        if cause is None or end.worker is None or cause.kind != cause_pb2.CAUSE_KIND_ENDED:
            return
        if cause.worker_id == end.worker.worker_id:
            cause.CopyFrom(cause_with_text(replace(end, preempted=cause.preempted)))

    def assigned(self, plan: RoundPlan, steps_lost: int, text: str, now: float) -> status_pb2.Event:
        """A round is assigned."""
        latest = status_pb2.Round(
            round_id=round_id_message(plan.round_id),
            cause=cause_with_text(self._cause),
            kind=_KINDS[self._cause.round_end],
            members=[
                status_pb2.Member(worker_id=seat.worker_id, host=seat.host, slot=seat.slot) for seat in plan.seats
            ],
            detect_time=_timestamp(self._noticed()),
            previous_end_time=_timestamp(self._previous_end),
            assign_time=timestamp(now),
            steps_lost=steps_lost,
        )
        self._unfinished, self._detected, self._times = latest, None, {}
        self._members = {member.worker_id: member for member in latest.members}
        self.latest.append(latest)
        return _event(latest, text)

    def _noticed(self) -> float | None:
        """When the death was noticed: a peer may have noticed it before, so that the round had ended by then."""
        if self._detected is None or self._previous_end is None:
            return self._detected
        return min(self._detected, self._previous_end)

    def first_step(
        self, event: events.FirstBoundaryPassed, opening: Opening | None, now: float
    ) -> Iterator[status_pb2.Event]:
        """A member has passed its first boundary; the round is under way when all have.

        Args:
            event: which one.
            opening: how the interruption began that the round ends; None: steps have been made in it.
            now: the time.
        """
        latest, member = self._unfinished, self._members.get(event.worker_id)
        if latest is None or member is None or round_id_message(event.round_id) != latest.round_id:
            return
        self._times[event.worker_id] = event.times
        member.times.CopyFrom(round_times_message(event.times))
        if len(self._times) < len(self._members):
            return
        self._unfinished = None
        assigned = epoch_seconds(latest.assign_time)
        latest.first_step_time.CopyFrom(timestamp(now))
        self.synced = max((times["synced"] for times in self._times.values() if "synced" in times), default=assigned)
        phases = recovery_phases(opening or Opening(assigned, None, None), assigned, self._times.values())
        self._times = {}
        latest.phases.CopyFrom(status_pb2.RecoveryPhases(**{name: duration(span) for name, span in phases.items()}))
        yield _event(latest)

    @property
    def aborted(self) -> bool:
        """Whether the latest round was aborted."""
        return bool(self.latest) and self.latest[-1].HasField("abort_kind")

    def ended(self, cause: Cause, now: float, abort: str | None = None) -> Iterator[status_pb2.Event]:
        """The round has ended; `abort` describes its abort, and None: it was not aborted.

        One that was ended gracefully may be aborted afterwards.
        """
        goes_on = self.goes_on
        self._close(cause, now)
        if not goes_on and (abort is None or not self.latest or self.aborted):
            return
        latest = self.latest[-1]
        if cause.round_end is not RoundEnd.DONE:
            latest.end_kind = _KINDS[cause.round_end]
        if abort is not None:
            latest.abort_kind = _KINDS[cause.round_end]
        entry = _event(latest, abort or "")
        if abort is not None:
            entry.cause.CopyFrom(cause_message(cause))
        yield entry

    def run_ended(self, cause: Cause, now: float) -> Iterator[status_pb2.Event]:
        """The run has ended, and with it the round that was on."""
        goes_on = self.goes_on
        self._close(cause, now)
        if goes_on:
            yield _event(self.latest[-1])

    def _close(self, cause: Cause, now: float) -> None:
        if self.goes_on:
            self.latest[-1].end_time.CopyFrom(timestamp(now))
            self._unfinished = None
        self._cause, self._previous_end = cause, now


def _timestamp(seconds: float | None) -> Timestamp | None:
    return None if seconds is None else timestamp(seconds)


def _event(latest: status_pb2.Round, text: str = "") -> status_pb2.Event:
    """An event of a round."""
    event = status_pb2.Event(text=text)
    event.round.CopyFrom(latest)
    if latest.HasField("end_time") and latest.HasField("first_step_time"):
        event.round.ClearField("members")  # of thousands they are long, and have been sent before
    return event
