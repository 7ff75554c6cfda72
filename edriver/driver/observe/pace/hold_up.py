"""Who is waited for while no step is made; pure.

A member that has passed no boundary for long says what it does (Standing). Those that wait in a collective wait for
those that do not: they load data, compute, evaluate, are stopped, or do not answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final

from edriver.v1 import notification_pb2, pace_pb2
from edriver.wire.conversion import span_seconds, timestamp

MAX_NAMED: Final = 8
"""Members that are named, of those that are waited for."""

SETTLE_SECONDS: Final = 0.5
"""Seconds that members' reports may be apart: one that has said nothing so long after the first of them is silent."""

GOES_ON_SECONDS: Final = 4.5
"""Seconds for which a member that reported after the first of them stood is taken to continue: reports come every one
to four seconds, and its last one may have been sent just before it fell silent."""

_WAITING: Final = pace_pb2.WORKER_ACTIVITY_WAITING


@dataclass(slots=True)
class MemberStanding:
    """The known state of a member of the round.

    Attributes:
        worker_id: its worker ID.
        rank: its rank.
        host: its host.
        slot: its slot there.
        heard: when its last report arrived, in seconds since the epoch.
        standing: its activity since its last boundary, if that was long ago; None: not reported.
        stopped: whether its process is stopped.
        boundaries: the number of the round's boundaries that it had passed at its last report.
    """

    worker_id: int
    rank: int
    host: str
    slot: int
    heard: float = 0.0
    standing: notification_pb2.Standing | None = None
    stopped: bool = False
    boundaries: int = 0

    @property
    def activity(self) -> pace_pb2.WorkerActivity.ValueType:
        """What it does."""
        if self.stopped:
            return pace_pb2.WORKER_ACTIVITY_STOPPED
        return pace_pb2.WORKER_ACTIVITY_SILENT if self.standing is None else self.standing.activity


@dataclass(slots=True)
class HoldUpWatch:
    """Follows the members of a round.

    Attributes:
        since: when the first of them said that it stands, in seconds since the epoch; None: none does.
    """

    since: float | None = None

    def check(self, members: Collection[MemberStanding], now: float) -> pace_pb2.HoldUp | None:
        """Who is waited for; None: steps are being made, or it is not known yet.

        Args:
            members: of the round, without those whose training function has returned.
            now: the time, in seconds since the epoch.
        """
        members = _up_to_date(members)
        if not any(member.standing is not None for member in members):
            self.since = None
            return None
        if self.since is None:
            self.since = now
        unheard = [member for member in members if member.standing is None and not member.stopped]
        if any(member.heard > self.since and now - member.heard < GOES_ON_SECONDS for member in unheard):
            return None
        if unheard and now - self.since < SETTLE_SECONDS:
            return None
        return _hold_up(members)


def is_declared(hold_up: pace_pb2.HoldUp) -> bool:
    """Whether all that is waited for is what the script has declared: evaluation, saving."""
    declared = (pace_pb2.WORKER_ACTIVITY_EVALUATING, pace_pb2.WORKER_ACTIVITY_SAVING)
    return bool(hold_up.waited_for) and all(each.activity in declared for each in hold_up.waited_for)


def _up_to_date(members: Collection[MemberStanding]) -> list[MemberStanding]:
    """The members, without what they said of a step that is over.

    Members make their steps together, so one that stood two boundaries behind another has gone on since. It may have
    fallen silent before it could say so.
    """
    most = max((member.boundaries for member in members), default=0)
    return [replace(each, standing=None) if each.boundaries < most - 1 else each for each in members]


def _hold_up(members: Collection[MemberStanding]) -> pace_pb2.HoldUp:
    began = max(member.heard - span_seconds(member.standing.duration) for member in members if member.standing)
    busy = sorted((each for each in members if each.activity != _WAITING), key=lambda each: each.rank)
    return pace_pb2.HoldUp(
        start_time=timestamp(began),
        waiting=len(members) - len(busy),
        waited_for=_named(busy),
        waited_for_count=len(busy),
        different_places=() if busy else _named(_at_different_places(members)),
    )


def _at_different_places(members: Collection[MemberStanding]) -> Collection[MemberStanding]:
    """A member for each place at which members wait, if they wait at different ones."""
    found: dict[str, MemberStanding] = {}
    for each in sorted(members, key=lambda each: each.rank):
        if each.standing is not None and each.standing.place:
            found.setdefault(each.standing.place, each)
    return found.values() if len(found) > 1 else ()


def _named(busy: Collection[MemberStanding]) -> Iterator[pace_pb2.WaitedFor]:
    for member in list(busy)[:MAX_NAMED]:
        place = "" if member.stopped or member.standing is None else member.standing.place
        yield pace_pb2.WaitedFor(
            worker_id=member.worker_id,
            rank=member.rank,
            host=member.host,
            slot=member.slot,
            activity=member.activity,
            place=place,
        )
