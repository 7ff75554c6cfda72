"""What a stranger who knows W&B and Grafana asks, answered from the page alone: `python -m benchmarks.page_questions`.

A real run is brought into trouble first. Each answer is read off the page in Chromium within PATIENCE, checked against
what was done to the run, and kept as a picture in build/questions.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from playwright.sync_api import Page, expect, sync_playwright

from edriver.client import Address, Client, here
from tests.process.chromium import CHROMIUM, FLAGS
from tests.process.running import ROOT, Run, running

WAIT: Final = 120_000
"""Milliseconds that the page has to show something, and the run to get so far."""

PATIENCE: Final = 20.0
"""Seconds in which each question is to be answered, from the request for the page on."""

HANG: Final = 4.0
"""Seconds for which a worker stands still."""

SLOW: Final = 0.2
"""Seconds by which rank 1 loads the data of a step more slowly, at last."""

LAST_NIGHT: Final = 0.4
"""Seconds that last night's run took to load the data of a step; tonight's slowest rank takes less."""

LONG_HANG: Final = 30.0
"""Seconds for which a worker stands still while it is asked who waits for whom."""

TAGS: Final = {"last-night": "lr=1e-3", "tonight": "lr=3e-4"}
LAST_WORDS: Final = "CUDA error 719: unspecified launch failure; giving up"
OTHER_HOST: Final = "127.0.0.1"


@dataclass
class Trouble:
    """A run that was brought into trouble, and what was done to it.

    Attributes:
        run: the run.
        address: of its driver.
        orders: the folder where its workers look for orders.
        commit: the git commit that it was started from.
        died: where the worker was that died.
    """

    run: Run
    address: Address
    orders: Path
    commit: str
    died: str = ""
    notes: dict[str, str] = field(default_factory=dict)

    def order(self, rank: int, words: str) -> None:
        """Have the worker of a rank do something at its next step."""
        path = self.orders / str(rank)
        path.with_suffix(".new").write_text(words)
        path.with_suffix(".new").rename(path)


@dataclass(frozen=True)
class Question:
    """What is asked, and how the page answers.

    Attributes:
        name: of the picture.
        words: the question.
        read: makes the gestures, and returns the answer that was read.
        right: a pattern that a right answer has.
        shown: what the picture shows; empty: all that is in the window.
        before: what is done to the run before it is asked.
    """

    name: str
    words: str
    read: Callable[[Page], str]
    right: Callable[[Trouble], str]
    shown: str = ""
    before: Callable[[Trouble], None] = lambda _: None


def steps_on(client: Client, size: int, steps: int) -> None:
    """Wait until so many workers have trained for so many steps."""
    until = time.monotonic() + WAIT / 1000
    first = None
    while time.monotonic() < until:
        run = client.status()
        made = run.progress.steps if run.size == size else None
        if made is None:
            first = None
        elif first is None:
            first = made
        elif made >= first + steps:
            return
        time.sleep(0.2)
    raise AssertionError(f"no {steps} steps with {size} workers")


def await_end(client: Client, worker_id: int) -> None:
    """Wait until this worker is gone."""
    until = time.monotonic() + WAIT / 1000
    while any(worker.worker_id == worker_id for worker in client.status().workers):
        if time.monotonic() > until:
            raise AssertionError(f"worker {worker_id} lives on")
        time.sleep(0.2)


def bring_into_trouble(trouble: Trouble) -> None:
    """A worker dies, one stands still, one host is drained, and the run is made smaller."""
    with Client(trouble.address, requester="ada@login1") as client:
        steps_on(client, 4, 40)
        victim = next(worker for worker in client.status().workers if worker.rank == 3)
        trouble.died = f"{victim.host}:{victim.slot}"
        trouble.order(3, "die 9")
        await_end(client, victim.worker_id)
        steps_on(client, 4, 20)
        trouble.order(1, f"hang {HANG}")
        time.sleep(HANG + 1.0)
        steps_on(client, 4, 20)
        client.resize(2)
        steps_on(client, 2, 60)
        trouble.order(1, f"slow {SLOW}")


# ---- the questions ---------------------------------------------------------------------------------------------


def text_of(page: Page, *selectors: str) -> str:
    """What stands there."""
    return "; ".join(page.locator(selector).inner_text() for selector in selectors)


def is_it_training(page: Page) -> str:
    """The state, and two tiles."""
    expect(page.locator("#progress-note")).to_contain_text("steps/s", timeout=WAIT)
    return text_of(page, "#state-word", "#size", "#progress", "#progress-note")


def what_runs(page: Page) -> str:
    """The card at the top."""
    return text_of(page, "#about")


def how_far(page: Page) -> str:
    """The tile."""
    expect(page.locator("#progress-note")).to_contain_text("left of it", timeout=WAIT)
    return text_of(page, "#state-word", "#progress", "#progress-note")


def last_words(page: Page) -> str:
    """The output in the slot of the worker that has died, before its successor's."""
    page.locator("#log-kind").select_option("loss")
    slot = re.search(r"rank 3, (\S+?)\)", page.locator("#log li").last.inner_text())
    assert slot
    page.locator("#output-of").select_option(slot[1])
    line = page.locator("#output .stderr").first
    expect(line).to_be_visible(timeout=WAIT)
    return f"in {slot[1]}: {line.inner_text()}"


