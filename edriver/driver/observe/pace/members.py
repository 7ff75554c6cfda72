"""What the members of the round that is on say of their steps, and who holds it up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from edriver.driver.observe.pace.hold_up import HoldUpWatch, MemberStanding, is_declared
from edriver.driver.observe.pace.stragglers import (
    HALF_SECONDS,
    StepReport,
    StepTimes,
    StragglerVerdict,
    Window,
    stragglers,
)
from edriver.model.ids import NO_ROUND
from edriver.model.plan import RoundPlan
from edriver.text.pace_text import hold_up_text, straggler_text
from edriver.v1 import agent_pb2, pace_pb2, status_pb2
from edriver.wire.conversion import duration, epoch_seconds, round_id_of, span_seconds, timestamp

VERDICT_INTERVAL: Final = 2.0
"""Seconds between two looks for stragglers, at least,"""

VERDICT_MEMBERS: Final = 250
"""and members that are looked at in a second, on average: those of a large run report no more often."""

RESTORED_PAUSE: Final = 2 * HALF_SECONDS
"""Seconds after a snapshot was restored before the first look: it has no windows."""

MAX_CLOCK_DIFFERENCE: Final = 60.0
"""Seconds by which the clocks of hosts may differ from the driver's for a stall to be recognised."""

MAX_STRAGGLERS: Final = 8
"""Stragglers that are named."""


@dataclass(slots=True)
class _Member:
    """One of them.

    Attributes:
        standing: where it stands.
        window: its latest reports.
        trains: whether its training function continues.
    """

    standing: MemberStanding
    window: Window = field(default_factory=Window)
    trains: bool = True


class KnownMembers(NamedTuple):
    """What a snapshot has of the members beside the plan.

    Attributes:
        follows: whether their round goes on.
        told: those that have said that they stand, or are stopped.
        idle: the worker IDs of those that no longer train.
    """

    follows: bool
    told: tuple[MemberStanding, ...]
    idle: tuple[int, ...]


def _members_of(plan: RoundPlan) -> dict[int, _Member]:
    return {
        seat.worker_id: _Member(MemberStanding(seat.worker_id, seat.rank, seat.host, seat.slot)) for seat in plan.seats
    }


