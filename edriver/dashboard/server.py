"""The page's web server: its files, and a stream of server-sent events to each browser (html.spec.whatwg.org, "9.2
Server-sent events"): first everything, then what has changed.

Everything lies below a path that cannot be guessed, so that the machine's other users are kept out. A request whose
Host is a name that is not this machine's is refused: a foreign page could have had its own name resolve to this server.
Where the run may be steered, pages that do so lie below a second such path; those below the first stay read-only.

Each browser receives what has changed since a version, once it has taken what was sent before: nothing is queued for a
slow browser. The page's policy lets it load nothing from elsewhere. A connection that brings no request is closed, and
those that have not asked for the page's path make room for others (callers.py).
"""

from __future__ import annotations

import asyncio
import gzip
import hmac
import ipaddress
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from html import escape
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from edriver.client import RunError
from edriver.dashboard.assets import (
    COMPARE_SCRIPTS,
    LIST_SCRIPTS,
    PAGE_SCRIPTS,
    STEERING_SCRIPT,
    filled,
    linked,
    page_file,
    plotly_script,
)
from edriver.dashboard.callers import Callers
from edriver.dashboard.feed import Feed
from edriver.dashboard.feeds import Feeds
from edriver.dashboard.known_runs import KnownRuns
from edriver.dashboard.output import recorded_lines
from edriver.dashboard.record_pages import RecordPages, curve_parts
from edriver.dashboard.steering import MAX_REQUEST_BYTES, Steering
from edriver.history.records import RecordError
from edriver.model.limits import MAX_NAME_LENGTH
from edriver.text.printable import printable

REQUEST_TIMEOUT: Final = 10.0
"""Seconds that a connection may be open without a whole request, before the first one and between two."""

MAX_DIGITS: Final = 9
"""Of a number in a request."""

MAX_STREAMS: Final = 64
"""Streams that are open at a time."""

MAX_KEPT_MESSAGES: Final = 4
"""Runs of which the last message is kept, for other browsers that are as far."""

MESSAGE_INTERVAL: Final = 0.2
"""Seconds at least between two messages to a browser; what happens meanwhile goes into one."""

WRITE_TIMEOUT: Final = 10.0
"""Seconds in which a browser must have taken a message; one that has not is dropped, and comes again on its own."""

KEEPALIVE_INTERVAL: Final = 15.0
"""Seconds after which a browser is sent an empty line, to detect that it has disconnected."""

_CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)  # plotly styles its drawings inline, and shows heatmaps as generated images
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
    """Serves the page of a run, and those of this user's other runs.

    Args:
        feed: of the run that is shown first; None: the list of all is.
        secret: the path's first part.
        runs: finds the others; None: they are not shown.
        feeds: follows those of them in progress.
        steering: carries out what pages request for the first run; None: it is only watched.
        control_secret: the path's first part of pages that steer.

    Attributes:
        app: the web application.
        callers: who is connected.
        browsers: open streams.
    """

    def __init__(
        self,
        feed: Feed | None,
        secret: str,
        runs: KnownRuns | None = None,
        feeds: Feeds | None = None,
        steering: Steering | None = None,
        control_secret: str = "",
    ) -> None:
        self._feed = feed
        self._steering = steering
        self._control_secret = control_secret.encode()
        self._secrets = [secret.encode(), *([self._control_secret] if steering is not None else [])]
        self._runs = runs
        self._feeds = feeds
        self._records = None if runs is None else RecordPages(runs)
        self._plotly = b""
        self._messages: dict[str, tuple[tuple[int, int, str, str], bytes]] = {}
        self.browsers = 0
        self.callers = Callers()
        self.app = web.Application(middlewares=[self._guard], client_max_size=MAX_REQUEST_BYTES)
        self.app.router.add_get("/{secret}/", self._first_page)
        self.app.router.add_get("/{secret}/events", self._stream, allow_head=False)
        self.app.router.add_get("/{secret}/output", self._output)
        self.app.router.add_get("/{secret}/stacks", self._stacks)
        if runs is not None:
            self.app.router.add_get("/{secret}/runs", self._list_page)
            self.app.router.add_get("/{secret}/runs.json", self._list)
            self.app.router.add_get("/{secret}/run", self._run_page, allow_head=False)
            self.app.router.add_get("/{secret}/compare", self._compare_page)
            self.app.router.add_get("/{secret}/curves", self._curves)
        self.app.router.add_get("/{secret}/plotly.js", self._library)
        self.app.router.add_get("/{secret}/{name}", self._file)
        if steering is not None:
            self.app.router.add_post("/{secret}/steer", steering.answer)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests that do not know the path, or that came under another name."""
        response: web.StreamResponse
        if not is_ours(request.headers.get("Host", "")):
            response = web.Response(status=421, text="use this server's address, or localhost\n")
        elif request.method not in ("GET", "HEAD") and not self._is_steering(request):
            response = web.Response(status=405, text="this URL is read-only\n", headers={"Allow": "GET, HEAD"})
        elif not any(hmac.compare_digest(_first_part(request.path), secret) for secret in self._secrets):
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

    # ---- pages -----------------------------------------------------------------------------------------------

    async def _first_page(self, request: web.Request) -> web.Response:
        if self._feed is None:
            return await self._list_page(request)
        return self._page("edriver", steers=self._may_steer(request))

    def _may_steer(self, request: web.Request) -> bool:
        """Whether the request's path is that of pages that steer."""
        return self._steering is not None and hmac.compare_digest(_first_part(request.path), self._control_secret)

    def _is_steering(self, request: web.Request) -> bool:
        """Whether the request may change something: it goes to the one path at which such requests are taken."""
        return request.method == "POST" and request.path.endswith("/steer") and self._may_steer(request)

    def _page(self, title: str, steers: bool = False) -> web.Response:
        text = filled(page_file("index.html"), **self._parts(title, steers), summary="", data="")
        return web.Response(text=text, content_type="text/html", headers={"Cache-Control": "no-store"})

    def _parts(self, title: str, steers: bool = False) -> dict[str, str]:
        """What the frame of a run's page is filled with, but for the run itself."""
        scripts, steering = list(PAGE_SCRIPTS), ""
        if steers and self._steering is not None:
            scripts.insert(-1, STEERING_SCRIPT)
            steering = filled(page_file("steering.html"), secret=self._steering.new_page())
        return {
            "title": escape(title),
            "head": linked(*scripts, charts=True),
            "steering": steering,
            "curves": page_file("curves.html"),
            "way_back": "" if self._runs is None else '<nav><a href="runs">all runs</a></nav>',
        }

    async def _run_page(self, request: web.Request) -> web.StreamResponse:
        """A run's page: one in progress is followed; of another the records are read."""
        run_id = _run_of(request)
        feed = await self._feed_of(run_id)
        if feed is not None:
            return self._page(f"edriver run {run_id}", steers=feed is self._feed and self._may_steer(request))
        assert self._records is not None
        with _as_not_found():
            await self._records.check(run_id)
        return await self._record_page(request, run_id, self._records)

    async def _record_page(self, request: web.Request, run_id: str, records: RecordPages) -> web.StreamResponse:
        """The page of a run with records. Its beginning goes first: the browser loads scripts while they are read."""
        begin, _, end = page_file("index.html").partition("<!--summary-->")
        parts = self._parts(f"edriver run {run_id}")
        response = web.StreamResponse(headers={**SECURITY_HEADERS, "Cache-Control": "no-store"})
        response.content_type, response.charset = "text/html", "utf-8"
        await response.prepare(request)
        await response.write(filled(begin, **parts).encode())
        summary, data = await records.page(run_id)
        await response.write(f"{summary}{filled(end, **parts, data=data)}".encode())
        await response.write_eof()
        return response

    async def _list_page(self, _request: web.Request) -> web.Response:
        text = filled(page_file("runs.html"), head=linked(*LIST_SCRIPTS))
        return web.Response(text=text, content_type="text/html", headers={"Cache-Control": "no-store"})

    async def _compare_page(self, _request: web.Request) -> web.Response:
        text = filled(
            page_file("compare.html"),
            head=linked(*COMPARE_SCRIPTS, charts=True),
            curves=page_file("curves.html"),
        )
        return web.Response(text=text, content_type="text/html", headers={"Cache-Control": "no-store"})

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in (*PAGE_SCRIPTS, STEERING_SCRIPT, *COMPARE_SCRIPTS, *LIST_SCRIPTS, "page.css"):
            raise web.HTTPNotFound
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        return web.Response(text=page_file(name), content_type=kind, headers={"Cache-Control": "no-store"})

    # ---- data ------------------------------------------------------------------------------------------------

    async def _feed_of(self, run_id: str) -> Feed | None:
        if self._feed is not None and self._feed.run_id == run_id:
            return self._feed
        return None if self._feeds is None else await self._feeds.of(run_id)

    async def _asked_feed(self, request: web.Request) -> Feed:
        """The feed of the run that is asked for: of the first one, if none is."""
        feed = await self._feed_of(_run_of(request)) if "run" in request.query else self._feed
        if feed is None:
            raise web.HTTPNotFound
        return feed

    async def _list(self, _request: web.Request) -> web.Response:
        assert self._runs is not None
        try:
            found = await asyncio.to_thread(self._runs.all)
        except RunError as error:
            return web.json_response({"runs": [], "why": str(error)}, headers={"Cache-Control": "no-store"})
        listed = [asdict(each) for each in found]
        return web.json_response({"runs": listed, "why": ""}, headers={"Cache-Control": "no-store"})

    async def _curves(self, request: web.Request) -> web.Response:
        """What is drawn of a run where several are compared."""
        run_id = _run_of(request)
        feed = await self._feed_of(run_id)
        if feed is not None:
            data = curve_parts({"whole": True, **_standing(feed), **feed.history.since(0)})
        else:
            assert self._records is not None
            with _as_not_found():
                data = await self._records.curves(run_id)
        text = json.dumps(data, allow_nan=False, separators=(",", ":"))
        return web.Response(text=text, content_type="application/json", headers={"Cache-Control": "no-store"})

    async def _output(self, request: web.Request) -> web.Response:
        """What workers have written: of all of them, or in one slot, after a line's number."""
        host, slot = _place(request)
        feed, since = await self._asked_feed(request), _number(request.query.get("since", "0"))
        if feed.history.view.ended and self._runs is not None:  # its driver is gone; the page has what came before
            found = {"lines": [], "why": ""} if since else await asyncio.to_thread(self._recorded, feed, host, slot)
        else:
            found = await feed.output(host, slot, since)
        return web.json_response(found, headers={"Cache-Control": "no-store"})

    def _recorded(self, feed: Feed, host: str, slot: int | None) -> dict[str, Any]:
        assert self._runs is not None
        try:
            return recorded_lines(self._runs.records(feed.run_id), host, slot)
        except (RecordError, OSError) as error:
            return {"lines": [], "why": str(error)}

    async def _stacks(self, request: web.Request) -> web.Response:
        """Where the threads of workers stand now: of all of them, or in one slot."""
        feed = await self._asked_feed(request)
        found = await feed.stacks(*_place(request))
        return web.json_response(found, headers={"Cache-Control": "no-store"})

    async def _library(self, _request: web.Request) -> web.Response:
        if not self._plotly:
            self._plotly = await asyncio.to_thread(lambda: gzip.compress(plotly_script().read_bytes(), 1))
        headers = {"Content-Encoding": "gzip", "Cache-Control": "private, max-age=86400"}
        return web.Response(body=self._plotly, content_type="text/javascript", headers=headers)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if self.browsers >= MAX_STREAMS:
            return web.Response(status=503, text=f"{MAX_STREAMS} pages are open already: close one\n")
        feed = await self._asked_feed(request)
        response = web.StreamResponse(headers={**SECURITY_HEADERS, "Cache-Control": "no-store"})
        response.content_type = "text/event-stream"
        self.browsers += 1
        try:
            await response.prepare(request)
            await self._send_updates(response, feed)
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self.browsers -= 1
        return response

    async def _send_updates(self, response: web.StreamResponse, feed: Feed) -> None:
        """Send a browser everything, then what has changed since it was last sent something."""
        revision = 0
        while True:
            changed = feed.changed
            message = self._since(feed, revision)
            revision = feed.history.revision
            await asyncio.wait_for(response.write(message), WRITE_TIMEOUT)
            await asyncio.sleep(MESSAGE_INTERVAL)
            while not changed.is_set():
                try:
                    await asyncio.wait_for(changed.wait(), KEEPALIVE_INTERVAL)
                except TimeoutError:
                    await asyncio.wait_for(response.write(b":\n\n"), WRITE_TIMEOUT)

    def _since(self, feed: Feed, revision: int) -> bytes:
        """A message; browsers of a run that are equally far get the same one."""
        key = (revision, feed.history.revision, feed.link, feed.why)
        kept = self._messages.pop(feed.run_id, None)
        if kept is None or kept[0] != key:
            state = {"whole": not revision, **_standing(feed)}
            text = json.dumps(state | feed.history.since(revision), allow_nan=False, separators=(",", ":"))
            kept = (key, f"data: {text}\n\n".encode())
        self._messages[feed.run_id] = kept
        if len(self._messages) > MAX_KEPT_MESSAGES:
            del self._messages[next(iter(self._messages))]
        return kept[1]


