"""`edriver dashboard` in a browser: its process, and a page of which it is kept what went wrong."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page

from tests.process.running import BOUND, ROOT

WAIT = BOUND * 1000
"""Milliseconds that whatever a test asks of a page may take. A page loads in more than Playwright's 30 s, and shows
what is expected of it in more than its 5 s, where other tests leave little of the machine."""


class Watched:
    """A page, and what went wrong on it."""

    def __init__(self, browser: Browser, scheme: str = "light", width: int = 1280) -> None:
        self.errors: list[str] = []
        self.asked: set[str] = set()
        self.page: Page = browser.new_page(
            viewport={"width": width, "height": 844},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        self.page.set_default_timeout(WAIT)
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.add(request.url))

    def check(self, url: str) -> None:
        """Assert that there was no error, and that all requests went to the page's own server."""
        assert self.errors == []
        schemes = {urlsplit(asked)[:2] for asked in self.asked} - {("data", ""), ("blob", "")}
        assert schemes == {urlsplit(url)[:2]}
        self.page.close()


@contextmanager
def dashboard(run_id: str, state: Path, control: bool = True) -> Iterator[str]:
    """`edriver dashboard` of a run; gives the URL of the page that steers it, or only shows it.

    Args:
        run_id: the run.
        state: the records are below this folder.
        control: whether the page steers the run, which must go on.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "edriver", "dashboard", *(["--control"] if control else []), "--run", run_id],
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(state)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        match = re.fullmatch(
            rf"run {run_id}: (http://127\.0\.0\.1:\d+/[\w-]{{20,}}/(?:run\?run=\w+)?) \(Ctrl-C ends it\)\n", first
        )
        assert match, first
        shown = match[1]
        if control:
            second = process.stdout.readline()
            steering = re.fullmatch(rf"run {run_id}: to steer it: (http://127\.0\.0\.1:\d+/[\w-]{{20,}}/)\n", second)
            assert steering, second
            assert steering[1] != shown
            shown = steering[1]
        yield shown
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=BOUND) == 0
        assert process.stdout.read() == f"run {run_id}: the page is closed\n"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


HOSTILE = "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'><!-- <b>&amp;"
