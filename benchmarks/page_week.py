"""The page of a run of a week with 1,000 workers, in a headless Chromium: `python -m benchmarks.page_week`.

The records are made up (100 losses, each replaced after ten minutes, ten reported values); the server, the page and the
browser are real. Prints one JSON object; times are milliseconds.

- records: of the run opened from its records: their MiB, and `read`: how long the server takes to read them, once.
  `first` and `again`: opened by a server and a browser that have never seen them, and by those that have.
- live: the same run as if it went on, followed from memory. `first` and `again`: by a browser that has never seen the
  page, and by one that has. Then for each gesture, `answer`: until the
  chart that was touched is drawn, and `all`: until every chart is; the medians of --turns. `long_tasks`: how many times
  the page did not answer for 50 ms or more meanwhile, and the longest.
- `ms` of a page that is opened is from the request until all charts are drawn, `shown` until those are that are in the
  window.
- `cpu` beside each of these is the processor time that it took (the page's own thread, or the server): on a machine
  with other things to do, that tells more than the clock.
- hour: what an hour brings (3,600 samples, 60 rounds) sent to that page in --minutes: MiB of its heap after each fifth,
  garbage collected, and how many nodes its document has.
- list: from the request for the list of --runs runs until it is drawn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import CDPSession, Page

from benchmarks.page_speed import browser, until
from edriver.dashboard.feed import Feed
from edriver.dashboard.feeds import Feeds
from edriver.dashboard.known_runs import KnownRuns
from edriver.dashboard.report import recorded_run
from edriver.dashboard.server import PageServer, runner_of
from edriver.history.records import records_of
from edriver.runview.history import History
from edriver.v1 import cause_pb2, rounds_pb2, status_pb2
from edriver.wire.conversion import timestamp
from tests.made_runs import MadeRun

WEEK = 7 * 86400.0

NOTE = """
window.drawn = {};
for (const chart of charts) noteDrawing(chart);
function noteDrawing(chart) {
  const update = chart.update.bind(chart);
  const painted = () => { drawn[chart.id] = performance.now(); };
  chart.update = () => { update(); requestAnimationFrame(() => setTimeout(painted)); };
}
const arrange = curves.arrange.bind(curves);
curves.arrange = () => {
  const before = new Set(charts);
  arrange();
  for (const chart of charts) if (!before.has(chart)) noteDrawing(chart);
};
const begin = () => { window.began = performance.now(); drawn = {}; };
for (const kind of ["mouseup", "input", "click"]) addEventListener(kind, begin, true);
"""
"""Notes when each chart was last drawn, and painted, and when the reader last did something."""

CROSSHAIR = """
(() => {
  const began = performance.now();
  const {at} = curves.plots[0];
  const {left} = at.getBoundingClientRect();
  for (let n = 0; n < 100; n += 1) at.dispatchEvent(new MouseEvent("mousemove", {clientX: left + 100 + 3 * n}));
  return (performance.now() - began) / 100;
})()
"""

ALL = "charts.length && charts.every((chart) => chart.last > 0)"

SHOWN = """
Math.max(...charts.filter((chart) => chart.at.getBoundingClientRect().top < innerHeight).map((chart) => chart.last))
"""
"""When the charts that are in the window were drawn, in ms since the page was asked for."""


class Followed(Feed):
    """A run that goes on: what a driver would tell of it comes from here."""

    def __init__(self, history: History) -> None:
        """Begin with what has been so far."""
        self.history = history
        self.run_id = "dddddddd"
        self.link, self.why = "live", ""
        self._changed = asyncio.Event()
        self._steps = 1_300_000
        self._rounds = 1000

    @property
    def now(self) -> float:
        """The latest time in the history."""
        return self.history.view.now

    async def output(self, *_asked: object) -> dict[str, Any]:
        """Nothing was written."""
        return {"lines": [], "why": ""}

    def second(self, number: int) -> None:
        """A second passes; each 60th brings a new round."""
        at = self.history.view.now + 1.0
        self._steps += 2
        reported = {"loss": 0.4 + 0.01 * (number % 7), **{f"m{n}": float(number % (n + 2)) for n in range(9)}}
        if number % 60 == 59:
            self._rounds += 1
            members = [
                status_pb2.Member(worker_id=5000 + n, host=f"node-{n // 8:03d}", slot=n % 8) for n in range(1000)
            ]
            begun = status_pb2.Round(
                round_id=rounds_pb2.RoundId(incarnation=2, n=self._rounds),
                kind=status_pb2.ROUND_KIND_RESIZE,
                cause=cause_pb2.Cause(text="hosts come and go"),
                members=members,
                assign_time=timestamp(at),
            )
            seq = self.history.view.seq + 1
            self.history.fold(status_pb2.Event(seq=seq, time=timestamp(at), text="a new round", round=begun))
        self.history.sample(at, status_pb2.Progress(steps=self._steps, step_rate=2.0, reported=reported))
        self._announce("live")


@asynccontextmanager
async def serving(feed: Feed | None, root: Path) -> AsyncIterator[str]:
    """The page's address."""
    feeds = Feeds(time.time)
    served = PageServer(feed, "s", KnownRuns(root), feeds)
    runner = runner_of(served.app, shutdown_timeout=0.1)
    await runner.setup()
    listening = await served.callers.listen(runner, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/s/"
    finally:
        listening.close()
        await runner.cleanup()
        await feeds.close()


class Opened:
    """A page, and what its thread has needed of the processor."""

    def __init__(self, page: Page) -> None:
        """Nothing is open yet."""
        self.page = page
        self._session: CDPSession | None = None

    async def metrics(self) -> dict[str, float]:
        """Chromium's; durations are the processor's time of the page's own thread, in seconds."""
        if self._session is None:
            self._session = await self.page.context.new_cdp_session(self.page)
            await self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        answer = await self._session.send("Performance.getMetrics")
        return {each["name"]: each["value"] for each in answer["metrics"]}

    async def collect_garbage(self) -> None:
        """Have only what is used left on its heap."""
        await self.metrics()
        assert self._session is not None
        await self._session.send("HeapProfiler.collectGarbage")

    async def open(self, url: str, there: str = ALL) -> dict[str, float]:
        """Open it; returns how long it took until it was drawn."""
        await self.page.goto("about:blank")
        before = (await self.metrics())["TaskDuration"]
        began = time.time()
        await self.page.goto(url, timeout=120_000)
        await until(self.page, there)
        took, used = time.time() - began, (await self.metrics())["TaskDuration"]
        used = used - before if used > before else used  # it may have got another process
        found: dict[str, float] = {"ms": round(1000 * took), "cpu": round(1000 * used)}
        return found if there != ALL else {"shown": round(await self.page.evaluate(SHOWN)), **found}


# ---- gestures --------------------------------------------------------------------------------------------------------


async def _drag(page: Page) -> None:
    await page.locator("#curve-0").scroll_into_view_if_needed()
    box = await page.locator("#curve-0").bounding_box()
    assert box
    y = box["y"] + box["height"] / 2
    await page.mouse.move(box["x"] + 0.4 * box["width"], y)
    await page.mouse.down()
    await page.mouse.move(box["x"] + 0.5 * box["width"], y)
    await page.mouse.move(box["x"] + 0.7 * box["width"], y)
    await page.mouse.up()


async def _all_again(page: Page) -> None:
    await page.locator("#curve-0").focus()
    await page.evaluate("began = performance.now(); drawn = {}")
    await page.keyboard.press("0")


async def _last_day(page: Page) -> None:
    await page.locator("#span").select_option("86400")


async def _whole(page: Page) -> None:
    await page.locator("#span").select_option("0")


async def _smooth(page: Page) -> None:
    await page.locator("#curve-smooth").fill("0.9")


async def _rough(page: Page) -> None:
    await page.locator("#curve-smooth").fill("0")


async def _log(page: Page) -> None:
    await page.locator("#curve-scale").select_option("log")


async def _linear(page: Page) -> None:
    await page.locator("#curve-scale").select_option("linear")


async def _steps(page: Page) -> None:
    await page.locator("#curve-over").select_option("steps")


async def _time(page: Page) -> None:
    await page.locator("#curve-over").select_option("wall")


async def _more(page: Page) -> None:
    await page.get_by_label("m5", exact=True).check()


async def _less(page: Page) -> None:
    await page.get_by_label("m5", exact=True).uncheck()


GESTURES: dict[str, tuple[Callable[[Page], Awaitable[None]], str, list[str]]] = {
    "drag over a curve": (_drag, "curve-0", ["world", "lanes", "curve-0", "curve-1", "curve-2"]),
    "all again": (_all_again, "curve-0", ["world", "lanes", "curve-0", "curve-1", "curve-2"]),
    "the last day": (_last_day, "world", ["world", "lanes", "curve-0", "curve-1", "curve-2"]),
    "the whole run": (_whole, "world", ["world", "lanes", "curve-0", "curve-1", "curve-2"]),
    "smooth": (_smooth, "curve-0", ["curve-0", "curve-1", "curve-2"]),
    "not smooth": (_rough, "curve-0", ["curve-0", "curve-1", "curve-2"]),
    "log": (_log, "curve-0", ["curve-0", "curve-1", "curve-2"]),
    "linear": (_linear, "curve-0", ["curve-0", "curve-1", "curve-2"]),
    "over steps": (_steps, "curve-0", ["curve-0", "curve-1", "curve-2"]),
    "over time": (_time, "curve-0", ["curve-0", "curve-1", "curve-2"]),
    "one more value": (_more, "curve-3", ["curve-3"]),
    "one less": (_less, "curve-0", ["curve-0", "curve-1", "curve-2"]),
}
"""What a reader does; the chart that was touched, and all that are to be drawn."""


async def gestures(opened: Opened, turns: int) -> dict[str, dict[str, float]]:
    """How long each takes."""
    page = opened.page
    await page.evaluate(NOTE)
    taken: dict[str, list[tuple[float, float, float]]] = {}
    for _ in range(turns):
        for name, (gesture, touched, drawn) in GESTURES.items():
            before = (await opened.metrics())["TaskDuration"]
            await gesture(page)
            took = (
                f"{json.dumps(drawn)}.every((id) => id in drawn)"
                f" && [drawn['{touched}'] - began, Math.max(...Object.values(drawn)) - began]"
            )
            answer, whole = await until(page, took)
            used = 1000 * ((await opened.metrics())["TaskDuration"] - before)
            taken.setdefault(name, []).append((answer, whole, used))
            await asyncio.sleep(0.6)
    found = {}
    for name, times in taken.items():
        answer, whole, used = (round(statistics.median(each)) for each in zip(*times, strict=True))
        found[name] = {"answer": answer, "all": whole, "cpu": used}
    return {**found, "crosshair": {"answer": round(await page.evaluate(CROSSHAIR), 1)}}


async def hour(opened: Opened, feed: Followed, minutes: float) -> dict[str, list[float]]:
    """What an hour brings, in fewer minutes."""
    heap: list[float] = []
    nodes: list[float] = []
    for number in range(3601):
        if number % 720 == 0:
            await opened.collect_garbage()
            metrics = await opened.metrics()
            heap.append(round(metrics["JSHeapUsedSize"] / 2**20, 1))
            nodes.append(metrics["Nodes"])
        feed.second(number)
        await asyncio.sleep(60.0 * minutes / 3600)
    return {"heap_MiB": heap, "nodes": nodes}


async def measure(root: Path, turns: int, minutes: float) -> dict[str, Any]:
    """All but the list."""
    folder = root / "dddddddd"
    began, used = time.time(), time.process_time()
    history = recorded_run(records_of(str(folder))).history
    read = {"ms": round(1000 * (time.time() - began)), "cpu": round(1000 * (time.process_time() - used))}
    size = round((folder / "events.jsonl").stat().st_size / 2**20)
    found: dict[str, Any] = {"records": {"MiB": size, "read": read}}
    async with serving(None, root) as url, browser() as page:
        opened = Opened(page)
        for turn in ("first", "again"):
            found["records"][turn] = await opened.open(f"{url}run?run=dddddddd")
    history.view.ended = None
    feed = Followed(history)
    async with serving(feed, root) as url, browser() as page:
        opened = Opened(page)
        found["live"] = {"first": await opened.open(url)}
        found["live"]["again"] = await opened.open(url)
        await page.evaluate("longTasks.length = 0")
        found["live"]["gestures"] = await gestures(opened, turns)
        tasks = await page.evaluate("longTasks.map(Math.round)")
        found["live"]["long_tasks"] = {"count": len(tasks), "longest": max(tasks, default=0)}
        found["hour"] = await hour(opened, feed, minutes)
    return found


async def listed(root: Path, runs: int) -> dict[str, float]:
    """How long it takes until a list of so many is drawn."""
    for number in range(runs):
        MadeRun(f"{number:08x}", seconds=60.0, losses=0).write(root)
    async with serving(None, root) as url, browser() as page:
        return await Opened(page).open(f"{url}runs", f"document.querySelectorAll('#runs tr').length >= {runs}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page_week")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--runs", type=int, default=100)
    flags = parser.parse_args()
    names = tuple(f"m{n}" for n in range(9))
    with tempfile.TemporaryDirectory(prefix="ed-") as folder:
        root = Path(folder) / "week"
        MadeRun("dddddddd", WEEK, hosts=125, slots=8, losses=100, away=600.0, rate=2.0, names=names).write(root)
        found = asyncio.run(measure(root, flags.turns, flags.minutes))
        found["list"] = asyncio.run(listed(Path(folder) / "many", flags.runs))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
