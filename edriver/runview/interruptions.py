"""The times in which no step was made; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from edriver.text.cause_names import INTERRUPTION_NAMES, RECOVERY_PHASES
from edriver.text.pace_text import waited_for_text
from edriver.v1 import cause_pb2, status_pb2
from edriver.wire.conversion import epoch_seconds, round_id_of, span_seconds

MAX_INTERRUPTIONS: Final = 4000
"""Interruptions that are remembered; of more, the shorter half of the older half is forgotten."""


@dataclass(frozen=True, slots=True)
class InterruptionRecord:
    """One time without steps.

    Attributes:
        number: its number, from 1.
        kind: what kept the run from making steps, as in INTERRUPTION_NAMES.
        cause: the reason, in words; empty if unknown.
        start: when the last boundary before it was passed, in seconds since the epoch.
        seconds: its length.
        round: the round that it led to, or in which it was a stall; empty if no round followed.
        size: the number of that round's members.
        phases: seconds, in the order of RECOVERY_PHASES; None if it was a stall, or led to no round.
        steps_lost: the number of steps that had to be repeated after it.
        failed_rounds: the number of rounds that were tried in it and made no step.
        unexplained: the worker whose process ended, if it was not yet known how; 0: no such worker.
    """

    number: int
    kind: str
    cause: str
    start: float
    seconds: float
    round: str
    size: int
    phases: list[float] | None
    steps_lost: int
    failed_rounds: int
    unexplained: int = 0

    def plain(self) -> dict[str, Any]:
        """As it goes to the page."""
        return {
            "number": self.number,
            "kind": self.kind,
            "cause": self.cause,
            "start": self.start,
            "seconds": self.seconds,
            "round": self.round,
            "size": self.size,
            "phases": self.phases,
            "lost": self.steps_lost,
            "failed": self.failed_rounds,
        }


class Interruptions:
    """The interruptions of a run, oldest first.

    Attributes:
        all: the remembered ones.
        count: the total number.
    """

    def __init__(self) -> None:
        """Begin without interruptions."""
        self.all: list[InterruptionRecord] = []
        self.count = 0
        self._revisions: list[int] = []  # of each, when it came
        self._whole = 0

    def add(self, revision: int, message: status_pb2.Interruption) -> None:
        """One is over."""
        self.count += 1
        phases = None
        if message.HasField("phases"):
            phases = [seconds_of(span_seconds(getattr(message.phases, phase))) for phase in RECOVERY_PHASES]
        self.all.append(
            InterruptionRecord(
                self.count,
                INTERRUPTION_NAMES.get(message.kind, "interruption"),
                message.cause.text or (waited_for_text(message.hold_up) if message.HasField("hold_up") else ""),
                epoch_seconds(message.start_time),
                seconds_of(span_seconds(message.duration)),
                str(round_id_of(message.round_id)) if message.round_id.n else "",
                message.size,
                phases,
                message.steps_lost,
                message.failed_rounds,
                unexplained_worker(message.cause),
            )
        )
        self._revisions.append(revision)
        if len(self.all) > MAX_INTERRUPTIONS:
            older = range(len(self.all) // 2)
            gone = set(sorted(older, key=lambda place: self.all[place].seconds)[: len(older) // 2])
            self.all = [each for place, each in enumerate(self.all) if place not in gone]
            self._revisions = [each for place, each in enumerate(self._revisions) if place not in gone]
            self._whole = revision

    def explain(self, revision: int, worker_id: int, text: str) -> None:
        """It is known now how this worker's process ended, which may have caused an interruption that is over."""
        for place, each in enumerate(self.all):
            if each.unexplained == worker_id:
                self.all[place] = replace(each, cause=text, unexplained=0)
                self._whole = revision

    def since(self, revision: int) -> dict[str, Any]:
        """Those that came since then, as they go to the page."""
        if self._whole > revision:
            return {"whole": True, "interruptions": [each.plain() for each in self.all]}
        first = len(self.all)
        while first and self._revisions[first - 1] > revision:
            first -= 1
        return (
            {"whole": False, "interruptions": [each.plain() for each in self.all[first:]]} if self.all[first:] else {}
        )


def unexplained_worker(cause: cause_pb2.Cause) -> int:
    """The worker whose process has ended, if this cause does not tell how; 0: it tells, or is another one."""
    return cause.worker_id if cause.kind == cause_pb2.CAUSE_KIND_ENDED else 0


def seconds_of(length: float) -> float:
    """A length of time; one that clocks make invalid is 0."""
    return round(length, 6) if length > 0 else 0.0
