"""Whether a script in restart mode stands still: it prints nothing, and neither it nor its children use a processor.

That is not a fault by itself: it may wait for others in a collective for as long as one of them takes to evaluate. The
driver knows whether there is another one left that it could wait for.

Once all others have run to their end, a script that stands still, or whose worker reports that it waits in a
collective, ends the round after a bound, as uneven steps do in elastic mode.
"""

from __future__ import annotations

from collections.abc import Callable

from edriver.agent.health.cpu_use import CpuUseWatch


class StandstillWatch:
    """Looks at a script again and again.

    Args:
        used: seconds of processors that it and its children have used so far.
        clock: seconds that only grow.
        window: seconds for which it has to do nothing.
    """

    def __init__(self, used: Callable[[], float], clock: Callable[[], float], window: float) -> None:
        self._clock = clock
        self._work = CpuUseWatch(used, clock, window)
        self._active_at = clock()
        self._heard = False
        self._reported = False

    def hear(self) -> None:
        """It has printed something."""
        self._heard = True

    def check(self) -> float | None:
        """Sample the script once.

        Returns:
            the seconds for which it has been idle, once they reach a whole window; 0 when a reported script continues;
            None without news.
        """
        if not self._work.over:
            return None
        worked, heard = self._work.was_busy(), self._heard
        self._heard = False
        if worked or heard:
            self._active_at = self._clock()
            reported, self._reported = self._reported, False
            return 0.0 if reported else None
        if self._reported:
            return None
        self._reported = True
        return self._clock() - self._active_at
