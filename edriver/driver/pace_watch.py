"""Looks again and again for what holds training up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from edriver.driver.observe.event_history import EventHistory
from edriver.v1 import status_pb2

LOOK_INTERVAL: Final = 0.5
"""Seconds between two looks."""


async def watch_pace(event_history: EventHistory, publish: Callable[[list[status_pb2.Event]], None]) -> None:
    """Look, until cancelled.

    Args:
        event_history: what workers report.
        publish: passes new events on to all who watch.
    """
    while True:
        await asyncio.sleep(LOOK_INTERVAL)
        publish(event_history.look())
