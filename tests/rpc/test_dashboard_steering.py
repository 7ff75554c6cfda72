"""Steering from the dashboard's page: what it does, and what others than the page cannot have done. In a real browser,
too, with a page of another site beside it."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import grpc.aio
import pytest
from aiohttp import web
from playwright.async_api import Page as BrowserPage
from playwright.async_api import Response, async_playwright, expect

from edriver.client import Address, AsyncClient
from edriver.dashboard import steering as steering_module
from edriver.dashboard.feed import Feed
from edriver.dashboard.server import PageServer, runner_of
from edriver.dashboard.steering import NUMBER_HEADER, PAGE_HEADER, Steering
from edriver.driver.core.membership import Membership
from edriver.driver.observe.console.announcements import Announcements
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.progress import ProgressTracker
from edriver.driver.services.control import ControlServer
from edriver.driver.services.status import StatusServer
from edriver.model import actions, events
from edriver.model.defaults import ELASTIC_TIMEOUT
from edriver.model.hosts import Host, HostSet
from edriver.model.settings import Settings
from edriver.v1 import control_pb2_grpc, status_pb2_grpc
from tests import needs
from tests.process.chromium import CHROMIUM, FLAGS

WATCH, CONTROL = "look", "steer-me"
WAIT: Final = 120_000


class Run:
    """A run with hosts a (2 slots) and b (1 slot), of at least two workers; and what it was asked to do."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[events.Event] = []
        self.announcements = Announcements()
        self.membership = Membership(Settings(np=2, min_np=2, max_np=3), now=0.0)
        self.event_history = EventHistory(self.membership, ProgressTracker(lambda: 0.0), lambda: 0.0)
        self.status = StatusServer("abcd", self.membership, self.event_history, lambda: 0.0)
        self.control = ControlServer(self.membership, self.ask, lambda *wish: self.ask(events.StopRequested(*wish)))
        self.address = Address("abcd", f"unix:{folder / 's'}")

    def ask(self, event: events.Event) -> None:
        self.asked.append(event)
        self.take(event)

    def take(self, event: events.Event) -> None:
        loss = self.announcements.loss(event, self.membership.roster)
        step = self.membership.step(event, 0.0)
        self.event_history.take(event, step, loss, list(self.announcements.lines(loss, step)))
        for action in step:
            if isinstance(action, actions.FinishRun):
                self.event_history.end(action)
        self.status.announce()


