"""Looks again and again for what holds training up, and for what impairs the driver itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from edriver.driver.observe.event_history import EventHistory
from edriver.model.cause import Cause, CauseKind, Duration, ReportedText
from edriver.v1 import status_pb2

LOOK_INTERVAL: Final = 0.5
"""Seconds between two looks."""

MIN_PAUSE: Final = 2.0
"""Seconds between two looks from which on the driver has stood still: a machine that is busy takes less."""

MIN_CLOCK_CHANGE: Final = 5.0
"""Seconds by which a machine's clock has been set, and is no longer merely adjusted."""


class DriverWatch:
    """What impairs the driver itself. Each change is found once.

    Args:
        clock: seconds that only grow.
        clock_change: by how much the machine's clock has been set since the run began, in seconds.
        unwritten: what cannot be written of the run's records, and why; empty: all can be.
    """

    def __init__(
        self, clock: Callable[[], float], clock_change: Callable[[], float], unwritten: Callable[[], str]
    ) -> None:
        self._clock = clock
        self._clock_change = clock_change
        self._unwritten = unwritten
        self._looked = clock()
        self._changed_by = clock_change()
        self._trouble = ""

    def check(self) -> Iterator[tuple[Cause, bool]]:
        """What is new since the last look; and whether it has been printed."""
        now = self._clock()
        pause, self._looked = now - self._looked - LOOK_INTERVAL, now
        if pause >= MIN_PAUSE:
            yield Cause(CauseKind.DRIVER_PAUSED, detail=Duration(pause)), False
        if abs((change := self._clock_change()) - self._changed_by) >= MIN_CLOCK_CHANGE:
            yield Cause(CauseKind.CLOCK_SET, detail=Duration(change - self._changed_by)), False
            self._changed_by = change
        trouble, self._trouble = self._trouble, self._unwritten()
        if self._trouble and self._trouble != trouble:
            yield Cause(CauseKind.UNWRITTEN, detail=ReportedText(self._trouble)), True


async def watch_run(
    event_history: EventHistory,
    publish: Callable[[list[status_pb2.Event]], None],
    driver: DriverWatch,
    warn: Callable[[Cause, bool], None],
) -> None:
    """Look, until cancelled.

    Args:
        event_history: what workers report.
        publish: passes new events on to all who watch.
        driver: what impairs the driver itself.
        warn: reports that; and whether it has been printed.
    """
    while True:
        await asyncio.sleep(LOOK_INTERVAL)
        for cause, said in driver.check():
            warn(cause, said)
        publish(event_history.check_pace())