def time_lost(page: Page) -> str:
    """The sentence above the chart, for the day that is chosen."""
    page.locator("#day").fill(time.strftime("%Y-%m-%d"))
    return text_of(page, "#time-lost")


def why_idle(page: Page) -> str:
    """The host's line."""
    return page.locator("#hosts tr", has_text=OTHER_HOST).inner_text()


def who_resized(page: Page) -> str:
    """The events that have the word."""
    page.locator("#log-filter").fill("from now on")
    return page.locator("#log li").first.inner_text()


def what_failed_first(page: Page) -> str:
    """The oldest loss, and what is known of the last failure, which is the same here."""
    page.locator("#log-kind").select_option("loss")
    expect(page.locator("#failure")).to_contain_text("exited", timeout=WAIT)
    page.locator("#failure-details summary").click()  # it is a line, as training has continued
    return f"{page.locator('#log li').last.inner_text()}; {text_of(page, '#failure', '#failure-time', '#failure-text')}"


def failure_row(page: Page) -> dict[str, str]:
    """The interruption by the failure, in the table below the chart, by the heads of its columns."""
    page.locator("#phases ~ details.data summary").click()
    table = page.locator("#phases ~ details.data table")
    expect(table.locator("tbody tr").first).to_be_visible()
    heads = table.locator("th").all_inner_texts()
    rows = [
        dict(zip(heads, row.locator("td").all_inner_texts(), strict=True)) for row in table.locator("tbody tr").all()
    ]
    (found,) = [row for row in rows if row["kind"] == "failure"]
    return found


def longest_recovery(page: Page) -> str:
    """Its longest phase."""
    row = failure_row(page)
    parts = dict(list(row.items())[4:-3])
    most = max(parts, key=lambda part: seconds_of(parts[part]))
    return f"{row['length']} without a step, of which {most} took {parts[most]}"


def what_it_cost(page: Page) -> str:
    """How long it took, and what had to be trained again."""
    row = failure_row(page)
    return f"{row['length']} without a step, {row['steps lost']} steps lost: {row['cause']}"


def where_is_nan(page: Page) -> str:
    """The header."""
    expect(page.locator("#warnings")).to_contain_text("nan", timeout=WAIT)
    return text_of(page, "#warnings")


def who_waits(page: Page) -> str:
    """The headline."""
    expect(page.locator("#trouble")).to_contain_text("waiting for", timeout=WAIT)
    return text_of(page, "#trouble")


def seconds_of(shown: str) -> float:
    """226 ms, 1.5 s."""
    number, unit = shown.split()[:2]
    return float(number) / (1000 if unit == "ms" else 1)


def what_if_drained(page: Page) -> str:
    """What the driver answers where the button is; it is asked to confirm first."""
    page.get_by_role("button", name="drain localhost").click()
    page.locator("#ask-yes").click()
    answer = page.locator("#hosts tr", has_text="localhost").locator(".answer")
    expect(answer).not_to_be_empty(timeout=WAIT)
    return answer.inner_text()


def slowest_rank(page: Page) -> str:
    """The headline, and the table's first line."""
    expect(page.locator("#trouble")).to_contain_text("slower than", timeout=WAIT)
    return f"{text_of(page, '#trouble')}; {page.locator('#steps tr').first.inner_text()}"


def memory_of_host(page: Page) -> str:
    """The host's line in the table of resources."""
    page.locator("#usage-filter").fill("localhost")
    row = page.locator("#usage-rows tr").first
    expect(row).to_be_visible(timeout=WAIT)
    return f"{row.locator('th, td').nth(0).inner_text()} has {row.locator('th, td').nth(2).inner_text()} in use"


def compare(page: Page) -> None:
    """Choose two in the list of runs."""
    page.get_by_role("link", name="all runs").click()
    for name in TAGS:
        page.get_by_label(f"compare {name}").check(timeout=WAIT)
    page.locator("#compare").click()
    expect(page.locator("#curve-0 .scatterlayer")).to_be_visible(timeout=WAIT)


