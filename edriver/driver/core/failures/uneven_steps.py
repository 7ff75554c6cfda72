"""Detects rounds of uneven steps: who waits for whom, and when such a round must end. Part of the core."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from edriver.driver.core.blocked_members import REPORT_DELAY
from edriver.driver.core.round import Round
from edriver.model.cause import Cause, CauseKind, UnevenSteps


class UnevenRound(NamedTuple):
    """What comes of a look.

    Attributes:
        cause: what the round does, or waits for.
        over: whether it is to be ended of it now.
    """

    cause: Cause
    over: bool


class UnevenWatch:
    """Looks at one round after the other.

    Args:
        bound: seconds that members may wait once no other member can free them.
        idle_bound: seconds that a script in restart mode may be idle.
    """

    def __init__(self, bound: float, idle_bound: float) -> None:
        self._bound = bound
        self._idle_bound = idle_bound
        self._ended = -1
        self._reported = False

    def check(self, current: Round, now: float) -> UnevenRound | None:
        """Check a round at this time; returns None if there is nothing to report."""
        found = current.uneven()
        if found is None or (not self._reported and now < found.since + REPORT_DELAY):
            self._reported = False
            return None
        self._reported = True
        over = found.unresolvable and now >= found.since + (self._idle_bound if found.steps.idle else self._bound)
        return UnevenRound(Cause(CauseKind.UNEVEN_STEPS, detail=found.steps), over)

    def again(self, current: Round, cause: Cause) -> Cause | None:
        """Why no further round is to be tried, if the round before this one ended so, too; asked when this one does."""
        if self._ended == current.plan.round_id.n - 1 and isinstance(cause.detail, UnevenSteps):
            return replace(cause, detail=replace(cause.detail, again=True))
        self._ended = current.plan.round_id.n
        return None
