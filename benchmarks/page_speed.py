"""How fast the dashboard's page is, in a headless Chromium: `python -m benchmarks.page_speed`.

Prints one JSON object. Times are milliseconds.

- kill_to_line: in a real run of three workers, from `kill -9` of one until its line is on the page; each of --kills.
- large: the page of a made-up run of --hosts hosts with 8 slots each, which has been through --rounds rounds, while one
  worker is lost a second: `first_picture` from the request until all charts are drawn, `update` how long drawing a
  chart anew takes (the longest of each chart), `event_to_line` from an event at the driver until its line is on the
  page (median and worst), `long_tasks` the times for which the page did not answer, of 50 ms or more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Page, async_playwright

from benchmarks.status_speed import Simulated, serve
from edriver.client import Address, AsyncClient
from edriver.dashboard.feed import Feed
from edriver.dashboard.server import PageServer, runner_of
from edriver.driver.core.selection import plan_round
from edriver.driver.observe.cause_text import cause_text
from edriver.model import actions, events
from edriver.model.cause import AgentFault, AgentFaultKind, Cause, CauseKind
from edriver.model.ids import NO_VERSION, RoundId
from edriver.model.plan import Candidate
from edriver.model.records import WorkerState
from edriver.model.store_address import StoreAddress
from tests.process.chromium import CHROMIUM, FLAGS

WATCH = """
window.seen = {};
window.longTasks = [];
new PerformanceObserver((list) => { for (const entry of list.getEntries()) longTasks.push(entry.duration); })
  .observe({type: "longtask"});
