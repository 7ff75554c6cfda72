"""The clock by which a run writes its times: that of its driver, the same on all hosts, and never set.

Times that are compared come from several processes: when a step ended, when its worker died, when the driver noticed.
The machine's clock will not do: hosts disagree, and a clock may be set by an hour while the run lasts. So the driver
reads it once and counts on from there. Its Welcome has the time for an agent, which passes it to its workers.

An agent goes by the driver's time if its own clock differs by more than MIN_DIFFERENCE. So times of different hosts can
be compared, and a clock that is set by an hour changes neither the order of events nor a duration. No decision depends
on this clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

CLOCK_VARIABLE: Final = "EDRIVER_CLOCK"
"""The variable in which a worker finds by how much the run's time is ahead of the time since its host was booted."""

MIN_DIFFERENCE: Final = 1.0
"""Seconds by which two clocks differ that are not merely read at different moments, or kept by NTP."""


def since_boot() -> float:
    """Seconds since this machine was booted, those included for which it was suspended; the same for all processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class RunClock:
    """Seconds since the epoch as the run counts them.

    Args:
        ahead: seconds by which they are ahead of `steady`; None: as the machine's clock says now.
        steady: seconds that only grow, for all processes of this machine the same.
        wall: the machine's clock, in seconds since the epoch.

    Attributes:
        ahead: as given, or found.
    """

    def __init__(
        self,
        ahead: float | None = None,
        steady: Callable[[], float] = since_boot,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._steady = steady
        self._wall = wall
        self.ahead = wall() - steady() if ahead is None else ahead

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> RunClock:
        """A worker's, by its environment."""
        try:
            return cls(float(environment[CLOCK_VARIABLE]))
        except (KeyError, ValueError):
            return cls()

    def __call__(self) -> float:
        """The time."""
        return self._steady() + self.ahead

    def follow(self, now: float) -> None:
        """Go by another process's clock, which said this a moment ago. One that hardly differs is the more exact."""
        if abs(now - self()) > MIN_DIFFERENCE:
            self.ahead = now - self._steady()

    def go_on_after(self, then: float) -> None:
        """Read no earlier time than this from now on."""
        self.ahead = max(self.ahead, then - self._steady())

    def behind_machine(self) -> float:
        """Seconds by which the machine's clock is ahead of this one: it has been set by so much meanwhile."""
        return self._wall() - self()
