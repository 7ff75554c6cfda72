"""The page's web server: its files, and a stream of server-sent events to each browser (html.spec.whatwg.org, "9.2
Server-sent events"): first everything, then what has changed.

Everything lies below a path that cannot be guessed, so that the machine's other users are kept out. A request whose
Host is a name that is not this machine's is refused: a foreign page could have had its own name resolve to this server.
"""

from __future__ import annotations

import asyncio
import gzip
import hmac
import ipaddress
import json
import logging
import socket
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from edriver.dashboard.assets import PAGE_SCRIPTS, filled, page_file, plotly_script
from edriver.dashboard.callers import Callers
from edriver.dashboard.feed import Feed

REQUEST_TIMEOUT: Final = 10.0
"""Seconds that a connection may be open without a whole request, before the first one and between two."""

MAX_DIGITS: Final = 9
"""Of a number in a request."""

MAX_STREAMS: Final = 64
"""Streams that are open at a time."""

MESSAGE_INTERVAL: Final = 0.2
"""Seconds at least between two messages to a browser; what happens meanwhile goes into one."""

WRITE_TIMEOUT: Final = 10.0
"""Seconds in which a browser must have taken a message; one that has not is dropped, and comes again by itself."""

KEEPALIVE_INTERVAL: Final = 15.0
"""Seconds after which a browser is sent an empty line: so it is found out that it is gone."""

_CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)  # plotly styles its drawings inline, and shows heatmaps as images of its own making
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of every answer."""


_log = logging.getLogger("edriver.dashboard")
_log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))
"""aiohttp's, without a traceback for each caller that speaks no HTTP."""


def runner_of(app: web.Application, shutdown_timeout: float = 0.5) -> web.AppRunner:
    """What serves an application.

    Args:
        app: the application.
        shutdown_timeout: seconds that open streams have when it ends.
    """
    return web.AppRunner(
        app, access_log=None, logger=_log, shutdown_timeout=shutdown_timeout, keepalive_timeout=REQUEST_TIMEOUT
    )


class PageServer:
    """Serves one run's page.

    Args:
        feed: what it shows.
        secret: the path's first part.

    Attributes:
        app: the web application.
        callers: who is connected.
        browsers: open streams.
    """

    def __init__(self, feed: Feed, secret: str) -> None:
        self._feed = feed
        self._secret = secret
        self._plotly = b""
        self._message = ((-1, -1, "", ""), b"")
        self.browsers = 0
        self.callers = Callers()
        self.app = web.Application(middlewares=[self._guard])
        self.app.router.add_get("/{secret}/", self._page)
        self.app.router.add_get("/{secret}/events", self._stream)
        self.app.router.add_get("/{secret}/output", self._output)
        self.app.router.add_get("/{secret}/plotly.js", self._library)
        self.app.router.add_get("/{secret}/{name}", self._file)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests that do not know the path, or that came under another name."""
        response: web.StreamResponse
        if not is_ours(request.headers.get("Host", "")):
            response = web.Response(status=421, text="this server goes by its address, or localhost\n")
        elif request.method not in ("GET", "HEAD"):
            response = web.Response(
                status=405, text="this server is only to be looked at\n", headers={"Allow": "GET, HEAD"}
            )
        elif not hmac.compare_digest(_first_part(request.path), self._secret.encode()):
            response = web.Response(status=404, text="not found\n")
        else:
            self.callers.trust(request.transport)
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = web.Response(status=error.status, text=f"{error.reason}\n")
        if not response.prepared:
            response.headers.update(SECURITY_HEADERS)
        return response

    async def _page(self, _request: web.Request) -> web.Response:
        scripts = "\n".join(f'<script src="{name}" defer></script>' for name in ("plotly.js", *PAGE_SCRIPTS))
        head = f'<link rel="stylesheet" href="page.css">\n{scripts}'
        text = filled(page_file("index.html"), title="edriver", head=head, summary="", data="")
        return web.Response(text=text, content_type="text/html", headers={"Cache-Control": "no-store"})

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in (*PAGE_SCRIPTS, "page.css"):
            raise web.HTTPNotFound
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        return web.Response(text=page_file(name), content_type=kind, headers={"Cache-Control": "no-store"})

    async def _output(self, request: web.Request) -> web.Response:
        """What workers have written: of all of them, or in one slot, after a line's number."""
        slot, since = request.query.get("slot", ""), request.query.get("since", "0")
        for number in (slot or "0", since):
            if len(number) > MAX_DIGITS or not (number.isascii() and number.isdecimal()):
                raise web.HTTPBadRequest
        found = await self._feed.output(request.query.get("host", ""), int(slot) if slot else None, int(since))
        return web.json_response(found, headers={"Cache-Control": "no-store"})

    async def _library(self, _request: web.Request) -> web.Response:
        if not self._plotly:
            self._plotly = await asyncio.to_thread(lambda: gzip.compress(plotly_script().read_bytes(), 6))
        headers = {"Content-Encoding": "gzip", "Cache-Control": "private, max-age=86400"}
        return web.Response(body=self._plotly, content_type="text/javascript", headers=headers)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if self.browsers >= MAX_STREAMS:
            return web.Response(status=503, text=f"{MAX_STREAMS} pages are open already: close one\n")
        response = web.StreamResponse(headers={**SECURITY_HEADERS, "Cache-Control": "no-store"})
        response.content_type = "text/event-stream"
        self.browsers += 1
        try:
            await response.prepare(request)
            await self._send_updates(response)
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self.browsers -= 1
        return response

    async def _send_updates(self, response: web.StreamResponse) -> None:
        """Send a browser everything, then what has changed since it was last sent something."""
        revision = 0
        while True:
            changed = self._feed.changed
            message = self._since(revision)
            revision = self._feed.history.revision
            await asyncio.wait_for(response.write(message), WRITE_TIMEOUT)
            await asyncio.sleep(MESSAGE_INTERVAL)
            while not changed.is_set():
                try:
                    await asyncio.wait_for(changed.wait(), KEEPALIVE_INTERVAL)
                except TimeoutError:
                    await asyncio.wait_for(response.write(b":\n\n"), WRITE_TIMEOUT)

    def _since(self, revision: int) -> bytes:
        """A message; browsers that are equally far get the same one."""
        feed = self._feed
        key = (revision, feed.history.revision, feed.link, feed.why)
        if self._message[0] != key:
            state = {"whole": not revision, "link": feed.link, "why": feed.why, "time": feed.now}
            text = json.dumps(state | feed.history.since(revision), allow_nan=False, separators=(",", ":"))
            self._message = (key, f"data: {text}\n\n".encode())
        return self._message[1]


def _first_part(path: str) -> bytes:
    """The first part of a path; empty: it has none, or is no path."""
    _, _, rest = path.partition("/")
    return rest.partition("/")[0].encode(errors="replace")


def is_ours(host: str) -> bool:
    """Whether a request's Host is an address or this machine's own name: no other site can make those lead here."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    name = name.removeprefix("[").removesuffix("]").lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in ("localhost", socket.gethostname().lower())
    return True
