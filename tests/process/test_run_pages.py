"""The dashboard's list of runs, and its curves, in a real browser, over records that are made up."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Download, Page, Route, expect

from tests.made_runs import MadeRun
from tests.process.accessibility import reach_all_by_tab, violations
from tests.process.dashboards import HOSTILE, Watched, dashboard

BASE = MadeRun("aaaaaaaa", names=("acc", HOSTILE), about={"name": "base", "tags": {"lr": "1e-3"}})
WIDE = MadeRun("bbbbbbbb", seconds=900.0, losses=4, rate=4.0, seed=1, about={"tags": {"lr": "3e-4", "who": HOSTILE}})
EDGES = 56, 8
"""Pixels left and right of a curve, where names of slots are as short as these."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The folder of the pages of a dashboard that was started on a run that has ended."""
    state = tmp_path_factory.mktemp("state")
    for each in (BASE, WIDE):
        each.write(state / "edriver")
    BASE.write_output(state / "edriver", (0, "epoch 1"), (1, f"last words {HOSTILE}"))
    with dashboard("aaaaaaaa", state, control=False) as found:
        assert found.endswith("/run?run=aaaaaaaa")
        yield found.removesuffix("run?run=aaaaaaaa")


@pytest.fixture(scope="module")
def page(browser: Browser, url: str) -> Iterator[Page]:
    """The page of a run; each test leaves it as it was."""
    watched = Watched(browser)
    watched.page.goto(f"{url}run?run=aaaaaaaa")
    expect(watched.page.locator("#curve-0 .scatterlayer")).to_be_visible()
    yield watched.page
    assert watched.page.evaluate("window.harmed") is None
    watched.check(url)


def saved(page: Page, button: str) -> Download:
    with page.expect_download() as download:
        page.locator(button).click()
    return download.value


def steps_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_every_sample_is_saved_with_every_digit(browser: Browser, url: str) -> None:
    watched = Watched(browser)
    watched.page.goto(f"{url}compare?run=aaaaaaaa&run=bbbbbbbb")
    expect(watched.page.locator("#curve-0 .scatterlayer")).to_be_visible()
    download = saved(watched.page, "#save-csv")
    assert download.suggested_filename == "edriver-aaaaaaaa-bbbbbbbb.csv"
    rows = steps_of(download.path().read_text())
    for run in (BASE, WIDE):
        entries = [json.loads(line) for line in run.lines()]
        recorded = [entry["progress"] for entry in entries if "progress" in entry]
        recorded += [entry["run_ended"]["progress"] for entry in entries if "run_ended" in entry]
        own = [row for row in rows if row["run"] == run.run_id]
        assert [int(row["step"]) for row in own] == [int(each["steps"]) for each in recorded]
        assert [float(row["loss"]) for row in own] == [run.loss(int(row["step"])) for row in own]
        undone = [row for row in own if row["undone"] == "1"]
        assert undone
        assert all(any(int(later["step"]) < int(row["step"]) for later in own[own.index(row) :]) for row in undone)
        assert {row["workers"] for row in own} == {"3", "4"}
    found = json.loads(saved(watched.page, "#save-json").path().read_text())
    assert [len(run["samples"]) for run in found["runs"]] == [
        sum(row["run"] == run.run_id for row in rows) for run in (BASE, WIDE)
    ]
    assert [len(run["interruptions"]) for run in found["runs"]] == [5, 9]
    watched.check(url)


def test_the_page_does_not_wait_for_what_draws_its_charts(browser: Browser, url: str) -> None:
    watched = Watched(browser)
    held: list[Route] = []
    watched.page.route("**/plotly.js", lambda route: held.append(route))
    watched.page.goto(f"{url}run?run=aaaaaaaa", wait_until="domcontentloaded")
    expect(watched.page.locator("#state-word")).to_have_text("done")
    expect(watched.page.locator("#log li")).not_to_have_count(0)
    expect(watched.page.locator(".js-plotly-plot")).to_have_count(0)
    (library,) = held
    library.continue_()
    expect(watched.page.locator("#curve-0 .scatterlayer")).to_be_visible()
    watched.check(url)


@pytest.mark.long
def test_a_picture_of_the_charts(page: Page) -> None:
    download = saved(page, "#save-png")
    data = download.path().read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert height == 2 * (30 + 3 * (24 + 220))
    assert width > 800


