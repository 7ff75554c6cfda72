"""What the page has the driver do: drain, undrain, resize, stop. A request is carried out once, and only if a page of
this server has made it.

The address of such a page is a secret already. What is checked here keeps out another site that is open in the same
browser, were it to learn that address: a browser names the origin of each POST, and lets no other site add a header of
its own, nor read a page to find that page's secret.

Only a POST of JSON to one place below the second path changes anything. It must come from the page's own origin, with a
secret that is drawn for each page that is loaded, and a number larger than that page's last: a request that a browser,
or an attacker, sends again is not carried out again. There is no cookie that a browser could add to the request of
another site.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from edriver.client import AsyncClient, RunError
from edriver.text.steering_text import STOPPED_TEXT, drain_preview_text, drained_text, resized_text, undrained_text

PAGE_HEADER: Final = "X-Edriver-Page"
"""The secret of the page that makes a request."""

NUMBER_HEADER: Final = "X-Edriver-Request"
"""The request's number: each is larger than the page's last."""

MAX_PAGES: Final = 256
"""Pages that are known at a time, the latest."""

MAX_REQUEST_BYTES: Final = 4096
"""Bytes of a request."""

BODY_TIMEOUT: Final = 10.0
"""Seconds in which a request must be there as a whole."""

MAX_NUMBER_DIGITS: Final = 9
"""Of a request's number."""


class RefusedRequestError(Exception):
    """A request that is not carried out.

    Attributes:
        status: HTTP's.
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Steering:
    """Carries out what pages ask for.

    Args:
        client: of the run, with credentials that let it steer.
        draw_secret: makes a text that cannot be guessed.
    """

    def __init__(self, client: AsyncClient, draw_secret: Callable[[], str]) -> None:
        self._client = client
        self._draw_secret = draw_secret
        self._last_numbers: dict[str, int] = {}  # by the secret of the page, the latest page last

    def new_page(self) -> str:
        """A page is served: the secret that goes with it."""
        secret = self._draw_secret()
        self._last_numbers[secret] = 0
        if len(self._last_numbers) > MAX_PAGES:
            del self._last_numbers[next(iter(self._last_numbers))]
        return secret

    async def answer(self, request: web.Request) -> web.Response:
        """Carry out one request; the answer is JSON, with `done`, a sentence, or `why` it was not."""
        try:
            self._check_origin(request)
            order = await _order_of(request)
            self._take_number(request)
            return _answer(200, done=await self._carry_out(order))
        except RefusedRequestError as refused:
            return _answer(refused.status, why=str(refused))
        except RunError as error:
            return _answer(409, why=str(error))

    @staticmethod
    def _check_origin(request: web.Request) -> None:
        """Only this server's own pages may ask: a page at another port of this machine is another's."""
        ours = f"{request.scheme}://{request.headers.get('Host', '')}"
        site = request.headers.get("Sec-Fetch-Site", "same-origin")  # not all browsers send it
        if request.headers.getall("Origin", []) != [ours] or site != "same-origin":
            raise RefusedRequestError(403, "this request comes from another site")
        if request.content_type != "application/json":  # which no form can send
            raise RefusedRequestError(415, "this request is not JSON")

    def _take_number(self, request: web.Request) -> None:
        """Of a page that is known, and not a request that was carried out before."""
        secret, number = request.headers.get(PAGE_HEADER, ""), request.headers.get(NUMBER_HEADER, "")
        if secret not in self._last_numbers:
            raise RefusedRequestError(403, "this page is no longer known: reload it")
        if len(number) > MAX_NUMBER_DIGITS or not (number.isascii() and number.isdecimal()):
            raise RefusedRequestError(400, "this request has no number")
        if int(number) <= self._last_numbers[secret]:
            raise RefusedRequestError(409, "this request was sent before")
        self._last_numbers[secret] = int(number)

    async def _carry_out(self, order: dict[str, Any]) -> str:
        match order:
            case {"do": "drain", "host": str(host), "slot": (int() | None) as slot, "reason": str(reason)}:
                return drained_text(_place(host, slot), await self._client.drain(host, slot, reason))
            case {"do": "preview drain", "host": str(host), "slot": (int() | None) as slot}:
                return drain_preview_text(await self._client.preview_drain(host, slot))
            case {"do": "undrain", "host": str(host), "slot": (int() | None) as slot}:
                await self._client.undrain(host, slot)
                return undrained_text(_place(host, slot))
            case {"do": "resize", "size": int(size)}:
                await self._client.resize(size)
                return resized_text(size)
            case {"do": "stop", "reason": str(reason)}:
                await self._client.stop(reason)
                return STOPPED_TEXT
        raise RefusedRequestError(400, "this request is unknown")


async def _order_of(request: web.Request) -> dict[str, Any]:
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            order = json.loads(await request.read())
    except TimeoutError:
        raise RefusedRequestError(408, "this request is incomplete") from None
    except (ValueError, RecursionError):
        order = None
    if not isinstance(order, dict):
        raise RefusedRequestError(400, "this request is not a single JSON object")
    numbers = [order.get(name) for name in ("slot", "size")]
    if any(isinstance(number, int) and not 0 <= number < 1 << 31 for number in numbers):
        raise RefusedRequestError(400, "this request has a number out of range")
    return order


def _answer(status: int, **words: str) -> web.Response:
    return web.json_response(words, status=status, headers={"Cache-Control": "no-store"})


def _place(host: str, slot: int | None) -> str:
    return host if slot is None else f"{host}:{slot}"
