"""How the time of one round was spent, by the boundaries that its members report. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from edriver.model.cause import Cause
from edriver.model.ids import RoundId
from edriver.v1 import notification_pb2, status_pb2
from edriver.wire.conversion import epoch_seconds, round_id_message, span_seconds, timestamp

SETTLING_SECONDS: Final = 5.0
"""Seconds within which all members have reported what one of them has. Reports come every one to four seconds."""

LOOK_INTERVAL: Final = 0.5
"""Seconds between two looks at what a round's time consists of, at least."""


class RoundEnding(NamedTuple):
    """How a round ended.

    Attributes:
        cause: why; None if unknown.
        noticed: when the death that ended it was noticed, in seconds since the epoch; None if no death ended it.
        ended: when the driver ended it.
    """

    cause: Cause | None
    noticed: float | None
    ended: float


@dataclass(slots=True)
class RoundTime:
    """A round's part in the time, as far as it is known.

    Attributes:
        round_id: the round.
        size: the number of its members.
        steps_lost: the number of steps lost before it.
        again: the number of its first steps that repeat lost ones.
        assigned: when it was assigned, in seconds since the epoch.
        start: when its members held the state; None until all have passed their first boundary.
        latest: the last report of the farthest member; see `take_report`.
        reported_at: when that report, or one of a member that is as far, arrived.
        unknown: the seconds that may or may not have been steps.
        training: the seconds of steps.
        stalled: the seconds without steps.
        repeating: the part of `training` in which steps were repeated.
        caught_up: whether all lost steps have been repeated.
        stalled_until: when the last known stall ended. One member may have met it at one boundary, another at the next.
        ending: how it has ended; None if it has not. Its members' last reports may arrive later.
        looks: `training`, `repeating` and `stalled` at times in the last SETTLING_SECONDS, and once before.
    """

    round_id: RoundId
    size: int
    steps_lost: int
    again: int
    assigned: float
    start: float | None = None
    latest: notification_pb2.WorkerProgress = field(default_factory=notification_pb2.WorkerProgress)
    reported_at: float = 0.0
    unknown: float = 0.0
    training: float = 0.0
    stalled: float = 0.0
    repeating: float = 0.0
    caught_up: bool = False
    stalled_until: float = 0.0
    ending: RoundEnding | None = None
    looks: deque[tuple[float, float, float, float]] = field(default_factory=deque)

    def take_report(self, progress: notification_pb2.WorkerProgress, now: float) -> None:
        """Take in the report of a member that is at least as far as the others.

        Of those at the same boundary, the report of the first to pass it is kept, and of their declared times the
        longest: where only rank 0 evaluates, the others wait for it.
        """
        known, self.reported_at = self.latest, now
        if progress.boundaries > known.boundaries:
            self.latest = progress
            return
        first = min(progress, known, key=lambda report: epoch_seconds(report.boundary_time))
        declared = max(known.declared_duration, progress.declared_duration, key=span_seconds)
        if first is known and declared == known.declared_duration:
            return
        self.latest = notification_pb2.WorkerProgress()
        self.latest.CopyFrom(first)
        self.latest.declared_duration.CopyFrom(declared)

    def advance(self, until: float, now: float) -> float:
        """Take in what the farthest member has reported, which has passed a boundary; returns when that was.

        Args:
            until: up to when the time is accounted for: no boundary is earlier.
            now: the time: no boundary is later.
        """
        latest, start = self.latest, until if self.start is None else self.start
        at = max(until, start, min(epoch_seconds(latest.boundary_time), now))
        elapsed = at - start
        self.stalled = min(elapsed, max(self.stalled, span_seconds(latest.stalled_duration)))
        self.training = elapsed - self.stalled
        if not self.caught_up:
            again = min(1.0, self.again / latest.boundaries)  # a share: there may be no report of just that step
            self.repeating = max(self.repeating, self.training * again)
            self.caught_up = latest.boundaries >= self.again
        self.repeating = min(self.repeating, self.training)  # a stall reported later by another member is not a step
        if not self.looks or now - self.looks[-1][0] >= LOOK_INTERVAL:
            self.looks.append((now, self.training, self.repeating, self.stalled))
            while len(self.looks) > 1 and self.looks[1][0] <= now - SETTLING_SECONDS:
                self.looks.popleft()
        return at

    def new_stall(self) -> status_pb2.Interruption | None:
        """The latest stall, if it was not known before."""
        if not self.latest.HasField("last_stall"):
            return None
        stall = self.latest.last_stall
        began = epoch_seconds(stall.start_time)
        if began < self.stalled_until:
            return None
        self.stalled_until = began + span_seconds(stall.duration)
        message = self.stall_since(began)
        message.start_time.CopyFrom(stall.start_time)
        message.duration.CopyFrom(stall.duration)
        return message

    def stall_since(self, start: float) -> status_pb2.Interruption:
        """The current stall of this round."""
        return status_pb2.Interruption(
            kind=status_pb2.INTERRUPTION_KIND_STALL,
            start_time=timestamp(start),
            round_id=round_id_message(self.round_id),
            size=self.size,
        )

    def spend(self, spent: dict[str, float]) -> None:
        """Add this round's seconds to those of their kinds."""
        _spend(spent, self.training, self.repeating, self.stalled)
        if self.unknown:
            spent["unknown"] += self.unknown

    def spend_settled(self, spent: dict[str, float], now: float) -> None:
        """The same of what all members have reported by now: what one took for a stall may be a step to another."""
        settled = [look for look in self.looks if look[0] <= now - SETTLING_SECONDS]
        if settled:
            _, *seconds = settled[-1]
            _spend(spent, *seconds)


def _spend(spent: dict[str, float], training: float, repeating: float, stalled: float) -> None:
    spent["training"] += training - repeating
    spent["repeating"] += repeating
    spent["stalled"] += stalled
