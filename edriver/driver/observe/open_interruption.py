"""A time in which no step was made: how it began, and what it consists of; pure. `Interruption` of status.proto."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from edriver.driver.observe.cause_text import cause_with_text
from edriver.model.cause import Cause, RoundEnd
from edriver.model.ids import NO_ROUND
from edriver.model.stall_limits import excess
from edriver.v1 import status_pb2
from edriver.wire.conversion import duration, round_id_message, timestamp

KINDS: Final = {
    RoundEnd.FAILURE: status_pb2.INTERRUPTION_KIND_FAILURE,
    RoundEnd.PREEMPTION: status_pb2.INTERRUPTION_KIND_PREEMPTION,
    RoundEnd.RESIZE: status_pb2.INTERRUPTION_KIND_RESIZE,
    RoundEnd.UNPROVEN: status_pb2.INTERRUPTION_KIND_UNPROVEN,
    RoundEnd.DONE: status_pb2.INTERRUPTION_KIND_NEXT_RUN,
}
"""What an interruption is by the end of the round before it."""

_STARTS: Final = (status_pb2.INTERRUPTION_KIND_BOOT, status_pb2.INTERRUPTION_KIND_NEXT_RUN)


class Opening(NamedTuple):
    """How an interruption began, in seconds since the epoch.

    Attributes:
        start: when the last boundary before it was passed; for the first interruption, when the run began.
        noticed: when the death that ended the round was noticed; None if no death ended it.
        ended: when the driver ended the round; None without a round.
    """

    start: float
    noticed: float | None
    ended: float | None


@dataclass(slots=True)
class OpenInterruption:
    """An interruption that has not ended.

    Attributes:
        opening: how it began.
        kind: its kind.
        cause: why the previous round ended; None without one.
        waited: the seconds in which the run had too few hosts or workers for a round.
        waits_since: since when it has too few; None if it has enough.
        failed_rounds: the number of rounds that were tried in it and made no step.
        declared: the seconds of it that the script declared as evaluation or saving, which are not a stall.
    """

    opening: Opening
    kind: status_pb2.InterruptionKind.ValueType
    cause: Cause | None = None
    waited: float = 0.0
    waits_since: float | None = None
    failed_rounds: int = 0
    declared: float = 0.0

    def waits(self, waiting: bool, now: float) -> None:
        """Whether there are too few hosts or workers for a round."""
        if waiting and self.waits_since is None:
            self.waits_since = now
        elif not waiting and self.waits_since is not None:
            self.waited += max(0.0, now - self.waits_since)
            self.waits_since = None

    def divide(self, spent: dict[str, float], end: float, usual: float | None) -> None:
        """Add its time up to an end to the kinds that it consists of.

        Args:
            spent: seconds by kind.
            end: up to when.
            usual: seconds that a step usually takes; None: not known.
        """
        opening = self.opening
        whole = max(0.0, end - opening.start)
        if self.kind in _STARTS:
            spent["booting"] += whole
            return
        noticed = opening.noticed or opening.ended or opening.start
        stalled = min(whole, excess(noticed - opening.start - self.declared, usual))
        going_on = 0.0 if self.waits_since is None else max(0.0, end - self.waits_since)
        waiting = min(whole - stalled, self.waited + going_on)
        spent["stalled"] += stalled
        spent["waiting"] += waiting
        spent["recovering"] += whole - stalled - waiting

    def divide_settled(self, spent: dict[str, float], end: float) -> None:
        """The same of the part that is certain, whatever is still reported: what follows the end of the round."""
        opening = self.opening
        certain = max(0.0, end - (opening.ended or opening.start))
        if self.kind in _STARTS:
            spent["booting"] += certain
            return
        going_on = 0.0 if self.waits_since is None else max(0.0, end - self.waits_since)
        waiting = min(certain, self.waited + going_on)
        spent["waiting"] += waiting
        spent["recovering"] += certain - waiting

    def message(self, end: float | None = None) -> status_pb2.Interruption:
        """As observers see it; with an end, it is over."""
        message = status_pb2.Interruption(
            kind=self.kind,
            start_time=timestamp(self.opening.start),
            round_id=round_id_message(NO_ROUND),
            failed_rounds=self.failed_rounds,
        )
        if self.cause is not None:
            message.cause.CopyFrom(cause_with_text(self.cause))
        if end is not None:
            message.duration.CopyFrom(duration(max(0.0, end - self.opening.start)))
        return message
