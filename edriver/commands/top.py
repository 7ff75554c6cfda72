"""`edriver top`: a run on one screen, which follows it until it ends. Drawn by rich."""

from __future__ import annotations

import argparse
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import rich.box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from edriver.client import Client, Event, Run, RunError
from edriver.commands.status import counts, host_text, state_text
from edriver.commands.which_run import add_run_flags, client_of
from edriver.common.wire import epoch_seconds, version_of
from edriver.text.phrases import count_text, limits_text
from edriver.text.printable import printable
from edriver.text.progress_text import age, lasted, progress_text, time_text

REFRESH_INTERVAL: Final = 1.0
"""Seconds between two looks."""

MAX_SHOWN_EVENTS: Final = 8
"""Events shown, the latest."""

MAX_SHOWN_WORKERS: Final = 40
"""Workers shown; those after them are counted."""

_STATE_STYLES: Final = {"training": "green", "waiting": "cyan", "booting": "yellow", "stopping": "red", "gone": "red"}


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser(
        prog="edriver top", description="Shows a run, live, until it ends or you press Ctrl-C.", allow_abbrev=False
    )
    add_run_flags(made, "--status-credentials")
    return made


def top(arguments: Sequence[str]) -> str:
    """Show a run until it ends; returns how it ended.

    Raises:
        RunError: the driver does not answer.
    """
    flags = parser().parse_args(arguments)
    with client_of(flags) as client:
        watch = Watch(client)
        console = Console()
        try:
            with Live(screen(client.status(), watch.latest), console=console, screen=console.is_terminal) as live:
                while not watch.ended.wait(REFRESH_INTERVAL):
                    live.update(screen(client.status(), watch.latest))
        except KeyboardInterrupt:
            return ""
        except RunError:
            if not watch.ended.wait(REFRESH_INTERVAL):
                raise
        return f"run {client.run_id} has ended: {watch.latest[-1].text}" if watch.latest else ""


class Watch:
    """Listens to a run's events, in a thread of its own.

    Args:
        client: of the run.

    Attributes:
        latest: the last events that have words.
        ended: set when the run has ended or its driver cannot be reached.
    """

    def __init__(self, client: Client) -> None:
        self.latest: deque[Event] = deque(maxlen=MAX_SHOWN_EVENTS)
        self.ended = threading.Event()
        since = max(0, client.snapshot().seq - 10 * MAX_SHOWN_EVENTS)
        threading.Thread(target=self._listen, args=(client, since), name="edriver-watch", daemon=True).start()

    def _listen(self, client: Client, since: int) -> None:
        try:
            for event in client.watch(since):
                if event.text:
                    self.latest.append(event)
        except (RunError, ValueError):  # it is gone, or the client was closed
            pass
        self.ended.set()


def screen(run: Run, latest: Sequence[Event]) -> RenderableType:
    """Everything that is shown of a run."""
    parts: list[RenderableType] = [_headline(run)]
    if run.HasField("progress"):
        parts += _progress(run)
    parts += [_hosts(run), _workers(run)]
    parts += [
        _text(f"{time.strftime('%H:%M:%S', time.localtime(epoch_seconds(event.time)))}  {event.text}")
        for event in latest
    ]
    return Group(*parts)


def _text(text: str, style: str = "") -> Text:
    """A text of the run's, which is neither markup nor a command for the terminal."""
    return Text(printable(text), style=style)


def _headline(run: Run) -> Text:
    headline = _text(f"run {run.run_id}", style="bold")
    headline.append(f"  {time_text(lasted(run))}", style="not bold")
    headline.append(f"  {count_text(run.size, 'worker')} ({limits_text(run.min_np, run.max_np)})  ", style="not bold")
    headline.append(printable(run.activity.text), style="green" if run.size else "yellow")
    headline.append(
        f"\n{', '.join(counts(run))}",
        style="dim not bold",
    )
    return headline


def _progress(run: Run) -> list[RenderableType]:
    parts: list[RenderableType] = [_text(progress_text(run.progress))]
    if run.progress.samples:
        parts.append(ProgressBar(total=run.progress.samples, completed=run.progress.samples_done))
    return parts


def _hosts(run: Run) -> Table:
    table = Table(box=rich.box.SIMPLE, padding=(0, 1), header_style="bold")
    for column in ("host", "slots", "for", "state"):
        table.add_column(column, justify="right" if column in ("slots", "for") else "left")
    for host in run.hosts:
        style = "" if not host.obstacles and host.connected else "yellow"
        state = _text(host_text(host), style=style)
        table.add_row(_text(host.name), str(host.slots), time_text(age(run, host.discover_time)), state)
    return table


def _workers(run: Run) -> Table:
    table = Table(box=rich.box.SIMPLE, padding=(0, 1), header_style="bold")
    for column in ("rank", "worker", "place", "process", "for", "state", "version", "steps/s"):
        table.add_column(column, justify="left" if column in ("place", "state") else "right")
    ranked = sorted(run.workers, key=lambda worker: (not worker.HasField("rank"), worker.rank, worker.worker_id))
    for worker in ranked[:MAX_SHOWN_WORKERS]:
        state = state_text(worker.state)
        table.add_row(
            str(worker.rank) if worker.HasField("rank") else "",
            str(worker.worker_id),
            _text(f"{worker.host}:{worker.slot}"),
            str(worker.pid or ""),
            time_text(age(run, worker.start_time)),
            Text(state, style=_STATE_STYLES.get(state, "")),
            str(version_of(worker.version)) if worker.HasField("version") else "",
            f"{worker.step_rate:.1f}" if worker.step_rate else "",
        )
    if len(ranked) > MAX_SHOWN_WORKERS:
        table.add_row("", "", f"and {len(ranked) - MAX_SHOWN_WORKERS} more")
    return table