class Served:
    """The page of a run, and a client that knows all that a browser does."""

    def __init__(self, run: Run, session: aiohttp.ClientSession, url: str) -> None:
        self.run = run
        self.session = session
        self.url = url
        self.numbers = itertools.count(1)

    async def page_secret(self) -> str:
        """That of a page which is loaded now."""
        async with self.session.get(f"{self.url}/{CONTROL}/") as response:
            found = re.search(r'data-secret="([^"]+)"', await response.text())
        assert found
        return found[1]

    async def post(
        self, order: Any, headers: dict[str, str | None] | None = None, path: str = f"/{CONTROL}/steer", **options: Any
    ) -> tuple[int, dict[str, str]]:
        """What a request is answered that differs from the page's in these headers; None: without one."""
        sent: dict[str, str | None] = {
            "Origin": self.url,
            "Sec-Fetch-Site": "same-origin",
            "Content-Type": "application/json",
            PAGE_HEADER: await self.page_secret(),
            NUMBER_HEADER: str(next(self.numbers)),
            **(headers or {}),
        }
        body = order if isinstance(order, bytes) else json.dumps(order).encode()
        kept = {name: value for name, value in sent.items() if value is not None}
        async with self.session.post(self.url + path, data=body, headers=kept, **options) as response:
            text = await response.text()
            assert not any(name.lower().startswith("access-control") for name in response.headers)
            return response.status, json.loads(text) if response.content_type == "application/json" else {"why": text}


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    with tempfile.TemporaryDirectory(prefix="ed-") as folder:
        run = Run(Path(folder))
        run.take(events.HostsObserved(HostSet((Host("a", 2), Host("b", 1)))))
        server = grpc.aio.server()
        status_pb2_grpc.add_StatusServiceServicer_to_server(run.status, server)
        control_pb2_grpc.add_ControlServiceServicer_to_server(run.control, server)
        server.add_insecure_port(run.address.target)
        await server.start()
        async with AsyncClient(run.address, requester="ada@login1 (dashboard)") as client:
            feed = Feed(client, lambda: 0.0)
            await feed.begin()
            following = asyncio.create_task(feed.follow())
            secrets = itertools.count(1)
            steering = Steering(client, lambda: f"page-{next(secrets)}")
            page = PageServer(feed, WATCH, steering=steering, control_secret=CONTROL)
            runner = runner_of(page.app, shutdown_timeout=0.1)
            await runner.setup()
            listening = await page.callers.listen(runner, "127.0.0.1", 0)
            async with aiohttp.ClientSession() as session:
                yield Served(run, session, f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
            listening.close()
            await runner.cleanup()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await server.stop(None)


def serve(work: Callable[[Served], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with served() as page:
            await work(page)

    asyncio.run(asyncio.wait_for(run(), 600))


STOP = {"do": "stop", "reason": ""}
WHO = "ada@login1 (dashboard)"


@pytest.mark.parametrize(
    ("order", "done", "event"),
    [
        (
            {"do": "drain", "host": "b", "slot": None, "reason": "it runs hot"},
            "b is being drained; there will be 2 slots to use",
            events.DrainRequested("b", None, "it runs hot", WHO, ELASTIC_TIMEOUT),
        ),
        (
            {"do": "drain", "host": "a", "slot": 1, "reason": ""},
            "a:1 is being drained; there will be 2 slots to use",
            events.DrainRequested("a", 1, "", WHO, ELASTIC_TIMEOUT),
        ),
        (
            {"do": "undrain", "host": "b", "slot": None},
            "b may be used again",
            events.UndrainRequested("b", None, WHO),
        ),
        ({"do": "resize", "size": 2}, "at most 2 workers from now on", events.ResizeRequested(2, WHO)),
        ({"do": "stop", "reason": "flat"}, "it is being stopped", events.StopRequested("flat", WHO)),
    ],
    ids=["drain", "drain-a-slot", "undrain", "resize", "stop"],
)
def test_the_page_steers_in_its_owners_name(order: dict[str, Any], done: str, event: events.Event) -> None:
    async def work(page: Served) -> None:
        assert await page.post(order) == (200, {"done": done})
        assert page.run.asked == [event]

    serve(work)


def test_the_page_is_told_what_a_drain_would_do() -> None:
    async def work(page: Served) -> None:
        order = {"do": "preview drain", "host": "b", "slot": None}
        assert await page.post(order) == (200, {"done": "no worker trains there"})
        assert page.run.asked == []

    serve(work)


def test_what_the_driver_refuses_is_answered_in_its_words() -> None:
    async def work(page: Served) -> None:
        status, answer = await page.post({"do": "drain", "host": "a", "slot": None, "reason": ""})
        assert (status, page.run.asked) == (409, [])
        assert "this leaves 1 slot; the run needs 2 (--min-np" in answer["why"]

    serve(work)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"Origin": None}, 403, id="no-origin"),
        pytest.param({"Origin": "null"}, 403, id="sandboxed-frame"),
        pytest.param({"Origin": "http://evil.example"}, 403, id="other-site"),
        pytest.param({"Origin": "http://127.0.0.1:1"}, 403, id="other-port-of-this-machine"),
        pytest.param({"Origin": "http://127.0.0.1"}, 403, id="origin-without-the-port"),
        pytest.param({"Sec-Fetch-Site": "same-site"}, 403, id="same-site-is-not-same-origin"),
        pytest.param({"Sec-Fetch-Site": "cross-site"}, 403, id="cross-site"),
        pytest.param({"Sec-Fetch-Site": "none"}, 403, id="typed-in"),
        pytest.param({"Content-Type": "text/plain"}, 415, id="a-form-in-plain-text"),
        pytest.param({"Content-Type": "application/x-www-form-urlencoded"}, 415, id="a-form"),
        pytest.param({"Content-Type": None}, 415, id="no-type"),
        pytest.param({PAGE_HEADER: None}, 403, id="no-page"),
        pytest.param({PAGE_HEADER: ""}, 403, id="empty-page"),
        pytest.param({PAGE_HEADER: "page-99"}, 403, id="unknown-page"),
        pytest.param({PAGE_HEADER: CONTROL}, 403, id="the-address-is-no-page"),
        pytest.param({NUMBER_HEADER: None}, 400, id="no-number"),
        pytest.param({NUMBER_HEADER: "-1"}, 400, id="negative-number"),
        pytest.param({NUMBER_HEADER: "0"}, 409, id="number-0"),
        pytest.param({NUMBER_HEADER: "9" * 5000}, 400, id="huge-number"),
        pytest.param({"Host": "evil.example", "Origin": "http://evil.example"}, 421, id="dns-rebinding"),
        pytest.param(
            {"Host": "127.0.0.1.evil.example", "Origin": "http://127.0.0.1.evil.example"}, 421, id="dns-rebinding-2"
        ),
    ],
)
def test_a_request_that_no_page_of_ours_has_made_changes_nothing(headers: dict[str, str | None], status: int) -> None:
    async def work(page: Served) -> None:
        assert (await page.post(STOP, headers))[0] == status
        assert page.run.asked == []
        assert (await page.post(STOP))[0] == 200  # the page itself still can

    serve(work)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"", 400, id="empty"),
        pytest.param(b"{", 400, id="no-json"),
        pytest.param(b"[" * 4000, 400, id="deep"),
        pytest.param(b"[]", 400, id="a-list"),
        pytest.param(b'"stop"', 400, id="a-text"),
        pytest.param(b"{}", 400, id="nothing-to-do"),
        pytest.param(b'{"do": "end"}', 400, id="unknown"),
        pytest.param(b'{"do": "stop"}', 400, id="no-reason"),
        pytest.param(b'{"do": "stop", "reason": 7}', 400, id="reason-of-another-type"),
        pytest.param(b'{"do": "resize", "size": 2.5}', 400, id="a-broken-size"),
        pytest.param(b'{"do": "resize", "size": -1}', 400, id="a-negative-size"),
        pytest.param(b'{"do": "resize", "size": 99999999999999999999}', 400, id="a-huge-size"),
        pytest.param(b'{"do": "drain", "host": "b", "slot": -1, "reason": ""}', 400, id="a-negative-slot"),
        pytest.param(b'{"do": "stop", "reason": "' + b"x" * 5000 + b'"}', 413, id="too-long"),
        pytest.param(b'{"do": "drain", "host": "\\u001b[2J", "slot": null, "reason": ""}', 409, id="control-sequence"),
        pytest.param(b'{"do": "stop", "reason": "\\u001b[2J"}', 409, id="control-sequence-in-a-reason"),
    ],
)
def test_a_request_that_makes_no_sense_changes_nothing(body: bytes, status: int) -> None:
    async def work(page: Served) -> None:
        assert (await page.post(body))[0] == status
        assert page.run.asked == []

    serve(work)


