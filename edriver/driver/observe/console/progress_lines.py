"""Says again and again how far training is: in the records, and on the terminal or in a line now and then."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final

from edriver.driver.observe.console.output import Output
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.hosts.usage import UsageTracker
from edriver.driver.observe.records.recorder import Recorder
from edriver.text.pace_text import hold_up_text
from edriver.text.progress_text import progress_line, progress_text
from edriver.wire.conversion import epoch_seconds

_log = logging.getLogger("edriver.driver")

PROGRESS_PERIOD: Final = 1.0
"""Seconds between two looks at the progress,"""

PROGRESS_LINE_PERIOD: Final = 60.0
"""and between two lines about it."""

HOLD_UP_LINE_DELAY: Final = 10.0
"""Seconds without a step after which there is a line about who is waited for."""


async def report_progress(
    event_history: EventHistory,
    usage: UsageTracker,
    recorder: Recorder,
    output: Output,
    clock: Callable[[], float],
    *,
    to_caller: bool = False,
) -> None:
    """Record the progress, and what hosts use; show it on a terminal or to a caller, or print a line now and then.

    Args:
        event_history: how far training is, and how many workers train.
        usage: what hosts use.
        recorder: writes it down.
        output: has the bar below all other lines.
        clock: seconds, monotonic.
        to_caller: whether a process reads the output that shows the latest such line in one place.
    """
    bar = None
    if os.isatty(2):
        from edriver.driver.observe.console.progress_bar import bar_of_stderr  # rich is for terminals

        bar = bar_of_stderr()
    steps, printed_at = 0, clock()
    held_up_since = 0.0
    try:
        while True:
            await asyncio.sleep(PROGRESS_PERIOD)
            if (sample := usage.sample(event_history.now())) is not None:
                recorder.usage(sample)
            progress = event_history.progress_now()
            if not progress:
                if to_caller and event_history.view.doing:
                    output.progress(event_history.view.doing)
                continue
            recorder.progress(progress)
            hold_up, now = event_history.pace.hold_up(), event_history.now()
            trouble = "" if hold_up is None else hold_up_text(hold_up, now)
            if bar:
                output.footer(bar.line(progress, event_history.view.size, trouble))
            elif to_caller:
                if text := progress_line(progress, event_history.view.size, trouble) or event_history.view.doing:
                    output.progress(text)
            elif hold_up is not None:
                began = epoch_seconds(hold_up.start_time)
                if now - began >= HOLD_UP_LINE_DELAY and began > held_up_since:
                    held_up_since = now
                    _log.info("%s", trouble)
            elif clock() - printed_at >= PROGRESS_LINE_PERIOD and progress.steps > steps:
                steps, printed_at = progress.steps, clock()
                _log.info("%s", progress_text(progress))
    finally:
        if to_caller and (progress := event_history.progress_now()) is not None:  # the line that stays
            size = len(event_history.rounds[-1].members) if event_history.rounds else 0
            if text := progress_line(progress, size):
                output.progress(text)
