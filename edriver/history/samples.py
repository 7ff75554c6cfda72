"""Every sample of a run's progress that its records have, as rows: for files that other programs read; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from edriver.history.records import UnreadableLine
from edriver.v1 import status_pb2
from edriver.wire.conversion import epoch_seconds


@dataclass(slots=True)
class Sample:
    """How far training was at a time.

    Attributes:
        time: in seconds since the epoch,
        seconds: and since the run began.
        step: of the script's call of `run`, as rank 0 counts, whose values these are.
        call: which call that was, from 0.
        samples: of all epochs together, as the ElasticSampler counts them; None: there is none.
        undone: whether the step was made again later, because a failure had led back behind it.
        workers: how many trained.
        step_rate: steps a second.
        sample_rate: samples a second.
        goodput: of the run until then; None: it is not known.
        reported: what the script has reported last, by name.
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


class Place(NamedTuple):
    """Where what rank 0 has reported stands.

    Attributes:
        step: rank 0's steps of the script's call of `run`; before its first report those of the farthest member.
        samples: of all epochs together; None: there is no ElasticSampler.
    """

    step: int
    samples: int | None


def place_of(progress: status_pb2.Progress) -> Place:
    """Where this progress stands."""
    return Place(
        progress.rank_0_steps if progress.HasField("rank_0_steps") else progress.steps,
        progress.epoch * progress.samples + progress.samples_done if progress.HasField("epoch") else None,
    )


def samples_of(entries: Iterable[status_pb2.Event | status_pb2.ProgressSample | UnreadableLine]) -> list[Sample]:
    """The samples in an event log, oldest first. Where it has several runs, one after the other, they are the last's.

    Args:
        entries: see edriver.history.records.read.
    """
    found: list[Sample] = []
    began, seq, workers, calls = 0.0, 0, 0, 0
    for entry in entries:
        if isinstance(entry, UnreadableLine):
            continue
        time = epoch_seconds(entry.time)
        if isinstance(entry, status_pb2.ProgressSample):
            began = began or time
            found.append(_sample(entry.progress, time, time - began, workers, max(0, calls - 1)))
            continue
        if entry.seq <= seq:
            found, began, workers, calls = [], 0.0, 0, 0
        seq, began = entry.seq, began or time
        if entry.HasField("round"):
            if entry.round.HasField("end_time"):
                workers = 0
            elif not entry.round.HasField("first_step_time"):
                calls += entry.round.kind == status_pb2.ROUND_KIND_START
                workers = len(entry.round.members)
        elif entry.HasField("run_ended") and entry.run_ended.HasField("progress"):
            size = workers or entry.run_ended.size
            found.append(_sample(entry.run_ended.progress, time, time - began, size, max(0, calls - 1)))
    _mark_undone(found)
    return found


def _sample(progress: status_pb2.Progress, time: float, seconds: float, workers: int, call: int) -> Sample:
    spent, place = progress.time_spent, place_of(progress)
    return Sample(
        time,
        seconds,
        place.step,
        call,
        place.samples,
        workers,
        progress.step_rate,
        progress.sample_rate,
        spent.goodput if spent.HasField("goodput") else None,
        reported=dict(progress.reported),
    )


def _mark_undone(samples: list[Sample]) -> None:
    """A sample is undone if a later one of the same call has made fewer steps."""
    fewest: dict[int, int] = {}
    for sample in reversed(samples):
        sample.undone = sample.step > fewest.get(sample.call, sample.step)
        fewest[sample.call] = min(sample.step, fewest.get(sample.call, sample.step))
