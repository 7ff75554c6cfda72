"""How often rounds have ended, and of what: failures, preemptions and resizes are counted apart. Part of the core."""

from __future__ import annotations

from collections import deque

from edriver.driver.core.settings import Settings
from edriver.text.phrases import count_text


class Budget:
    """How many rounds may end of one kind of cause.

    Args:
        cause: the cause in words, after "ended by".
        name: the limit's name, for those who set it.
        limit: most that may end so within the window; None: any number.
        window: how long one counts, in seconds.

    Attributes:
        total: how many there were in all.
    """

    def __init__(self, cause: str, name: str, limit: int | None, window: float) -> None:
        self.total = 0
        self._cause = cause
        self._name = name
        self._limit = limit
        self._window = window
        self._last = ""
        self._recent: deque[float] = deque(maxlen=None if limit is None else limit + 1)

    def spend(self, now: float, reason: str) -> None:
        """Count one, for this reason."""
        self.total += 1
        self._last = reason
        if self._limit is not None:
            self._recent.append(now)

    def overspent(self, now: float) -> str | None:
        """Why the run has to end; None as long as the limit is kept."""
        recent = sum(now - then <= self._window for then in self._recent)
        if self._limit is None or recent <= self._limit:
            return None
        rounds = f"{count_text(self.total, 'round')} ended by {self._cause}"
        if recent < self.total:
            rounds = f"{count_text(recent, 'round')} ended by {self._cause} within {self._window:g} s"
        return f"{rounds}, more than {self._name} {self._limit}; the last: {self._last}"


class Budgets:
    """The three of a run.

    Attributes:
        failures: rounds in which a worker was lost, or a collective broke.
        preemptions: rounds that ended because members' places are taken away: drained (by hand, or by a signal to the
            agent), or their host gone from discovery. Nobody failed, and nobody wanted another size.
        resizes: rounds that ended for any other change of the members: newcomers, fewer slots.
        unproven: rounds in which a connection did not prove to lead to a member. They have no limit, or a stranger
            could end the run by connecting: see soundness.StrangerWatch for what bounds them.
    """

    def __init__(self, settings: Settings) -> None:
        window = settings.reset_window
        self.failures = Budget("a failure", "--reset-limit", settings.reset_limit, window)
        self.preemptions = Budget("a preemption", "the limit of preemptions", settings.preemption_limit, window)
        self.resizes = Budget("a resize", "the limit of resizes", settings.resize_limit, window)
        self.unproven = Budget("a stranger's connection", "no limit", None, window)

    def overspent(self, now: float) -> str | None:
        """Why the run has to end; None as long as all limits are kept."""
        texts = (budget.overspent(now) for budget in (self.failures, self.preemptions, self.resizes))
        return next((text for text in texts if text), None)
