"""Who is connected to the page: callers that have not shown its path are few, and make room for others.

aiohttp closes a connection without a request (`keepalive_timeout`), but limits neither their number nor how long
a caller may keep asking for paths that are not there.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from edriver.wire.unauthenticated import UnauthenticatedCallers

MAX_UNAUTHENTICATED: Final = 64
"""Connections over which the page's path has not been asked for. When there are more, the oldest are closed."""

AUTHENTICATION_TIMEOUT: Final = 15.0
"""Seconds within which a caller must have asked for the page's path."""

_TIMER_SLACK: Final = 0.1
"""Seconds after a deadline at which it is looked for callers that are overdue: several have one about the same time."""


class Callers:
    """The connections of one page."""

    def __init__(self) -> None:
        self._known: set[asyncio.BaseTransport | None] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._limit: UnauthenticatedCallers[asyncio.Transport] = UnauthenticatedCallers(
            MAX_UNAUTHENTICATED, AUTHENTICATION_TIMEOUT
        )

    async def listen(self, runner: web.AppRunner, address: str, port: int) -> asyncio.Server:
        """Listen for callers; closing the server that is returned is the caller's business.

        Args:
            runner: what answers them, set up.
            address: where to listen, a name or an address.
            port: at which port; 0: any.

        Raises:
            OSError, OverflowError: it cannot.
        """
        server = runner.server
        assert server is not None, "the runner has not been set up"
        loop = asyncio.get_running_loop()

        def welcome() -> web.RequestHandler:
            loop.call_soon(loop.call_soon, self._close_surplus, server)  # once aiohttp knows this one, too
            return server()

        return await loop.create_server(welcome, address, port)

    def trust(self, transport: asyncio.BaseTransport | None) -> None:
        """Over this connection the page's path was asked for."""
        self._known.add(transport)

    def _close_surplus(self, server: web.Server) -> None:
        there = {caller.transport: None for caller in server.connections}  # in the order in which they came
        self._known &= there.keys()
        unauthenticated = [found for found in there if found and found not in self._known and not found.is_closing()]
        loop = asyncio.get_running_loop()
        now = loop.time()
        for transport in self._limit.observe(unauthenticated, now):
            transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._limit.deadline
        self._timer = (
            None
            if deadline is None
            else loop.call_later(max(0.0, deadline - now) + _TIMER_SLACK, self._close_surplus, server)
        )