@pytest.mark.long
def test_what_is_chosen_is_drawn_and_remembered(page: Page) -> None:
    def layout(path: str) -> object:
        return page.evaluate(f"document.getElementById('curve-0').layout.{path}")

    traces = page.locator("#curve-0 .scatterlayer .trace")
    assert (layout("xaxis.type"), layout("yaxis.type")) == ("date", "linear")
    page.locator("#curve-over").select_option("steps")
    page.locator("#curve-scale").select_option("log")
    page.locator("#curve-smooth").fill("0.9")
    page.locator("#curve-together").check()
    page.get_by_label("acc", exact=True).uncheck()
    expect(page.locator("#curves figure")).to_have_count(1)
    expect(traces).to_have_count(6)  # as reported, undone, smoothed; of two values
    expect(page.locator("#curve-note")).to_contain_text("s = 0.9·s + 0.10·y")
    assert layout("yaxis.type") == "log"
    drawn = page.evaluate("document.getElementById('curve-0').data[2]")
    total, weight = 0.0, 1.0
    smooth: dict[int, list[float]] = {}
    for row in steps_of(saved(page, "#save-csv").path().read_text()):
        if row["undone"] == "0":
            total, weight = 0.9 * total + 0.1 * float(row["loss"]), 0.9 * weight
            smooth.setdefault(int(row["step"]), []).append(total / (1 - weight))
    assert len(drawn["x"]) > 100
    for x, y in zip(drawn["x"], drawn["y"], strict=True):
        assert any(y == pytest.approx(value, rel=1e-9) for value in smooth[x])
    page.reload()
    expect(traces).to_have_count(6)
    assert page.locator("#curve-over").input_value() == "steps"
    page.locator("#curve-together").uncheck()
    page.locator("#curve-smooth").fill("0")
    page.locator("#curve-scale").select_option("linear")
    page.get_by_label("acc", exact=True).check()
    expect(page.locator("#curves figure")).to_have_count(3)


def test_one_crosshair_goes_through_all_charts(page: Page) -> None:
    page.locator("#curve-over").select_option("steps")
    expect(page.locator("#curve-0 .scatterlayer .trace")).to_have_count(2)
    page.locator("#curve-0").focus()
    for _ in range(3):
        page.keyboard.press("Shift+ArrowRight")
    loss = page.locator("#curves figure").first.locator("b")
    words = page.locator("#curve-note").inner_text()
    step = int(words.split("step ")[1].split(" ")[0].replace(",", ""))
    assert any(
        float(loss.inner_text()) == pytest.approx(BASE.loss(each), rel=1e-3) for each in range(step - 15, step + 1)
    )
    assert "round 1." in words
    for chart in ("world", "lanes", "curve-0", "curve-1"):  # at one time, whatever their axes are
        expect(page.locator(f"#{chart} .crosshair")).to_be_visible()
    page.keyboard.press("+")
    longer = page.evaluate("curves.runs()[0].extent('steps')[1]")
    until(page, f"document.getElementById('curve-0').layout.xaxis.range[1] < {longer}")
    page.keyboard.press("0")
    until(page, f"document.getElementById('curve-0').layout.xaxis.range[1] === {longer}")
    page.locator("#curve-over").select_option("wall")
    until(page, "document.getElementById('curve-0').layout.xaxis.type === 'date'")
    left = "getComputedStyle(document.querySelector('#%s .crosshair')).left"
    edges = {page.evaluate(left % chart) for chart in ("world", "lanes")}
    assert len(edges) == 1, "one time is at one place"
    areas = {
        page.evaluate(
            f"document.querySelector('#{chart} .bglayer .bg, #{chart} .nsewdrag').getBoundingClientRect().left"
        )
        for chart in ("world", "lanes", "curve-0")
    }
    assert len(areas) == 1


def until(page: Page, expression: str) -> None:
    """Wait until it is so. The page's policy forbids playwright's own way."""
    ask = f"const ask = () => {{ if ({expression}) resolve(); else setTimeout(ask, 20); }}; ask();"
    page.evaluate(f"new Promise((resolve) => {{ {ask} }})")


@pytest.mark.parametrize(
    ("path", "drawn"), [("runs", "#runs tr"), ("compare?run=aaaaaaaa&run=bbbbbbbb", "#curve-0 .scatterlayer")]
)
def test_axe_finds_nothing_and_the_keyboard_reaches_everything(
    browser: Browser, url: str, path: str, drawn: str
) -> None:
    watched = Watched(browser)
    watched.page.goto(f"{url}{path}")
    expect(watched.page.locator(drawn).first).to_be_visible()
    assert violations(watched.page) == []
    reach_all_by_tab(watched.page)
    watched.check(url)


def test_the_run_is_named(page: Page) -> None:
    expect(page.locator("#which")).to_contain_text("base, run aaaaaaaa · ")


def test_what_each_worker_wrote_is_there_after_the_end(page: Page) -> None:
    output = page.locator("#output")
    expect(output).to_contain_text("[0] epoch 1")
    expect(output).to_contain_text(f"[1] last words {HOSTILE}")
    page.locator("#output-of").select_option("node-000:1")
    expect(output).to_contain_text("[1] last words")
    expect(output).not_to_contain_text("epoch 1")
    page.locator("#output-of").select_option("")
    expect(output).to_contain_text("[0] epoch 1")
