"""What looks like a mistake of the script's although training continues: reported to the driver, each mistake once."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping

from edriver.model.ids import NO_ROUND, RoundId
from edriver.text.wire_text import wire_text
from edriver.v1 import notification_pb2 as pb
from edriver.wire.conversion import round_id_message
from edriver.worker.watch.script_location import place_of


class ScriptReports:
    """The reports of one process. Without a driver there are none."""

    def __init__(self) -> None:
        self._send: Callable[[pb.Report], None] | None = None
        self._standing: Callable[[], tuple[RoundId, int]] = lambda: (NO_ROUND, 0)
        self._not_finite: set[str] = set()

    def connect(self, send: Callable[[pb.Report], None], standing: Callable[[], tuple[RoundId, int]]) -> None:
        """Report from now on.

        Args:
            send: sends a report to the driver.
            standing: returns the round, and the number of its boundaries that this worker has passed.
        """
        self._send, self._standing = send, standing

    def look_at_values(self, values: Mapping[str, float], names: Iterable[str]) -> None:
        """Report those of the values under these names that are not finite, each name once."""
        for name in names:
            if not math.isfinite(values[name]) and name not in self._not_finite:
                self._not_finite.add(name)
                self._warn(pb.ScriptWarning(not_finite=pb.NotFinite(name=name, value=values[name])))

    def _warn(self, warning: pb.ScriptWarning) -> None:
        if self._send is None:
            return
        round_id, warning.boundaries = self._standing()
        warning.round_id.CopyFrom(round_id_message(round_id))
        warning.place = wire_text(place_of(inspect.currentframe()))
        self._send(pb.Report(script_warning=warning))
