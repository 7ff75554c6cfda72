"""A run's records as one HTML file: the page with its data in it, and above it what can be read without a script."""

from __future__ import annotations

import base64
import hashlib
import heapq
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final

from edriver.dashboard.assets import PAGE_SCRIPTS, filled, page_file, plotly_script
from edriver.dashboard.output import latest_lines
from edriver.history.records import RecordError, Records, UnreadableLine, read, read_usage
from edriver.runview.history import History
from edriver.runview.interruptions import InterruptionRecord
from edriver.text.cause_names import RECOVERY_PHASES, RUN_END_NAMES, UNPROVEN_CONNECTION
from edriver.text.checkpoint_text import checkpoints_text
from edriver.text.message_reader import message_of
from edriver.text.phrases import count_text
from edriver.text.progress_text import length_text, time_text
from edriver.text.run_facts import run_facts
from edriver.text.time_spent import recovery_text, time_spent_text
from edriver.text.usage_text import bytes_text
from edriver.v1 import status_pb2
from edriver.v1.resources_pb2 import UsageSample
from edriver.wire.conversion import epoch_seconds

MAX_RECOVERIES: Final = 500
"""Rounds in the table; of more, the longest recoveries are shown."""


MAX_HOSTS_LISTED: Final = 5
"""Hosts whose memory the facts tell, those that used the most."""

_UNENDED: Final = {
    None: "not recorded: it is running, or its driver was lost",
    True: "none yet: it is running",
    False: "lost: its driver recorded no end, and is not running on this machine",
}
"""The text for the end of a run whose records have none, by whether it is in progress."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The content of a run's records.

    Attributes:
        history: the run's.
        run: the content of its run.json.
        failure: of what it failed, in words; empty: it has not.
        unreadable: the lines of its event log that are not events, which are left out.
        lives: for a run without an end: whether it is in progress; None: not known.
        unreadable_usage: lines that are left out of what its hosts used.
        output: the latest lines of its workers, as a page has them.
    """

    history: History
    run: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""
    unreadable: Sequence[UnreadableLine] = ()
    lives: bool | None = None
    unreadable_usage: int = 0
    output: Sequence[Sequence[Any]] = ()


def recorded_run(records: Records, lives: bool | None = None) -> RecordedRun:
    """Fold a run's records. Where an event log has several runs, one after the other, it is the last.

    Args:
        records: where they are.
        lives: whether the run is in progress; None: not known.

    Raises:
        RecordError: they have no event.
        OSError: they cannot be read.
    """
    history = History()
    unreadable: list[UnreadableLine] = []
    for entry in read(records.events):
        if isinstance(entry, UnreadableLine):
            unreadable.append(entry)
        elif isinstance(entry, status_pb2.ProgressSample):
            history.sample(epoch_seconds(entry.time), entry.progress)
        else:
            if entry.seq <= history.view.seq:
                history = History()
            history.fold(entry)
    usage: Iterable[UsageSample | UnreadableLine] = () if records.usage is None else read_usage(records.usage)
    unreadable_usage = 0
    for sample in usage:
        if isinstance(sample, UnreadableLine):
            unreadable_usage += 1
        elif history.revision:
            history.sample_usage(sample)
    if not history.revision:
        first = f": line {unreadable[0].number} is not an event ({unreadable[0].why})" if unreadable else ""
        raise RecordError(f"{records.events} records no run{first or ': it is empty'}")
    output = latest_lines(records)
    return RecordedRun(history, records.run, records.failure, unreadable, lives, unreadable_usage, output)


