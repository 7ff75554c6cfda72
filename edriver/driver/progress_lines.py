"""Says again and again how far training is: in the records, and on the terminal or in a line now and then."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final

from edriver.driver.core.membership import Membership
from edriver.driver.observe.console.output import Output
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.records.recorder import Recorder
from edriver.driver.observe.snapshots import size_of
from edriver.text.progress_text import progress_text

_log = logging.getLogger("edriver.driver")

PROGRESS_PERIOD: Final = 1.0
"""Seconds between two looks at the progress,"""

PROGRESS_LINE_PERIOD: Final = 60.0
"""and between two lines about it."""


async def tell_progress(
    event_history: EventHistory, membership: Membership, recorder: Recorder, output: Output, clock: Callable[[], float]
) -> None:
    """Record it; show it on a terminal, elsewhere print a line now and then, while there is progress.

    Args:
        event_history: how far training is.
        membership: says how many workers there are.
        recorder: writes it down.
        output: has the bar below all other lines.
        clock: seconds, monotonic.
    """
    bar = None
    if os.isatty(2):
        from edriver.driver.observe.console.progress_bar import bar_of_stderr  # rich is for terminals

        bar = bar_of_stderr()
    steps, told_at = 0, clock()
    while True:
        await asyncio.sleep(PROGRESS_PERIOD)
        progress = event_history.progress_now()
        if not progress:
            continue
        recorder.progress(progress)
        if bar:
            output.footer(bar.line(progress, size_of(membership)))
        elif clock() - told_at >= PROGRESS_LINE_PERIOD and progress.steps > steps:
            steps, told_at = progress.steps, clock()
            _log.info("%s", progress_text(progress))
