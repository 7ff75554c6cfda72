"""Long work that the script does not announce: stalls at one place, again and again. Part of the core.

An evaluation of rank 0, or a download, that takes longer than a step may is killed as a stall, and the next worker that
does it is killed as well. So a place at which members have stalled twice has the limit of an evaluation from then on,
and the run says how to announce it. If that is not enough either, and neither that round nor the one before has made a
step, nothing is to be hoped for from another.

That limit is the one of an evaluation, or three times the place's own if that is more, and holds for what is done in
that function of the script.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from edriver.driver.core.round import Round
from edriver.model import events
from edriver.model.cause import Cause, CauseKind, RepeatedStall
from edriver.model.script_error import script_place

PATIENCE_AFTER = 2
"""Stalls at a place after which it has the longer limit."""

MAX_IDLE_STALLS = 2
"""Stalls at a place, in rounds without a step, one after the other, after which one beyond the longer limit ends the
run."""

MAX_PLACES = 100
"""Places that are remembered, the latest."""

MIN_FACTOR = 3
"""The least multiple of its limit that work may take there, whatever the limit of an evaluation is."""


class StallVerdict(enum.Enum):
    """What a report of a stall means."""

    STALLED = "stalled"
    FIRST_OF_MANY = "first-of-many"  # stalled, and from now on such work has more time
    PATIENCE = "patience"  # it has more time
    HOPELESS = "hopeless"  # the run is over


class Judgement(NamedTuple):
    """A verdict, and its cause where people are to know it."""

    verdict: StallVerdict
    cause: Cause | None = None


@dataclass(slots=True)
class _Stalls:
    """What has been seen at a place.

    Attributes:
        count: stalls.
        idle: the latest of them in a row whose rounds had made no step.
    """

    count: int = 0
    idle: int = 0


@dataclass(slots=True)
class LongWork:
    """Judges stalls by the function of the script in which they happen.

    Attributes:
        limit: the time limit of an evaluation, in seconds; may be infinite.
        places: the known places, by file and function.
        waited: how long a member of a round has been at a place, by worker_id and round.
    """

    limit: float
    places: dict[tuple[str, str], _Stalls] = field(default_factory=dict)
    waited: dict[tuple[int, int], float] = field(default_factory=dict)

    def judge(self, event: events.WorkerStalled, current: Round) -> Judgement:
        """Judge a report about a member of the current round, which comes again after the same time."""
        place = script_place(event.stacks)
        if place is None:
            return Judgement(StallVerdict.STALLED)
        key = place.file, place.function
        stalls = self.places.pop(key, None) or _Stalls()
        self.places[key] = stalls
        if len(self.places) > MAX_PLACES:
            del self.places[next(iter(self.places))]
        limit = max(self.limit, MIN_FACTOR * event.seconds)
        if stalls.count >= PATIENCE_AFTER and self._has_waited(event, current) < limit:
            return Judgement(StallVerdict.PATIENCE)
        stalls.count += 1
        stalls.idle = 0 if current.under_way else stalls.idle + 1
        if stalls.count == PATIENCE_AFTER:
            again = RepeatedStall(place, stalls.count, limit)
            return Judgement(StallVerdict.FIRST_OF_MANY, Cause(CauseKind.LONG_WORK, detail=again))
        if stalls.count > PATIENCE_AFTER and stalls.idle >= MAX_IDLE_STALLS:
            again = RepeatedStall(place, stalls.count, limit)
            return Judgement(StallVerdict.HOPELESS, Cause(CauseKind.SAME_STALL, detail=again))
        return Judgement(StallVerdict.STALLED)

    def _has_waited(self, event: events.WorkerStalled, current: Round) -> float:
        """How long the member has been at it, this report included."""
        key = event.worker_id, current.plan.round_id.n
        self.waited = {at: seconds for at, seconds in self.waited.items() if at[1] == key[1]}
        self.waited[key] = self.waited.get(key, 0.0) + event.seconds
        return self.waited[key]
