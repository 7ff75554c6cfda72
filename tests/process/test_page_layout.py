"""How the dashboard's pages fit a phone, a tablet and a desk, and what they say of runs that have ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.made_runs import MadeRun
from tests.process.accessibility import violations
from tests.process.dashboards import Watched, dashboard

PHONE, TABLET, DESK = 390, 1000, 1400
LINE = 45
"""Pixels that a row of one line may have."""

ORIGIN = {
    "user": "ada",
    "host": "login1.cluster.example.org",
    "directory": "/home/ada/experiments/resnet",
    "commit": "5d2f01aa" * 5,
    "changed": True,
    "edriver": "1.2.3",
    "python": "3.11.2",
    "torch": "2.13.0",
}
COMMAND = ["python", "train.py", "--batch-size", "32", "--data", "/datasets/imagenet/2012/train", *["--verbose"] * 9]
ABOUT = {
    "command": COMMAND,
    "tags": {"lr": "1e-3", "model": "small"},
    "origin": ORIGIN,
    "git": {"commit": "5d2f01aa" * 5},
}
RUNS = (
    MadeRun("aaaaaaaa", hosts=2, about={**ABOUT, "name": "base"}),
    MadeRun(
        "bbbbbbbb", end="RUN_END_FAILED", seed=1, about={**ABOUT, "name": "a-name-that-is-as-long-as-names-get-" * 2}
    ),
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The folder of the pages of a dashboard that was started on a run that has ended."""
    state = tmp_path_factory.mktemp("state")
    for each in RUNS:
        each.write(state / "edriver")
    with dashboard("aaaaaaaa", state, control=False) as found:
        yield found.removesuffix("run?run=aaaaaaaa")


@pytest.fixture(params=[PHONE, TABLET, DESK])
def watched(request: pytest.FixtureRequest, browser: Browser, url: str) -> Iterator[Watched]:
    """A page of this width; nothing goes wrong on it, and nothing leads beyond its edge."""
    opened = Watched(browser, width=request.param)
    yield opened
    assert opened.page.evaluate("document.documentElement.scrollWidth") == request.param
    opened.check(url)


def boxes(page: Page, selector: str) -> list[dict[str, Any]]:
    """Where the elements are that are seen, in pixels."""
    found = page.locator(selector).evaluate_all(
        "(all) => all.filter((each) => each.checkVisibility()).map((each) => each.getBoundingClientRect().toJSON())"
    )
    assert found
    return list(found)


def width_of(page: Page) -> int:
    assert page.viewport_size
    return page.viewport_size["width"]


def test_a_row_of_the_list_is_a_line_or_on_a_phone_a_few_without_a_look_aside(watched: Watched, url: str) -> None:
    page = watched.page
    page.goto(f"{url}runs")
    page.locator("#runs-filter").fill("5d2f01aa")  # the machine may have other runs
    expect(page.locator("#runs tr")).to_have_count(len(RUNS))
    heights = [row["height"] for row in boxes(page, "#runs tr")]
    if width_of(page) > PHONE:
        assert max(heights) <= LINE
    else:
        assert max(heights) <= 4 * LINE
        assert max(cell["right"] for cell in boxes(page, "#runs td")) <= PHONE
        assert page.get_by_role("row").count() == len(RUNS) + 1, "it stays a table to a screen reader"
    if width_of(page) == DESK:
        assert page.locator(".scroll").evaluate("(at) => at.scrollWidth - at.clientWidth") == 0


def test_the_cards_of_a_run_fill_their_rows(watched: Watched, url: str) -> None:
    page = watched.page
    page.goto(f"{url}run?run=aaaaaaaa")
    expect(page.locator("#state-word")).to_have_text("done")
    (room,) = boxes(page, ".tiles")
    tiles = boxes(page, ".tile")
    for top in {tile["top"] for tile in tiles}:
        row = [tile for tile in tiles if tile["top"] == top]
        assert max(tile["right"] for tile in row) == pytest.approx(room["right"], abs=1)
        assert min(tile["left"] for tile in row) == pytest.approx(room["left"], abs=1)
    assert max(row["height"] for row in boxes(page, ".summary tbody tr")) <= LINE
    hosts = boxes(page, "#hosts tr")
    assert max(row["height"] for row in hosts) <= (LINE if width_of(page) > PHONE else 2 * LINE)
    assert max(cell["right"] for cell in boxes(page, "#hosts td")) <= width_of(page)


def test_runs_side_by_side_fit(watched: Watched, url: str) -> None:
    watched.page.goto(f"{url}compare?run=aaaaaaaa&run=bbbbbbbb")
    expect(watched.page.locator("#curve-0 .scatterlayer")).to_be_visible()


@pytest.mark.long_except("light")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_on_a_phone_can_be_read_by_all(browser: Browser, url: str, scheme: str) -> None:
    watched = Watched(browser, scheme, PHONE)
    for path in ("runs", "run?run=bbbbbbbb"):
        watched.page.goto(f"{url}{path}")
        expect(watched.page.locator("tbody tr").first).to_be_visible()
        assert violations(watched.page) == []
    watched.check(url)


