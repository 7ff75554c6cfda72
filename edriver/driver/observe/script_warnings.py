"""What workers report of their script that looks like a mistake, as causes, each once in a run. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from edriver.model.cause import Cause, CauseKind, NoBoundary, NotFinite, SameSamples, WorkerName
from edriver.model.events import BatchesDrawn, ScriptWarned
from edriver.model.ids import NO_ROUND, RoundId

MAX_DRAWN: Final = 100
"""Digests of batches of one round that are remembered."""


class ScriptWarnings:
    """Remembers what has been said.

    Args:
        step_after: returns the step of the run that follows so many boundaries of a round, from 1; 0: unknown.
    """

    def __init__(self, step_after: Callable[[RoundId, int], int]) -> None:
        self._step_after = step_after
        self._not_finite: set[str] = set()
        self._no_boundary: set[bool] = set()  # by whether the training function had returned
        self._drawn: dict[bytes, WorkerName] = {}  # digests of batches, in the latest round that had some
        self._drawn_in = NO_ROUND
        self._same_samples: set[str] = set()  # places

    def cause(self, warned: ScriptWarned, worker: WorkerName) -> Cause | None:
        """What is to be said; None: nothing, because it has been said."""
        match warned.warning:
            case NoBoundary(returned=returned) as warning if returned not in self._no_boundary:
                self._no_boundary.add(returned)
                return Cause(CauseKind.NO_BOUNDARY, worker, detail=warning)
            case NotFinite(name) as warning if name not in self._not_finite:
                self._not_finite.add(name)
                step = self._step_after(warned.round_id, warned.boundaries)
                return Cause(CauseKind.NOT_FINITE, worker, detail=replace(warning, step=step))
            case BatchesDrawn() as drawn:
                return self._compared(drawn, warned.round_id, worker)
        return None

    def _compared(self, drawn: BatchesDrawn, round_id: RoundId, worker: WorkerName) -> Cause | None:
        if round_id != self._drawn_in:  # in another round another worker may have this one's share
            self._drawn_in, self._drawn = round_id, {}
        if len(self._drawn) >= MAX_DRAWN:
            return None
        first = self._drawn.setdefault(drawn.digest, worker)
        if first.worker_id == worker.worker_id or drawn.place in self._same_samples:
            return None
        self._same_samples.add(drawn.place)
        return Cause(CauseKind.SAME_SAMPLES, worker, detail=SameSamples(drawn.source, drawn.place, first))
