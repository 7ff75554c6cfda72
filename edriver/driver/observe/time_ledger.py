"""How a run has spent its wall time, and every interruption. Pure. See `TimeSpent` in status.proto.

Goodput is the time of the steps that count over all wall time (the idea is that of Google Cloud's "ML Productivity
Goodput", 2024). It is worked out here alone: status, page, report, records and metrics show these numbers.

The steps are taken from their boundaries. What lies between two boundaries of a round is a step, unless it takes much
longer than usual: then it is a usual step and a stall (edriver/worker/rounds/step_times.py). What lies between the last
boundary of one round and the moment when the next one's workers hold the state is an interruption. All members of a
round pass the same boundaries, so one of them is enough: the farthest, and of several the one that was first to get
there. Another one may be stopped for seconds between a step and its boundary, when the run is already waiting for it.

A worker's training thread notes the time of each boundary, which costs a fraction of a microsecond; when the agent
asks, and with the first report after a round's end, the worker says when it passed the last one, how long its steps
took and which of them stalled.

In restart mode there are no boundaries, and what a failure has thrown away is not known: the time of rounds is of a
kind of its own there, `unknown`, there is no goodput, and no place has a number of steps.

Some things follow from late reports. What the ledger reports about an interruption is final once training continues;
until then, boundaries that were passed before it may still be reported. A counter for Prometheus must not fall, so
seconds appear there only when it is certain what they were: those of a step once all members have reported it, because
one may have stalled where another made a step; those of a stall once it is over; those between a round's assignment and
its first step once that is known. And the run's last event comes after its workers have ended: where there is time,
their agents ask them for their progress once more.
"""

from __future__ import annotations

from typing import Final

from edriver.driver.observe.open_interruption import KINDS, Opening, OpenInterruption
from edriver.driver.observe.round_time import RoundEnding, RoundTime
from edriver.model.cause import Cause, RoundEnd, explained
from edriver.model.ids import RoundId
from edriver.model.stall_limits import excess
from edriver.text.time_spent import TIME_KINDS
from edriver.v1 import notification_pb2, status_pb2
from edriver.wire.conversion import duration, epoch_seconds, round_id_message, round_id_of, span_seconds, timestamp

MAX_REPORT_AGE: Final = 5.0
"""Seconds after which it counts that no member reports anything. Reports come every one to four seconds."""


