"""Notices rounds of uneven steps: says who waits for whom, and when such a round is to be ended. Part of the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from edriver.driver.core.failures.blocked import SAID_AFTER
from edriver.driver.core.round import Round


class Finding(NamedTuple):
    """What comes of a look.

    Attributes:
        reason: what the round does, or waits for.
        cause: why it is to be ended now; empty: it is not.
    """

    reason: str
    cause: str = ""


class UnevenWatch:
    """Looks at one round after the other.

    Args:
        bound: seconds that members may wait where nothing can help them.
    """

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._ended = -1
        self._said = False

    def look(self, current: Round, now: float, name: Callable[[int], str]) -> Finding | None:
        """Look at a round at this time; `name` names a worker. None: nothing is to be said."""
        found = current.uneven(name)
        if found is None or (not self._said and now < found.since + SAID_AFTER):
            self._said = False
            return None
        self._said = True
        over = found.hopeless and now >= found.since + self._bound
        return Finding(found.text, found.text if over else "")

    def met_before(self, current: Round) -> bool:
        """Whether the round before this one ended so, too; asked when this one does."""
        if self._ended == current.plan.round_id.n - 1:
            return True
        self._ended = current.plan.round_id.n
        return False
