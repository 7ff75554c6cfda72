"""How far training was, and what the script has reported, over time; pure."""

from __future__ import annotations

import math
from typing import Any, Final

from edriver.common.downsample import Thinned
from edriver.v1 import status_pb2

MOST_NAMES: Final = 20
"""Reported names that are drawn; others are left out."""

Point = tuple[float, int, float, dict[str, float | None]]


class Curve:
    """What was told of progress.

    Attributes:
        latest: the last of it; None: nothing was.
        names: what the script reports, in the order in which it came up.
    """

    def __init__(self) -> None:
        self._points: Thinned[tuple[int, Point]] = Thinned()
        self._whole = 0
        self._version = 0
        self.latest: status_pb2.Progress | None = None
        self.names: dict[str, None] = {}

    @property
    def points(self) -> list[Point]:
        """(time, steps, steps a second, what was reported by name); a value that is no number is None."""
        return [point for _, (_, point) in self._points.kept]

    def add(self, version: int, time: float, progress: status_pb2.Progress) -> None:
        """Training was so far at this time."""
        self.latest, self._version = progress, version
        for name in sorted(progress.reported):
            if name not in self.names and len(self.names) < MOST_NAMES:
                self.names[name] = None
        reported = {name: _finite(progress.reported[name]) for name in self.names if name in progress.reported}
        point = (time, progress.steps, _finite(progress.step_rate) or 0.0, reported)
        if self._points.add(time, (version, point)):
            self._whole = version

    def since(self, version: int) -> dict[str, Any]:
        """What has changed since then, as it goes to the page."""
        if self._version <= version or self.latest is None:
            return {}
        whole = self._whole > version
        told: list[Point] = []
        for _, (of, point) in reversed(self._points.kept):
            if not whole and of <= version:
                break
            told.append(point)
        latest = self.latest
        progress: dict[str, Any] = {
            "steps": latest.steps,
            "step_rate": _finite(latest.step_rate),
            "sample_rate": _finite(latest.sample_rate),
            "reported": {name: _finite(latest.reported[name]) for name in self.names if name in latest.reported},
        }
        if latest.HasField("epoch"):
            progress |= {"epoch": latest.epoch, "samples_done": latest.samples_done, "samples": latest.samples}
        return {"progress": progress, "whole": whole, "points": told[::-1]}


def _finite(value: float) -> float | None:
    """A number that JSON knows; None: it is none."""
    return value if math.isfinite(value) else None
