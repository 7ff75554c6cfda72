"""The rounds of a run, the time between them and who holds them up, as events of status.proto; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edriver.driver.observe.pace.members import PaceMonitor
from edriver.driver.observe.round_events import RoundEvents
from edriver.driver.observe.time_ledger import TimeLedger
from edriver.model import events
from edriver.model.cause import Cause
from edriver.model.plan import RoundPlan
from edriver.v1 import notification_pb2, status_pb2


class Timeline:
    """Keeps the rounds, the ledger of the time and the pace in step. All times are in seconds since the epoch.

    Args:
        began: when the run began.
        counts_steps: whether workers pass boundaries.
        pace: who holds a round up.

    Attributes:
        rounds: makes the events of rounds.
        ledger: how the run has spent its time.
    """

    def __init__(self, began: float, counts_steps: bool, pace: PaceMonitor) -> None:
        self.rounds = RoundEvents()
        self.ledger = TimeLedger(began, counts_steps)
        self._pace = pace

    def record_progress(self, progress: notification_pb2.WorkerProgress, now: float) -> Iterator[status_pb2.Event]:
        """A worker is so far."""
        return self._interrupted(self.ledger.record_progress(progress, now))

    def assigned(self, plan: RoundPlan, steps_lost: int, text: str, now: float) -> Iterator[status_pb2.Event]:
        """A round is assigned."""
        yield from self._pace.assigned(plan)
        yield from self._interrupted(self.ledger.assigned(plan.round_id, len(plan.seats), steps_lost, now))
        yield self.rounds.assigned(plan, steps_lost, text, now)

    def process_ended(self, worker_id: int, when: float) -> None:
        """A process has ended."""
        self.rounds.process_ended(worker_id, when)
        if self.rounds.detected is not None:
            self.ledger.noticed(self.rounds.detected)

    def explain(self, end: Cause) -> None:
        """Why a worker's process has ended is known now: its round may have ended by that before."""
        self.rounds.explain(end)
        self.ledger.explain(end)

    def first_step(self, event: events.FirstBoundaryPassed, now: float) -> Iterator[status_pb2.Event]:
        """A member has passed its first boundary."""
        for entry in self.rounds.first_step(event, self.ledger.opening, now):
            yield entry
            yield from self._interrupted(self.ledger.under_way(self.rounds.synced, entry.round.phases, now))

    def round_ended(self, cause: Cause, now: float, abort: str | None = None) -> Iterator[status_pb2.Event]:
        """The round has ended; `abort` describes its abort, and None: it was not aborted."""
        yield from self._pace.ended()
        yield from self.rounds.ended(cause, now, abort)
        yield from self._interrupted(self.ledger.round_ended(cause, self.rounds.detected, now))

    def run_ended(self, cause: Cause, now: float) -> Iterator[status_pb2.Event]:
        """The run has ended, and with it the round that was on."""
        yield from self._pace.ended()
        yield from self.rounds.run_ended(cause, now)
        yield from self._interrupted(self.ledger.run_ended(now))

    def _interrupted(self, interruptions: Iterable[status_pb2.Interruption]) -> Iterator[status_pb2.Event]:
        """The events of interruptions that are over; a stall says who was waited for."""
        for each in interruptions:
            if (hold_up := self._pace.hold_up_in(each)) is not None:
                each.hold_up.CopyFrom(hold_up)
            yield status_pb2.Event(interruption=each)
