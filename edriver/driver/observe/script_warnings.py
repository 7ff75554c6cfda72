"""What workers report of their script that looks like a mistake, as causes, each once in a run. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edriver.model.cause import Cause, CauseKind, NoBoundary, NotFinite, WorkerName
from edriver.model.events import ScriptWarned
from edriver.model.ids import RoundId


class ScriptWarnings:
    """Remembers what has been said.

    Args:
        step_after: returns the step of the run that follows so many boundaries of a round, from 1; 0: unknown.
    """

    def __init__(self, step_after: Callable[[RoundId, int], int]) -> None:
        self._step_after = step_after
        self._not_finite: set[str] = set()
        self._no_boundary: set[bool] = set()  # by whether the training function had returned

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
        return None