def _standing(feed: Feed) -> dict[str, Any]:
    return {"link": feed.link, "why": feed.why, "time": feed.now}


def _run_of(request: web.Request) -> str:
    """The run that is asked for."""
    run_id = request.query.get("run", "")
    if not run_id or len(run_id) > MAX_NAME_LENGTH:
        raise web.HTTPNotFound
    return run_id


@contextmanager
def _as_not_found() -> Iterator[None]:
    """Answer 404, with the reason if records cannot be read."""
    try:
        yield
    except (RecordError, OSError) as error:
        why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise web.HTTPNotFound(reason=" ".join(printable(why).split())) from None


def _first_part(path: str) -> bytes:
    """The first part of a path; empty if it has no parts, or is not a path."""
    _, _, rest = path.partition("/")
    return rest.partition("/")[0].encode(errors="replace")


def _place(request: web.Request) -> tuple[str, int | None]:
    """The host and the slot of a request; empty and None: any.

    Raises:
        web.HTTPBadRequest: the slot is not a number.
    """
    slot = request.query.get("slot", "")
    return request.query.get("host", ""), _number(slot) if slot else None


def _number(word: str) -> int:
    if len(word) > MAX_DIGITS or not (word.isascii() and word.isdecimal()):
        raise web.HTTPBadRequest
    return int(word)


def is_ours(host: str) -> bool:
    """Whether a request's Host is an address or this machine's own name: no other site can make those lead here."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    name = name.removeprefix("[").removesuffix("]").lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in ("localhost", socket.gethostname().lower())
    return True
