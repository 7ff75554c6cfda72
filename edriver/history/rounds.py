"""A run's rounds, and which part of its time was spent well; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from edriver.common.wire import epoch_seconds, round_id_of, span_seconds
from edriver.history.changes import Changes
from edriver.text.cause_names import CAUSE_NAMES, RECOVERY_PHASES
from edriver.v1 import status_pb2

MAX_ROUNDS: Final = 4000
"""Rounds that are remembered; of more, every second one of the older half is forgotten."""


@dataclass(slots=True)
class RoundRecord:
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


class RoundHistory:
    """The rounds of a run, and its goodput.

    Goodput is the share of wall time that was spent in steps that count:

        (sum over rounds of (ended or now - trained) - sum over losses of steps lost * seconds a step) / (now - began)

    `trained` is when the last member of a round held the same state as the others, as its phases say; a round in which
    not all members finished a step counts nothing. The seconds a step are 1 / the last rate before the
    loss, a mean over 10 s: what is lost are the latest steps.

    Attributes:
        counts: rounds by the kind of their cause.
        steps_lost: steps that had to be made again.
        step_rate: steps a second, the last rate above 0.
    """

    def __init__(self) -> None:
        self._rounds: dict[str, RoundRecord] = {}
        self._whole = 0
        self._ended_seconds = 0.0
        self._lost_seconds = 0.0
        self._changed: Changes[str] = Changes()
        self.counts = dict.fromkeys(CAUSE_NAMES.values(), 0)
        self.steps_lost = 0
        self.step_rate = 0.0

    @property
    def latest(self) -> RoundRecord | None:
        """The last one; None: there was none yet."""
        return next(reversed(self._rounds.values()), None)

    @property
    def all(self) -> list[RoundRecord]:
        """All that are remembered, oldest first."""
        return list(self._rounds.values())

    @property
    def size(self) -> int:
        """How many train now."""
        latest = self.latest
        return latest.size if latest and latest.ended is None else 0

    def note_step_rate(self, step_rate: float) -> None:
        """So many steps a second are made now."""
        if math.isfinite(step_rate) and step_rate > 0:
            self.step_rate = step_rate

    def feed(self, revision: int, message: status_pb2.Round) -> bool:
        """A round, as far as it has got; returns whether it is a new one."""
        name = str(round_id_of(message.round_id))
        part = self._rounds.get(name)
        assigned = epoch_seconds(message.assign_time)
        new = part is None
        if part is None:
            part = RoundRecord(
                name, CAUSE_NAMES.get(message.kind, "start"), message.cause.text, len(message.members), assigned
            )
            part.steps_lost = message.steps_lost
            self._rounds[name] = part
            self.counts[part.kind] += 1
            self.steps_lost += message.steps_lost
            if self.step_rate:
                self._lost_seconds += message.steps_lost / self.step_rate
        if message.HasField("phases"):
            part.phases = [_length(span_seconds(getattr(message.phases, phase))) for phase in RECOVERY_PHASES]
            before = epoch_seconds(message.previous_end_time) if message.HasField("previous_end_time") else assigned
            part.trained = max(assigned, min(before + sum(part.phases[1:4]), epoch_seconds(message.first_step_time)))
        if message.HasField("end_time") and part.ended is None:
            part.ended = epoch_seconds(message.end_time)
            self._ended_seconds += part.productive(part.ended)
        self._changed.note(name, revision)
        if len(self._rounds) > MAX_ROUNDS:
            for gone in list(self._rounds)[1 : MAX_ROUNDS // 2 : 2]:
                del self._rounds[gone]
                self._changed.forget(gone)
            self._whole = revision
        return new

    def goodput(self) -> dict[str, float | None]:
        """What goodput is made of: seconds that counted, and since when they do now, if they do."""
        latest = self.latest
        goes_on = latest.trained if latest and latest.ended is None else None
        return {"seconds": max(0.0, self._ended_seconds - self._lost_seconds), "since": goes_on}

    def since(self, revision: int) -> dict[str, Any]:
        """What has changed since then, as it goes to the page."""
        if self._whole > revision:
            return {"whole": True, "rounds": [part.plain() for part in self._rounds.values()]}
        changes = [self._rounds[name].plain() for name in self._changed.since(revision)]
        return {"whole": False, "rounds": changes} if changes else {}


def _length(seconds: float) -> float:
    """A phase's length; one that clocks make invalid is 0."""
    return round(seconds, 6) if seconds > 0 else 0.0
