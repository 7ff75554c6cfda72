"""What a run tells of its time in each place where it does: status, metrics, page, report, records, list of runs."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from playwright.sync_api import Page
from prometheus_client.parser import text_string_to_metric_families

from edriver.text.cause_names import INTERRUPTION_NAMES, RUN_END_NAMES
from edriver.text.message_reader import message_of
from edriver.text.time_spent import TIME_KINDS, seconds_by_kind
from edriver.v1 import status_pb2
from edriver.wire.conversion import epoch_seconds, span_seconds
from tests.process.running import edriver

SCRAPE_INTERVAL = 1.0


@dataclass(slots=True)
class Reported:
    """What is reported in one place; None: nothing of that.

    Attributes:
        where: the place.
        seconds: of each kind of time.
        goodput: as a share.
        interruptions: kind, start in seconds since the epoch (None: not reported), length; those that ended, in order.
        numbers: whatever else is one number, by name.
        rate: samples a second.
        end: how the run ended.
        at: when this was read, in seconds since the epoch; 0: that does not matter.
    """

    where: str
    seconds: dict[str, float] | None = None
    goodput: float | None = None
    interruptions: list[tuple[str, float | None, float]] | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    rate: float | None = None
    end: str | None = None
    at: float = 0.0

    def until(self, began: float) -> float:
        """Up to when the seconds account for the time."""
        assert self.seconds is not None
        return began + sum(self.seconds.values())


def strict_json(text: str) -> Any:
    """JSON as RFC 8259 has it: without NaN and Infinity.

    Raises:
        ValueError: it is none.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


class Scraper:
    """Reads a run's metrics again and again, as Prometheus does, in a thread of its own.

    Args:
        url: of the metrics.

    Attributes:
        latest: the last answer.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.latest = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._scrape, daemon=True)
        self._thread.start()

    def read(self) -> Reported:
        """Read them now."""
        with urllib.request.urlopen(self._url, timeout=10) as answer:
            return told_by_metrics(answer.read().decode())

    def last(self) -> Reported:
        """What was read last."""
        return told_by_metrics(self.latest)

    def close(self) -> None:
        """Read them no more."""
        self._over.set()
        self._thread.join()

    def _scrape(self) -> None:
        while not self._over.wait(SCRAPE_INTERVAL):
            try:
                with urllib.request.urlopen(self._url, timeout=10) as answer:
                    self.latest = answer.read().decode()
            except OSError:  # it boots, or is over
                continue


def told_by_metrics(text: str) -> Reported:
    """What one answer of the metrics' server says."""
    values: dict[tuple[str, str], float] = {}
    end = None
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            label = sample.labels.get("kind") or sample.labels.get("cause") or ""
            values[sample.name, label] = sample.value
            end = sample.labels["end"] if sample.name == "edriver_run_end_info" else end
    lengths = {kind: values["edriver_interruption_seconds_sum", kind.replace(" ", "_")] for kind in _KINDS}
    counts = {kind: values["edriver_interruption_seconds_count", kind.replace(" ", "_")] for kind in _KINDS}
    return Reported(
        "metrics",
        seconds={kind: values["edriver_time_seconds_total", kind] for kind in TIME_KINDS},
        goodput=values.get(("edriver_goodput_ratio", "")),
        numbers={
            "steps": values["edriver_step", ""],
            "steps lost": values["edriver_steps_lost_total", ""],
            "failures": values["edriver_interruptions_total", "failure"],
            "preemptions": values["edriver_interruptions_total", "preemption"],
            "resizes": values["edriver_interruptions_total", "resize"],
            **{f"interruptions: {kind}": counts[kind] for kind in _KINDS},
            **{f"seconds of {kind}": lengths[kind] for kind in _KINDS},
            **({"samples": values["edriver_samples_total", ""]} if ("edriver_samples_total", "") in values else {}),
        },
        rate=values.get(("edriver_samples_per_second", "")),
        end=end,
        at=time.time(),
    )


_KINDS = tuple(name for kind, name in INTERRUPTION_NAMES.items() if kind != status_pb2.INTERRUPTION_KIND_UNSPECIFIED)


def told_by_status(run_id: str) -> tuple[Reported, status_pb2.Run]:
    """What `edriver status --json` says."""
    answer = edriver("status", "--json", "--run", run_id)
    assert answer.returncode == 0, answer.stderr
    run = message_of(status_pb2.Run, strict_json(answer.stdout))
    return (
        Reported(
            "status",
            seconds=seconds_by_kind(run.time_spent),
            goodput=run.time_spent.goodput if run.time_spent.HasField("goodput") else None,
            numbers={
                "steps": run.progress.steps,
                "steps lost": run.steps_lost,
                "failures": run.failures,
                "preemptions": run.preemptions,
                "resizes": run.resizes,
                **_recoveries(run.recoveries),
            },
            rate=run.progress.sample_rate,
            at=epoch_seconds(run.now),
        ),
        run,
    )


