"""What looks like a mistake of the script's although training continues: reported to the driver, each mistake once."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final

from edriver.model.ids import NO_ROUND, RoundId
from edriver.model.plan import NO_ASSIGNMENT, Assignment
from edriver.text.wire_text import wire_text
from edriver.v1 import notification_pb2 as pb
from edriver.wire.conversion import round_id_message
from edriver.worker.watch.script_location import place_of

STEPS_WITHOUT_BOUNDARY: Final = 10
"""So many steps of a round without a boundary are reported."""

NO_BOUNDARY: Final = (
    "all of the last round, because the script passes no boundary: call state.check_host_updates() or state.commit() "
    "after each step"
)
"""Why its steps are lost."""


class ScriptReports:
    """The reports of one process. Without a driver there are none.

    What is called in each step does next to nothing once the round's first steps are over.
    """

    def __init__(self) -> None:
        self._send: Callable[[pb.Report], None] | None = None
        self._standing: Callable[[], tuple[RoundId, int]] = lambda: (NO_ROUND, 0)
        self._place = NO_ASSIGNMENT
        self._not_finite: set[str] = set()
        self._no_boundary: set[bool] = set()  # by whether the training function had returned
        self._steps = 0  # of optimizers, in this round
        self._batches = 0  # recorded in the sampler, in this round

    def connect(self, send: Callable[[pb.Report], None], standing: Callable[[], tuple[RoundId, int]]) -> None:
        """Report from now on.

        Args:
            send: sends a report to the driver.
            standing: returns the round, and the number of its boundaries that this worker has passed.
        """
        self._send, self._standing = send, standing

    def entered(self) -> None:
        """The script has entered its next `run` call, whose loop is another one."""
        self._no_boundary.clear()

    def synced(self, place: Assignment) -> None:
        """A round begins: this is this worker's place in it."""
        self._place = place
        self._steps = self._batches = 0

    # ---- boundaries ------------------------------------------------------------------------------------------

    def step_begins(self) -> None:
        """An optimizer of the state begins a step."""
        self._steps += 1
        if self._steps == STEPS_WITHOUT_BOUNDARY:
            self._look_for_boundary()

    def batch_recorded(self) -> None:
        """A batch has been recorded in the sampler."""
        self._batches += 1
        if self._batches == STEPS_WITHOUT_BOUNDARY and not self._steps:
            self._look_for_boundary()

    def returned(self, function: Callable[..., Any]) -> None:
        """The training function has returned, and has passed no boundary in any round."""
        if self._steps or self._batches:
            code = getattr(inspect.unwrap(function), "__code__", None)
            place = "" if code is None else f"{Path(code.co_filename).name}:{code.co_firstlineno} ({code.co_name})"
            self._without_boundary(place, returned=True)

    @property
    def uncounted_steps(self) -> int:
        """The steps of this round, if it has become clear that they are made without a boundary; else 0."""
        round_id, boundaries = self._standing()
        steps = self._steps or self._batches
        if boundaries or round_id != self._place.round_id:  # a round that is not synced yet has made none
            return 0
        return steps if self._no_boundary or steps >= STEPS_WITHOUT_BOUNDARY else 0

    def _look_for_boundary(self) -> None:
        if not self._standing()[1]:
            self._without_boundary(place_of(_frame()), returned=False)

    def _without_boundary(self, place: str, *, returned: bool) -> None:
        if returned in self._no_boundary:
            return
        self._no_boundary.add(returned)
        if self._place.rank == 0:  # all ranks run the same script
            found = pb.NoBoundary(steps=self._steps or self._batches, returned=returned)
            self._warn(pb.ScriptWarning(no_boundary=found), place)

    # ---- samples ---------------------------------------------------------------------------------------------

    def batches_drawn(self, source: str, digest: bytes, place: str) -> None:
        """Report the first batches that this worker trains on: the driver compares them with those of another rank.

        Args:
            source: the type of the loader's sampler, or of its data set if that has none.
            digest: of the batches.
            place: the line of the script that iterates the loader.
        """
        self._warn(pb.ScriptWarning(batches_drawn=pb.BatchesDrawn(source=source, digest=digest)), place)

    # ---- values ----------------------------------------------------------------------------------------------

    def look_at_values(self, values: Mapping[str, float], names: Iterable[str]) -> None:
        """Report those of the values under these names that are not finite, each name once."""
        for name in names:
            if not math.isfinite(values[name]) and name not in self._not_finite:
                self._not_finite.add(name)
                found = pb.NotFinite(name=name, value=values[name])
                self._warn(pb.ScriptWarning(not_finite=found), place_of(_frame()))

    def _warn(self, warning: pb.ScriptWarning, place: str) -> None:
        if self._send is None:
            return
        round_id, warning.boundaries = self._standing()
        warning.round_id.CopyFrom(round_id_message(round_id))
        warning.place = wire_text(place)
        self._send(pb.Report(script_warning=warning))


def _frame() -> FrameType | None:
    return inspect.currentframe()
