"""Notices rounds of uneven steps: says who waits for whom, and when such a round is to be ended. Part of the core."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from edriver.driver.core.cause import Cause, CauseKind, UnevenSteps
from edriver.driver.core.failures.blocked_members import REPORT_DELAY
from edriver.driver.core.rounds.round import Round


class Finding(NamedTuple):
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
        bound: seconds that members may wait where nothing can help them.
    """

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._ended = -1
        self._reported = False

    def look(self, current: Round, now: float) -> Finding | None:
        """Look at a round at this time. None: there is nothing to report."""
        found = current.uneven()
        if found is None or (not self._reported and now < found.since + REPORT_DELAY):
            self._reported = False
            return None
        self._reported = True
        over = found.unresolvable and now >= found.since + self._bound
        return Finding(Cause(CauseKind.UNEVEN_STEPS, detail=found.steps), over)

    def again(self, current: Round, cause: Cause) -> Cause | None:
        """Why no further round is to be tried, if the round before this one ended so, too; asked when this one does."""
        if self._ended == current.plan.round_id.n - 1 and isinstance(cause.detail, UnevenSteps):
            return replace(cause, detail=replace(cause.detail, again=True))
        self._ended = current.plan.round_id.n
        return None
