"""Whether a run tells the truth about its time, everywhere, whatever happens to it and however it ends.

    python -m tests.trouble.truth [--seeds 0 10]

Each seed is a run of four workers on two names of this machine, with trouble drawn from the seed: kills, workers that
are stopped for seconds, a step that stalls, hosts that come and go, a time without any host, a last holder that is
stopped. It ends done, by `edriver stop`, by an exception in all workers, or by a kill of its driver. Workers write down
each step. What `edriver status --json`, the metrics, the dashboard's page in Chromium, the report, the event log and
`edriver runs` say is compared with one another, exactly, and with what the workers wrote down, to 1 % or 50 ms. Prints
the worst differences; ends with 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.churn_check import COOLDOWN_FLAGS, Nemesis
from benchmarks.history import History
from benchmarks.jobs import ROOT, HarnessError, Workload, end_well_on_sigterm
from benchmarks.processes import kill
from benchmarks.records import Boot, RecordReader
from benchmarks.under_edriver import GUEST, HOME
from tests.process.chromium import CHROMIUM, FLAGS
from tests.process.running import edriver
from tests.trouble.comparison import ROUNDING, Comparison
from tests.trouble.runner import TroubledJob
from tests.trouble.surfaces import (
    Scraper,
    shown_by_page,
    told_by_page,
    told_by_records,
    told_by_report,
    told_by_runs,
    told_by_status,
)

BOUND = 240.0
CALM = 16.0
"""Seconds without trouble after which a rate over the last 10 s is one of calm steps alone."""

PAGE_LAG = 5.0
"""Seconds that the page may be behind `edriver status`: it gets its numbers once a second, and draws them as often."""

HOSTS = {HOME: 2, GUEST: 2}
WORKERS = sum(HOSTS.values())
ENDS = ("done", "stopped", "failed", "lost")


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens in one run.

    Attributes:
        seed: what it was drawn from.
        troubles: what happens, in order: a name, and seconds.
        end: how the run ends.
    """

    seed: int
    troubles: tuple[tuple[str, float], ...]
    end: str


def plan_of(seed: int) -> Plan:
    """Draw one. Each fourth run has the same end, and each kind of trouble is in two runs of three."""
    rng = random.Random(seed)
    kinds: dict[str, Callable[[], float]] = {
        "kill": lambda: 0.0,
        "stop": lambda: rng.uniform(4.0, 10.0),
        "stall": lambda: rng.choice((5.0, 12.0, 30.0)),
        "shrink": lambda: rng.uniform(1.0, 3.0),
        "no hosts": lambda: rng.uniform(6.0, 14.0),
        "stop the last holder": lambda: rng.uniform(4.0, 8.0),
    }
    names = [*rng.sample(list(kinds), 4), "kill"]
    rng.shuffle(names)
    return Plan(seed, tuple((name, kinds[name]()) for name in names), ENDS[seed % len(ENDS)])


@dataclass(slots=True)
class Outcome:
    """What came of one run.

    Attributes:
        plan: what was to happen.
        comparison: what was compared.
        faults: whatever else was wrong, in sentences.
    """

    plan: Plan
    comparison: Comparison = field(default_factory=Comparison)
    faults: list[str] = field(default_factory=list)


