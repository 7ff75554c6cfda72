"""Follows those of this user's runs that the page is asked for: each from when it is first looked at."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from edriver.client import AsyncClient, RunError, here
from edriver.dashboard.feed import Feed

MAX_FEEDS: Final = 16
"""Runs that are followed at a time; of more, the one that was asked for longest ago is not followed any more."""


class Feeds:
    """The runs that are followed.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._feeds: dict[str, tuple[Feed, AsyncExitStack]] = {}  # the one that was asked for last is the last

    async def of(self, run_id: str) -> Feed | None:
        """A run's feed; None: it is not in progress, or not on this machine."""
        async with self._lock:
            if run_id in self._feeds:
                self._feeds[run_id] = self._feeds.pop(run_id)
                return self._feeds[run_id][0]
            try:
                address = await asyncio.to_thread(here, run_id)
            except RunError:
                return None
            async with AsyncExitStack() as stack:
                feed = Feed(await stack.enter_async_context(AsyncClient(address)), self._clock)
                try:
                    await feed.begin()
                except RunError:
                    return None
                following = asyncio.create_task(feed.follow())
                stack.push_async_callback(_cancelled, following)
                if len(self._feeds) >= MAX_FEEDS:
                    await self._feeds.pop(next(iter(self._feeds)))[1].aclose()
                self._feeds[run_id] = feed, stack.pop_all()
            return feed

    async def close(self) -> None:
        """Follow none any more."""
        async with self._lock:
            while self._feeds:
                await self._feeds.popitem()[1][1].aclose()


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, RunError):
        await task
