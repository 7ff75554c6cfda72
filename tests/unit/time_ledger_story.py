"""Runs whose time is accounted for, told event by event: for the tests of the ledger of time."""

from __future__ import annotations

from typing import Final

import pytest

from edriver.driver.observe.time_ledger import TimeLedger
from edriver.model.cause import Cause, CauseKind, Change, Done, Exit, ReportedText, RoundEnd, WorkerName
from edriver.model.ids import RoundId
from edriver.runview.recovery_times import RecoveryTimes
from edriver.text.time_spent import seconds_by_kind
from edriver.v1 import notification_pb2, status_pb2
from edriver.wire.conversion import duration, epoch_seconds, round_id_message, span_seconds, timestamp

BEGAN = 100.0
USUAL = 0.5

WORKER = WorkerName(2, "a", 1, 1)
CAUSES: Final = {
    RoundEnd.FAILURE: Cause(CauseKind.KILLED, WORKER, detail=Exit(-9)),
    RoundEnd.PREEMPTION: Cause(CauseKind.KILLED, WORKER, detail=Exit(-15), preempted=True),
    RoundEnd.RESIZE: Cause(CauseKind.MEMBERS_CHANGE, detail=Change(joined=1, left=0)),
    RoundEnd.UNPROVEN: Cause(CauseKind.PEER_UNPROVEN, WORKER, detail=ReportedText("connected from 127.0.0.1:4711")),
    RoundEnd.DONE: Cause(CauseKind.ALL_DONE, detail=Done(9, 9)),
}
BOOT, NEXT_RUN, FAILURE, PREEMPTION, RESIZE, UNPROVEN, STALL = (
    status_pb2.INTERRUPTION_KIND_BOOT,
    status_pb2.INTERRUPTION_KIND_NEXT_RUN,
    status_pb2.INTERRUPTION_KIND_FAILURE,
    status_pb2.INTERRUPTION_KIND_PREEMPTION,
    status_pb2.INTERRUPTION_KIND_RESIZE,
    status_pb2.INTERRUPTION_KIND_UNPROVEN,
    status_pb2.INTERRUPTION_KIND_STALL,
)
KIND_OF: Final = {
    RoundEnd.FAILURE: FAILURE,
    RoundEnd.PREEMPTION: PREEMPTION,
    RoundEnd.RESIZE: RESIZE,
    RoundEnd.UNPROVEN: UNPROVEN,
    RoundEnd.DONE: NEXT_RUN,
}
NO_PHASES = status_pb2.RecoveryPhases()

Stall = tuple[float, float, int]
"""When it began, how long it was, and the number of the boundary that came so late."""


class Story:
    """A run that began at 100, and the interruptions that are over."""

    def __init__(self, counts_steps: bool = True) -> None:
        self.ledger = TimeLedger(BEGAN, counts_steps)
        self.over: list[status_pb2.Interruption] = []
        self.n = 0

    def assigned(self, now: float, size: int = 2, lost: int = 0) -> None:
        self.n += 1
        self.over += self.ledger.assigned(RoundId(1, self.n), size, lost, now)

    def says(
        self,
        boundaries: int,
        at: float,
        now: float | None = None,
        stalled: float = 0.0,
        stall: Stall | None = None,
        usual: float | None = USUAL,
        since: float = 0.0,
        n: int | None = None,
        declared: float = 0.0,
    ) -> None:
        """A member has passed so many boundaries, the last one at a time; its round's state was synced at another."""
        message = notification_pb2.WorkerProgress(
            round_id=round_id_message(RoundId(1, n or self.n)),
            boundaries=boundaries,
            boundary_time=timestamp(at),
            training_duration=duration(max(0.0, at - since - stalled)) if since else None,
            stalled_duration=duration(stalled),
            declared_duration=duration(declared),
            usual_step=None if usual is None else duration(usual),
        )
        if stall is not None:
            start, length, boundary = stall
            message.last_stall.CopyFrom(
                notification_pb2.Stall(start_time=timestamp(start), duration=duration(length), boundary=boundary)
            )
        self.over += self.ledger.record_progress(message, at if now is None else now)

    def under_way(self, synced: float, now: float) -> None:
        self.over += self.ledger.under_way(synced, NO_PHASES, now)

    def round(self, assigned: float, synced: float, lost: int = 0) -> None:
        """A round, up to its first step."""
        self.assigned(assigned, lost=lost)
        self.says(1, synced + USUAL, since=synced)
        self.under_way(synced, synced + USUAL)

    def begun(self) -> None:
        """The first one: its members hold the state at 112, and make two steps a second until 120."""
        self.round(110.0, 112.0)
        self.says(16, 120.0)
        self.over.clear()

    def ended(self, now: float, how: RoundEnd = RoundEnd.FAILURE, noticed: float | None = None) -> None:
        self.over += self.ledger.round_ended(CAUSES[how], noticed, now)

    def run_ended(self, now: float) -> None:
        self.over += self.ledger.run_ended(now)

    def spent(self, now: float) -> dict[str, float]:
        """Seconds by kind, of those that there are: together they are all of the time."""
        spent = self.ledger.time_spent(now)
        kinds = seconds_by_kind(spent)
        check(spent, now)
        return {kind: round(seconds, 4) for kind, seconds in kinds.items() if seconds}

    def settled(self, now: float) -> dict[str, float]:
        """Of those, what no report can change any more."""
        kinds = seconds_by_kind(self.ledger.settled(now))
        return {kind: round(seconds, 4) for kind, seconds in kinds.items() if seconds}

    def goodput(self, now: float) -> float | None:
        spent = self.ledger.time_spent(now)
        return round(spent.goodput, 6) if spent.HasField("goodput") else None

    def recoveries(self) -> status_pb2.RecoverySummary:
        """How long those took that failures had begun."""
        times = RecoveryTimes()
        for each in self.over:
            times.add(each)
        return times.summary()

    def lengths(self) -> list[tuple[status_pb2.InterruptionKind.ValueType, float, float]]:
        """The interruptions that are over: what, when, how long."""
        return [
            (each.kind, round(epoch_seconds(each.start_time), 4), round(span_seconds(each.duration), 4))
            for each in self.over
        ]


def check(spent: status_pb2.TimeSpent, now: float) -> None:
    """What is true of it at any time."""
    kinds = seconds_by_kind(spent)
    until = epoch_seconds(spent.until)
    assert min(kinds.values()) >= 0.0, kinds
    assert sum(kinds.values()) == pytest.approx(until - BEGAN, abs=1e-5), kinds
    assert BEGAN <= until <= now + 1e-5
    if spent.HasField("goodput"):
        assert spent.goodput == pytest.approx(kinds["training"] / sum(kinds.values()), abs=1e-6)
