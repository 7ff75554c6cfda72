"""A run's rounds; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from edriver.runview.changes import Changes
from edriver.runview.interruptions import seconds_of, unexplained_worker
from edriver.text.cause_names import CAUSE_NAMES, RECOVERY_PHASES
from edriver.v1 import status_pb2
from edriver.wire.conversion import epoch_seconds, round_id_of, span_seconds

MAX_ROUNDS: Final = 4000
"""Rounds that are remembered; of more, every second one of the older half is forgotten."""


@dataclass(slots=True)
class RoundRecord:
    """One round.

    Attributes:
        name: its id.
        kind: the kind of its cause, as in CAUSE_NAMES,
        cause: and the cause in words.
        size: its members.
        assigned: when it began, in seconds since the epoch.
        ended: when it ended; None: it is in progress.
        phases: seconds, in the order of RECOVERY_PHASES; None: it was never under way.
        steps_lost: steps of earlier rounds that had to be made again.
        unexplained: as in InterruptionRecord.
    """

    name: str
    kind: str
    cause: str
    size: int
    assigned: float
    ended: float | None = None
    phases: list[float] | None = None
    steps_lost: int = 0
    unexplained: int = 0

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
    """The rounds of a run."""

    def __init__(self) -> None:
        """Begin without rounds."""
        self._rounds: dict[str, RoundRecord] = {}
        self._whole = 0
        self._changed: Changes[str] = Changes()

    @property
    def latest(self) -> RoundRecord | None:
        """The last round; None before the first."""
        return next(reversed(self._rounds.values()), None)

    @property
    def all(self) -> list[RoundRecord]:
        """All that are remembered, oldest first."""
        return list(self._rounds.values())

    def add(self, revision: int, message: status_pb2.Round) -> bool:
        """A round, as far as it has got; returns whether it is a new one."""
        name = str(round_id_of(message.round_id))
        part = self._rounds.get(name)
        assigned = epoch_seconds(message.assign_time)
        new = part is None
        if part is None:
            part = RoundRecord(
                name, CAUSE_NAMES.get(message.kind, "start"), message.cause.text, len(message.members), assigned
            )
            part.steps_lost, part.unexplained = message.steps_lost, unexplained_worker(message.cause)
            self._rounds[name] = part
        if message.HasField("phases"):
            part.phases = [seconds_of(span_seconds(getattr(message.phases, phase))) for phase in RECOVERY_PHASES]
        if message.HasField("end_time") and part.ended is None:
            part.ended = epoch_seconds(message.end_time)
        self._changed.note(name, revision)
        if len(self._rounds) > MAX_ROUNDS:
            for gone in list(self._rounds)[1 : MAX_ROUNDS // 2 : 2]:
                del self._rounds[gone]
                self._changed.forget(gone)
            self._whole = revision
        return new

    def explain(self, revision: int, worker_id: int, text: str) -> None:
        """It is known now how this worker's process ended, which may have been the cause of a round."""
        for name, part in self._rounds.items():
            if part.unexplained == worker_id:
                part.cause, part.unexplained = text, 0
                self._changed.note(name, revision)

    def since(self, revision: int) -> dict[str, Any]:
        """What has changed since then, as it goes to the page."""
        if self._whole > revision:
            return {"whole": True, "rounds": [part.plain() for part in self._rounds.values()]}
        changes = [self._rounds[name].plain() for name in self._changed.since(revision)]
        return {"whole": False, "rounds": changes} if changes else {}