def what_differs(page: Page) -> str:
    """The table that shows only what is not the same."""
    compare(page)
    return text_of(page, "#facts-head", "#facts")


def faster_than_last_night(page: Page) -> str:
    """The two runs compared, one curve as a table."""
    compare(page)
    page.locator("#curve-table summary").click()
    heads = page.locator("#curve-rows th").all_inner_texts()
    rows = [row.locator("td").all_inner_texts() for row in page.locator("#curve-rows tr").all()[1:]]
    rate = heads.index("steps per second")
    medians = {
        name: median(float(row[rate]) for row in rows if row[0].startswith(name) and row[rate] != "–")
        for name in ("tonight", "last-night")
    }
    word = "faster" if medians["tonight"] > medians["last-night"] else "slower"
    return f"tonight is {word}: " + ", ".join(f"{name} {value:.3g} steps a second" for name, value in medians.items())


def steps_lost(page: Page) -> str:
    """The tiles."""
    return text_of(page, "#lost", "#rounds", "#rounds-note")


QUESTIONS: Final = [
    Question("training", "Is it training?", is_it_training, lambda _: r"^training; 2; step [\d,]+; [\d.]+ steps/s"),
    Question(
        "what-runs",
        "Which command and commit is it?",
        what_runs,
        lambda trouble: rf"questioned_job .*lr=3e-4 .*{trouble.commit} .*started by \S+ on \S+ .*torch \d",
        "#about-card",
    ),
    Question(
        "how-far", "How far is it, and when is the epoch done?", how_far, lambda _: r"training; step [\d,]+; .*left"
    ),
    Question(
        "last-words",
        "What did it print before it died?",
        last_words,
        lambda trouble: rf"in {trouble.died}: .*{LAST_WORDS}",
        "#output-card",
    ),
    Question(
        "time-lost",
        "How much time did we lose today, and to what?",
        time_lost,
        lambda _: r"without a step.* in \d+ interruptions: .*boot .*stall [45]\.\d s",
        "section:has(> #world)",
    ),
    Question(
        "idle-host",
        f"Why is host {OTHER_HOST} idle?",
        why_idle,
        lambda _: r"2 slots idle: the run may use 2 workers \(edriver resize\)",
        "section:has(#hosts)",
    ),
    Question(
        "who-resized",
        "Who resized it, and when?",
        who_resized,
        lambda _: r"\d\d:\d\d:\d\d\W+at most 2 workers from now on: requested by ada@login1",
        "section:has(#log)",
    ),
    Question(
        "failed-first",
        "What failed first, and why?",
        what_failed_first,
        lambda trouble: rf"worker \d+ \(rank 3, {trouble.died}\).*exited with code 9.*{LAST_WORDS}",
    ),
    Question(
        "longest-recovery",
        "How long did the recovery take, and what of it took longest?",
        longest_recovery,
        lambda _: r"[\d.]+ m?s without a step, of which .* took",
        "section:has(> #phases)",
    ),
    Question(
        "cost",
        "What did it cost?",
        what_it_cost,
        lambda trouble: rf"[\d.]+ m?s without a step, \d+ steps lost: .*{trouble.died}",
        "section:has(> #phases)",
    ),
    Question(
        "slowest-rank",
        "Which rank is slowest, and why?",
        slowest_rank,
        lambda _: r"rank 1 \(\S+\) is [\d.]+ times slower than the median of the others.*: data loading",
    ),
    Question(
        "memory",
        "How much memory of host localhost is in use?",
        memory_of_host,
        lambda _: r"localhost has [\d.]+ of [\d.]+ GiB in use",
        "section:has(#usage-rows)",
    ),
    Question(
        "last-night",
        "Is it faster than last night's run?",
        faster_than_last_night,
        lambda _: r"tonight is faster",
    ),
    Question(
        "differs",
        "How does it differ from last night's run?",
        what_differs,
        lambda _: r"tonight .*last-night .*\blr 3e-4 1e-3",
    ),
    Question("steps-lost", "Did we lose steps?", steps_lost, lambda _: r"\d+; \d+; 1 failure, "),
    Question(
        "nan",
        "Is a value NaN, and where?",
        where_is_nan,
        lambda _: r"\(rank 1, \S+\) reported loss = nan \(step \d+, .*questioned_job\.py:\d+",
        "header",
        before=lambda trouble: trouble.order(1, "nan 0"),
    ),
    Question(
        "who-waits",
        "Who waits for whom?",
        who_waits,
        lambda _: r"no step for .*waiting for rank 1 \(\S+\).*questioned_job\.py:\d+",
        "header",
        before=lambda trouble: trouble.order(1, f"hang {LONG_HANG}"),
    ),
    Question(
        "drain",
        "May I take host localhost out for maintenance?",
        what_if_drained,
        lambda _: r"there will be 2 slots to use|this leaves",
        "section:has(#hosts)",
    ),
]