class TruthRun:
    """One run, its trouble, and those who watch it.

    Args:
        plan: what happens.
        job: the run.
        browser: shows its page.
    """

    def __init__(self, plan: Plan, job: TroubledJob, browser: Browser) -> None:
        self.outcome = Outcome(plan)
        self._plan = plan
        self._rng = random.Random(plan.seed + 1)
        self._job = job
        self._browser = browser
        self._nemesis = Nemesis(job, BOUND)
        self._environ = {"XDG_STATE_HOME": str(job.folder / "state")}

    def go(self) -> Outcome:
        """Run it to its end; returns what came of it.

        Raises:
            HarnessError: the run does not do what it should.
        """
        job = self._job
        # Workers of a driver that is killed do not wait for another one for long.
        flags = [*COOLDOWN_FLAGS, "--metrics-port", "0", "--driver-timeout", "20"]
        job.start(HOSTS, np=WORKERS, min_np=1, max_np=WORKERS, flags=flags)
        url = self._printed(r"metrics for Prometheus: (\S+)")
        run_id = self._printed(r"edriver: run (\w+):")
        scraper = Scraper(url)
        try:
            with self._page(run_id) as page:
                self._nemesis.await_recovery(whole=True)
                for name, seconds in self._plan.troubles:
                    self._trouble(name, seconds)
                    self._nemesis.await_recovery(whole=True)
                time.sleep(CALM)
                self._compare_live(run_id, scraper, page)
                self._end(run_id)
                self._compare_ended(run_id, scraper, page)
        finally:
            scraper.close()
        return self.outcome

    # ---- trouble ---------------------------------------------------------------------------------------------

    def _trouble(self, name: str, seconds: float) -> None:
        job = self._job
        workers = [start.pid for _, start in sorted(job.look()[-1].starts.items())]
        victim = self._rng.choice(workers)
        match name:
            case "kill":
                kill(victim)
            case "stop":
                self._stop(victim, seconds)
            case "stall":
                job.order(victim, f"stall {seconds}")
                placed = job.folder / "orders" / str(victim)
                job.wait_until(lambda _: not placed.exists(), BOUND, "a worker that stalls")
            case "shrink":
                job.set_hosts({HOME: 1} if self._rng.random() < 0.5 else {GUEST: 2})
                time.sleep(seconds)
                self._nemesis.await_recovery(whole=True)
                job.set_hosts(HOSTS)
            case "no hosts":
                job.set_hosts({})
                time.sleep(seconds)
                job.set_hosts(HOSTS)
            case "stop the last holder":
                for pid in set(workers) - {victim}:
                    kill(pid)
                self._stop(victim, seconds)

    def _stop(self, pid: int, seconds: float) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)

    def _end(self, run_id: str) -> None:
        job = self._job
        match self._plan.end:
            case "done":
                code, wanted = job.finish(), 0
            case "stopped":
                answer = edriver("stop", "--run", run_id)
                assert answer.returncode == 0, answer.stderr
                code, wanted = job.wait(), 128 + signal.SIGTERM
            case "failed":
                for worker in job.workers():
                    job.order(worker, "fail")
                code, wanted = job.wait(), 1
            case _:
                os.kill(job.driver, signal.SIGKILL)
                code, wanted = job.wait(), -signal.SIGKILL
        if code != wanted:
            self.outcome.faults.append(f"the run ended with {code}, not {wanted}")

    # ---- those who watch -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _page(self, run_id: str) -> Iterator[Page]:
        """The dashboard's page of the run, in Chromium."""
        dashboard = subprocess.Popen(
            [sys.executable, "-m", "edriver", "dashboard", "--run", run_id],
            env={**os.environ, "PYTHONPATH": str(ROOT), **self._environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        page = self._browser.new_page()
        page.set_default_timeout(BOUND * 1000)
        try:
            assert dashboard.stdout is not None
            found = re.search(r"http://\S+", dashboard.stdout.readline())
            assert found is not None
            page.goto(found[0])
            _await(page, "story.head !== null")
            yield page
        finally:
            page.close()
            dashboard.send_signal(signal.SIGINT)
            dashboard.wait()
            assert dashboard.stdout is not None
            dashboard.stdout.close()

    def _printed(self, pattern: str) -> str:
        output = self._job.folder / "output-0.txt"
        deadline = time.monotonic() + BOUND
        while time.monotonic() < deadline:
            if found := re.search(pattern, output.read_text(errors="replace")):
                return found[1]
            time.sleep(0.05)
        raise HarnessError(f"the run does not print {pattern}", self._job.folder)

    def _compare_live(self, run_id: str, scraper: Scraper, page: Page) -> None:
        """In a calm time: what does not change is the same; what does lies between two answers of `edriver status`."""
        compare = self.outcome.comparison
        before, _ = told_by_status(run_id)
        assert before.seconds is not None
        _await(page, f"{_ACCOUNTED} >= {sum(before.seconds.values()) - ROUNDING}", PAGE_LAG)
        metrics, shown = scraper.read(), told_by_page("page", page)
        texts = shown_by_page(page)
        after, run = told_by_status(run_id)
        for reported in (metrics, shown):
            compare.between(reported, before, after)
        compare.text("page", "steps lost", texts["lost"].replace(",", ""), str(run.steps_lost))
        began = run.start_time.ToNanoseconds() / 1e9
        for reported in (before, after, metrics, shown):
            if reported is not metrics:  # which count a step some seconds later
                compare.with_truth(f"live, {reported.where}", reported, self._truth(reported.until(began)), began)
            compare.rate(f"live, {reported.where}", reported.rate, self._truth(reported.at), reported.at)

    def _compare_ended(self, run_id: str, scraper: Scraper, page: Page) -> None:
        """After the end: all places say the same, and what the workers have written down."""
        compare, job = self.outcome.comparison, self._job
        if self._plan.end == "lost":
            _await(page, "story.link === 'lost'")
        else:
            _await(page, "story.link === 'ended'")
        page.wait_for_timeout(1500)  # its text is drawn once a second
        recorded = told_by_records(job.folder / "state" / "edriver" / run_id / "events.jsonl")
        shown, texts = told_by_page("page", page), shown_by_page(page)
        report = edriver("report", run_id, "--output", str(job.folder / "report.html"), environ=self._environ)
        if report.returncode:
            self.outcome.faults.append(f"edriver report: {report.stderr}")
            return
        written = told_by_report(job.folder / "report.html")
        listed = told_by_runs(run_id, self._environ)
        truth = self._truth(recorded.latest if self._plan.end != "lost" else recorded.reported.until(recorded.began))
        compare.with_truth("end, records", recorded.reported, truth, recorded.began, ended=recorded.latest)
        compare.ended(recorded.reported, [written, listed])
        compare.summary(report.stdout, recorded.reported)
        self._compare_report_in_chromium(recorded.reported)
        if self._plan.end == "lost":
            compare.text("page", "state", texts["state-word"], "driver lost")
            compare.text("runs", "state", listed.end or "", "lost")
            lost = self._truth(shown.until(recorded.began))
            compare.with_truth("end, page", shown, lost, recorded.began)
            return
        compare.text("page", "state", texts["state-word"], self._plan.end)
        compare.text("records", "state", recorded.reported.end or "", self._plan.end)
        compare.ended(recorded.reported, [shown, scraper.last()])
        compare.page_texts(texts, recorded.reported)
        if self._plan.end == "done":
            compare.last_line((job.folder / "output-0.txt").read_text(errors="replace"), recorded.reported)

    def _compare_report_in_chromium(self, recorded: object) -> None:
        page = self._browser.new_page()
        page.set_default_timeout(BOUND * 1000)
        try:
            page.goto(f"file://{self._job.folder / 'report.html'}")
            _await(page, "story.head !== null")
            page.wait_for_timeout(500)
            rows = page.locator("section.summary tbody tr").all()
            cells = [row.locator("td").all_inner_texts() for row in rows]
            self.outcome.comparison.table(cells, recorded)  # type: ignore[arg-type]
            self.outcome.comparison.page_texts(shown_by_page(page), recorded, "report in Chromium")  # type: ignore[arg-type]
        finally:
            page.close()

    def _truth(self, until: float) -> History:
        """What the workers have written down up to a time, in seconds since the epoch."""
        history, to_monotonic = History(), time.monotonic() - time.time()
        records = RecordReader(self._job.folder / "records").read()
        history.add(each for each in records if isinstance(each, Boot) or each.time <= until + to_monotonic)
        return history


_ACCOUNTED = "Object.values(story.head.time_spent).reduce((sum, seconds) => sum + seconds, 0)"
"""Seconds of the run that the page accounts for."""


def _await(page: Page, condition: str, bound: float = BOUND) -> None:
    """Wait until the page is so. Playwright's own way evaluates a text, which the page's policy forbids.

    Raises:
        AssertionError: it is not, after so many seconds.
    """
    deadline = time.monotonic() + bound
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, f"the page does not come to {condition}"
        page.wait_for_timeout(200)


def main() -> int:
    """Run them."""
    parser = argparse.ArgumentParser(prog="python -m tests.trouble.truth")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 10), metavar=("FROM", "TO"), help="TO is left out")
    flags = parser.parse_args()
    end_well_on_sigterm()
    everything, wrong = Comparison(), 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for seed in range(*flags.seeds):
            outcome = _run(plan_of(seed), browser)
            faults = [*outcome.faults, *outcome.comparison.faults]
            wrong += bool(faults)
            everything.add(outcome.comparison)
            print(f"seed {seed}: {outcome.plan.troubles}, {outcome.plan.end}", flush=True)
            print(*(faults or ["nothing wrong"]), sep="\n    ", flush=True)
        browser.close()
    print(*everything.table_of_worst(), sep="\n")
    return 1 if wrong else 0


def _run(plan: Plan, browser: Browser) -> Outcome:
    workload = Workload(samples=480, batch_size=4, hidden=16, step_seconds=0.04)
    with TroubledJob(workload) as job:
        run = TruthRun(plan, job, browser)
        try:
            outcome = run.go()
        except (HarnessError, AssertionError) as error:
            outcome = run.outcome
            outcome.faults.append(error.what if isinstance(error, HarnessError) else str(error))
        if outcome.faults or outcome.comparison.faults:
            job.keep()
            outcome.faults.append(f"folder: {job.folder}")
        return outcome


if __name__ == "__main__":
    sys.exit(main())
