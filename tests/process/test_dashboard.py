"""The dashboard's page and the report's, in a real browser."""

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

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from edriver.client import Client, here
from edriver.common.wire import duration, timestamp
from edriver.text.event_lines import event_line
from edriver.v1 import cause_pb2, rounds_pb2, status_pb2
from tests.process.chromium import CHROMIUM, FLAGS
from tests.process.running import BOUND, ROOT, SCRIPTS, Run, running

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]
WAIT = BOUND * 1000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not Path(CHROMIUM).exists():
        missing = "Debian's package chromium is missing"
        assert "CI" not in os.environ, missing
        pytest.skip(missing)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


class Watched:
    """A page, and what went wrong on it."""

    def __init__(self, browser: Browser, scheme: str = "light", width: int = 1280) -> None:
        self.errors: list[str] = []
        self.asked: set[str] = set()
        self.page: Page = browser.new_page(
            viewport={"width": width, "height": 844},
            color_scheme="dark" if scheme == "dark" else "light",
        )
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
def dashboard(run_id: str) -> Iterator[str]:
    """`edriver dashboard` of a run; gives the page's address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "edriver", "dashboard", "--run", run_id],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        match = re.fullmatch(rf"run {run_id}: (http://127\.0\.0\.1:\d+/[\w-]{{20,}}/) \(Ctrl-C ends it\)\n", first)
        assert match, first
        yield match[1]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=BOUND) == 0
        assert process.stdout.read() == f"run {run_id}: the page is closed\n"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def id_of(run: Run) -> str:
    return run.line(r"^edriver: run (\w+):")[1]


def test_the_page_follows_a_kill_a_resize_and_the_end(browser: Browser, tmp_path: Path) -> None:
    with running(["-np", "3", "--min-np", "1", *TRAIN], tmp_path, {"STEPS": "200000"}) as run:
        run.line("rank 2 passed step 5")
        with dashboard(id_of(run)) as url:
            watched = Watched(browser)
            page = watched.page
            page.goto(url, timeout=WAIT)
            size = page.locator("#size")
            log = page.locator("#log")
            expect(size).to_have_text("3", timeout=WAIT)
            expect(page.locator("#state-word")).to_have_text("training")
            expect(page.locator("#curve-name")).to_have_value("loss", timeout=WAIT)
            os.kill(run.pids()[2], signal.SIGKILL)
            expect(log).to_contain_text("round 1.1 ended: worker 3 (rank 2, localhost:2)", timeout=WAIT)
            expect(size).to_have_text("2", timeout=WAIT)
            expect(log).to_contain_text("was killed by SIGKILL", timeout=WAIT)
            output = page.locator("#output")
            expect(output).to_contain_text("[0] rank 0 passed step 5", timeout=WAIT)
            page.locator("#output-of").select_option("localhost:2")
            expect(output).to_contain_text("[2] rank 2 passed step 5", timeout=WAIT)  # its last words
            expect(output).not_to_contain_text("[0] rank 0 passed step 5")
            expect(page.locator("#rounds-note")).to_contain_text("1 failure")
            expect(size).to_have_text("3", timeout=WAIT)  # by the replacement
            with Client(here(id_of(run))) as client:
                client.resize(2)
            expect(size).to_have_text("2", timeout=WAIT)
            expect(log).to_contain_text("at most 2 workers from now on")
            expect(page.locator("#phases .legend")).to_be_visible(timeout=WAIT)
            run.process.send_signal(signal.SIGINT)
            assert run.end() == 130
            expect(page.locator("#state-word")).to_have_text("stopped", timeout=WAIT)
            expect(page.locator("#doing")).to_have_text("the driver got SIGINT")
            expect(size).to_have_text("0")
            watched.check(url)
            narrow = Watched(browser, "dark", 390)
            narrow.page.goto(url, timeout=WAIT)  # the page can still be read
            expect(narrow.page.locator("#phases .legend")).to_be_visible(timeout=WAIT)
            assert narrow.page.evaluate("document.documentElement.scrollWidth") == 390
            assert narrow.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 17, 22)"
            narrow.check(url)


HOSTILE = "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'><!-- <b>&amp;"


def test_hostile_names_in_a_report_do_nothing(browser: Browser, tmp_path: Path) -> None:
    round_id = rounds_pb2.RoundId(incarnation=1, n=1)
    kinds = [
        {
            "host": status_pb2.HostStatus(
                name=HOSTILE, slots=1, connected=True, obstacles=[cause_pb2.Cause(text=HOSTILE)]
            )
        },
        {"worker": status_pb2.WorkerStatus(worker_id=1, host=HOSTILE, slot=0, state=status_pb2.WORKER_STATE_BOOTING)},
        {
            "round": status_pb2.Round(
                round_id=round_id,
                kind=status_pb2.ROUND_KIND_FAILURE,
                cause=cause_pb2.Cause(text=HOSTILE),
                members=[status_pb2.Member(worker_id=1, host=HOSTILE)],
                assign_time=timestamp(1700000010.0),
                first_step_time=timestamp(1700000011.0),
                phases=status_pb2.RecoveryPhases(sync=duration(0.5)),
            )
        },
        {
            "interruption": status_pb2.Interruption(
                kind=status_pb2.INTERRUPTION_KIND_FAILURE,
                cause=cause_pb2.Cause(text=HOSTILE),
                start_time=timestamp(1700000009.0),
                duration=duration(1.5),
                phases=status_pb2.RecoveryPhases(sync=duration(0.5)),
            )
        },
    ]
    log = tmp_path / "events.jsonl"
    with log.open("w") as file:
        for seq, kind in enumerate(kinds, start=1):
            event = status_pb2.Event(seq=seq, time=timestamp(1700000000.0 + 5 * seq), text=HOSTILE, **kind)  # type: ignore[arg-type]
            file.write(event_line(event))
        file.write('{"time": "2023-11-14T22:13:40Z", "progress": {"steps": 3, "reported": {"</script><b>": "NaN"}}}\n')
    done = subprocess.run(
        [sys.executable, "-m", "edriver", "report", str(log), "--output", "r.html"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\nr.html\n")
    for scheme, width in (("light", 1280), ("dark", 390)):
        watched = Watched(browser, scheme, width)
        url = (tmp_path / "r.html").as_uri()
        watched.page.goto(url, timeout=WAIT)
        expect(watched.page.locator("#lanes .trace.bars").first).to_be_visible(timeout=WAIT)
        expect(watched.page.locator("#phases .legend")).to_be_visible(timeout=WAIT)
        expect(watched.page.locator("#hosts")).to_contain_text(HOSTILE)
        expect(watched.page.locator(".summary")).to_contain_text(HOSTILE)
        assert watched.page.evaluate("window.harmed") is None
        assert watched.page.locator("img").count() == 0
        assert watched.page.evaluate("document.documentElement.scrollWidth") == width
        watched.check(url)
