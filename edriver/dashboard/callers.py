"""Who is connected to the page: callers that have not shown its path are few, and make room for others.

aiohttp closes a connection without a request (`keepalive_timeout`), but has no limit for their number.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

MAX_UNAUTHENTICATED: Final = 64
"""Connections over which the page's path has not been asked for. When there are more, the oldest are closed."""


class Callers:
    """The connections of one page."""

    def __init__(self) -> None:
        self._known: set[asyncio.BaseTransport | None] = set()

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
            loop.call_soon(self._make_room, server)
            return server()

        return await loop.create_server(welcome, address, port)

    def trust(self, transport: asyncio.BaseTransport | None) -> None:
        """Over this connection the page's path was asked for."""
        self._known.add(transport)

    def _make_room(self, server: web.Server) -> None:
        there = {caller.transport: None for caller in server.connections}  # in the order in which they came
        self._known &= there.keys()
        unauthenticated = [found for found in there if found and found not in self._known and not found.is_closing()]
        for transport in unauthenticated[: max(0, len(unauthenticated) - MAX_UNAUTHENTICATED)]:
            transport.abort()
