"""Who holds a run up, in a real run: slowed down in its data loader, in its own code, locked, stopped, evaluating.

What status, events and metrics say is compared with what the workers themselves have written down.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, expect

from edriver.client import Client, WorkerStatus, here
from edriver.commands.stack import stack
from edriver.commands.status import status as status_command
from edriver.v1 import pace_pb2, stacks_pb2, status_pb2
from edriver.wire.conversion import epoch_seconds, span_seconds
from tests.process.dashboards import Watched, dashboard
from tests.process.running import SCRIPTS, Run, edriver, running
from tests.strict_json import strict
from tests.waiting import until

PACED = [sys.executable, str(SCRIPTS / "paced.py")]
SHORT_WINDOWS = [sys.executable, str(SCRIPTS / "short_windows.py")]


class Paced:
    """A run of two ranks, each of which can be slowed down."""

    def __init__(self, run: Run, folder: Path, client: Client) -> None:
        self.run = run
        self.folder = folder
        self.client = client

    def slow(self, rank: int, what: str) -> None:
        Path(self.folder, "new").write_text(what)
        Path(self.folder, "new").rename(self.folder / f"slow.{rank}")

    def quick(self, rank: int) -> None:
        Path(self.folder, f"slow.{rank}").unlink(missing_ok=True)

    def until(self, seen: Callable[[status_pb2.Run], bool]) -> status_pb2.Run:
        """How the run stands once it does so."""

        def look() -> status_pb2.Run | None:
            return status if seen(status := self.client.status()) else None

        return until(look, lambda: f"{self.client.status()}\n{self.run.text}")

    def worker(self, rank: int) -> WorkerStatus:
        return next(worker for worker in self.client.status().workers if worker.rank == rank)

    def written(self, rank: int, since: float) -> list[list[float]]:
        """What a rank has written down of its steps since then: when, loading and own code."""
        lines = Path(self.folder, f"steps.{rank}").read_text().splitlines()[:-1]
        return [step for line in lines if (step := [*map(float, line.split())])[0] >= since]

    def last_step(self) -> float:
        """When the last step was made of all."""
        return max(self.written(rank, 0.0)[-1][0] for rank in (0, 1))

    def events(self, kind: str) -> list[status_pb2.Event]:
        return [event for event in self.client.events() if event.WhichOneof("kind") == kind]

    def stall_at(self, time: float) -> status_pb2.Interruption | None:
        """The interruption, now over, in which this was."""
        for event in self.events("interruption"):
            start = epoch_seconds(event.interruption.start_time)
            if start <= time <= start + span_seconds(event.interruption.duration):
                return event.interruption
        return None


@pytest.fixture(scope="module")
def paced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paced]:
    folder = tmp_path_factory.mktemp("paced")
    flags = ["-np", "2", "--metrics-port", "0", *PACED]
    with running(flags, folder, {"FOLDER": str(folder)}, through=SHORT_WINDOWS) as run:
        run.line("rank 1 of 2")
        with Client(here(run.id)) as client:
            made = Paced(run, folder, client)
            made.until(lambda status: all(worker.HasField("step_times") for worker in status.workers))
            yield made
        (folder / "end").touch()
        assert run.end() == 0, run.text
        assert run.gone(), run.left_behind()


def test_one_that_is_stopped_is_named_within_two_seconds(paced: Paced) -> None:
    pid = paced.run.pids()[1]
    os.kill(pid, signal.SIGSTOP)
    try:
        status = paced.until(lambda status: len(status.hold_up.waited_for) == 1)
        began, took = paced.last_step(), time.time()
        (named,) = status.hold_up.waited_for
        assert (named.rank, named.activity) == (1, pace_pb2.WORKER_ACTIVITY_STOPPED)
        assert status.hold_up.waiting == 1
        assert took - began < 2.0 + 5.0 * (os.getloadavg()[0] > 8.0)  # as a rule 1.2 s
        assert abs(status.hold_up.start_time.ToNanoseconds() / 1e9 - began) < 0.5
        text = r"no step for \d s; all are waiting for rank 1 \(localhost:1\), whose process is stopped"
        # Within this process: were Python to start for each question, a busy machine would not get to the last of them
        # before the worker's lease is over.
        assert re.search(text, status_command(["--run", paced.run.id]))
        port = re.search(r"metrics for Prometheus: (http://\S+)", paced.run.text)
        assert port
        metrics = urlopen(port[1]).read().decode()
        assert 'edriver_waited_for{activity="stopped",rank="1"} 1.0' in metrics
        assert "its process is stopped (by a signal or debugger)" in stack(["1", "--run", paced.run.id])
    finally:
        os.kill(pid, signal.SIGCONT)
    paced.until(lambda status: not status.HasField("hold_up"))
    paced.until(lambda _: paced.stall_at(took) is not None)
    stall = paced.stall_at(took)
    assert stall is not None
    held_up = [event.hold_up for event in paced.events("hold_up")]  # a busy machine may have more of them
    announced = [each for each in held_up if abs(epoch_seconds(each.start_time) - began) < 0.5][-1]
    for hold_up in (announced, stall.hold_up):
        assert [each.rank for each in hold_up.waited_for] == [1]


@pytest.mark.long
def test_one_whose_interpreter_is_locked(paced: Paced) -> None:
    paced.slow(0, "native 9")
    status = paced.until(lambda status: len(status.hold_up.waited_for) == 1)
    (named,) = status.hold_up.waited_for
    assert (named.rank, named.activity) == (0, pace_pb2.WORKER_ACTIVITY_SILENT)
    (answer,) = paced.client.stacks(rank=0)
    assert answer.stacks.source == stacks_pb2.STACK_SOURCE_SIGNAL
    assert re.search(r"paced.py\", line \d+ in once\n", answer.stacks.text)
    paced.until(lambda status: not status.HasField("hold_up"))


def test_one_that_evaluates_holds_the_others_up_without_a_stall(paced: Paced) -> None:
    before = len(paced.events("hold_up"))
    paced.slow(1, "eval 4")
    status = paced.until(lambda status: len(status.hold_up.waited_for) == 1)
    (named,) = status.hold_up.waited_for
    assert (named.rank, named.activity) == (1, pace_pb2.WORKER_ACTIVITY_EVALUATING)
    assert re.fullmatch(r"paced.py:\d+ \(once\)", named.place)
    paced.until(lambda status: not status.HasField("hold_up"))
    of_one = [each for each in paced.events("hold_up")[before:] if len(each.hold_up.waited_for) == 1]
    assert of_one == [], "where the other still computes, as on a busy machine, both are named"


def test_where_both_stand(paced: Paced) -> None:
    found = strict(edriver("stack", "--json", "--run", paced.run.id).stdout)
    assert [(each["rank"], each["stacks"]["source"]) for each in found] == [
        (0, "STACK_SOURCE_WORKER"),
        (1, "STACK_SOURCE_WORKER"),
    ]
    for each in found:
        first = each["stacks"]["text"].partition("\n\n")[0]
        assert first.startswith("thread MainThread:\n")
        assert "paced.py" in first
    refused = edriver("stack", "7", "--run", paced.run.id)
    assert refused.returncode == 1
    assert "there is no such worker: the run has localhost:0 (rank 0), localhost:1 (rank 1)" in refused.stderr


@pytest.mark.parametrize(
    ("rank", "what", "reason"),
    [(1, "load 0.08", pace_pb2.STRAGGLER_REASON_LOADING), (0, "compute 0.08", pace_pb2.STRAGGLER_REASON_COMPUTING)],
    ids=["loader", "own code"],
)
def test_one_that_is_slow_in_each_step(
    paced: Paced, rank: int, what: str, reason: pace_pb2.StragglerReason.ValueType
) -> None:
    paced.until(lambda status: not status.stragglers)  # on a busy machine there may have been one
    paced.slow(rank, what)
    try:
        is_named_as_slow(paced, rank, reason)
    finally:
        paced.quick(rank)
    paced.until(lambda status: not status.stragglers)
    events = [event for event in paced.events("straggler") if event.straggler.rank == rank]
    last = max(n for n, event in enumerate(events) if event.straggler.HasField("end_time"))
    begun, ended = events[last - 1 : last + 1]  # on a busy machine it may be named again
    assert not begun.straggler.HasField("end_time")
    assert ended.straggler.HasField("end_time")


def is_named_as_slow(paced: Paced, rank: int, reason: pace_pb2.StragglerReason.ValueType) -> None:
    # At first, steps from before it was slow count, too. On a busy machine it may have been slow in those for another
    # reason: a second in which its process got no processor counts as its own code.
    found = [(rank, reason)]
    paced.until(lambda status: [(slow.rank, slow.reason) for slow in status.stragglers if slow.ratio > 1.5] == found)
    shown = edriver("status", "--run", paced.run.id).stdout
    assert re.search(rf"rank {rank} \(localhost:{rank}\) is \d+\.\d times slower than the median of the others", shown)
    begun_at = time.time()

    def is_as_written(_: status_pb2.Run) -> bool:
        """Once no step from before it was slow is among those that count."""
        times, written = paced.worker(rank).step_times, paced.written(rank, max(begun_at, time.time() - 4.0))
        return (
            len(written) > 5
            and abs(span_seconds(times.loading) - median(step[1] for step in written)) < 0.025
            and abs(span_seconds(times.computing) - median(step[2] for step in written)) < 0.04
        )

    paced.until(is_as_written)
    times = paced.worker(rank).step_times
    assert span_seconds(times.step) - span_seconds(times.waiting) > 0.08
    other = paced.worker(1 - rank).step_times
    assert span_seconds(other.waiting) > 0.05


@pytest.mark.long
def test_the_page_says_it_and_shows_where_a_worker_stands(paced: Paced, browser: Browser, tmp_path: Path) -> None:
    with dashboard(paced.run.id, tmp_path) as url:
        watched = Watched(browser)
        page = watched.page
        page.goto(url)
        expect(page.locator("#steps tr")).to_have_count(2)
        expect(page.locator("#trouble")).to_be_hidden()
        page.click("#stacks-ask")
        expect(page.locator("#stacks")).to_contain_text("thread MainThread:")
        pid = paced.run.pids()[1]
        os.kill(pid, signal.SIGSTOP)
        try:
            text = re.compile(
                r"^no step for \d+ s; all are waiting for rank 1 \(localhost:1\), whose process is stopped"
            )
            expect(page.locator("#trouble")).to_have_text(text)
            expect(page.locator("#log")).to_contain_text("all are waiting for rank 1")
            page.focus("#stacks-of")
            page.select_option("#stacks-of", "localhost:1")
            page.click("#stacks-ask")
            expect(page.locator("#stacks")).to_contain_text("its process is stopped (by a signal")
            if folder := os.environ.get("PICTURES"):
                page.screenshot(path=f"{folder}/held-up.png", full_page=True)
        finally:
            os.kill(pid, signal.SIGCONT)
        expect(page.locator("#trouble")).to_be_hidden()
        watched.check(url)