def facts(recorded: RecordedRun) -> Iterator[tuple[str, str]]:
    """What there is to say of a run: a word, and a sentence, each."""
    history, view, run = recorded.history, recorded.history.view, recorded.run
    if name := run.get("name"):
        yield "name", str(name)
    yield from _started(run, str(run.get("mode") or ""))
    spent = view.now - view.began
    yield "time", f"{_date(view.began)}, {time_text(spent)}"
    ended = view.ended
    if ended is None:
        yield "end", f"{_UNENDED[recorded.lives]}; last: {view.doing or 'nothing'}"
    else:
        yield "end", f"{RUN_END_NAMES[ended.run_ended.end]}: {ended.text}"
    rounds = history.rounds.all
    if rounds:
        ends = [view.now if part.ended is None else part.ended for part in rounds]
        lasted = [max(0.0, end - part.assigned) for part, end in zip(rounds, ends, strict=True)]
        mean = sum(part.size * length for part, length in zip(rounds, lasted, strict=True)) / (sum(lasted) or 1.0)
        sizes = [part.size for part in rounds]
        yield "size", f"{min(sizes)} to {max(sizes)} workers, {mean:.1f} on average while it trained"
    goodput = view.goodput
    good = "no step was made" if goodput is None else f"{100 * goodput:.1f} % of wall time in steps that count"
    yield "goodput", good if view.knows_steps else "not known: edriver sees no steps in restart mode"
    if view.time_spent is not None:
        yield "time spent", time_spent_text(view.time_spent)
    kinds = [count_text(view.count(f"{kind}s"), kind) for kind in ("failure", "preemption", "resize")]
    unproven = view.count("unproven")
    kinds += [count_text(unproven, UNPROVEN_CONNECTION)] if unproven else []
    yield "rounds", f"{view.rounds}: {', '.join(kinds)}"
    if view.knows_losses:
        yield "lost", f"{count_text(view.steps_lost, 'step')} had to be made again"
    if ended is not None and ended.run_ended.checkpoints:
        yield "checkpoint", checkpoints_text(ended.run_ended.checkpoints, epoch_seconds(ended.time))
    if view.recoveries.count:
        yield "recovery", recovery_text(view.recoveries)
    if history.first_losses:
        failed = ended is not None and ended.run_ended.end == status_pb2.RUN_END_FAILED
        yield (
            "failed first" if failed else "first loss",
            ", then ".join(f"{_clock(line.time)} {line.text}" for line in history.first_losses),
        )
    if view.progress is not None:
        latest = view.progress
        steps = [f"step {latest.steps}"] if view.knows_steps else []
        words = [*steps, *(f"{name} {value:g}" for name, value in sorted(latest.reported.items()))]
        if words:
            yield "reached", "; ".join(words)
    if memory := history.usage.most_memory:
        listed = heapq.nlargest(MAX_HOSTS_LISTED, memory, memory.__getitem__)
        of_hosts = [f"{host} {bytes_text(memory[host])}" for host in listed]
        more = f", and {len(memory) - MAX_HOSTS_LISTED} more hosts" if len(memory) > MAX_HOSTS_LISTED else ""
        yield "memory", f"at most, on {', '.join(of_hosts)}{more}"
    if recorded.unreadable_usage:
        yield "left out", f"{count_text(recorded.unreadable_usage, 'line')} about what hosts used, which cannot be read"
    if recorded.unreadable:
        first = recorded.unreadable[0]
        lines = count_text(len(recorded.unreadable), "line")
        yield "left out", f"{lines} of the event log, which cannot be read; first line {first.number}: {first.why}"


def _started(run: Mapping[str, Any], mode: str = "") -> Iterator[tuple[str, str]]:
    """What its run.json says was started; that may be anything."""
    command, tags, origin, git = (run.get(name) for name in ("command", "tags", "origin", "git"))
    try:
        found = message_of(status_pb2.Origin, origin if isinstance(origin, dict) else {})
    except (ValueError, OverflowError):
        found = status_pb2.Origin()
    if not found.commit and isinstance(git, dict):  # an earlier release has recorded this alone
        found.commit, found.changed = str(git.get("commit") or ""), bool(git.get("changed"))
    words = list(map(str, command)) if isinstance(command, list) else [str(command)] if command else []
    named = {str(name): str(value) for name, value in tags.items()} if isinstance(tags, dict) else {}
    yield from run_facts(words, mode, named, found)