def test_a_request_is_carried_out_once() -> None:
    async def work(page: Served) -> None:
        secret = await page.page_secret()
        same: dict[str, str | None] = {PAGE_HEADER: secret, NUMBER_HEADER: "7"}
        order = {"do": "resize", "size": 2}
        assert (await page.post(order, same))[0] == 200
        for number in ("7", "6"):
            again = await page.post(order, same | {NUMBER_HEADER: number})
            assert again == (409, {"why": "this request was sent before"})
        assert len(page.run.asked) == 1

    serve(work)


def test_a_page_that_was_loaded_long_ago_is_to_be_reloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering_module, "MAX_PAGES", 2)

    async def work(page: Served) -> None:
        first = await page.page_secret()
        await page.page_secret()
        refused = await page.post(STOP, {PAGE_HEADER: first})
        assert refused == (403, {"why": "this page is no longer known: reload it"})
        assert page.run.asked == []

    serve(work)


def test_a_request_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering_module, "BODY_TIMEOUT", 0.1)

    async def work(page: Served) -> None:
        never = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b"{"
            await never.wait()

        headers = {
            "Origin": page.url,
            "Content-Type": "application/json",
            PAGE_HEADER: await page.page_secret(),
            NUMBER_HEADER: "1",
        }
        async with page.session.post(f"{page.url}/{CONTROL}/steer", data=body(), headers=headers) as response:
            assert response.status == 408
        never.set()

    serve(work)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_but_a_post_steers(method: str) -> None:
    async def work(page: Served) -> None:
        headers = {
            "Origin": page.url,
            "Content-Type": "application/json",
            PAGE_HEADER: await page.page_secret(),
            NUMBER_HEADER: "1",
            "Access-Control-Request-Method": "POST",
        }
        url = f"{page.url}/{CONTROL}/steer?do=stop&reason="
        async with page.session.request(method, url, headers=headers, data=json.dumps(STOP)) as response:
            assert response.status in (404, 405)
            assert not any(name.lower().startswith("access-control") for name in response.headers)
        assert page.run.asked == []

    serve(work)


