"""Every sample of a run's progress that its records have, as rows: for files that other programs read; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from edriver.runview.run_view import RunView
from edriver.v1 import status_pb2
from edriver.wire.conversion import epoch_seconds


@dataclass(slots=True)
class ProgressRow:
    """The progress of training at a time.

    Attributes:
        time: the time, in seconds since the epoch.
        seconds: the seconds since the run began.
        step: the step in the script's call of `run`, as counted by rank 0, whose values these are.
        call: the number of that call, from 0.
        samples: the samples of all epochs together, as counted by the ElasticSampler; None without one.
        undone: whether the step was repeated later, because a failure led back to an earlier one.
        workers: the number of workers that trained.
        step_rate: steps per second.
        sample_rate: samples per second.
        goodput: the goodput of the run until then; None if unknown.
        reported: the values that the script reported last, by name.
    """

    time: float
    seconds: float
    step: int
    call: int
    samples: int | None
    workers: int
    step_rate: float
    sample_rate: float
    goodput: float | None
    undone: bool = False
    reported: dict[str, float] = field(default_factory=dict)


class Position(NamedTuple):
    """The progress as reported by rank 0.

    Attributes:
        step: rank 0's steps in the script's call of `run`; before its first report, those of the farthest member.
        samples: the samples of all epochs together; None without an ElasticSampler.
    """

    step: int
    samples: int | None


def position_of(progress: status_pb2.Progress) -> Position:
    """Where this progress stands."""
    return Position(
        progress.rank_0_steps if progress.HasField("rank_0_steps") else progress.steps,
        progress.epoch * progress.samples + progress.samples_done if progress.HasField("epoch") else None,
    )


def progress_rows(entries: Iterable[status_pb2.Event | status_pb2.ProgressSample]) -> list[ProgressRow]:
    """The progress in an event log, oldest first. Where it has several runs, one after the other, it is the last's.

    Args:
        entries: what the log tells, in its order.
    """
    rows: list[ProgressRow] = []
    view = RunView()
    for entry in entries:
        time = epoch_seconds(entry.time)
        if isinstance(entry, status_pb2.ProgressSample):
            view.sample(time, entry.progress)
            rows.append(_row(view, time, entry.progress, view.size))
            continue
        if entry.seq <= view.seq:
            rows, view = [], RunView()
        view.fold(entry)
        if entry.HasField("run_ended") and entry.run_ended.HasField("progress"):
            rows.append(_row(view, time, entry.run_ended.progress, view.last_size or entry.run_ended.size))
    for row in rows:
        row.seconds = row.time - view.began  # which an event tells that comes after the first of them
    for row, undone in zip(rows, undone_samples([(row.call, row.step) for row in rows]), strict=True):
        row.undone = undone
    return rows


def _row(view: RunView, time: float, progress: status_pb2.Progress, workers: int) -> ProgressRow:
    spent, position = progress.time_spent, position_of(progress)
    return ProgressRow(
        time,
        0.0,
        position.step,
        view.call,
        position.samples,
        workers,
        progress.step_rate,
        progress.sample_rate,
        spent.goodput if spent.HasField("goodput") else None,
        reported=dict(progress.reported),
    )


def undone_samples(samples: Sequence[tuple[int, int]]) -> list[bool]:
    """Of samples, oldest first, each by its call of `run` and its step: whether its step was repeated later.

    It was if a later sample of the same call has fewer steps: a failure has led back.
    """
    fewest: dict[int, int] = {}
    undone = []
    for call, step in reversed(samples):
        undone.append(step > fewest.get(call, step))
        fewest[call] = min(step, fewest.get(call, step))
    return undone[::-1]
