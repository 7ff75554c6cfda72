"""A run's rounds, and which part of its time was spent well; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from edriver.common.wire import round_id_of
from edriver.history.changes import Changes
from edriver.text.cause_names import CAUSES, PHASES
from edriver.v1 import status_pb2

MOST: Final = 4000
"""Rounds that are remembered; of more, every second one of the older half is forgotten."""


@dataclass(slots=True)
class RoundPart:
    """One round.

    Attributes:
        name: its id.
        kind: the kind of its cause, as in CAUSES,
        cause: and the cause in words.
        size: its members.
        assigned: when it began, in seconds since the epoch.
        trained: from when on its members made steps; None: no member has finished one.
        ended: when it ended; None: it goes on.
        phases: seconds, in the order of PHASES; None: it was never under way.
        steps_lost: steps of earlier rounds that had to be made again.
    """

    name: str
    kind: str
    cause: str
    size: int
    assigned: float
    trained: float | None = None
    ended: float | None = None
    phases: list[float] | None = None
    steps_lost: int = 0

    @property
    def recovery(self) -> float | None:
        """Seconds of all phases together; None: it was never under way."""
        return None if self.phases is None else sum(self.phases)

    def productive(self, now: float) -> float:
        """Seconds in which steps were made."""
        if self.trained is None:
            return 0.0
        return max(0.0, (now if self.ended is None else self.ended) - self.trained)

    def plain(self) -> dict[str, Any]:
        """As it goes to the page."""
        return {
            "id": self.name,
            "kind": self.kind,
            "cause": self.cause,
            "size": self.size,
            "assigned": self.assigned,
            "ended": self.ended,
            "phases": self.phases,
            "lost": self.steps_lost,
        }


class Rounds:
    """The rounds of a run, and its goodput.

    Goodput is the share of wall time that was spent in steps that count:

        (sum over rounds of (ended or now - trained) - sum over losses of steps lost * seconds a step) / (now - began)

    `trained` is when the last member of a round held the same state as the others, as its phases say; a round in which
    not all members finished a step counts nothing. The seconds a step are 1 / the rate that was last heard before the
    loss, a mean over 10 s: what is lost are the latest steps.

    Attributes:
        counts: rounds by the kind of their cause.
        steps_lost: steps that had to be made again.
        step_rate: steps a second, as last heard while there were any.
    """

    def __init__(self) -> None:
        self._rounds: dict[str, RoundPart] = {}
        self._whole = 0
        self._ended_seconds = 0.0
        self._lost_seconds = 0.0
        self._changed: Changes[str] = Changes()
        self.counts = dict.fromkeys(CAUSES.values(), 0)
        self.steps_lost = 0
        self.step_rate = 0.0

    @property
    def latest(self) -> RoundPart | None:
        """The last one; None: there was none yet."""
        return next(reversed(self._rounds.values()), None)

    @property
    def all(self) -> list[RoundPart]:
        """All that are remembered, oldest first."""
        return list(self._rounds.values())

    @property
    def size(self) -> int:
        """How many train now."""
        latest = self.latest
        return latest.size if latest and latest.ended is None else 0

    def pace(self, step_rate: float) -> None:
        """So many steps a second are made now."""
        if math.isfinite(step_rate) and step_rate > 0:
            self.step_rate = step_rate

    def feed(self, version: int, told: status_pb2.Round) -> bool:
        """A round, as far as it has got; returns whether it is a new one."""
        name = str(round_id_of(told.round_id))
        part = self._rounds.get(name)
        new = part is None
        if part is None:
            part = RoundPart(name, CAUSES.get(told.kind, "start"), told.cause, len(told.members), told.assigned)
            part.steps_lost = told.steps_lost
            self._rounds[name] = part
            self.counts[part.kind] += 1
            self.steps_lost += told.steps_lost
            if self.step_rate:
                self._lost_seconds += told.steps_lost / self.step_rate
        if told.HasField("phases"):
            part.phases = [_length(getattr(told.phases, phase)) for phase in PHASES]
            before = told.before_ended if told.HasField("before_ended") else told.assigned
            part.trained = max(told.assigned, min(before + sum(part.phases[1:4]), told.under_way))
        if told.HasField("ended") and part.ended is None:
            part.ended = told.ended
            self._ended_seconds += part.productive(told.ended)
        self._changed.note(name, version)
        if len(self._rounds) > MOST:
            for gone in list(self._rounds)[1 : MOST // 2 : 2]:
                del self._rounds[gone]
                self._changed.forget(gone)
            self._whole = version
        return new

    def goodput(self) -> dict[str, float | None]:
        """What goodput is made of: seconds that counted, and since when they do now, if they do."""
        latest = self.latest
        goes_on = latest.trained if latest and latest.ended is None else None
        return {"seconds": max(0.0, self._ended_seconds - self._lost_seconds), "since": goes_on}

    def since(self, version: int) -> dict[str, Any]:
        """What has changed since then, as it goes to the page."""
        if self._whole > version:
            return {"whole": True, "rounds": [part.plain() for part in self._rounds.values()]}
        told = [self._rounds[name].plain() for name in self._changed.since(version)]
        return {"whole": False, "rounds": told} if told else {}


def _length(seconds: float) -> float:
    """A phase's length, whatever clocks have said."""
    return round(seconds, 6) if math.isfinite(seconds) and seconds > 0 else 0.0