@pytest.mark.parametrize("path", [f"/{WATCH}/steer", f"/{CONTROL}/", f"/{CONTROL}/x/steer", "/steer", "//steer"])
def test_nothing_but_its_own_path_steers(path: str) -> None:
    async def work(page: Served) -> None:
        assert (await page.post(STOP, path=path))[0] in (404, 405)
        assert page.run.asked == []

    serve(work)


def test_the_address_to_look_at_the_run_has_nothing_to_steer_with() -> None:
    async def work(page: Served) -> None:
        async with page.session.get(f"{page.url}/{WATCH}/") as response:
            looked = await response.text()
        assert "steering" not in looked
        assert CONTROL not in looked
        async with page.session.get(f"{page.url}/{CONTROL}/") as response:
            assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]
            assert response.headers["Cache-Control"] == "no-store"  # nor does a page's secret outlive the page
            assert "Set-Cookie" not in response.headers
            assert 'id="steering"' in await response.text()

    serve(work)


# ---- in a browser ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def chromium_page() -> AsyncIterator[BrowserPage]:
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = await chromium.new_page()
        page.set_default_timeout(WAIT)
        expect.set_options(timeout=WAIT)
        yield page
        await chromium.close()


@pytest.mark.needs(needs.CHROMIUM)
def test_an_operator_steers_by_the_keyboard_alone() -> None:
    async def work(served: Served) -> None:
        async with chromium_page() as page:
            await page.goto(f"{served.url}/{CONTROL}/")
            drain = page.get_by_role("button", name="drain a")
            await expect(drain).to_be_visible()
            reached = ""
            for _ in range(80):
                await page.keyboard.press("Tab")
                reached = await page.evaluate("document.activeElement.getAttribute('aria-label') || ''")
                if reached == "drain b":
                    break
            assert reached == "drain b"
            await page.keyboard.press("Enter")
            dialog = page.get_by_role("dialog", name="Drain host b?")
            await expect(dialog).to_contain_text("What it would do now: no worker trains there.")
            await page.keyboard.press("Escape")  # it is asked first
            await expect(page.get_by_role("button", name="drain b")).to_be_focused()
            assert served.run.asked == []
            await page.keyboard.press("Enter")
            await page.keyboard.type("it runs hot")
            await page.keyboard.press("Enter")
            row = page.locator("#hosts tr", has_text="it runs hot")
            await expect(row).to_contain_text("b is being drained; there will be 2 slots to use")
            await expect(page.locator("#log")).to_contain_text(f"host b is drained: it runs hot (requested by {WHO})")
            await expect(page.get_by_role("button", name="undrain b")).to_be_focused()
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("button", name="drain b", exact=True)).to_be_focused()
            assert [type(each) for each in served.run.asked] == [events.DrainRequested, events.UndrainRequested]

            await page.get_by_role("button", name="drain a").click()
            await page.locator("#ask-slot").select_option("slot 1")
            await page.get_by_role("button", name="Drain", exact=True).click()
            await expect(page.locator("#hosts")).to_contain_text("a:1 is being drained")
            await page.get_by_role("button", name="drain a", exact=True).click()
            await page.get_by_role("button", name="Drain", exact=True).click()  # all of it: too much
            refused = page.locator("#hosts tr", has=page.get_by_role("button", name="drain a", exact=True)).locator(
                ".answer"
            )
            await expect(refused).to_contain_text("this leaves 1 slot; the run needs 2")
            await expect(refused).to_have_attribute("data-refused", "true")

            size = page.get_by_label("use at most")
            await expect(size).to_have_attribute("max", "3")
            await size.fill("2")
            await page.keyboard.press("Enter")
            answer = page.locator("#steering-answer")
            await expect(answer).to_have_text("at most 2 workers from now on")
            await page.get_by_role("button", name="Stop the run…").click()
            await page.get_by_role("button", name="Cancel").click()
            assert not any(isinstance(each, events.StopRequested) for each in served.run.asked)
            await page.get_by_role("button", name="Stop the run…").click()
            await page.get_by_label("Reason").fill("its loss is flat")
            await page.get_by_role("button", name="Stop the run", exact=True).click()
            await expect(page.locator("#state-word")).to_have_text("stopped")
            await expect(page.locator("#doing")).to_have_text(f"its loss is flat (requested by {WHO})")
            await expect(page.get_by_role("button", name="Stop the run…")).to_be_disabled()

    serve(work)


