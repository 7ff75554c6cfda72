"""`edriver status`: the state of a run, as text."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from edriver.client import Client, Run, RunError, WorkerStatus, here, living_runs
from edriver.commands.which_run import add_run_flags, client_of
from edriver.text.cause_names import UNPROVEN_CONNECTION
from edriver.text.checkpoint_text import checkpoints_text
from edriver.text.command_parser import CommandParser
from edriver.text.host_text import host_text
from edriver.text.message_writer import plain
from edriver.text.pace_text import hold_up_text, step_text, straggler_text
from edriver.text.phrases import count_text, limits_text, workers_text
from edriver.text.printable import printable_entry, printable_line
from edriver.text.progress_text import knows_steps, lasted, mode_text, progress_text, time_text
from edriver.text.run_facts import run_facts
from edriver.text.time_spent import goodput_text, interruption_text, recovery_text, time_spent_text
from edriver.text.usage_text import host_usage_text, worker_usage_text
from edriver.v1 import status_pb2
from edriver.wire.conversion import epoch_seconds

LISTING_TIMEOUT: Final = 3.0
"""Seconds that each of several runs may take to answer."""


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = CommandParser(
        prog="edriver status",
        description="Shows the state of a run in progress. If you have several on this machine, lists them.",
    )
    made.add_argument(
        "--json",
        action="store_true",
        help="print JSON as of protobuf: with --run or --credentials an object (Run in status.proto), else an array "
        "of such "
        "objects, which may be empty",
    )
    add_run_flags(made, "--status-credentials")
    return made


def status(arguments: Sequence[str]) -> str:
    """Query the driver, and describe the answer.

    Raises:
        RunError: the driver does not answer.
    """
    flags = parser().parse_args(arguments)
    asked = flags.run is not None or flags.credentials is not None or flags.driver is not None
    found = list(living_runs()) if not asked else []
    if len(found) > 1 or (flags.json and not asked and not found):
        runs = list(_those_that_answer(found))
        return (
            json.dumps([plain(run) for run in runs], indent=2)
            if flags.json
            else "\n".join(map(printable_entry, listed(runs)))
        )
    with client_of(flags) as client:
        run = client.status()
    if flags.json:
        return json.dumps(plain(run) if asked else [plain(run)], indent=2)
    return "\n".join(map(printable_entry, lines(run)))


def _those_that_answer(run_ids: Iterable[str]) -> Iterator[Run]:
    for run_id in run_ids:
        with (
            contextlib.suppress(RunError),
            Client(here(run_id), timeout=LISTING_TIMEOUT) as client,
        ):  # it has just ended
            yield client.status()


def listed(runs: Sequence[Run]) -> Iterator[str]:
    """Several runs as text, two lines each, the oldest first."""
    for run in sorted(runs, key=lambda run: epoch_seconds(run.start_time)):
        size = f"{size_text(run)} ({limits_text(run.min_np, run.max_np, run.size_limit)})"
        head = f"run {run.run_id}{name_text(run)}, {time_text(lasted(run))}"
        yield f"{head}, {mode_text(run.mode)}, {size}: {run.activity.text}"
        yield f"    {printable_line(shlex.join(run.command))}"
    yield "for more about one of them: edriver status --run RUN"


def lines(run: Run) -> Iterator[str]:
    """A run as text: the run, its hosts, its workers."""
    yield f"run {run.run_id}{name_text(run)}, {time_text(lasted(run))}, {mode_text(run.mode)}: {run.activity.text}"
    if run.replica_size > 1 or run.replicas_are_hosts or run.on_loss:
        yield size_text(run)
    if progress := progress_text(run.progress) if run.HasField("progress") else "":
        yield progress
    if run.HasField("hold_up"):
        yield hold_up_text(run.hold_up, epoch_seconds(run.now))
    elif run.HasField("interruption"):
        yield interruption_text(run.interruption, epoch_seconds(run.now))
    for straggler in run.stragglers:
        yield straggler_text(straggler, epoch_seconds(run.now))
    if run.HasField("time_spent"):
        yield f"goodput {goodput_text(run.time_spent)}: {time_spent_text(run.time_spent)}"
    rounds, *why, lost = counts(run)
    yield f"{rounds}; {', '.join(why)}; {lost}"
    if run.recoveries.count:
        yield f"recovery {recovery_text(run.recoveries)}"
    if run.checkpoints:
        yield f"newest checkpoint in memory: {checkpoints_text(run.checkpoints, epoch_seconds(run.now))}"
    if run.HasField("last_failure"):
        yield failure_text(run.last_failure, epoch_seconds(run.now))
    for warning in run.warnings:
        yield warning_text(warning, epoch_seconds(run.now))
    for word, text in run_facts(run.command, "", run.tags, run.origin if run.HasField("origin") else None):
        yield f"{word}: {text}"
    for host in run.hosts:
        used = f"; {host_usage_text(host.usage)}" if host.HasField("usage") else ""
        yield f"host {host.name} ({count_text(host.slots, 'slot')}) {host_text(host)}{used}"
    yield from map(worker_text, run.workers)


def size_text(run: Run) -> str:
    """The number of workers, and of their replicas."""
    return workers_text(
        run.size, run.replica_size, replicas_are_hosts=run.replicas_are_hosts, on_loss=printable_line(run.on_loss)
    )


def name_text(run: Run) -> str:
    """What a run's name adds behind its ID: ` (warm-up)`; empty if it has none."""
    return f" ({printable_line(run.name)})" if run.name else ""


