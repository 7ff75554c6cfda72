"""Points of curves over time, evenly thinned, so that a reader gets only those that came since; pure."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from edriver.common.downsample import MAX_SAMPLES, MIN_INTERVAL, Downsampled

Point = TypeVar("Point")


class Points(Generic[Point]):
    """Points, oldest first.

    Args:
        limit: the number of points to keep; 2 or more.
        interval: the initial distance of two points, in seconds.
    """

    def __init__(self, limit: int = MAX_SAMPLES, interval: float = MIN_INTERVAL) -> None:
        self._points: Downsampled[tuple[int, Point]] = Downsampled(limit, interval)
        self._revision = 0
        self._whole = 0

    @property
    def all(self) -> list[Point]:
        """All that are remembered."""
        return [point for _, (_, point) in self._points.samples]

    def add(self, revision: int, time: float, point: Point, last: bool = False) -> None:
        """A point of this time, which a version has brought; see Downsampled.

        Args:
            revision: the version.
            time: in seconds since the epoch.
            point: the point.
            last: nothing comes after it, so it is kept, however close it is to the one before.
        """
        self._revision = revision
        if self._points.add(time, (revision, point), due=last):
            self._whole = revision

    def since(self, revision: int) -> dict[str, Any]:
        """What has come since a version, as it goes to the page: all, if points were dropped; empty: nothing."""
        if self._revision <= revision:
            return {}
        whole = self._whole > revision
        later: list[Point] = []
        for _, (of, point) in reversed(self._points.samples):
            if not whole and of <= revision:
                break
            later.append(point)
        return {"whole": whole, "points": later[::-1]}
