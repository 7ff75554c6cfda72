"""A run's records as one HTML file: the page with its data in it, and above it what can be read without a script."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final

from edriver.common.wire import epoch_seconds
from edriver.dashboard.assets import PAGE_SCRIPTS, filled, page_file, plotly_script
from edriver.history.history import History
from edriver.history.records import RecordError, Records, UnreadableLine, read
from edriver.history.rounds import RoundRecord
from edriver.text.cause_names import RECOVERY_PHASES, RUN_END_NAMES, UNPROVEN_CONNECTION
from edriver.text.phrases import count_text
from edriver.text.progress_text import time_text
from edriver.v1 import status_pb2

MAX_RECOVERIES: Final = 500
"""Rounds in the table; of more, the longest recoveries are shown."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What a run's records tell.

    Attributes:
        history: the run's.
        run: what its run.json says.
        failure: of what it failed, in words; empty: it has not.
        unreadable: the lines of its event log that are no events, and are left out.
    """

    history: History
    run: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""
    unreadable: Sequence[UnreadableLine] = ()


def recorded_run(records: Records) -> RecordedRun:
    """Fold a run's records. Where an event log has several runs, one after the other, it is the last.

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
            if entry.seq <= history.seq:
                history = History()
            history.feed(entry)
    if not history.revision:
        first = f": line {unreadable[0].number} is no event ({unreadable[0].why})" if unreadable else ""
        raise RecordError(f"{records.events} tells of no run{first or ': it is empty'}")
    return RecordedRun(history, records.run, records.failure, unreadable)


def facts(recorded: RecordedRun) -> Iterator[tuple[str, str]]:
    """What there is to say of a run: a word, and a sentence, each."""
    history, run = recorded.history, recorded.run
    if command := run.get("command"):
        yield "command", shlex.join(map(str, command)) if isinstance(command, list) else str(command)
    if mode := run.get("mode"):
        yield "mode", str(mode)
    spent = history.now - history.began
    yield "time", f"{_date(history.began)}, {time_text(spent)}"
    ended = history.ended
    if ended is None:
        yield "end", f"none is recorded: it goes on, or its driver was lost; last: {history.doing or 'nothing'}"
    else:
        yield "end", f"{RUN_END_NAMES[ended.run_ended.end]}: {ended.text}"
    rounds = history.rounds.all
    if rounds:
        ends = [history.now if part.ended is None else part.ended for part in rounds]
        lasted = [max(0.0, end - part.assigned) for part, end in zip(rounds, ends, strict=True)]
        mean = sum(part.size * length for part, length in zip(rounds, lasted, strict=True)) / (sum(lasted) or 1.0)
        sizes = [part.size for part in rounds]
        yield "size", f"{min(sizes)} to {max(sizes)} workers, {mean:.1f} on average while it trained"
    goodput = history.goodput(history.now)
    yield (
        "goodput",
        "nothing to tell it from" if goodput is None else f"{100 * goodput:.1f} % of wall time in steps that count",
    )
    counts = history.rounds.counts
    kinds = [count_text(counts[kind], kind) for kind in ("failure", "preemption", "resize")]
    kinds += [count_text(counts["unproven"], UNPROVEN_CONNECTION)] if counts["unproven"] else []
    yield "rounds", f"{sum(counts.values())}: {', '.join(kinds)}"
    yield "lost", f"{count_text(history.rounds.steps_lost, 'step')} had to be made again"
    took = [part.recovery for part in rounds if part.kind == "failure" and part.recovery is not None]
    if took:
        yield "recovery", f"{_length(statistics.median(took))} after a failure (median), {_length(max(took))} at worst"
    if history.first_losses:
        yield "failed first", ", then ".join(f"{_clock(line.time)} {line.text}" for line in history.first_losses)
    if history.curve.latest is not None:
        latest = history.curve.latest
        words = [f"step {latest.steps}", *(f"{name} {value:g}" for name, value in sorted(latest.reported.items()))]
        yield "reached", "; ".join(words)
    if recorded.unreadable:
        first = recorded.unreadable[0]
        lines = count_text(len(recorded.unreadable), "line")
        yield "left out", f"{lines} of the event log, which cannot be read; first line {first.number}: {first.why}"


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
    history, run = recorded.history, recorded.run
    scripts = [plotly_script().read_text(encoding="utf-8"), *map(page_file, PAGE_SCRIPTS)]
    marks = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {marks}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )
    changes = history.since(0) or {"head": None}
    if changes["head"] is not None:
        known = {
            "run_id": name,
            **{key: run[key] for key in ("np", "min_np", "max_np") if isinstance(run.get(key), int)},
        }
        changes["head"] |= known
    link = "ended" if history.ended else "record"
    data = {"whole": True, "link": link, "why": "", "time": history.now, **changes}
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{page_file("page.css")}</style>'
    body = [f'<script type="application/json" id="data">{script_safe(data)}</script>']
    body += [f"<script>{script}</script>" for script in scripts]
    return filled(
        page_file("index.html"),
        title=escape(f"edriver run {name}"),
        head=head,
        summary=_summary(recorded, name),
        data="\n".join(body),
    )


def script_safe(data: Any) -> str:
    """JSON that ends no element it stands in, nor begins a comment there."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _summary(recorded: RecordedRun, name: str) -> str:
    rows = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in facts(recorded))
    failure = recorded.failure
    said = f'<div class="scroll" tabindex="0"><pre>{escape(failure)}</pre></div>' if failure else ""
    inner = f"<h1>Run {escape(name)}</h1><dl>{rows}</dl>{said}{_table(recorded.history)}"
    return f'<section class="summary" aria-label="Summary">{inner}</section>'


def _table(history: History) -> str:
    recovered = [part for part in history.rounds.all if part.kind != "start"]
    if not recovered:
        return ""
    shown = sorted(recovered, key=lambda part: -(part.recovery or 0.0))[:MAX_RECOVERIES]
    shown.sort(key=lambda part: part.assigned)
    words = f"the {len(shown)} longest of {len(recovered)}" if len(shown) < len(recovered) else f"{len(shown)}"
    heads = [
        "time",
        "round",
        "kind",
        "workers",
        *(phase.replace("_", " ") for phase in RECOVERY_PHASES),
        "all",
        "lost",
        "cause",
    ]
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in _row(part))}</tr>" for part in shown)
    return (
        f"<details{' open' if len(shown) <= 20 else ''}><summary>Every recovery, with its phases ({words})</summary>"
        '<div class="scroll" tabindex="0">'
        f"<table><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _row(part: RoundRecord) -> list[str]:
    phases = [_length(seconds) for seconds in part.phases] if part.phases else ["–"] * len(RECOVERY_PHASES)
    whole = "never under way" if part.recovery is None else _length(part.recovery)
    return [
        _clock(part.assigned),
        part.name,
        part.kind,
        str(part.size),
        *phases,
        whole,
        str(part.steps_lost),
        part.cause,
    ]


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _length(seconds: float) -> str:
    if seconds >= 60:
        return time_text(seconds)
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