def failure_text(failure: status_pb2.WorkerFailure, now: float) -> str:
    """The root cause of the latest failures, and how long ago, with the exception's own line if there is one."""
    ago = f", {time_text(now - epoch_seconds(failure.time))} ago" if failure.HasField("time") else ""
    text = f"last failure{ago}: {failure.cause.text}"
    last_line = failure.traceback.strip().rpartition("\n")[2]
    return text if text.endswith(last_line) else f"{text}: {last_line}"


def warning_text(warning: status_pb2.Warning, now: float) -> str:
    """What has impaired the run, how often, and how long ago."""
    ago = f"{time_text(now - epoch_seconds(warning.last_time))} ago"
    often = f"{warning.count} times, the last {ago}" if warning.count > 1 else ago
    return f"warning: {warning.cause.text} ({often})"


def counts(run: Run) -> list[str]:
    """The history of the run in numbers: rounds, why they ended, and lost steps."""
    return [
        count_text(run.rounds, "round"),
        count_text(run.failures, "failure"),
        count_text(run.preemptions, "preemption"),
        count_text(run.resizes, "resize"),
        *([count_text(run.unproven, UNPROVEN_CONNECTION)] if run.unproven else []),
        f"{count_text(run.steps_lost, 'step')} lost"
        if run.steps_lost or (knows_steps(run.time_spent) and not run.progress.without_boundary)
        else "number of lost steps not known",
    ]


def worker_text(worker: WorkerStatus) -> str:
    """A worker as text."""
    rank = f", rank {worker.rank}" if worker.HasField("rank") else ""
    pid = f", process {worker.pid}" if worker.pid else ""
    rate = f", {worker.step_rate:.1f} steps/s" if worker.step_rate else ""
    used = f", {worker_usage_text(worker.usage)}" if worker.HasField("usage") else ""
    step = f", {step_text(worker.step_times)}" if worker.HasField("step_times") else ""
    place = f"{worker.host}:{worker.slot}{rank}{pid}"
    return f"worker {worker.worker_id} ({place}) {state_text(worker.state)}{rate}{step}{used}"


def state_text(state: status_pb2.WorkerState.ValueType) -> str:
    """A worker's state as the documents call it: booting, waiting, training, ..."""
    return status_pb2.WorkerState.Name(state).removeprefix("WORKER_STATE_").lower()
