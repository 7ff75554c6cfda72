"""The dashboard's server over records: the list of runs, a run that is opened, and what is not to be had."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from edriver.client import RunError
from edriver.commands import dashboard
from edriver.commands.dashboard import parser
from edriver.dashboard import known_runs, record_pages
from edriver.dashboard.feeds import Feeds
from edriver.dashboard.known_runs import KnownRuns
from edriver.dashboard.output import MAX_RECORDED_LINES
from edriver.dashboard.server import PageServer, runner_of
from edriver.history.records import Records
from tests.made_runs import MadeRun

SECRET = "hush"
HOSTILE = "</script><script>alert(1)</script><img src=x>"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the records of two runs; no run goes on."""
    for module in (known_runs, dashboard):
        monkeypatch.setattr(module, "living_runs", dict)
    root = tmp_path / "records"
    MadeRun("aaaaaaaa", seconds=60.0, names=(HOSTILE,), about={"name": HOSTILE, "tags": {HOSTILE: HOSTILE}}).write(root)
    MadeRun("bbbbbbbb", seconds=30.0, losses=1, end=None).write(root)
    return root


def serve(root: Path | None, work: Callable[[Callable[[str], Any]], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        feeds = Feeds(lambda: 0.0)
        page = PageServer(None, SECRET, KnownRuns(root), feeds)
        runner = runner_of(page.app, shutdown_timeout=0.1)
        await runner.setup()
        listening = await page.callers.listen(runner, "127.0.0.1", 0)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}") as session:
            await work(lambda path: session.get(f"/{SECRET}/{path}"))
        listening.close()
        await runner.cleanup()
        await feeds.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_the_list_and_a_run_that_is_opened(root: Path) -> None:
    async def work(get: Callable[[str], Any]) -> None:
        async with get("") as first, get("runs") as again:
            assert await first.text() == await again.text()
            assert "runs.js" in await first.text()
        async with get("runs.json") as answer:
            found = await answer.json()
            assert [(run["run_id"], run["state"]) for run in found["runs"]] == [
                ("aaaaaaaa", "done"),
                ("bbbbbbbb", "lost"),
            ]
            assert found["runs"][0]["tags"] == {HOSTILE: HOSTILE}
        async with get("run?run=aaaaaaaa") as answer:
            text = await answer.text()
            assert HOSTILE not in text
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; ")
            match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
            assert match
            data = json.loads(match[1])
            assert (data["link"], data["head"]["run_id"], data["head"]["ended"]["end"]) == ("ended", "aaaaaaaa", "done")
        async with get("curves?run=bbbbbbbb") as answer:
            data = await answer.json()
            assert (data["link"], "lanes" in data, "log" in data) == ("record", False, False)
            assert data["curve"]["points"][0][1:3] == [0, 5.0]

    serve(root, work)


def test_what_the_workers_of_a_run_that_has_ended_wrote_is_part_of_its_page(root: Path) -> None:
    MadeRun("aaaaaaaa").write_output(root, (0, "zero"), (1, f"last words \x1b[2J{HOSTILE}"), *[(0, "more")] * 3000)

    async def work(get: Callable[[str], Any]) -> None:
        async with get("run?run=aaaaaaaa") as answer:
            text = await answer.text()
            assert HOSTILE not in text
            match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
            assert match
            lines = json.loads(match[1])["output"]
        assert len(lines) == MAX_RECORDED_LINES // 2 + 1
        assert lines[0][2:] == ["1", False, f"last words \\x1b[2J{HOSTILE}", "node-000:1", 2, False]
        assert {tuple(line[2:5]) for line in lines[1:]} == {("0", False, "more")}

    serve(root, work)


def test_a_browser_loads_what_draws_a_run_while_its_records_are_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, may_read = record_pages._read, threading.Event()

    def held_back(records: Records, run_id: str) -> Any:
        assert may_read.wait(30.0)
        return read(records, run_id)

    monkeypatch.setattr(record_pages, "_read", held_back)

    async def work(get: Callable[[str], Any]) -> None:
        async with get("run?run=aaaaaaaa") as answer:
            begin = await answer.content.readuntil(b"</header>")
            assert b"plotly.js" in begin
            assert b"page.js" in begin
            may_read.set()
            rest = await answer.text()
            assert rest.index('<section class="summary"') < rest.index('id="main"') < rest.index('id="data"')

    serve(root, work)


def test_records_that_grow_are_read_anew(root: Path) -> None:
    async def work(get: Callable[[str], Any]) -> None:
        async def samples() -> int:
            async with get("curves?run=bbbbbbbb") as answer:
                return len((await answer.json())["curve"]["points"])

        before = await samples()
        with (root / "bbbbbbbb" / "events.jsonl").open("a") as file:
            file.write('{"time": "2030-01-01T00:00:00Z", "progress": {"steps": "9999"}}\n')
        assert await samples() == before + 1

    serve(root, work)


def test_only_what_was_asked_for_last_is_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_pages, "MAX_KEPT_RECORDS", 1)

    async def work() -> None:
        pages = record_pages.RecordPages(KnownRuns(root))
        first = await pages.curves("aaaaaaaa")
        assert await pages.curves("aaaaaaaa") is first
        await pages.curves("bbbbbbbb")
        assert await pages.curves("aaaaaaaa") is not first

    asyncio.run(work())


