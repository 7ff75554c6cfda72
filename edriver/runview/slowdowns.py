"""Who holds a run up, as was heard last; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from edriver.text.pace_text import straggler_text, waited_for_text
from edriver.v1 import pace_pb2, status_pb2
from edriver.wire.conversion import epoch_seconds, span_seconds

MAX_SHOWN_WORKERS: Final = 16
"""Workers whose steps are shown: those whose own part of a step takes longest."""


@dataclass(slots=True)
class Slowdowns:
    """The causes that slow a run down.

    Attributes:
        hold_up: the members that the others wait for; None while steps are made.
        stragglers: the members that are slower than the others, by worker_id.
        timed: the workers whose steps take longest, the slowest first.
        timed_count: the number of workers with measured times.
    """

    hold_up: pace_pb2.HoldUp | None = None
    stragglers: dict[int, pace_pb2.Straggler] = field(default_factory=dict)
    timed: list[status_pb2.WorkerStatus] = field(default_factory=list)
    timed_count: int = 0

    def look(self, run: status_pb2.Run) -> None:
        """How the run stands."""
        self.hold_up = run.hold_up if run.HasField("hold_up") else None
        self.stragglers = {each.worker_id: each for each in run.stragglers}
        timed = [worker for worker in run.workers if worker.HasField("step_times")]
        self.timed_count = len(timed)
        self.timed = sorted(timed, key=_own_seconds, reverse=True)[:MAX_SHOWN_WORKERS]

    def straggler(self, message: pace_pb2.Straggler) -> None:
        """Record that a member has become a straggler, or is no longer one."""
        if message.HasField("end_time"):
            self.stragglers.pop(message.worker_id, None)
        else:
            self.stragglers[message.worker_id] = message

    def ended(self) -> None:
        """The round, or the run, has ended."""
        self.hold_up, self.stragglers, self.timed, self.timed_count = None, {}, [], 0

    def plain(self, now: float) -> dict[str, Any]:
        """As it goes to the page."""
        hold_up = self.hold_up
        return {
            "hold_up": None
            if hold_up is None
            else {"since": epoch_seconds(hold_up.start_time), "text": waited_for_text(hold_up)},
            "stragglers": [straggler_text(each, now) for each in _slowest_first(self.stragglers.values())],
            "steps": [_step(worker) for worker in self.timed],
            "workers": self.timed_count,
        }


def _slowest_first(stragglers: Iterable[pace_pb2.Straggler]) -> list[pace_pb2.Straggler]:
    return sorted(stragglers, key=lambda each: -each.ratio)


def _own_seconds(worker: status_pb2.WorkerStatus) -> float:
    times = worker.step_times
    known = times.HasField("waiting")
    return span_seconds(times.step) - span_seconds(times.waiting) if known else span_seconds(times.loading)


def _step(worker: status_pb2.WorkerStatus) -> dict[str, Any]:
    times = worker.step_times
    known = times.HasField("waiting")
    return {
        "rank": worker.rank,
        "place": f"{worker.host}:{worker.slot}",
        "step": span_seconds(times.step),
        "computing": span_seconds(times.computing) if known else None,
        "waiting": span_seconds(times.waiting) if known else None,
        "loading": span_seconds(times.loading),
    }