def text_summary(recorded: RecordedRun) -> str:
    """The facts, a line each, and after them of what the run failed, if it did."""
    listed = list(facts(recorded))
    width = max(len(word) for word, _ in listed)
    return "\n".join([*(f"{word:<{width}}  {sentence}" for word, sentence in listed), *recorded.failure.splitlines()])


def html_report(recorded: RecordedRun, name: str) -> str:
    """The page, in one file that needs no other.

    Args:
        recorded: the run.
        name: its id, or whatever it is called.

    Raises:
        RunError: plotly is not installed.
    """
    scripts = [plotly_script().read_text(encoding="utf-8"), *map(page_file, PAGE_SCRIPTS)]
    marks = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {marks}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{page_file("page.css")}</style>'
    body = [f'<script type="application/json" id="data">{script_safe(page_data(recorded, name))}</script>']
    body += [f"<script>{script}</script>" for script in scripts]
    return filled(
        page_file("index.html"),
        title=escape(f"edriver run {name}"),
        head=head,
        way_back="",
        curves=page_file("curves.html"),
        summary=summary(recorded, name),
        steering="",
        data="\n".join(body),
    )


def page_data(recorded: RecordedRun, name: str) -> dict[str, Any]:
    """What the page draws of it: one message that has everything.

    Args:
        recorded: the run.
        name: its id, or whatever it is called.
    """
    history, run = recorded.history, recorded.run
    changes = history.since(0) or {"head": None}
    if changes["head"] is not None:
        known = {key: run[key] for key in ("np", "min_np", "max_np") if isinstance(run.get(key), int)}
        given = run.get("name")
        changes["head"] |= {"run_id": name, "name": given if isinstance(given, str) else "", **known}
        changes["head"]["about"] = list(_started(run))
        if recorded.failure:
            changes["head"]["failure"] = None  # it stands in the summary, whole
    link = "ended" if history.view.ended else "record"
    return {"whole": True, "link": link, "why": "", "time": history.view.now, "output": recorded.output, **changes}


def script_safe(data: Any) -> str:
    """JSON that ends no element it stands in, nor begins a comment there."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def summary(recorded: RecordedRun, name: str) -> str:
    """What can be read without a script: what it was, how it ended, and every interruption."""
    rows = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in facts(recorded))
    failure = recorded.failure
    said = f'<div class="scroll" tabindex="0"><pre>{escape(failure)}</pre></div>' if failure else ""
    inner = f"<h1>Run {escape(name)}</h1><dl>{rows}</dl>{said}{_table(recorded.history)}"
    return f'<section class="summary" aria-label="Summary">{inner}</section>'


def _table(history: History) -> str:
    recovered = history.interruptions.all
    if not recovered:
        return ""
    shown = sorted(recovered, key=lambda each: -each.seconds)[:MAX_RECOVERIES]
    shown.sort(key=lambda each: each.start)
    count = history.interruptions.count
    words = f"the {len(shown)} longest of {count}" if len(shown) < count else f"{len(shown)}"
    phases = [phase.replace("_", " ") for phase in RECOVERY_PHASES]
    heads = ["since", "kind", "length", "round", "workers", *phases, "steps lost", "cause"]
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    cells = [_row(each, history.view.knows_steps) for each in shown]
    rows = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in cells)
    return (
        f"<details{' open' if len(shown) <= 20 else ''}>"
        f"<summary>Every interruption, with its phases ({words})</summary>"
        '<div class="scroll" tabindex="0">'
        f"<table><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _row(each: InterruptionRecord, knows_steps: bool) -> list[str]:
    phases = [length_text(seconds) for seconds in each.phases] if each.phases else ["–"] * len(RECOVERY_PHASES)
    failed = f"; {count_text(each.failed_rounds, 'round')} failed on the way" if each.failed_rounds else ""
    return [
        _clock(each.start),
        each.kind,
        length_text(each.seconds),
        each.round or "none",
        str(each.size) if each.round else "–",
        *phases,
        str(each.steps_lost) if knows_steps else "–",
        each.cause + failed,
    ]


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
