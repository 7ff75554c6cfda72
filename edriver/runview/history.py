"""What a run has been through: what of its events is drawn over time, and what has changed since when; pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from edriver.runview.curve import Curve
from edriver.runview.hosts import Hosts
from edriver.runview.interruptions import Interruptions
from edriver.runview.lanes import Lanes
from edriver.runview.rounds import Rounds
from edriver.runview.run_view import ENDS, RunView
from edriver.runview.usage import UsageHistory
from edriver.text.cause_names import RUN_END_NAMES, SCRIPT_WARNING_NAMES
from edriver.text.checkpoint_text import checkpoints_text
from edriver.text.last_output import own_last_lines
from edriver.text.phrases import one_replica_text, replicas_text
from edriver.text.progress_text import mode_text
from edriver.text.run_facts import run_facts
from edriver.text.time_spent import seconds_by_kind
from edriver.v1 import resources_pb2, status_pb2
from edriver.wire.conversion import epoch_seconds, span_seconds

MAX_LOG_LINES: Final = 2000
"""Lines of the log that are remembered, the latest."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the log.

    Attributes:
        seq: the event's number.
        time: in seconds since the epoch.
        text: what it says.
        kind: "loss", "round", "host", "remark" or "end".
        revision: of the history, when it came.
    """

    seq: int
    time: float
    text: str
    kind: str
    revision: int


class History:
    """What a run has been through. It grows to a limit: older parts become coarser (see its parts for how).

    Attributes:
        revision: grows with each change.
        view: how the run stands.
        rounds: its rounds.
        lanes: its slots.
        curve: its progress.
        usage: what its hosts and workers have used.
        interruptions: the times in which it made no steps.
        hosts: its hosts, by name.
        log: its lines.
        first_losses: the first lines of the log that tell of a loss: that it was noticed, and mostly why.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.view = RunView()
        self.rounds = Rounds()
        self.lanes = Lanes()
        self.curve = Curve()
        self.usage = UsageHistory()
        self.interruptions = Interruptions()
        self.hosts = Hosts()
        self.log: list[LogLine] = []
        self.first_losses: list[LogLine] = []
        self._limits: dict[str, Any] = {}
        self._script_warnings: list[tuple[str, float, int]] = []  # as `look` gets them, where no driver can be asked

    # ---- what comes in ---------------------------------------------------------------------------------------

    def join(self, run: status_pb2.Run, rounds: Iterable[status_pb2.Round], seq: int) -> None:
        """Begin with a run whose first events are no longer remembered, from its current state and known rounds.

        Args:
            run: its current state.
            rounds: its latest rounds, oldest first.
            seq: the number of the last event that they include.
        """
        self.look(run, seq)
        for message in rounds:
            self.view.fold_round(message)
            if self.rounds.add(self.revision, message):
                self.lanes.assigned(self.revision, epoch_seconds(message.assign_time), list(message.members))
        for worker in run.workers:
            self.lanes.worker(self.revision, epoch_seconds(worker.start_time), worker, loss=False, on=False)
        self.lanes.end(self.revision, epoch_seconds(run.now), {worker.worker_id for worker in run.workers})
        self.view.seq = seq

    def look(self, run: status_pb2.Run, seq: int) -> None:
        """How the run stands: what no event tells, such as its limits, and why a host is not used.

        One that is older than the last event is passed over.
        """
        if seq < self.view.seq:
            return
        self.revision += 1
        self.view.look(run)
        origin = run.origin if run.HasField("origin") else None
        self._limits = {
            "run_id": run.run_id,
            "name": run.name,
            "release": run.version,
            "mode": mode_text(run.mode) if run.mode else "",
            "about": [*run_facts(run.command, "", run.tags, origin), *_checkpoints(run)],
            "warnings": [[each.cause.text, epoch_seconds(each.last_time), each.count] for each in run.warnings[::-1]],
            "np": run.np,
            "min_np": run.min_np,
            "max_np": run.max_np,
            "size_limit": run.size_limit,
            "replicas": _replicas(run),
        }
        self.hosts.replace(self.revision, run.hosts)
        self.usage.look(self.revision, run)

    def fold(self, event: status_pb2.Event) -> None:
        """Take in the next event; one that is in it already is passed over."""
        training = self.view.goes_on  # before the event
        if not self.view.fold(event):
            return
        self.revision += 1
        time = epoch_seconds(event.time)
        kind: str = event.WhichOneof("kind") or "remark"
        match kind:
            case "host":
                self.hosts.take(self.revision, event.host)
            case "worker":
                self.lanes.worker(self.revision, time, event.worker, event.HasField("cause"), training)
                kind = "loss"
                if event.cause.worker_id and event.text:
                    self.rounds.explain(self.revision, event.cause.worker_id, event.text)
                    self.interruptions.explain(self.revision, event.cause.worker_id, event.text)
            case "round":
                if self.rounds.add(self.revision, event.round):
                    self.lanes.assigned(self.revision, time, list(event.round.members))
                elif event.HasField("cause") and event.round.abort_kind != status_pb2.ROUND_KIND_UNPROVEN:
                    kind = "loss"
            case "run_ended":
                self.lanes.end(self.revision, time)
                kind = "end"
                if event.run_ended.HasField("progress"):
                    self.curve.add(self.revision, time, event.run_ended.progress, self.view.call, last=True)
            case "hold_up" | "straggler":
                kind = "remark"
            case "interruption":
                self.interruptions.add(self.revision, event.interruption)
        if event.cause.kind in SCRIPT_WARNING_NAMES:
            self._script_warnings.insert(0, (event.text, time, 1))
        if event.text:
            line = LogLine(event.seq, time, event.text, kind, self.revision)
            self.log.append(line)
            if len(self.log) > MAX_LOG_LINES:
                del self.log[: MAX_LOG_LINES // 10]
            if kind == "loss" and len(self.first_losses) < 2:
                self.first_losses.append(line)

    def sample(self, time: float, progress: status_pb2.Progress) -> None:
        """Training was so far at this time."""
        self.revision += 1
        self.view.sample(time, progress)
        self.curve.add(self.revision, time, progress, self.view.call)

    def sample_usage(self, sample: resources_pb2.UsageSample) -> None:
        """Hosts used so much at a time."""
        self.revision += 1
        self.usage.add(self.revision, sample)

    # ---- what goes out ---------------------------------------------------------------------------------------

    def since(self, revision: int) -> dict[str, Any]:
        """What has changed since a version, as it goes to the page; all of it since 0. What has not is left out."""
        if revision >= self.revision:
            return {}
        view, latest = self.view, self.rounds.latest
        ended, recoveries = view.ended, view.recoveries
        changes: dict[str, Any] = {
            "version": self.revision,
            "head": {
                "warnings": self._script_warnings,
                **self._limits,
                "began": view.began,
                "now": view.now,
                "doing": view.doing,
                "size": view.size,
                "round": latest.name if latest else None,
                "rounds": view.rounds,
                **{end: view.count(end) for end in ENDS},
                "steps_lost": view.steps_lost if view.knows_losses else None,
                "failure": None if view.failure is None else failure_facts(view.failure, view.healthy),
                "goodput": view.goodput,
                "time_spent": None if view.time_spent is None else seconds_by_kind(view.time_spent),
                "pace": view.slowdowns.plain(view.now),
                "recoveries": {
                    "count": recoveries.count,
                    "median": span_seconds(recoveries.median),
                    "longest": span_seconds(recoveries.longest),
                },
                "ended": None
                if ended is None
                else {"time": epoch_seconds(ended.time), "end": RUN_END_NAMES[ended.run_ended.end]},
            },
        }
        first = bisect_right(self.log, revision, key=lambda line: line.revision)
        parts = {
            "rounds": self.rounds.since(revision),
            "lanes": self.lanes.since(revision),
            "curve": self.curve.since(revision),
            "usage": self.usage.since(revision),
            "interruptions": self.interruptions.since(revision),
            "hosts": self.hosts.since(revision),
            "log": [[line.seq, line.time, line.text, line.kind] for line in self.log[first:]],
        }
        return changes | {name: part for name, part in parts.items() if part}


def _checkpoints(run: status_pb2.Run) -> list[tuple[str, str]]:
    if not run.checkpoints:
        return []
    return [("checkpoint in memory", checkpoints_text(run.checkpoints, epoch_seconds(run.now)))]


def _replicas(run: status_pb2.Run) -> str:
    if run.on_loss:
        return one_replica_text(run.on_loss)
    in_replicas = run.replica_size > 1 or run.replicas_are_hosts
    return replicas_text(run.replica_size, replicas_are_hosts=run.replicas_are_hosts) if in_replicas else ""


def failure_facts(failure: status_pb2.WorkerFailure, over: bool) -> dict[str, Any]:
    """What is known of a worker that has failed, as it goes to the page.

    Args:
        failure: what is known.
        over: whether the run trains again.
    """
    parts = [failure.traceback.strip()]
    if lines := own_last_lines(failure.tail, failure.traceback):
        parts += ["its last lines of output:", *lines]
    return {
        "cause": failure.cause.text,
        "time": epoch_seconds(failure.time) if failure.HasField("time") else None,
        "text": "\n".join(filter(None, parts)),
        "over": over,
    }
