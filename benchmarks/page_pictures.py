"""Pictures of the dashboard's page and of a report, from a real run: `python -m benchmarks.page_pictures [FOLDER]`.

Four workers on this machine; one is killed and replaced, then the run is made smaller and larger again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path

from playwright.async_api import async_playwright

from benchmarks.page_speed import CHROMIUM, FLAGS, serving, until
from edriver.client import Client, here
from edriver.commands.report import report
from tests.process.running import SCRIPTS, Run, running

LOOKS = (
    ("page-light", "light", 1280),
    ("page-dark", "dark", 1280),
    ("page-narrow", "light", 390),
)
"""Each picture's name, colours and width."""


def lives_through(run: Run, run_id: str) -> None:
    """A kill, a smaller run, a larger one."""
    run.line("rank 3 passed step 200")
    os.kill(run.pids()[1], signal.SIGKILL)
    run.line(r"rank 3 of 4 pid \d+ at step [1-9]")
    with Client(here(run_id)) as client:
        for size in (2, 4):
            run.line(r"rank 1 passed", after=len(run.lines))
            known = len(run.lines)
            client.resize(size)
            run.line(rf"rank {size - 1} of {size} pid", after=known)
    for _ in range(200):
        run.line("rank 3 passed", after=len(run.lines))


async def pictures(shots: list[tuple[str, str, int, str]], folder: Path) -> None:
    """Take them.

    Args:
        shots: each picture's name, colours, width and address.
        folder: where to.
    """
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        for name, scheme, width, url in shots:
            page = await chromium.new_page(
                viewport={"width": width, "height": 900}, color_scheme="dark" if scheme == "dark" else "light"
            )
            await page.goto(url)
            await until(page, "charts.every((chart) => chart.last > 0)")
            await page.screenshot(path=folder / f"{name}.png", full_page=True)
            await page.close()
        await chromium.close()


def main() -> None:
    """Run, and take the pictures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page_pictures")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/pictures"))
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ed-") as place:
        log = Path(place, "events.jsonl")
        command = [sys.executable, str(SCRIPTS / "train.py")]
        args = ["-np", "4", "--min-np", "1", "--event-log", str(log), *command]
        with running(args, Path(place), {"STEPS": "100000"}) as run:
            run_id = run.line(r"^edriver: run (\w+):")[1]
            lives_through(run, run_id)
            with serving(run_id) as url:
                asyncio.run(pictures([(*look, url) for look in LOOKS], flags.folder))
            run.process.send_signal(signal.SIGINT)
            run.end()
        page = Path(place, "report.html")
        print(report([str(log), "--output", str(page)]))
        asyncio.run(pictures([("report", "light", 1280, page.as_uri())], flags.folder))


if __name__ == "__main__":
    main()
