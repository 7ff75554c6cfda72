"""The screen of `edriver top`. Drawn by Textual, which the extra `top` installs."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Final

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Footer, ProgressBar, RichLog, Static

from edriver.client import Client, Event, HostUsage, Run, RunError, WorkerUsage
from edriver.commands.status import counts, name_text, size_text, state_text
from edriver.text.host_text import TROUBLED, host_text
from edriver.text.pace_text import hold_up_text, straggler_text
from edriver.text.phrases import limits_text
from edriver.text.printable import printable
from edriver.text.progress_text import age, lasted, length_text, mode_text, progress_text, time_text
from edriver.text.time_spent import goodput_text, interruption_text
from edriver.text.usage_text import bytes_text, cores_text, gpu_text
from edriver.v1 import status_pb2
from edriver.wire.conversion import epoch_seconds, span_seconds, version_of

REFRESH_INTERVAL: Final = 1.0
"""Seconds between two looks."""

MAX_KEPT_EVENTS: Final = 1000
"""Events that can be scrolled back to, the latest."""

MAX_SHOWN_WORKERS: Final = 1000
"""Workers shown; those after them are counted."""

HOST_COLUMNS: Final = ("host", "slots", "workers", "for", "state", "cpu", "memory")
WORKER_COLUMNS: Final = (
    *("rank", "place", "state", "steps/s", "own", "loading", "cpu", "memory", "process"),
    *("gpu", "for", "worker", "version"),
)
"""The first nine fit into 80 columns."""

OPTIONAL_COLUMNS: Final = frozenset({"own", "loading", "gpu"})
"""Those that are shown only if they have something to say."""

_STATE_STYLES: Final = {"training": "green", "waiting": "cyan", "booting": "yellow", "stopping": "red", "gone": "red"}

Row = tuple[str | Text, ...]


class Watch:
    """Receives a run's events, in a separate thread.

    Args:
        client: of the run.

    Attributes:
        latest: the last events that have words.
        count: how many there were.
        ended: set when the run has ended or its driver cannot be reached.
    """

    def __init__(self, client: Client) -> None:
        self.latest: deque[Event] = deque(maxlen=MAX_KEPT_EVENTS)
        self.count = 0
        self.ended = threading.Event()
        since = max(0, client.snapshot().seq - MAX_KEPT_EVENTS)
        threading.Thread(target=self._listen, args=(client, since), name="edriver-watch", daemon=True).start()

    def _listen(self, client: Client, since: int) -> None:
        try:
            for event in client.watch(since):
                if event.text:
                    self.latest.append(event)
                    self.count += 1
        except (RunError, ValueError):  # it has ended, or the client was closed
            pass
        self.ended.set()

    def newer(self, count: int) -> list[Event]:
        """The events after the first `count`, as far as they are kept."""
        latest = list(self.latest)
        return latest[-missing:] if (missing := self.count - count) > 0 else []


class Rows(DataTable[str | Text]):
    """A table that is scrolled by lines."""

    BINDINGS: ClassVar[list[BindingType]] = [("home", "scroll_top"), ("end", "scroll_bottom")]


class Top(App[None]):
    """The screen.

    Args:
        ask: returns the state of the run.
        happened: its events.

    Attributes:
        lost: why the driver no longer answers, though the run has not ended.
    """

    TITLE = "edriver top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [("q", "quit", "Quit")]
    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #head { height: auto; max-height: 6; }
    #done { height: 1; }
    #done Bar { width: 1fr; }
    Rows, RichLog { background: ansi_default; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 1; }
    #hosts { height: auto; max-height: 30%; }
    #workers { height: 1fr; min-height: 4; }
    #events { height: 30%; min-height: 4; border-top: solid $primary; }
    """

    def __init__(self, ask: Callable[[], Run], happened: Watch) -> None:
        super().__init__(ansi_color=True)
        self.animation_level = "none"  # a terminal may be far away
        self.lost: RunError | None = None
        self.happened = happened
        self._ask = ask
        self._shown_count = 0
        self._shown: dict[str, tuple[Sequence[str], list[Row]]] = {}

    def compose(self) -> ComposeResult:
        """The parts, from top to bottom."""
        yield Static(id="head", markup=False)
        yield ProgressBar(id="done", show_eta=False)
        yield Rows(id="hosts", cursor_type="none")
        yield Rows(id="workers", cursor_type="none")
        yield RichLog(id="events", max_lines=MAX_KEPT_EVENTS, markup=False, wrap=False)
        yield Footer()

    def on_mount(self) -> None:
        """Look at the run now, and again and again."""
        self.query_one("#workers").focus()
        self.set_interval(REFRESH_INTERVAL, self._look)
        self._look()

    @work(thread=True, exclusive=True)
    def _look(self) -> None:
        """Ask the driver, beside the screen."""
        ended = self.happened.ended.is_set()
        try:
            run = self._ask()
        except RunError as error:
            if not ended and not self.happened.ended.wait(REFRESH_INTERVAL):
                self.lost = error
            self.call_from_thread(self.exit)
            return
        self.call_from_thread(self.show, run)
        if ended:
            self.call_from_thread(self.exit)

    def show(self, run: Run) -> None:
        """Show the state of the run, and its events; does nothing once the screen closes."""
        if not self.is_running:  # it was left while the driver was asked
            return
        self.query_one("#head", Static).update(head(run))
        bar = self.query_one("#done", ProgressBar)
        bar.display = bool(run.progress.samples)
        bar.update(total=run.progress.samples or None, progress=run.progress.samples_done)
        self._fill("hosts", HOST_COLUMNS, list(host_rows(run)))
        self._fill("workers", *without_empty(WORKER_COLUMNS, list(worker_rows(run))))
        log = self.query_one("#events", RichLog)
        for event in self.happened.newer(self._shown_count):
            log.write(event_line(event))
        self._shown_count = self.happened.count

    def _fill(self, name: str, columns: Sequence[str], new: list[Row]) -> None:
        """Show a table's rows; where it is scrolled to stays in sight."""
        table, (before_columns, old) = self.query_one(f"#{name}", Rows), self._shown.get(name, ((), []))
        self._shown[name] = (columns, new)
        if columns != before_columns or len(new) != len(old) or _widths(new) != _widths(old):
            where = table.scroll_offset
            table.clear(columns=columns != before_columns)
            if columns != before_columns:
                table.add_columns(*columns)
            table.add_rows(new)
            self.call_after_refresh(table.scroll_to, where.x, where.y, animate=False)
            return
        for place, (before, row) in enumerate(zip(old, new, strict=True)):
            for column, (cell, text) in enumerate(zip(before, row, strict=True)):
                if cell != text:
                    table.update_cell_at(Coordinate(place, column), text)


