"""How many rounds have ended for each kind of cause, and how many may. Part of the core.

--reset-limit is about failures alone. Limits for preemptions and resizes are in Settings and have no flag: no user has
yet wanted a run to end because it was resized. Unproven connections have no limit, or any process could end a run by
connecting.
"""

from __future__ import annotations

from collections import deque

from edriver.model.cause import Cause, CauseKind, LimitExceeded, RoundEnd
from edriver.model.settings import Settings


class Budget:
    """Limits the number of rounds that may end for one kind of cause.

    Args:
        end: the kind of cause.
        limit: the maximum number within the window; None: no limit.
        window: the time for which a round counts, in seconds.

    Attributes:
        total: number of these rounds so far.
    """

    def __init__(self, end: RoundEnd, limit: int | None, window: float) -> None:
        self.total = 0
        self._end = end
        self._limit = limit
        self._window = window
        self._last: Cause | None = None
        self._recent: deque[float] = deque(maxlen=None if limit is None else limit + 1)

    def spend(self, now: float, cause: Cause) -> None:
        """Count a round that ended for this cause."""
        self.total += 1
        self._last = cause
        if self._limit is not None:
            self._recent.append(now)

    def overspent(self, now: float) -> Cause | None:
        """Why the run must end; None while the limit is kept."""
        if self._limit is None or self._last is None:
            return None
        recent = sum(now - then <= self._window for then in self._recent)
        if recent <= self._limit:
            return None
        spent = LimitExceeded(self._end, self._limit, self.total, recent, self._window, self._last)
        return Cause(CauseKind.BUDGET_SPENT, detail=spent)


class Budgets:
    """Those of a run.

    Attributes:
        failures: rounds in which a worker was lost, or a collective broke.
        preemptions: rounds that ended because members' places are taken away: drained (by hand, or by a signal to the
            agent), or their host no longer named by discovery. No worker failed, and no other size was requested.
        resizes: rounds that ended for any other change of the members: newcomers, fewer slots.
        unproven: rounds in which a connection did not prove to lead to a member. They have no limit, or any process
            could end the run by connecting: consistency.UnprovenConnectionWatch spaces them out.
    """

    STATE = ("failures", "preemptions", "resizes", "unproven")

    def __init__(self, settings: Settings) -> None:
        window = settings.reset_window
        self.failures = Budget(RoundEnd.FAILURE, settings.reset_limit, window)
        self.preemptions = Budget(RoundEnd.PREEMPTION, settings.preemption_limit, window)
        self.resizes = Budget(RoundEnd.RESIZE, settings.resize_limit, window)
        self.unproven = Budget(RoundEnd.UNPROVEN, None, window)
        self._of = {
            RoundEnd.FAILURE: self.failures,
            RoundEnd.PREEMPTION: self.preemptions,
            RoundEnd.RESIZE: self.resizes,
            RoundEnd.UNPROVEN: self.unproven,
        }

    def spend(self, now: float, cause: Cause) -> None:
        """Count a round that ended for this cause, which is not ALL_DONE."""
        self._of[cause.round_end].spend(now, cause)

    def overspent(self, now: float) -> Cause | None:
        """Why the run must end; None while all limits are kept."""
        for budget in self._of.values():
            if cause := budget.overspent(now):
                return cause
        return None