document.addEventListener("DOMContentLoaded", () => {
  new MutationObserver(() => {
    for (const line of document.querySelectorAll("#log li")) {
      const text = line.lastElementChild.textContent;
      if (!(text in seen)) seen[text] = Date.now();
    }
  }).observe(document.getElementById("log"), {childList: true});
});
"""


@asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """A page of a fresh Chromium that notes when it sees which line, and when it did not answer."""
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = await chromium.new_page(viewport={"width": 1400, "height": 1000})
        await page.add_init_script(WATCH)
        yield page
        await chromium.close()


async def until(page: Page, expression: str) -> Any:
    """Wait until an expression is something; returns what. (The page's policy forbids playwright's own wait.)"""
    ask = f"const ask = () => {{ const found = {expression}; found ? resolve(found) : setTimeout(ask, 5); }}; ask();"
    return await asyncio.wait_for(page.evaluate(f"new Promise((resolve) => {{ {ask} }})"), 120)


# ---- a large run -----------------------------------------------------------------------------------------------


class Large(Simulated):
    """A run that loses and replaces a worker in each round."""

    def __init__(self, hosts: int) -> None:
        super().__init__(hosts, 8)
        self.number = 1

    def loses(self, worker_id: int) -> str:
        """A round ends by the loss of a worker, and the next one begins; returns what is said."""
        self.number += 1
        worker = self.membership.roster.workers[worker_id]
        fault = AgentFault(AgentFaultKind.ENDED, f"gone in round {self.number - 1}")
        cause = Cause(CauseKind.LOST_WITH_HOST, worker.name, detail=fault)
        candidates = [
            Candidate(each.worker_id, each.host, each.slot, NO_VERSION, StoreAddress("a", 4000))
            for each in self.membership.roster.workers.values()
        ]
        worker.state = WorkerState.STOPPING
        lost = events.WorkerExited(worker_id, -9, "", time.time())
        latest = RoundId(1, self.number - 1)
        members = tuple(self.membership.roster.workers)
        self._take(lost, [actions.Abort(members, latest, cause)], cause)
        worker.state = WorkerState.TRAINING
        plan = plan_round(RoundId(1, self.number), 1, candidates, first=False)
        self._take(events.Ticked(), [plan])
        now = time.time()
        for each in members:
            times = {"waiting": now - 0.04, "built": now - 0.03, "synced": now - 0.02, "stepped": now}
            self._take(events.FirstBoundaryPassed(each, RoundId(1, self.number), times), [])
        return cause_text(cause)

    def _take(self, event: events.Event, step: list[Any], loss: Cause | None = None) -> None:
        self.event_history.take(event, step, loss, [])
        self.status.announce()


async def large(hosts: int, rounds: int, seconds: int) -> dict[str, Any]:
    """Measure the page of a large run."""
    run = Large(hosts)
    for number in range(rounds):
        run.loses(1 + 7 * number % run.size)
    with tempfile.TemporaryDirectory(prefix="ed-") as folder:
        server, target = await serve(run.status, folder)
        async with AsyncClient(Address("simulated", target)) as client:
            feed = Feed(client, time.time)
            await feed.begin()
            following = asyncio.create_task(feed.follow())
            served = PageServer(feed, "s")
            runner = runner_of(served.app, shutdown_timeout=0.1)
            await runner.setup()
            listening = await served.callers.listen(runner, "127.0.0.1", 0)
            try:
                async with browser() as page:
                    port = listening.sockets[0].getsockname()[1]
                    return await _follow(page, run, f"http://127.0.0.1:{port}/s/", seconds)
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
                listening.close()
                await runner.cleanup()
                await server.stop(None)


async def _follow(page: Page, run: Large, url: str, seconds: int) -> dict[str, Any]:
    began = time.time()
    await page.goto(url)
    await until(page, "window.seen && charts.every((chart) => chart.last > 0)")
    found: dict[str, Any] = {
        "workers": run.size,
        "rounds": run.number,
        "first_picture": round(1000 * (time.time() - began)),
    }
    first_tasks = await page.evaluate("longTasks.splice(0).map(Math.round)")
    found["long_tasks_of_the_first_picture"] = first_tasks
    await page.evaluate(
        "window.took = {}; for (const chart of charts) { const update = chart.update.bind(chart); "
        "chart.update = () => { update(); took[chart.id] = Math.max(took[chart.id] || 0, chart.took); }; }"
    )
    delays = []
    for second in range(seconds):
        run.beat()
        at = 1000 * time.time()
        text = run.loses(1 + 11 * second % run.size)
        delays.append(await until(page, f"seen[{json.dumps(text)}]") - at)
        await asyncio.sleep(1.0)
    found["update"] = await page.evaluate(
        "Object.fromEntries(Object.entries(took).map(([id, ms]) => [id, Math.round(ms)]))"
    )
    found["event_to_line"] = {"median": round(statistics.median(delays)), "worst": round(max(delays))}
    found["long_tasks"] = await page.evaluate("longTasks.map(Math.round)")
    return found


# ---- a kill ----------------------------------------------------------------------------------------------------


async def kills(count: int) -> list[int]:
    """Measure how long it takes from a kill to its line."""
    from tests.process.running import SCRIPTS, running

    found = []
    with tempfile.TemporaryDirectory(prefix="ed-") as folder:
        args = ["-np", "3", "--min-np", "1", sys.executable, str(SCRIPTS / "train.py")]
        with running(args, Path(folder), {"STEPS": "200000", "XDG_STATE_HOME": folder}) as run:
            run.line("rank 2 passed step 5")
            run_id = run.id
            with serving(run_id) as url:
                async with browser() as page:
                    await page.goto(url)
                    await page.wait_for_selector("#log li")
                    for _ in range(count):
                        known = len(run.lines)
                        victim = run.pids()[2]
                        before = await page.evaluate("Object.keys(seen).length")
                        at = 1000 * time.time()
                        os.kill(victim, signal.SIGKILL)
                        await until(page, f"Object.keys(seen).length > {before}")
                        found.append(round(await page.evaluate("Math.max(...Object.values(seen))") - at))
                        await asyncio.to_thread(run.line, r"rank 2 of 3 pid", known)
                        await asyncio.to_thread(run.line, r"rank 2 passed", len(run.lines))
    return found


@contextmanager
def serving(run_id: str) -> Iterator[str]:
    """A dashboard in a process of its own; gives the page's address."""
    command = [sys.executable, "-m", "edriver", "dashboard", "--run", run_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[2]
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page_speed")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--hosts", type=int, default=125)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=20)
    flags = parser.parse_args()
    found: dict[str, Any] = {}
    if flags.hosts:
        found["large"] = asyncio.run(large(flags.hosts, flags.rounds, flags.seconds))
    if flags.kills:
        found["kill_to_line"] = asyncio.run(kills(flags.kills))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