def without_empty(columns: Sequence[str], rows: Sequence[Row]) -> tuple[tuple[str, ...], list[Row]]:
    """A table without those of OPTIONAL_COLUMNS in which no row has anything."""
    kept = [at for at, name in enumerate(columns) if name not in OPTIONAL_COLUMNS or any(len(row[at]) for row in rows)]
    return tuple(columns[at] for at in kept), [tuple(row[at] for at in kept) for row in rows]


def _widths(rows: Iterable[Row]) -> list[int]:
    """Of each column."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def head(run: Run) -> Text:
    """What is shown of the run itself: what it does, its interruption, and its progress."""
    lines = _text(f"run {run.run_id}{name_text(run)}", style="bold")
    limits = limits_text(run.min_np, run.max_np, run.size_limit)
    mode = f"{mode_text(run.mode)}  " if run.mode == status_pb2.RUN_MODE_RESTART else ""
    size = f"{size_text(run)} ({limits})"
    lines.append(f"  {time_text(lasted(run))}  {mode}{size}  ", style="not bold")
    lines.append(printable(run.activity.text), style="green not bold" if run.size else "yellow not bold")
    lines.append(f"\n{', '.join(counts(run))}", style="dim not bold")
    if run.HasField("time_spent"):
        lines.append(f"; goodput {goodput_text(run.time_spent)}", style="dim not bold")
    if (trouble := trouble_text(run)) is not None:
        lines.append(f"\n{printable(trouble)}", "yellow not bold")
    if progress := progress_text(run.progress) if run.HasField("progress") else "":
        lines.append(f"\n{printable(progress)}", style="not bold")
    return lines


def trouble_text(run: Run) -> str | None:
    """What keeps it from making steps, or makes them slow; None: nothing does."""
    now = epoch_seconds(run.now)
    if run.HasField("hold_up"):
        return hold_up_text(run.hold_up, now)
    if run.HasField("interruption"):
        return interruption_text(run.interruption, now)
    return straggler_text(run.stragglers[0], now) if run.stragglers else None


def host_rows(run: Run) -> Iterator[Row]:
    """One for each host, as HOST_COLUMNS names them."""
    for host in run.hosts:
        troubled = host.state in TROUBLED
        yield (
            _text(host.name),
            Text(str(host.slots), justify="right"),
            Text(str(host.workers), justify="right"),
            Text(time_text(age(run, host.discover_time)), justify="right"),
            _text(host_text(host), style="yellow" if troubled else ""),
            _cores(host.usage),
            Text(bytes_text(host.usage.memory_bytes) if host.HasField("usage") else "", justify="right"),
        )


def worker_rows(run: Run) -> Iterator[Row]:
    """One for each of the first workers, as WORKER_COLUMNS names them; the rest is counted."""
    ranked = sorted(run.workers, key=lambda worker: (not worker.HasField("rank"), worker.rank, worker.worker_id))
    for worker in ranked[:MAX_SHOWN_WORKERS]:
        yield _worker_row(run, worker)
    if len(ranked) > MAX_SHOWN_WORKERS:
        yield ("", f"and {len(ranked) - MAX_SHOWN_WORKERS:,} more", *[""] * (len(WORKER_COLUMNS) - 2))


def _worker_row(run: Run, worker: status_pb2.WorkerStatus) -> Row:
    state = state_text(worker.state)
    return (
        Text(str(worker.rank) if worker.HasField("rank") else "", justify="right"),
        _text(f"{worker.host}:{worker.slot}"),
        Text(state, style=_STATE_STYLES.get(state, "")),
        Text(f"{worker.step_rate:.1f}" if worker.step_rate else "", justify="right"),
        *_own_and_loading(worker),
        _cores(worker.usage),
        Text(bytes_text(worker.usage.resident_bytes) if worker.HasField("usage") else "", justify="right"),
        Text(str(worker.pid or ""), justify="right"),
        Text(gpu_text(worker.usage), justify="right"),
        Text(time_text(age(run, worker.start_time)), justify="right"),
        Text(str(worker.worker_id), justify="right"),
        str(version_of(worker.version)) if worker.HasField("version") else "",
    )


def _cores(usage: HostUsage | WorkerUsage) -> Text:
    return Text(cores_text(usage.cpu_cores) if usage.HasField("cpu_cores") else "", justify="right")


def _own_and_loading(worker: status_pb2.WorkerStatus) -> tuple[Text, Text]:
    """Of a step: what is not waiting for others, and what of that is data loading."""
    if not worker.HasField("step_times"):
        return Text(), Text()
    times = worker.step_times
    own = span_seconds(times.step) - span_seconds(times.waiting)
    return (
        Text(length_text(own) if times.HasField("waiting") else "", justify="right"),
        Text(length_text(span_seconds(times.loading)), justify="right"),
    )


def event_line(event: Event) -> Text:
    """An event as it is shown: one line."""
    at = time.strftime("%H:%M:%S", time.localtime(epoch_seconds(event.time)))
    return _text(f"{at}  {event.text}".replace("\n", "  "))


def _text(text: str, style: str = "") -> Text:
    """A text of the run's, which is neither markup nor a command for the terminal."""
    return Text(printable(text), style=style, no_wrap=True)