AFTER_THE_END: Final = [
    Question(
        "last-words-after-the-end",
        "Now that the run has ended: what did it print before it died?",
        last_words,
        lambda trouble: rf"in {trouble.died}: .*{LAST_WORDS}",
        "#output-card",
    ),
    Question(
        "failed-first-after-the-end",
        "Now that the run has ended: what failed first, and why?",
        what_failed_first,
        lambda trouble: rf"worker \d+ \(rank 3, {trouble.died}\).*exited with code 9.*{LAST_WORDS}",
    ),
]
"""These are asked of a run that has been stopped."""


@contextmanager
def page_of(trouble: Trouble) -> Iterator[str]:
    """The address of the page that steers it."""
    command = [sys.executable, "-m", "edriver", "dashboard", "--control", "--run", trouble.address.run_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield process.stdout.readline().split()[-1]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


def record_last_night(place: Path) -> None:
    """A run to compare with."""
    command = [sys.executable, "-m", "benchmarks.questioned_job"]
    environ = {"ORDERS": str(place), "LOADING": str(LAST_NIGHT)}
    name = ["--name", "last-night", "--tag", TAGS["last-night"]]
    with running(["-np", "4", "-H", "localhost:4", *name, *command], place, environ) as run:
        run.line("round 1.1")
        with Client(here(run.id)) as client:
            steps_on(client, 4, 50)
            client.stop()
        run.end()


def ask(page: Page, url: str, question: Question, trouble: Trouble, folder: Path) -> str:
    """Answer one question on a page that is loaded anew, and take a picture; returns what was read."""
    question.before(trouble)
    began = time.monotonic()
    page.goto(url)
    page.locator("#hosts tr").first.wait_for(timeout=WAIT)
    answer = " ".join(question.read(page).split())
    took = time.monotonic() - began
    page.wait_for_timeout(1500)  # for the charts to be drawn
    path = folder / f"{question.name}.png"
    if question.shown:
        page.locator(question.shown).screenshot(path=path)
    else:
        page.screenshot(path=path)
    assert re.search(question.right(trouble), answer), f"{question.words}: {answer}"
    assert took < PATIENCE, f"{question.words}: {took:.1f} s until {answer}"
    return f"{answer} ({took:.1f} s)"


def ask_all(page: Page, url: str, questions: list[Question], trouble: Trouble, folder: Path) -> int:
    """Ask one after the other, and print the answers; returns how many are not answered."""
    wrong = 0
    for question in questions:
        try:
            print(f"{question.words}\n    {ask(page, url, question, trouble, folder)}", flush=True)
        except Exception as error:  # noqa: BLE001  the others are asked all the same
            wrong += 1
            print(f"{question.words}\n    NOT ANSWERED: {error}", flush=True)
    return wrong


def made_repository(place: Path) -> str:
    """Have the runs start in a git repository; returns the commit."""

    def git(*words: str) -> str:
        names = ["-c", "user.name=ada", "-c", "user.email=ada@example.org"]
        return subprocess.run(["git", *names, *words], cwd=place, check=True, capture_output=True, text=True).stdout

    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message", "what runs tonight")
    return git("rev-parse", "HEAD").strip()


def main() -> None:
    """Run, ask, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page_questions")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("build/questions"))
    flags = parser.parse_args()
    flags.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ed-") as place:
        os.environ["XDG_STATE_HOME"] = place
        orders = Path(place, "orders")
        orders.mkdir()
        commit = made_repository(Path(place))
        record_last_night(Path(place))
        args = ["-np", "4", "--min-np", "1", "-H", f"localhost:2,{OTHER_HOST}:2", "--name", "tonight"]
        args += ["--tag", TAGS["tonight"]]
        command = [sys.executable, "-m", "benchmarks.questioned_job"]
        with running([*args, *command], Path(place), {"ORDERS": str(orders)}) as run:
            run.line("round 1.1")
            trouble = Trouble(run, here(run.id), orders, commit)
            bring_into_trouble(trouble)
            with page_of(trouble) as url, sync_playwright() as playwright:
                chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
                page = chromium.new_page(viewport={"width": 1280, "height": 900})
                wrong = ask_all(page, url, QUESTIONS, trouble, flags.folder)
                with Client(trouble.address) as client:
                    client.stop()
                run.end()
                wrong += ask_all(page, url, AFTER_THE_END, trouble, flags.folder)
                chromium.close()
    sys.exit(f"{wrong} of {len(QUESTIONS) + len(AFTER_THE_END)} are not answered" if wrong else 0)


if __name__ == "__main__":
    main()