def test_what_ran_and_how_it_ended_is_said_at_the_top_and_in_the_tab(browser: Browser, url: str) -> None:
    watched = Watched(browser)
    page = watched.page
    page.goto(f"{url}run?run=aaaaaaaa")
    expect(page).to_have_title("✓ done · base")
    icon = page.locator("link[rel=icon]")
    expect(icon).to_have_attribute("href", re.compile(r"^data:image/svg.*%E2%9C%93"))
    summary = page.locator(".summary dl")
    for words in (
        " ".join(COMMAND),
        f"{ORIGIN['commit']}, with changes",
        "ada on login1.cluster.example.org",
        "torch 2.13.0",
    ):
        expect(summary).to_contain_text(words)
    expect(page.locator("#size")).to_have_text("7 to 8")
    expect(page.locator("#size-note")).to_contain_text(re.compile(r"workers while it trained, 7\.\d on average"))
    page.goto(f"{url}run?run=bbbbbbbb")
    expect(page).to_have_title(re.compile("^✕ failed · a-name"))
    watched.check(url)


@pytest.mark.long
def test_a_curve_has_a_gap_where_training_stood_still(browser: Browser, url: str) -> None:
    """From second 10 to 20 no step was made, and samples had the loss of before; a pause of 10 ms makes no gap."""
    watched = Watched(browser)
    page = watched.page
    page.goto(f"{url}run?run=aaaaaaaa")
    expect(page.locator("#curve-0 .scatterlayer")).to_be_visible()
    found = page.evaluate(
        """() => {
          const story = new Story();
          const steps = (second) => (second <= 10 ? second : second < 20 ? 10 : second - 9);
          const sample = (second) => [second, steps(second), 1, {loss: 100 - steps(second)}, null, 0];
          const points = [...Array(31).keys()].map(sample);
          const stop = {kind: "stall", phases: null, cause: "", round: "1.1", failed: 0, lost: 0, size: 1};
          const pause = {...stop, number: 2, start: 25.5, seconds: 0.01};
          const interruptions = {interruptions: [{...stop, number: 1, start: 10, seconds: 10}, pause]};
          const head = {began: 0, now: 30, ended: {time: 30, end: "done"}};
          story.take({whole: true, time: 30, link: "ended", head, interruptions, curve: {points, undone: []}});
          const series = new Series(story, "");
          series.refresh();
          const of = (axis, weight) => series.curve("reported:loss", axis, weight);
          const {xs, ys} = of("wall", 0);
          const drawn = drawnPlaces(xs, ys, [0, 30], 9000).length;
          return {wall: of("wall", 0), smooth: of("wall", 0.5), steps: of("steps", 0), drawn};
        }"""
    )
    seconds = [*range(11), 15, *range(20, 31)]
    losses = [100 - second for second in range(11)] + [None] + [109 - second for second in range(20, 31)]
    assert found["wall"]["xs"] == seconds
    assert [value or None for value in found["wall"]["ys"]] == losses
    assert found["smooth"]["ys"][11] is None
    assert found["drawn"] == len(seconds)
    assert found["steps"]["xs"] == list(range(22))
    assert found["steps"]["ys"] == [100 - step for step in range(22)], "over steps nothing is missing"
    watched.check(url)


@pytest.mark.long
def test_a_picture_of_the_curves_says_which_run_it_shows(browser: Browser, url: str) -> None:
    watched = Watched(browser)
    page = watched.page
    page.goto(f"{url}run?run=aaaaaaaa")
    expect(page.locator("#curve-0 .scatterlayer")).to_be_visible()
    assert page.evaluate("pictureTitle(curves)").startswith("base, run aaaaaaaa over time, times are in ")
    page.goto(f"{url}compare?run=aaaaaaaa&run=bbbbbbbb")
    expect(page.locator("#curve-0 .scatterlayer")).to_be_visible()
    assert page.evaluate("pictureTitle(curves)").startswith("base aaaaaaaa; a-name")
    watched.check(url)


def test_warnings_stand_in_the_header(browser: Browser, url: str) -> None:
    watched = Watched(browser)
    page = watched.page
    page.goto(f"{url}run?run=aaaaaaaa")
    expect(page.locator("#state-word")).to_have_text("done")
    expect(page.locator("#warnings")).to_be_hidden()
    page.evaluate(
        """() => {
          const warning = (n) => [`rank ${n} reported loss = nan`, story.now() - n, n + 1];
          story.head.warnings = [...Array(5).keys()].map(warning);
          drawHead(story);
        }"""
    )
    lines = page.locator("#warnings").inner_text().splitlines()
    assert len(lines) == 4
    assert re.fullmatch(r"▲ rank 0 reported loss = nan \(\d\d:\d\d:\d\d\)", lines[0])
    assert lines[1].endswith(", 2 times)")
    assert lines[3] == "and 2 other warnings: see the events"
    watched.check(url)
