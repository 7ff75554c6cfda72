"""Pictures for the documents, from a real run: `python -m benchmarks.page_pictures [FOLDER]`.

Four workers train examples/charlm on this machine; one is killed and replaced, then the run is made smaller and larger
again. Taken are `edriver top`, the dashboard's page (light, dark, narrow), the report of the finished
run, and three made-up runs compared.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

from playwright.async_api import async_playwright

from benchmarks.page_speed import serving, until
from benchmarks.page_week import serving as serving_records
from edriver.client import Client, here
from edriver.commands.report import report
from edriver.commands.top_screen import Top, Watch
from tests.made_runs import MadeRun
from tests.process.chromium import CHROMIUM, FLAGS
from tests.process.running import ROOT, running

LOOKS = (
    ("page-light", "light", 1280),
    ("page-dark", "dark", 1280),
    ("page-narrow", "light", 390),
)
"""Each picture's name, colours and width."""

STEPS = 1500
"""Of the whole run; what happens to it happens at parts of that."""

END_BOUND = 300.0
"""Seconds from the last of that until the run ends."""


def lives_through(client: Client) -> None:
    """A kill, a smaller run, a larger one, and some steps after each."""
    wait_for(client, size=4, steps=STEPS // 40)
    os.kill(next(worker.pid for worker in client.status().workers if worker.rank == 1), signal.SIGKILL)
    wait_for(client, size=4, steps=STEPS // 40)
    client.resize(2)
    wait_for(client, size=2, steps=STEPS // 40)
    client.resize(4)
    wait_for(client, size=4, steps=STEPS // 40)


def wait_for(client: Client, size: int, steps: int) -> None:
    """Wait until so many have trained for so many steps."""
    began: int | None = None
    for response in client.watch_progress(client.snapshot().seq):
        if not response.HasField("progress"):
            continue
        if client.status().size != size:
            began = None
        elif began is None:
            began = response.progress.steps
        elif response.progress.steps >= began + steps:
            return
    raise AssertionError("the run ended too soon")


async def top_picture(client: Client) -> str:
    """What `edriver top` shows, as SVG."""
    top = Top(client.status, Watch(client))
    async with top.run_test(size=(110, 28)) as pilot:
        await top.workers.wait_for_complete()
        await pilot.pause()
        return top.export_screenshot()


DRAWN = "charts.every((chart) => chart.last > 0)"


async def pictures(shots: list[tuple[str, str, int, str]], folder: Path, drawn: str = DRAWN) -> None:
    """Take them.

    Args:
        shots: each picture's name, colours, width and address.
        folder: where to.
        drawn: tells, in JavaScript, whether all is there.
    """
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for name, scheme, width, url in shots:
            page = await chromium.new_page(
                viewport={"width": width, "height": 900}, color_scheme="dark" if scheme == "dark" else "light"
            )
            await page.goto(url)
            await until(page, drawn)
            await page.locator("body").screenshot(path=folder / f"{name}.png")
            await page.close()
        await chromium.close()


async def compare_picture(place: Path, folder: Path) -> None:
    """Three runs that never were, over one another."""
    root = place / "made"
    made = partial(MadeRun, hosts=2, slots=4)
    warm_up, base = {"name": "warm-up", "tags": {"lr": "3e-4"}}, {"name": "base", "tags": {"lr": "1e-3"}}
    made("5d2f01aa", 5400, losses=3, away=500, about=warm_up).write(root)
    made("c90ee614", 4300, losses=6, away=700, seed=3, about=base).write(root)
    made("41ddf5cd", 6100, losses=1, away=900, seed=5, rate=4.5, about={"name": "cosine"}).write(root)
    path = "compare?run=5d2f01aa&run=c90ee614&run=41ddf5cd#smooth=0.6&value=reported:loss&value=own:size"
    async with serving_records(None, root) as url:
        await pictures([("compare", "light", 1280, url + path)], folder, f"charts.length && {DRAWN}")


def main() -> None:
    """Run, and take the pictures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page_pictures")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/pictures"))
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ed-") as place:
        os.environ["XDG_STATE_HOME"] = place
        Path(place, "train.py").symlink_to(ROOT / "examples/charlm/train.py")
        command = ["python", "train.py", "--batch-size", "4", "--steps", str(STEPS)]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        with running(["-np", "4", "--min-np", "1", *command], Path(place), {"PATH": path}) as run:
            run_id = run.id
            run.line("round 1.1")
            with Client(here(run_id)) as client:
                lives_through(client)
                top = Path(place, "top.html")
                top.write_text(f"<!doctype html><body>{asyncio.run(top_picture(client))}")
            with serving(run_id) as url:  # the run has a while to go
                asyncio.run(pictures([(*look, url) for look in LOOKS], flags.folder))
            run.process.wait(timeout=END_BOUND)
            assert run.end() == 0
        page = Path(place, "report.html")
        print(report([run_id, "--output", str(page)]))
        asyncio.run(pictures([("report", "light", 1280, page.as_uri())], flags.folder))
        asyncio.run(compare_picture(Path(place), flags.folder))
        asyncio.run(pictures([("top", "light", 960, top.as_uri())], flags.folder, drawn="true"))


if __name__ == "__main__":
    main()