class Heard:
    """What a browser has said of a page, and what the page was answered."""

    def __init__(self, page: BrowserPage) -> None:
        self.console: list[str] = []
        self.responses: list[Response] = []
        page.on("console", lambda message: self.console.append(message.text))
        page.on("response", lambda response: self.responses.append(response))


EVIL = """<!doctype html><iframe id="frame" src="{page}"></iframe>
<form id="form" method="post" enctype="text/plain" action="{page}steer" target="_blank">
<input name='{{"do": "stop", "reason": "' value='"}}'></form><img src="{page}steer?do=stop">"""

EVIL_FETCHES = """async ([page, secret]) => {
  const said = [];
  for (const mode of ["cors", "no-cors"]) {
    for (const type of ["application/json", "text/plain"]) {
      const headers = {"Content-Type": type, "X-Edriver-Page": secret, "X-Edriver-Request": "1"};
      const body = JSON.stringify({do: "stop", reason: "evil"});
      try { said.push((await fetch(page + "steer", {method: "POST", mode, headers, body})).type); }
      catch (error) { said.push("failed"); }
    }
  }
  try { said.push((await (await fetch(page)).text()).length); } catch (error) { said.push("unreadable"); }
  return said;
}"""


@pytest.mark.needs(needs.CHROMIUM)
def test_another_site_that_knows_the_address_neither_steers_nor_frames_nor_reads_the_page() -> None:
    async def work(served: Served) -> None:
        target = f"{served.url}/{CONTROL}/"

        async def evil(_request: web.Request) -> web.Response:
            return web.Response(text=EVIL.format(page=target), content_type="text/html")

        app = web.Application()
        app.router.add_get("/", evil)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)  # another port of this machine: same site, another origin
        await site.start()
        port = runner.addresses[0][1]
        try:
            for name in ("127.0.0.1", "localhost"):  # the second is another site as well
                async with chromium_page() as page:
                    heard = Heard(page)
                    await page.goto(f"http://{name}:{port}/")
                    assert await page.frames[1].locator("#steering").count() == 0
                    assert any("frame-ancestors 'none'" in each for each in heard.console), heard.console
                    said = await page.evaluate(EVIL_FETCHES, [target, await served.page_secret()])
                    assert said[:2] == ["failed", "failed"]
                    assert said[-1] == "unreadable"
                    async with page.expect_popup() as popup:
                        await page.evaluate("document.getElementById('form').submit()")
                    posted = await popup.value
                    await posted.wait_for_load_state()
                    assert "this request comes from another site" in await posted.inner_text("body")
                    assert all(each.status >= 400 for each in heard.responses if each.url.startswith(f"{target}steer"))
        finally:
            await runner.cleanup()
        assert served.run.asked == []

    serve(work)
