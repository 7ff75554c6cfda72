"""The picture in the tutorial and in the README, from the tutorial's run: `python -m benchmarks.tutorial_picture`.

Four workers train examples/digits, one is killed and replaced, a host is added and removed; then the two
charts of the dashboard's page that show it are taken.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import FloatRect, sync_playwright

from benchmarks.page_pictures import DRAWN, wait_for
from benchmarks.page_speed import serving
from edriver.client import Client, here
from tests.process.chromium import CHROMIUM, FLAGS
from tests.process.running import ROOT, Hosts, running

WIDTH, MARGIN = 1100, 12
"""Of the window, and of what is around the two charts."""

STEPS = 150
"""What is trained before each of the things that happen, and after the last one."""


def lives_through(client: Client, hosts: Hosts) -> None:
    """What the tutorial does to its run."""
    wait_for(client, size=4, steps=STEPS)
    os.kill(next(worker.pid for worker in client.status().workers if worker.rank == 3), signal.SIGKILL)
    wait_for(client, size=4, steps=STEPS)
    hosts.are("localhost:2", "127.0.0.2:2", "127.0.0.3:2")
    wait_for(client, size=6, steps=STEPS)
    hosts.are("localhost:2", "127.0.0.2:2")
    wait_for(client, size=4, steps=STEPS)


def take(url: str, picture: Path) -> None:
    """Take how many workers trained when, and what the slots did, once all is drawn."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = chromium.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        page.goto(url)
        page.evaluate(f"new Promise((done) => {{ (function ask() {{ {DRAWN} ? done() : setTimeout(ask, 20); }})() }})")
        charts = [page.locator(f"section[aria-labelledby={name}]").bounding_box() for name in ("h-world", "h-lanes")]
        ends = [end for box in charts if box for end in (box["y"], box["y"] + box["height"])]
        top, bottom = min(ends) - MARGIN, max(ends) + MARGIN
        clip: FloatRect = {"x": 0, "y": top, "width": WIDTH, "height": bottom - top}
        page.screenshot(path=picture, full_page=True, clip=clip)
        chromium.close()


def main() -> None:
    """Run, and take the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tutorial_picture")
    parser.add_argument("picture", nargs="?", type=Path, default=Path("docs/pictures/tutorial.png"))
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ed-") as place:
        os.environ["XDG_STATE_HOME"] = place
        folder = Path(place)
        hosts = Hosts(folder, "localhost:2", "127.0.0.2:2")
        script = ROOT / "examples/digits/train.py"
        command = ["python", str(script), "--epochs", "1000", "--step-seconds", "0.05"]
        options = ["-np", "4", "--min-np", "2", "--max-np", "6", "--host-discovery-script", str(hosts.script)]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        with running([*options, *command], folder, {"PATH": path}) as run:
            run.line("round 1.1")
            with Client(here(run.id)) as client:
                lives_through(client, hosts)
                with serving(run.id) as url:
                    take(url, flags.picture)
                client.stop()
            run.process.wait(timeout=60)


if __name__ == "__main__":
    main()