class TimeLedger:
    """Follows a run. All times are given, in seconds since the epoch.

    Args:
        began: when the run began.
        counts_steps: whether workers pass boundaries; otherwise, as in restart mode, a round's time is unknown, because
            a failure may discard all of it.

    Attributes:
        counts_steps: as given.
        last_step: when the last known boundary was passed, in seconds since the epoch; None before the first.
        over: whether the run has ended.
    """

    def __init__(self, began: float, counts_steps: bool = True) -> None:
        self.counts_steps = counts_steps
        self._until = began
        self._spent = {kind: 0.0 for kind in TIME_KINDS if kind != "unknown" or not counts_steps}
        self._round: RoundTime | None = None
        self._open: OpenInterruption | None = OpenInterruption(
            Opening(began, None, None), status_pb2.INTERRUPTION_KIND_BOOT
        )
        self._usual: float | None = None
        self.last_step: float | None = None
        self.over = False

    @property
    def opening(self) -> Opening | None:
        """How the current interruption began; None: steps are being made."""
        return None if self._open is None else self._open.opening

    # ---- what happens ----------------------------------------------------------------------------------------

    def assigned(self, round_id: RoundId, size: int, steps_lost: int, now: float) -> list[status_pb2.Interruption]:
        """A round is assigned; returns the interruptions that are over."""
        self.waits(False, now)
        found = []
        if self._round is not None and self._round.ending is None:  # it ended without a report
            found = self.round_ended(None, None, now)
        lost, again = _steps_lost(self._round, steps_lost)
        self._put_away()
        self._round = RoundTime(round_id, size, lost, again, now)
        return found if self.counts_steps else [*found, *self._under_way(now, None)]

    def record_progress(self, progress: notification_pb2.WorkerProgress, now: float) -> list[status_pb2.Interruption]:
        """A member of the round is so far; returns the interruptions that are over."""
        part = self._round
        if part is None or round_id_of(progress.round_id) != part.round_id or not self.counts_steps:
            return []
        if progress.boundaries < max(1, part.latest.boundaries):
            return []
        part.take_report(progress, now)
        if progress.HasField("usual_step"):
            self._usual = span_seconds(progress.usual_step)
        if part.start is None and part.ending is not None and self._open is not None:
            self._open.failed_rounds -= 1  # its only steps are reported now
            waits_since = self._open.waits_since
            found = self._begun_by_report(part, now)
            self._interrupt(part.ending, waits_since)
            return found
        return [] if part.start is None else self._advance(part, now)

    def under_way(self, synced: float, phases: status_pb2.RecoveryPhases, now: float) -> list[status_pb2.Interruption]:
        """All members of the round have passed its first boundary; returns the interruptions that are over.

        Args:
            synced: when the last of them held the state.
            phases: what the way to it consisted of.
            now: the time.
        """
        part = self._round
        if part is None or part.start is not None:
            return []
        return [*self._under_way(min(synced, now), phases), *self._advance(part, now)]

    def round_ended(self, cause: Cause | None, noticed: float | None, now: float) -> list[status_pb2.Interruption]:
        """End the round; returns the interruptions that are over.

        Args:
            cause: why; None: unknown, which counts as a failure.
            noticed: when the death that ended it was noticed; None if no death ended it.
            now: the time.
        """
        part, found = self._round, []
        if part is None:
            return []
        if part.ending is not None:  # it was to stop at a boundary, and then a member was lost, or all were done
            part.ending = part.ending._replace(cause=cause)
            if self._open is not None and part.start is not None:
                self._open.cause, self._open.kind = cause, _kind_of(cause)
            return []
        part.ending = RoundEnding(cause, noticed, now)
        if part.start is None and part.latest.boundaries:  # some members have made steps, and these may count
            found = self._begun_by_report(part, now)
        if self._open is None:
            self._spend_opaque(part, now)
            self._interrupt(part.ending)
        else:
            self._open.failed_rounds += 1
        return found

    def noticed(self, when: float) -> None:
        """A death was noticed; if it is that of a round that has ended by it, it was then."""
        unfinished = self._open
        if unfinished is not None and unfinished.opening.ended is not None and unfinished.opening.noticed is None:
            unfinished.opening = unfinished.opening._replace(noticed=min(when, unfinished.opening.ended))

    def explain(self, end: Cause) -> None:
        """Why a worker's process has ended is known now: the interruption may have begun by that."""
        if self._round is not None and self._round.ending is not None and self._round.ending.cause is not None:
            self._round.ending = self._round.ending._replace(cause=explained(self._round.ending.cause, end))
        if self._open is not None and self._open.cause is not None:
            self._open.cause = explained(self._open.cause, end)

    def waits(self, waiting: bool, now: float) -> None:
        """Whether the run waits for hosts or workers that a round needs."""
        if self._open is not None:
            self._open.waits(waiting, now)

    def run_ended(self, now: float) -> list[status_pb2.Interruption]:
        """The run has ended; returns the interruption that has ended with it."""
        self.waits(False, now)
        self.over = True
        part, found = self._round, []
        if part is not None and part.ending is None:
            self._spend_opaque(part, now)
        tried = part.steps_lost if part is not None and part.start is None else 0
        self._put_away()
        unfinished, self._open, self._round = self._open, None, None
        if unfinished is not None and unfinished.kind != status_pb2.INTERRUPTION_KIND_NEXT_RUN:
            found = [self._closed(unfinished, now, None)]
            found[0].steps_lost = tried  # before a round that was tried in it
        else:
            self._spent["ending"] += max(0.0, now - self._until)
            self._until = max(now, self._until)
        return found

    # ---- what came of it -------------------------------------------------------------------------------------

    def time_spent(self, now: float) -> status_pb2.TimeSpent:
        """How the run has spent its time, without that since the last boundary, unless a step is overdue."""
        spent, until, part = dict(self._spent), self._until, self._round
        if part is not None and part.start is not None:
            part.spend(spent)
        if self._open is not None:
            if self._open.kind == status_pb2.INTERRUPTION_KIND_NEXT_RUN:
                spent["ending"] += max(0.0, now - until)
            else:
                self._open.divide(spent, now, self._usual)
            until = max(now, until)
        elif part is not None and not self.counts_steps:
            spent["unknown"] += max(0.0, now - until)
            until = max(now, until)
        elif (stall := self._stall(now)) is not None:
            spent["stalled"] += stall[1]
            until += stall[1]  # the rest of it is the step that is still to come
        return _message(spent, until, begun=self.last_step is not None)

    def settled(self, now: float) -> status_pb2.TimeSpent:
        """The part of the time spent that no later report can change: its seconds only grow. Left out are a round's
        last seconds, a stall that continues, what lies between the last known boundary and the end of its round, and
        what follows the next round's assignment, which may turn out to be steps.
        """
        spent, part = dict(self._spent), self._round
        if part is not None and part.start is not None:
            part.spend_settled(spent, now)
        if self._open is not None and self._open.kind != status_pb2.INTERRUPTION_KIND_NEXT_RUN:
            awaits_steps = part is not None and part.start is None and part.ending is None and self.counts_steps
            self._open.divide_settled(spent, min(part.assigned, now) if part is not None and awaits_steps else now)
        elif part is not None and not self.counts_steps and part.start is not None:
            spent["unknown"] += max(0.0, now - self._until)
        return _message(spent, self._until, begun=False)

    def interruption(self, now: float) -> status_pb2.Interruption | None:
        """The current interruption; None: steps are being made, or the run has ended."""
        if self.over:
            return None
        if self._open is not None:
            return self._open.message()
        stall = self._stall(now)
        return None if stall is None or self._round is None else self._round.stall_since(stall[0])

    # ---- how -------------------------------------------------------------------------------------------------

    def _begun_by_report(self, part: RoundTime, now: float) -> list[status_pb2.Interruption]:
        """Steps were made in a round of which it is not known when all its members held the state."""
        spent = span_seconds(part.latest.training_duration) + span_seconds(part.latest.stalled_duration)
        found = self._under_way(min(now, epoch_seconds(part.latest.boundary_time) - spent), None)
        return [*found, *self._advance(part, now)]

    def _interrupt(self, ending: RoundEnding, waits_since: float | None = None) -> None:
        """An interruption begins with the last boundary of a round that has ended."""
        cause, noticed, ended = ending
        opening = Opening(self._until, None if noticed is None else min(noticed, ended), ended)
        self._open = OpenInterruption(opening, _kind_of(cause), cause, waits_since=waits_since)
        if self._round is not None:
            self._open.declared = span_seconds(self._round.latest.declared_duration)

    def _under_way(self, start: float, phases: status_pb2.RecoveryPhases | None) -> list[status_pb2.Interruption]:
        part, unfinished = self._round, self._open
        assert part is not None
        part.start = max(start, self._until)
        self._open = None
        return [] if unfinished is None else [self._closed(unfinished, part.start, phases)]

    def _closed(
        self, unfinished: OpenInterruption, end: float, phases: status_pb2.RecoveryPhases | None
    ) -> status_pb2.Interruption:
        """An interruption that is over now."""
        message = unfinished.message(end)
        if (part := self._round) is not None:
            message.round_id.CopyFrom(round_id_message(part.round_id))
            message.size, message.steps_lost = part.size, part.steps_lost
        if phases is not None:
            message.phases.CopyFrom(phases)
        unfinished.divide(self._spent, end, self._usual)
        self._until = max(self._until, end)
        return message

    def _advance(self, part: RoundTime, now: float) -> list[status_pb2.Interruption]:
        """Take in what the farthest member has reported of a round that is under way."""
        if not part.latest.boundaries:
            return []
        self._until = self.last_step = part.advance(self._until, now)
        if part.ending is not None and self._open is not None:
            self._open.opening = self._open.opening._replace(start=self._until)
            self._open.declared = span_seconds(part.latest.declared_duration)
        stall = part.new_stall()
        return [] if stall is None else [stall]

    def _spend_opaque(self, part: RoundTime, now: float) -> None:
        """Without steps, nothing is known of a round's time."""
        if not self.counts_steps and part.start is not None:
            part.unknown = max(0.0, now - part.start)
            self._until = max(now, self._until)

    def _put_away(self) -> None:
        """No further report of the round is expected."""
        if self._round is not None and self._round.start is not None:
            self._round.spend(self._spent)
            self._round.start = None

    def _stall(self, now: float) -> tuple[float, float] | None:
        """Since when the current round has made no step although one was due, and for how long that is known."""
        part = self._round
        if part is None or part.start is None or not self.counts_steps or self._usual is None:
            return None
        known = (
            part.reported_at if now - part.reported_at < MAX_REPORT_AGE else now
        )  # boundaries since then are not known of
        began = self._until + span_seconds(part.latest.declared_duration)
        seconds = excess(max(0.0, known - began), self._usual)
        return (began + self._usual, seconds) if seconds else None


