"""How far training was, and what the script has reported, over time; pure."""

from __future__ import annotations

import math
from typing import Any

from edriver.model.limits import MAX_REPORTED_NAMES
from edriver.runview.points import Points
from edriver.runview.progress_rows import position_of, undone_samples
from edriver.v1 import status_pb2

Point = tuple[float, int, float, dict[str, float | None], int | None, float]


class Curve:
    """The samples of progress.

    Attributes:
        latest: the last sample; None before the first.
        names: the names that the script reports, in order of appearance; the first MAX_REPORTED_NAMES.
    """

    def __init__(self) -> None:
        self._points: Points[tuple[int, Point]] = Points()  # each with its call of `run`
        self.latest: status_pb2.Progress | None = None
        self.names: dict[str, None] = {}

    @property
    def points(self) -> list[Point]:
        """(time, steps of rank 0, steps a second, what was reported by name, samples of all epochs, samples a second).

        A value that is not a number is None, and so are the samples of a run without an ElasticSampler.
        """
        return [point for _, point in self._points.all]

    def add(self, revision: int, time: float, progress: status_pb2.Progress, call: int, last: bool = False) -> None:
        """Training was so far at this time.

        Args:
            revision: of the history.
            time: in seconds since the epoch.
            progress: how far it was.
            call: the number of the script's call of `run`.
            last: nothing comes after it, so it is kept, however close it is to the one before.
        """
        self.latest = progress
        for name in sorted(progress.reported):
            if name not in self.names and len(self.names) < MAX_REPORTED_NAMES:
                self.names[name] = None
        reported = {name: _finite(progress.reported[name]) for name in self.names if name in progress.reported}
        rates = _finite(progress.step_rate) or 0.0, _finite(progress.sample_rate) or 0.0
        step, samples = position_of(progress)
        self._points.add(revision, time, (call, (time, step, rates[0], reported, samples, rates[1])), last)

    def since(self, revision: int) -> dict[str, Any]:
        """What has changed since then, as it goes to the page."""
        changes, latest = self._points.since(revision), self.latest
        if not changes or latest is None:
            return {}
        points = [point for _, point in changes["points"]]
        undone = undone_samples([(call, point[1]) for call, point in self._points.all])
        progress: dict[str, Any] = {
            "steps": latest.steps,
            "step_rate": _finite(latest.step_rate),
            "sample_rate": _finite(latest.sample_rate),
            "reported": {name: _finite(latest.reported[name]) for name in self.names if name in latest.reported},
        }
        if latest.HasField("epoch"):
            progress |= {"epoch": latest.epoch, "samples_done": latest.samples_done, "samples": latest.samples}
        return {"progress": progress, "whole": changes["whole"], "points": points, "undone": _stretches(undone)}


def _stretches(flags: list[bool]) -> list[tuple[int, int]]:
    """The first place of each stretch that is True, and the one after its last."""
    ends = [
        place
        for place, (before, flag) in enumerate(zip([False, *flags], [*flags, False], strict=True))
        if before != flag
    ]
    return list(zip(ends[::2], ends[1::2], strict=True))


def _finite(value: float) -> float | None:
    """Return a number that JSON can represent, or None."""
    return value if math.isfinite(value) else None