class PaceMonitor:
    """Follows the members of one round after the other.

    A snapshot has no windows, and of the members only what is not so for nearly all of them: the rest is in the plan.

    Args:
        clock: seconds since the epoch.
    """

    STATE = (
        "_round_id",
        "_watch",
        "_hold_up",
        "_held_since",
        "_announced",
        "_stragglers",
        "_judged_at",
        "known_members",
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._round_id = NO_ROUND
        self._members: dict[int, _Member] = {}
        self._watch = HoldUpWatch()
        self._hold_up: pace_pb2.HoldUp | None = None  # the latest, which may be over,
        self._held_since: float | None = None  # and the watch's `since` of it
        self._announced = False
        self._named = False  # whether that says who is waited for; after a take-over it may be said again
        self._stragglers: dict[int, pace_pb2.Straggler] = {}
        self._judged_at = 0.0
        self._restored: KnownMembers | None = None
        self._told: set[int] = set()  # members that have said that they stand

    # ---- for a run that is taken over ------------------------------------------------------------------------

    @property
    def known_members(self) -> KnownMembers:
        """For a snapshot: the members, as far as they do not follow from the plan."""
        members = self._members
        told = tuple(m.standing for m in members.values() if m.standing.standing is not None or m.standing.stopped)
        return KnownMembers(bool(members), told, tuple(one for one, member in members.items() if not member.trains))

    @known_members.setter
    def known_members(self, known: KnownMembers) -> None:
        self._restored = known

    def restore_members(self, plan: RoundPlan | None) -> None:
        """After a snapshot: follow the members again, of the latest round."""
        known = self._restored
        if known is None or plan is None or not known.follows:
            return
        self._members = _members_of(plan)
        for standing in known.told:
            self._members[standing.worker_id].standing = standing
        self._told = {standing.worker_id for standing in known.told if standing.standing is not None}
        for worker_id in known.idle:
            self._members[worker_id].trains = False

    # ---- what happens ----------------------------------------------------------------------------------------

    def assigned(self, plan: RoundPlan) -> Iterator[status_pb2.Event]:
        """Begin a round; the stragglers of the previous one no longer count."""
        yield from self._judge({}, self._clock())
        self._round_id = plan.round_id
        self._members = _members_of(plan)
        self._told.clear()
        self._watch, self._announced = HoldUpWatch(), False

    def ended(self) -> Iterator[status_pb2.Event]:
        """The round has ended."""
        yield from self._judge({}, self._clock())
        self._members = {}
        self._told.clear()

    def left(self, worker_id: int) -> None:
        """Remove a member that no longer trains, so that no one waits for it."""
        if worker_id in self._members:
            self._members[worker_id].trains = False
            self._told.discard(worker_id)

    def record(self, report: agent_pb2.WorkerHeartbeat) -> None:
        """A worker is so far, or is stopped."""
        member = self._members.get(report.worker_id)
        if member is None:
            return
        now = self._clock()
        member.standing.stopped = report.stopped
        progress = report.progress
        if not report.HasField("progress") or round_id_of(progress.round_id) != self._round_id:
            return
        member.standing.heard, member.standing.boundaries = now, progress.boundaries
        if progress.HasField("standing"):
            member.standing.standing = progress.standing
            if member.trains:
                self._told.add(report.worker_id)
        else:
            member.standing.standing = None
            self._told.discard(report.worker_id)
        if progress.HasField("watched_duration") and progress.boundaries:
            waiting = span_seconds(progress.waiting_duration) if progress.HasField("waiting_duration") else None
            loading, delayed = span_seconds(progress.loading_duration), span_seconds(progress.delayed_duration)
            watched = span_seconds(progress.watched_duration)
            member.window.add(StepReport(now, progress.boundaries, watched, waiting, loading, delayed))

    def check(self) -> list[status_pb2.Event]:
        """Look for what holds the round up; returns what is new. To be called several times a second."""
        now = self._clock()
        found: list[status_pb2.Event] = []
        if self._restored is not None:
            self._restored, self._judged_at = None, now + RESTORED_PAUSE  # until then stragglers stay what they were
        if now - self._judged_at >= max(VERDICT_INTERVAL, len(self._members) / VERDICT_MEMBERS):
            found += self._judge(stragglers(self._halves(now), self._stragglers), now)
        hold_up = self.hold_up()
        if hold_up is None:
            self._announced = self._named = False
        elif not is_declared(hold_up) and (not self._announced or (hold_up.waited_for and not self._named)):
            # One that waits may be stopped then, which its agent says later: first all wait, and then for that one.
            self._announced, self._named = True, bool(hold_up.waited_for)
            found.append(status_pb2.Event(hold_up=hold_up, text=hold_up_text(hold_up, now)))
        return found

    # ---- what came of it -------------------------------------------------------------------------------------

    def hold_up(self) -> pace_pb2.HoldUp | None:
        """Who is waited for now; None: steps are being made, or it is not known yet."""
        if not self._told:
            self._watch.since = None
            return None
        members = [each.standing for each in self._members.values() if each.trains]
        found = self._watch.check(members, self._clock())
        # One that wakes up may say that it waits, too, before the next step: that does not change who was waited for.
        if found is not None and (found.waited_for or self._held_since != self._watch.since):
            self._hold_up, self._held_since = found, self._watch.since
        return found

    def hold_up_in(self, interruption: status_pb2.Interruption) -> pace_pb2.HoldUp | None:
        """Who was waited for last in a stall that is over; None: not known."""
        if self._hold_up is None or interruption.kind != status_pb2.INTERRUPTION_KIND_STALL:
            return None
        start, began = epoch_seconds(interruption.start_time), epoch_seconds(self._hold_up.start_time)
        end = start + span_seconds(interruption.duration)
        return self._hold_up if start - MAX_CLOCK_DIFFERENCE < began < end else None

    def stragglers(self) -> list[pace_pb2.Straggler]:
        """Those that are slower than the others now, the slowest first."""
        return list(self._stragglers.values())[:MAX_STRAGGLERS]

    def fill(self, status: status_pb2.WorkerStatus) -> None:
        """Add what is known of a worker's steps."""
        member = self._members.get(status.worker_id)
        step = None if member is None else member.window.latest()
        if step is None:
            status.ClearField("step_times")
            return
        times = pace_pb2.StepTimes(step=duration(step.seconds), loading=duration(step.loading))
        if step.waiting is not None:
            times.waiting.CopyFrom(duration(step.waiting))
            times.computing.CopyFrom(duration(max(0.0, step.seconds - step.waiting - step.loading)))
        status.step_times.CopyFrom(times)

    # ---- how -------------------------------------------------------------------------------------------------

    def _halves(self, now: float) -> dict[int, tuple[StepTimes, StepTimes]]:
        """What the members say of their steps; empty unless all do, for each is compared with the others."""
        halves = {}
        for one, each in self._members.items():
            pair = each.window.halves(now)
            if pair is None:
                return {}
            halves[one] = pair
        return halves

    def _judge(self, verdicts: dict[int, StragglerVerdict], now: float) -> Iterator[status_pb2.Event]:
        self._judged_at = now
        before, self._stragglers = self._stragglers, {}
        for one, verdict in verdicts.items():
            standing = self._members[one].standing
            message = pace_pb2.Straggler(
                worker_id=one,
                rank=standing.rank,
                host=standing.host,
                slot=standing.slot,
                ratio=verdict.ratio,
                excess=duration(verdict.excess),
                reason=verdict.reason,
                start_time=before[one].start_time if one in before else timestamp(now),
            )
            self._stragglers[one] = message
            if one not in before:
                yield status_pb2.Event(straggler=message, text=straggler_text(message, now))
        for one, message in before.items():
            if one not in verdicts:
                message.end_time.CopyFrom(timestamp(now))
                yield status_pb2.Event(straggler=message, text=straggler_text(message, now))