def _steps_lost(before: RoundTime | None, steps_lost: int) -> tuple[int, int]:
    """The number of steps lost before a round, and the number of its steps that repeat lost ones.

    Args:
        before: the previous round.
        steps_lost: the number of steps that the previous round lost.
    """
    if before is None or _is_done(before.ending):
        return steps_lost, steps_lost
    missing = max(0, before.again - before.latest.boundaries)  # it had not made all of them again itself
    together = before.steps_lost if before.start is None else 0  # it was tried in the same interruption
    return steps_lost + together, steps_lost + missing


def _message(spent: dict[str, float], until: float, begun: bool) -> status_pb2.TimeSpent:
    """Seconds by kind, and the share of them that is training if that has begun."""
    message = status_pb2.TimeSpent(until=timestamp(until))
    for kind, seconds in spent.items():
        getattr(message, kind).CopyFrom(duration(seconds))
    if begun and (everything := sum(spent.values())) > 0:
        message.goodput = spent["training"] / everything
    return message


def _kind_of(cause: Cause | None) -> status_pb2.InterruptionKind.ValueType:
    """What an interruption is by the cause of a round's end; None: that is not known."""
    return KINDS[RoundEnd.FAILURE if cause is None else cause.round_end]


def _is_done(ending: RoundEnding | None) -> bool:
    return ending is not None and ending.cause is not None and ending.cause.round_end is RoundEnd.DONE
