"""The failures that a run may end of: those of its workers since the last round was formed. Part of the core."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from edriver.driver.core.failures.root_cause import earlier_failure, in_order, with_last_words
from edriver.model.actions import Failure
from edriver.model.cause import Cause
from edriver.model.events import WorkerExited
from edriver.model.records import Worker

FAILURES_KEPT: Final = 32
"""The maximum number of failures in the final report: the first ones, which show the cause."""


@dataclass(slots=True, eq=False)
class FailureLog:
    """Failures by worker_id, in the order in which they were noticed.

    Attributes:
        latest: those since the round was formed.
        before: the latest ones before that; the processes may be reaped, and their last words known, only later.
    """

    latest: dict[int, Failure] = field(default_factory=dict)
    before: dict[int, Failure] = field(default_factory=dict)

    def note_lost(self, worker: Worker, cause: Cause, end: WorkerExited | None) -> None:
        """A worker has failed; `end` is that of its process, once that is known."""
        if len(self.latest) < FAILURES_KEPT:
            self.latest[worker.worker_id] = _failure(worker, cause, end)

    def note_suspected(self, worker: Worker, cause: Cause) -> None:
        """The run ends of a worker that is suspected."""
        self.latest.setdefault(worker.worker_id, _failure(worker, cause))

    def note_exited(self, worker: Worker, cause: Cause, end: WorkerExited) -> None:
        """The process of a worker has ended that the run does not count on any more: its last words are known now."""
        failures = self.before if worker.worker_id in self.before else self.latest
        if known := failures.get(worker.worker_id):
            failures[worker.worker_id] = _failure(worker, cause if worker.ending else known.cause, end)
        elif earlier := earlier_failure(tuple(self.latest.values()), worker.name, end):
            self.latest[worker.worker_id] = earlier

    def explain(self, cause: Cause) -> None:
        """More is known now of why a worker was lost."""
        assert cause.worker is not None, "a worker was lost"
        for failures in (self.latest, self.before):
            if known := failures.get(cause.worker.worker_id):
                failures[cause.worker.worker_id] = replace(known, cause=cause)

    def round_formed(self) -> None:
        """The run will not end of what it has survived."""
        self.before, self.latest = self.latest or self.before, {}

    def in_order(self) -> tuple[Failure, ...]:
        """The latest, the root cause first."""
        return in_order(self.latest.values())


def _failure(worker: Worker, cause: Cause, end: WorkerExited | None = None) -> Failure:
    failure = Failure(worker.name, cause, worker.traceback)
    return failure if end is None else with_last_words(failure, end)
