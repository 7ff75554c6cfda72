"""The dashboard's page and the report's, in a real browser."""

from __future__ import annotations

import csv
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

from edriver.client.requester import own_name
from edriver.text.event_lines import event_line, usage_line
from edriver.v1 import cause_pb2, resources_pb2, rounds_pb2, status_pb2
from edriver.wire.conversion import duration, timestamp
from tests.made_runs import MadeRun
from tests.process.accessibility import changes_said, reach_all_by_tab, violations
from tests.process.dashboards import HOSTILE, Watched, dashboard
from tests.process.running import BOUND, ROOT, SCRIPTS, running

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]


@pytest.mark.long
def test_the_page_follows_a_kill_a_resize_and_the_end(browser: Browser, tmp_path: Path) -> None:
    state, reports = tmp_path / "state", tmp_path / "reports"
    MadeRun("aaaaaaaa", about={"name": "base", "tags": {"lr": HOSTILE}}).write(state / "edriver")
    MadeRun("bbbbbbbb", seconds=300.0, seed=1, end="RUN_END_FAILED").write(state / "edriver")
    environ = {"STEPS": "200000", "XDG_STATE_HOME": str(state), "REPORTS": str(reports)}
    with running(["-np", "3", "--min-np", "1", "--name", "live", *TRAIN], tmp_path, environ) as run:
        run.line("rank 2 passed step 5")
        with dashboard(run.id, state) as url:
            watched = Watched(browser)
            page = watched.page
            page.goto(url)
            size = page.locator("#size")
            log = page.locator("#log")
            expect(size).to_have_text("3")
            expect(page.locator("#state-word")).to_have_text("training")
            expect(page.locator("#curve-0")).to_have_attribute("aria-label", re.compile("^loss over time"))
            os.kill(run.pids()[2], signal.SIGKILL)
            expect(log).to_contain_text("round 1.1 ended: worker 3 (rank 2, localhost:2)")
            expect(size).to_have_text("2")
            expect(log).to_contain_text("was killed by SIGKILL")
            used = page.locator("#usage-rows tr")
            expect(used.first).to_contain_text(re.compile(r"^localhost[\d.]+ of \d+[\d.]+( \S+)? of [\d.]+ GiB"))
            expect(used.nth(1)).to_contain_text(re.compile(r"^localhost:0, rank \d[\d.]+\d\d\d MiB$"))
            page.locator("#usage-filter").fill("rank 1")
            expect(used).to_have_count(1)
            page.locator("#usage-of").select_option("memory")
            expect(page.locator("#usage .scatterlayer .trace")).to_have_count(1)
            expect(page.locator("#usage")).to_have_attribute(
                "aria-label", re.compile("memory in use, by host.* GiB now")
            )
            output = page.locator("#output")
            expect(output).to_contain_text("[0] rank 0 passed step 5")
            page.locator("#output-of").select_option("localhost:2")
            expect(output).to_contain_text("[2] rank 2 passed step 5")  # its last words
            expect(output).not_to_contain_text("[0] rank 0 passed step 5")
            expect(page.locator("#rounds-note")).to_contain_text("1 failure")
            expect(size).to_have_text("3")  # by the replacement
            expect(page.locator("#about")).to_contain_text(f" on {socket.gethostname()}")
            expect(page.locator("#failure")).to_contain_text("was killed by SIGKILL")
            expect(page.locator("#failure-time")).to_contain_text("training has continued since")
            expect(page.locator("#failure-details")).not_to_have_attribute("open", "")
            page.locator("#resize-size").fill("2")
            page.get_by_role("button", name="Resize").click()
            expect(size).to_have_text("2")
            asked = f"at most 2 workers from now on: requested by {own_name()} (dashboard)"
            expect(log).to_contain_text(asked)
            run.line(asked.replace("(", r"\(").replace(")", r"\)"))
            expect(page.locator("#phases .legend")).to_be_visible()
            assert violations(page) == []
            assert page.evaluate("document.getAnimations().length") == 0
            assert changes_said(page, 3.0) == []  # while it trains; rounds and answers are announced
            sizes = page.locator("#world ~ details tbody tr td:nth-child(4)").all_inner_texts()
            assert sizes == ["2", "3", "2", "3"]  # the newest first
            expect(page.locator("#time-lost")).to_contain_text("without a step")
            page.locator("#day").fill("1999-12-31")
            expect(page.locator("#time-lost")).to_contain_text("no interruption")
            page.locator("#day").fill("")
            expect(page.locator("#time-lost")).to_contain_text("without a step")
            compared_with_two_that_have_ended(browser, url, run.id)
            run.process.send_signal(signal.SIGINT)
            assert run.end() == 130
            expect(page.locator("#state-word")).to_have_text("stopped")
            expect(page.locator("#doing")).to_have_text("the driver received SIGINT")
            expect(size).to_have_text("2 to 3")
            page.locator("#output-of").select_option("")
            expect(output).to_contain_text("[0] rank 0")  # from the records: there is no driver
            with page.expect_download() as download:
                page.locator("#save-csv").click()
            said = {int(step): float(loss) for step, loss in map(str.split, reports.read_text().splitlines())}
            rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
            reported = [*itertools.dropwhile(lambda row: row["loss"] == "", rows)]
            for row in reported:
                assert row["loss"], row
                assert float(row["loss"]) == said[int(row["step"])], row
            assert len({row["step"] for row in reported}) > 5
            assert {row["workers"] for row in rows} >= {"2", "3"}
            watched.check(url)
            narrow = Watched(browser, "dark", 390)
            narrow.page.goto(url)  # the page can still be read
            expect(narrow.page.locator("#phases .legend")).to_be_visible()
            assert narrow.page.evaluate("document.documentElement.scrollWidth") == 390
            assert violations(narrow.page) == []
            reach_all_by_tab(narrow.page)
            assert narrow.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 17, 22)"
            narrow.check(url)


