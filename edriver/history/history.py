"""A run's history: its events folded, one by one, into what a page draws, and what of it has changed since; pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from edriver.history.curve import Curve
from edriver.history.hosts import Hosts
from edriver.history.interruptions import Interruptions
from edriver.history.lanes import Lanes
from edriver.history.pace import Pace
from edriver.history.recovery_times import RecoveryTimes
from edriver.history.rounds import RoundHistory
from edriver.history.usage import UsageHistory
from edriver.text.cause_names import RUN_END_NAMES
from edriver.text.last_output import own_last_lines
from edriver.text.progress_text import knows_steps, mode_text
from edriver.text.time_spent import seconds_by_kind
from edriver.v1 import resources_pb2, status_pb2
from edriver.wire.conversion import epoch_seconds, span_seconds

MAX_LOG_LINES: Final = 2000
"""Lines of the log that are remembered, the latest."""


@dataclass(frozen=True, slots=True)
class Line:
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
        seq: the last event that is in it.
        began: when the run began, as far as that is known, in seconds since the epoch,
        now: and the latest time in any event.
        doing: what the run does, or waits for.
        ended: the run's last event; None: it goes on.
        rounds: its rounds.
        lanes: its slots.
        curve: its progress.
        usage: what its hosts and workers have used.
        interruptions: the times in which it made no steps.
        pace: who holds it up.
        time_spent: where its time has gone, as its driver has last said; None: it has not.
        hosts: its hosts, by name.
        failure: the root cause of its latest failures; None: no worker has failed.
        log: its lines.
        first_losses: the first lines of the log that tell of a loss: that it was noticed, and mostly why.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.seq = 0
        self.began = self.now = 0.0
        self.doing = ""
        self.ended: status_pb2.Event | None = None
        self.rounds = RoundHistory()
        self.lanes = Lanes()
        self.curve = Curve()
        self.usage = UsageHistory()
        self.interruptions = Interruptions()
        self.pace = Pace()
        self.time_spent: status_pb2.TimeSpent | None = None
        self._recovery_times = RecoveryTimes()
        self._recoveries: status_pb2.RecoverySummary | None = None
        self.hosts = Hosts()
        self.log: list[Line] = []
        self.first_losses: list[Line] = []
        self._limits: dict[str, Any] = {}
        self._reported_counts = dict.fromkeys(("failures", "preemptions", "resizes", "unproven"), 0)
        self.failure: status_pb2.WorkerFailure | None = None

    # ---- what comes in ---------------------------------------------------------------------------------------

    def join(self, run: status_pb2.Run, rounds: Iterable[status_pb2.Round], seq: int) -> None:
        """Begin with a run whose first events are no longer remembered: as it stands, and the rounds that are known.

        Args:
            run: how it stands.
            rounds: its latest rounds, oldest first.
            seq: the last event that is in them.
        """
        self.look(run, seq)
        for message in rounds:
            if self.rounds.feed(self.revision, message):
                self.lanes.assigned(self.revision, epoch_seconds(message.assign_time), list(message.members))
        for worker in run.workers:
            self.lanes.worker(self.revision, epoch_seconds(worker.start_time), worker, loss=False, on=False)
        self.lanes.end(self.revision, epoch_seconds(run.now), {worker.worker_id for worker in run.workers})
        self.seq = seq

    def look(self, run: status_pb2.Run, seq: int) -> None:
        """How the run stands: what no event tells, such as its limits, and why a host is not used.

        One that is older than the last event is passed over. How far training is, and where its time has gone, comes
        with `sample` alone once there is progress: the two have to be of one moment.
        """
        if seq < self.seq:
            return
        self.revision += 1
        self.began = epoch_seconds(run.start_time)
        if self.ended is None:  # the driver, which ends its hosts now, still says what the run did last
            self.doing = run.activity.text
        self.now = max(self.now, epoch_seconds(run.now))
        self._limits = {
            "run_id": run.run_id,
            "name": run.name,
            "release": run.version,
            "mode": mode_text(run.mode) if run.mode else "",
            "np": run.np,
            "min_np": run.min_np,
            "max_np": run.max_np,
            "size_limit": run.size_limit,
        }
        self._take_totals(run)
        if run.HasField("last_failure"):
            self.failure = run.last_failure
        self.hosts.replace(self.revision, run.hosts)
        self.usage.look(self.revision, run)
        if (self.curve.latest is None or self.time_spent is None) and run.HasField("time_spent"):
            self.time_spent = run.time_spent
        self.pace.look(run)

    def feed(self, event: status_pb2.Event) -> None:
        """The next event; one that is in it already is passed over."""
        if event.seq <= self.seq:
            return
        self.revision += 1
        self.seq = event.seq
        time = epoch_seconds(event.time)
        self.now = max(self.now, time)
        self.began = self.began or time
        kind: str = event.WhichOneof("kind") or "remark"
        match kind:
            case "host":
                self.hosts.take(self.revision, event.host)
            case "worker":
                self.lanes.worker(self.revision, time, event.worker, event.HasField("cause"), self.rounds.size > 0)
                kind = "loss"
            case "round":
                if event.round.HasField("end_time"):
                    self.pace.ended()
                if self.rounds.feed(self.revision, event.round):
                    self.lanes.assigned(self.revision, time, list(event.round.members))
                    self.doing = event.text
                elif event.HasField("cause"):
                    unproven = event.round.abort_kind == status_pb2.ROUND_KIND_UNPROVEN
                    kind, self.doing = "round" if unproven else "loss", event.text
            case "run_ended":
                self.lanes.end(self.revision, time)
                self.pace.ended()
                self.ended, kind, self.doing = event, "end", event.text
                if event.run_ended.HasField("progress"):
                    self.curve.add(self.revision, time, event.run_ended.progress, last=True)
                if event.run_ended.HasField("time_spent"):
                    self.time_spent = event.run_ended.time_spent
                self._take_totals(event.run_ended)
                if event.run_ended.worker_failures:
                    self.failure = event.run_ended.worker_failures[0]
            case "hold_up":
                self.pace.hold_up, kind = event.hold_up, "remark"
            case "straggler":
                self.pace.straggler(event.straggler)
                kind = "remark"
            case "interruption":
                self.pace.hold_up = None
                self.interruptions.add(self.revision, event.interruption)
                self._recovery_times.add_if_it_is_one(event.interruption)
                if event.interruption.kind == status_pb2.INTERRUPTION_KIND_BOOT:  # from before the first event
                    self.began = epoch_seconds(event.interruption.start_time)
            case _:
                self.doing = event.text
        if event.text:
            line = Line(event.seq, time, event.text, kind, self.revision)
            self.log.append(line)
            if len(self.log) > MAX_LOG_LINES:
                del self.log[: MAX_LOG_LINES // 10]
            if kind == "loss" and len(self.first_losses) < 2:
                self.first_losses.append(line)

    def sample(self, time: float, progress: status_pb2.Progress) -> None:
        """Training was so far at this time."""
        self.revision += 1
        self.now = max(self.now, time)
        self.began = self.began or time
        self.curve.add(self.revision, time, progress)
        if progress.HasField("time_spent"):
            self.time_spent = progress.time_spent

    def sample_usage(self, sample: resources_pb2.UsageSample) -> None:
        """Hosts used so much at a time."""
        self.revision += 1
        self.usage.add(self.revision, sample)

    def _take_totals(self, message: status_pb2.Run | status_pb2.RunEnded) -> None:
        """What the driver has counted: the last round of a run that fails has no successor, whose cause would be."""
        for kind in self._reported_counts:
            self._reported_counts[kind] = getattr(message, kind)
        if message.HasField("recoveries"):
            self._recoveries = message.recoveries

    def count(self, kind: str) -> int:
        """How many rounds ended so: "failures", "preemptions", "resizes" or "unproven"."""
        return max(self.rounds.counts[kind.removesuffix("s")], self._reported_counts[kind])

    # ---- what goes out ---------------------------------------------------------------------------------------

    @property
    def goodput(self) -> float | None:
        """The share of wall time spent in steps that count, as the driver has worked it out; None: it has not."""
        spent = self.time_spent
        return spent.goodput if spent is not None and spent.HasField("goodput") else None

    @property
    def knows_steps(self) -> bool:
        """Whether the driver sees the script's steps: it does not in restart mode."""
        return self.time_spent is None or knows_steps(self.time_spent)

    @property
    def recoveries(self) -> status_pb2.RecoverySummary:
        """How long its recoveries from failures took; as the driver says, who has seen all of them, if it has."""
        own, reported = self._recovery_times.summary(), self._recoveries
        return reported if reported is not None and reported.count > own.count else own

    def since(self, revision: int) -> dict[str, Any]:
        """What has changed since a version, as it goes to the page; all of it since 0. What has not is left out."""
        if revision >= self.revision:
            return {}
        latest = self.rounds.latest
        ended, recoveries = self.ended, self.recoveries
        changes: dict[str, Any] = {
            "version": self.revision,
            "head": {
                **self._limits,
                "began": self.began,
                "now": self.now,
                "doing": self.doing,
                "size": self.rounds.size,
                "round": latest.name if latest else None,
                "rounds": sum(self.rounds.counts.values()),
                **{kind: self.count(kind) for kind in self._reported_counts},
                "steps_lost": self.rounds.steps_lost if self.knows_steps else None,
                "failure": None if self.failure is None else failure_text(self.failure),
                "goodput": self.goodput,
                "time_spent": None if self.time_spent is None else seconds_by_kind(self.time_spent),
                "pace": self.pace.plain(self.now),
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


def failure_text(failure: status_pb2.WorkerFailure) -> str:
    """What is known of a worker that has failed, in lines."""
    parts = [failure.cause.text, failure.traceback.strip()]
    if lines := own_last_lines(failure.tail, failure.traceback):
        parts += ["its last lines of output:", *lines]
    return "\n".join(filter(None, parts))
