"""What is logged of a run: points of curves, and remarks; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from edriver.runview.progress_rows import position_of
from edriver.runview.run_view import RunView
from edriver.v1 import status_pb2
from edriver.wire.conversion import epoch_seconds, span_seconds

OWN_NAMES: Final = "edriver/"
"""What the names of values begin with that no script has reported."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Something to log.

    Attributes:
        time: when it was so, in seconds since the epoch.
        step: the steps until then, over all calls of `run`; those that a failure undid are counted once.
        values: by name; empty if it is only a remark.
        text: what has happened, in words; empty if nothing is to be said.
    """

    time: float
    step: int
    values: Mapping[str, float] = field(default_factory=dict)
    text: str = ""


class Entries:
    """Makes entries of what a driver sends, in its order."""

    def __init__(self) -> None:
        """Nothing is known of the run."""
        self._view = RunView()
        self._step = 0
        self._before = 0  # the steps of the script's earlier calls of `run`
        self._logged: tuple[int, dict[str, float]] | None = None

    def begin(self, snapshot: status_pb2.GetRunResponse) -> None:
        """Start from how the run stands, and not from its first event."""
        run = snapshot.run
        self._view.look(run)
        self._view.seq = snapshot.seq
        if run.HasField("progress"):
            self._advance(run.progress)

    def take(self, message: status_pb2.WatchResponse, now: float) -> Iterator[Entry]:
        """The entries of what has come.

        Args:
            message: an event, or the progress.
            now: the time, in seconds since the epoch.
        """
        if message.HasField("progress"):
            yield from self._of_progress(message.progress, self._view.size, now)
            return
        event = message.event
        if not self._view.fold(event):
            return
        time = epoch_seconds(event.time)
        if event.HasField("run_ended") and event.run_ended.HasField("progress"):
            yield from self._of_progress(event.run_ended.progress, self._view.last_size, time)
        if _is_assigned(event) and event.round.kind == status_pb2.ROUND_KIND_START:
            self._before = self._step
        values = _values_of(event)
        if values or event.text:
            yield Entry(time, self._step, values, event.text)

    def _of_progress(self, progress: status_pb2.Progress, workers: int, time: float) -> Iterator[Entry]:
        self._view.sample(time, progress)
        self._advance(progress)
        reported = dict(progress.reported)
        if self._logged == (self._step, reported):
            return  # the run stands still
        self._logged = self._step, reported
        own = {"workers": float(workers), "steps_per_second": progress.step_rate}
        if progress.HasField("epoch"):
            own["epoch"], own["samples_per_second"] = float(progress.epoch), progress.sample_rate
        if progress.time_spent.HasField("goodput"):
            own["goodput"] = progress.time_spent.goodput
        yield Entry(time, self._step, {**reported, **_own(own)})

    def _advance(self, progress: status_pb2.Progress) -> None:
        self._step = self._before + position_of(progress).step


def _values_of(event: status_pb2.Event) -> dict[str, float]:
    """What curves show of an event: of interruptions their length, of rounds their size."""
    if event.HasField("interruption") and event.interruption.kind != status_pb2.INTERRUPTION_KIND_BOOT:
        length = span_seconds(event.interruption.duration)
        return _own({"interruption_seconds": length, "steps_lost": float(event.interruption.steps_lost)})
    if _is_assigned(event):
        return _own({"round": float(event.round.round_id.n), "workers": float(len(event.round.members))})
    return {}


def _is_assigned(event: status_pb2.Event) -> bool:
    """Whether a round begins; its other events come later."""
    of = event.round
    return event.HasField("round") and not of.HasField("first_step_time") and not of.HasField("end_time")


def _own(values: Mapping[str, float]) -> dict[str, float]:
    return {f"{OWN_NAMES}{name}": value for name, value in values.items()}