def link_to_a_folder(root: Path, outside: Path) -> str:
    (root / "cccccccc").symlink_to(outside)
    return "cccccccc"


def link_to_its_events(root: Path, outside: Path) -> str:
    (root / "cccccccc").mkdir()
    (root / "cccccccc" / "events.jsonl").symlink_to(outside / "events.jsonl")
    return "cccccccc"


def link_to_its_failure(root: Path, outside: Path) -> str:
    (outside / "secret").write_text("hidden")
    (root / "aaaaaaaa" / "failure.txt").symlink_to(outside / "secret")
    return "aaaaaaaa"


def link_to_its_output(root: Path, outside: Path) -> str:
    MadeRun("eeeeeeee").write_output(outside.parent, (0, "hidden"))
    (root / "aaaaaaaa" / "output").symlink_to(outside / "output")
    return "aaaaaaaa"


def a_circle(root: Path, _outside: Path) -> str:
    (root / "cccccccc").symlink_to(root / "cccccccc")
    return "cccccccc"


def a_pipe(root: Path, _outside: Path) -> str:
    (root / "cccccccc").mkdir()
    os.mkfifo(root / "cccccccc" / "events.jsonl")
    return "cccccccc"


def no_folder(root: Path, _outside: Path) -> str:
    return "dddddddd"


@pytest.mark.parametrize(
    "arrange",
    [link_to_a_folder, link_to_its_events, link_to_its_failure, link_to_its_output, a_circle, a_pipe, no_folder],
)
@pytest.mark.parametrize("path", ["run", "curves"])
def test_what_leads_out_of_the_records_is_not_opened(
    root: Path, tmp_path: Path, arrange: Callable[[Path, Path], str], path: str
) -> None:
    outside = MadeRun("eeeeeeee", seconds=30.0).write(tmp_path / "outside")
    run_id = arrange(root, outside)

    async def work(get: Callable[[str], Any]) -> None:
        async with get(f"{path}?run={run_id}") as answer:
            assert (answer.status, "hidden" in await answer.text()) == (404, False)

    serve(root, work)


@pytest.mark.parametrize(
    "run_id",
    ["", ".", "..", "../outside", "%2e%2e", "/etc", "aaaaaaaa/", "aaaaaaaa/../aaaaaaaa", "a\0", "x" * 5000, "ü"],
)
def test_what_is_no_runs_id_is_not_found(root: Path, run_id: str) -> None:
    async def work(get: Callable[[str], Any]) -> None:
        for path in ("run", "curves", "events", "output"):
            async with get(f"{path}?run={quote(run_id)}") as answer:
                assert answer.status == 404

    serve(root, work)


def test_records_without_an_event_say_so(root: Path) -> None:
    (root / "cccccccc").mkdir()
    (root / "cccccccc" / "events.jsonl").write_text("")

    async def work(get: Callable[[str], Any]) -> None:
        async with get("run?run=cccccccc") as answer:
            assert answer.status == 404
            assert "records no run: it is empty" in await answer.text()

    serve(root, work)


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_runs, "living_runs", dict)

    async def work(get: Callable[[str], Any]) -> None:
        async with get("runs.json") as answer:
            assert await answer.json() == {"runs": [], "why": f"{tmp_path / 'no'}: No such file or directory"}

    serve(tmp_path / "no", work)


@pytest.mark.parametrize(
    ("words", "living", "first"),
    [
        pytest.param([], [], None, id="no-run-goes-on"),
        pytest.param([], ["11111111", "22222222"], None, id="several-do"),
        pytest.param([], ["11111111"], "11111111", id="one-does"),
        pytest.param(["--run", "22222222"], ["11111111", "22222222"], "22222222", id="named"),
        pytest.param(["--run", "aaaaaaaa"], ["11111111"], "aaaaaaaa", id="one-that-has-ended"),
    ],
)
def test_what_the_page_shows_first(
    root: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], living: list[str], first: str | None
) -> None:
    monkeypatch.setattr(dashboard, "living_runs", lambda: dict.fromkeys(living, Path("s")))
    monkeypatch.setattr(dashboard, "here", lambda run_id: f"address of {run_id}")
    shown, runs = dashboard._shown(parser().parse_args([*words, "--records", str(root)]))
    assert runs is not None
    assert shown == (f"address of {first}" if first in living else first)


def test_a_run_that_is_nowhere_is_named(root: Path) -> None:
    flags: argparse.Namespace = parser().parse_args(["--run", "dddddddd", "--records", str(root)])
    with pytest.raises(RunError, match="no run dddddddd is in progress, and there are no records of a run dddddddd"):
        dashboard._shown(flags)


def test_the_page_of_a_run_elsewhere_shows_that_run_alone(root: Path) -> None:
    async def work() -> None:
        page = PageServer(None, SECRET)
        paths = {resource.canonical for resource in page.app.router.resources()}
        assert not paths & {
            "/{secret}/runs",
            "/{secret}/runs.json",
            "/{secret}/run",
            "/{secret}/curves",
            "/{secret}/compare",
        }

    asyncio.run(work())
