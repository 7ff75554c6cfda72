"""What the run does or waits for, and how much of that has been reported. Part of the core."""

from __future__ import annotations

from collections.abc import Iterator

from edriver.driver.core.actions import Explain
from edriver.driver.core.cause import Cause
from edriver.driver.core.rounds.round import Round


class RunActivity:
    """Reports a cause once, when it changes.

    Attributes:
        cause: what the run does, or waits for; None: it has just begun.
    """

    def __init__(self) -> None:
        """Nothing has been reported yet."""
        self.cause: Cause | None = None
        self._reported: Cause | None = None
        self._trouble: Cause | None = None

    def news(self, trouble: Cause | None, current: Round | None) -> Iterator[Explain]:
        """What is new.

        Args:
            trouble: what keeps the members of a round from going on; it goes before all else.
            current: the running round, or the last one.
        """
        before, self._trouble = self._trouble, trouble
        if trouble:
            self.cause = trouble
        elif before and current and current.running:  # it is over, and nothing else has been reported since
            self.cause = current.runs
        if self.cause and self.cause != self._reported:
            self._reported = self.cause
            yield Explain(self.cause)