def compared_with_two_that_have_ended(browser: Browser, url: str, live: str) -> None:
    watched = Watched(browser)
    page = watched.page
    page.goto(url)
    page.get_by_role("link", name="all runs").click()

    def row(name: str) -> Locator:
        return page.locator("#runs tr").filter(has=page.get_by_role("link", name=name, exact=True))

    expect(row("base")).to_contain_text("✓ done")
    expect(row("base")).to_contain_text(f"lr={HOSTILE}")
    expect(row("bbbbbbbb")).to_contain_text("✕ failed")
    expect(row("live")).to_contain_text("▶ running")
    expect(row("live").locator("td").nth(5)).to_have_text("2")
    row("base").get_by_role("link").click()
    expect(page.locator("#state-word")).to_have_text("done")
    expect(page.locator(".summary")).to_contain_text(f"lr={HOSTILE}")
    expect(page.locator("#curve-0 .scatterlayer")).to_be_visible()
    page.get_by_role("link", name="all runs").click()
    for name in ("base", "bbbbbbbb", "live"):
        row(name).get_by_role("checkbox").check()
    page.get_by_role("button", name="compare 3").click()
    readout = page.locator("#curves .readout").first
    expect(readout.locator(".key")).to_have_count(3)
    expect(readout).to_contain_text(f"live {live}")
    expect(page.locator("#facts")).to_contain_text(HOSTILE)
    loss = readout.locator(".key").filter(has_text="live").locator("b")
    before = loss.inner_text()
    expect(loss).not_to_have_text(before)  # the live one is followed
    assert page.evaluate("window.harmed") is None
    watched.check(url)


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
        sample = resources_pb2.UsageSample(time=timestamp(1700000010.0), host_count=1)
        sample.hosts[HOSTILE].CopyFrom(resources_pb2.HostUsage(cpu_cores=1.0, cpu_limit_cores=2.0, memory_bytes=5))
        (tmp_path / "usage.jsonl").write_text(usage_line(sample))
        file.write('{"time": "2023-11-14T22:13:40Z", "progress": {"steps": 3, "reported": {"</script><b>": "NaN"}}}\n')
    done = subprocess.run(
        [sys.executable, "-m", "edriver", "report", str(tmp_path), "--output", "r.html"],
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
        watched.page.goto(url)
        expect(watched.page.locator("#lanes .trace.bars").first).to_be_visible()
        expect(watched.page.locator("#phases .legend")).to_be_visible()
        expect(watched.page.locator("#hosts")).to_contain_text(HOSTILE)
        expect(watched.page.locator("#usage-rows")).to_contain_text(HOSTILE)
        expect(watched.page.locator("#usage .scatterlayer .trace")).to_have_count(1)
        expect(watched.page.locator(".summary")).to_contain_text(HOSTILE)
        assert watched.page.evaluate("window.harmed") is None
        assert watched.page.locator("img").count() == 0
        assert watched.page.evaluate("document.documentElement.scrollWidth") == width
        assert violations(watched.page) == []
        reach_all_by_tab(watched.page)
        watched.check(url)