def told_by_page(where: str, page: Page) -> Reported:
    """What the page shows, and has its charts drawn from."""
    parts = "{head: story.head, interruptions: story.interruptions, progress: story.progress || null}"
    story = page.evaluate(f"({parts})")
    return _of_story(where, story["head"], story["interruptions"], story["progress"])


def shown_by_page(page: Page) -> dict[str, str]:
    """The texts of its tiles."""
    ids = ("goodput", "lost", "recovery", "recovery-note", "progress", "progress-note", "rounds-note", "state-word")
    return {name: page.locator(f"#{name}").inner_text() for name in ids}


def told_by_report(path: Path) -> Reported:
    """What the report's page is drawn from."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found is not None
    data = strict_json(found[1])
    curve = data.get("curve", {}).get("progress")
    return _of_story("report", data["head"], data.get("interruptions", {}).get("interruptions", []), curve)


def _of_story(
    where: str, head: Mapping[str, Any], interruptions: Iterable[Mapping[str, Any]], progress: Mapping[str, Any] | None
) -> Reported:
    recoveries = head["recoveries"]
    return Reported(
        where,
        seconds=head["time_spent"],
        goodput=head["goodput"],
        interruptions=[(each["kind"], each["start"], each["seconds"]) for each in interruptions],
        numbers={
            "steps": 0 if progress is None else progress["steps"],
            "steps lost": head["steps_lost"],
            "failures": head["failures"],
            "preemptions": head["preemptions"],
            "resizes": head["resizes"],
            "recoveries": recoveries["count"],
            "median recovery": recoveries["median"],
            "longest recovery": recoveries["longest"],
        },
        rate=None if progress is None else progress["sample_rate"],
        end=None if head["ended"] is None else head["ended"]["end"],
        at=time.time(),
    )


@dataclass(slots=True)
class Recorded:
    """A run's event log, read.

    Attributes:
        reported: what it says in the end.
        began: when the run began, in seconds since the epoch,
        latest: and the time of what `reported` is of.
    """

    reported: Reported
    began: float
    latest: float


def told_by_records(path: Path) -> Recorded:
    """What the event log says; of a run without an end, its last line about the progress."""
    reported = Reported("records", interruptions=[])
    about = path.with_name("run.json")
    began = datetime.fromisoformat(strict_json(about.read_text())["start_time"]).timestamp()
    latest = 0.0
    for parsed in _lines(path):
        if "progress" in parsed:
            sample = message_of(status_pb2.ProgressSample, parsed)
            _take(reported, sample.progress)
            latest = epoch_seconds(sample.time)
            continue
        event = message_of(status_pb2.Event, parsed)
        if event.HasField("interruption"):
            each, assured = event.interruption, reported.interruptions
            assert assured is not None
            seconds = span_seconds(each.duration)
            assured.append((INTERRUPTION_NAMES[each.kind], epoch_seconds(each.start_time), seconds))
            reported.numbers["steps lost"] = reported.numbers.get("steps lost", 0) + each.steps_lost
        if event.HasField("run_ended"):
            ended, latest = event.run_ended, epoch_seconds(event.time)
            _take(reported, ended.progress)
            reported.seconds = seconds_by_kind(ended.time_spent)
            reported.goodput = ended.time_spent.goodput if ended.time_spent.HasField("goodput") else None
            reported.end = RUN_END_NAMES[ended.end]
            reported.numbers |= {"failures": ended.failures, "preemptions": ended.preemptions, "resizes": ended.resizes}
            reported.numbers |= _recoveries(ended.recoveries)
    reported.numbers.setdefault("steps lost", 0)
    return Recorded(reported, began, latest)


def _take(reported: Reported, progress: status_pb2.Progress) -> None:
    reported.numbers["steps"] = progress.steps
    reported.rate = progress.sample_rate
    reported.seconds = seconds_by_kind(progress.time_spent)
    reported.goodput = progress.time_spent.goodput if progress.time_spent.HasField("goodput") else None


def _recoveries(summary: status_pb2.RecoverySummary) -> dict[str, float]:
    return {
        "recoveries": summary.count,
        "median recovery": span_seconds(summary.median),
        "longest recovery": span_seconds(summary.longest),
    }


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        parsed = strict_json(line)
        assert isinstance(parsed, dict)
        yield parsed


def told_by_runs(run_id: str, environ: Mapping[str, str]) -> Reported:
    """What `edriver runs --json` says of it."""
    answer = edriver("runs", "--json", "--all", environ=environ)
    assert answer.returncode == 0, answer.stderr
    run = next(each for each in strict_json(answer.stdout) if each["run_id"] == run_id)
    return Reported("runs", goodput=run["goodput"], numbers={"steps": run["steps"] or 0}, end=run["state"])
