"""A run's history: its events folded, one by one, into what a page draws, and what of it has changed since; pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from edriver.common.wire import epoch_seconds
from edriver.history.changes import Changes
from edriver.history.curve import Curve
from edriver.history.lanes import Lanes
from edriver.history.rounds import RoundHistory
from edriver.text.cause_names import RUN_END_NAMES
from edriver.v1 import status_pb2

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
        hosts: its hosts, by name.
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
        self.hosts: dict[str, status_pb2.HostStatus] = {}
        self.log: list[Line] = []
        self.first_losses: list[Line] = []
        self._hosts_changed: Changes[str] = Changes()
        self._limits: dict[str, Any] = {}

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

        One that is older than the last event is passed over.
        """
        if seq < self.seq:
            return
        self.revision += 1
        self.began, self.doing = epoch_seconds(run.start_time), run.activity.text
        self.now = max(self.now, epoch_seconds(run.now))
        self._limits = {
            "run_id": run.run_id,
            "release": run.version,
            "np": run.np,
            "min_np": run.min_np,
            "max_np": run.max_np,
            "failures": run.failures,
            "preemptions": run.preemptions,
            "resizes": run.resizes,
            "unproven": run.unproven,
        }
        hosts_by_name = {host.name: host for host in run.hosts}
        for name in [name for name in self.hosts if name not in hosts_by_name]:
            self._host(status_pb2.HostStatus(name=name))
        for host in run.hosts:
            self._host(host)
        if run.HasField("progress"):
            self.rounds.note_step_rate(run.progress.step_rate)

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
                self._host(event.host)
            case "worker":
                self.lanes.worker(self.revision, time, event.worker, event.HasField("cause"), self.rounds.size > 0)
                kind = "loss"
            case "round":
                if self.rounds.feed(self.revision, event.round):
                    self.lanes.assigned(self.revision, time, list(event.round.members))
                    self.doing = event.text
                elif event.HasField("cause"):
                    unproven = event.round.abort_kind == status_pb2.ROUND_KIND_UNPROVEN
                    kind, self.doing = "round" if unproven else "loss", event.text
            case "run_ended":
                self.lanes.end(self.revision, time)
                self.ended, kind, self.doing = event, "end", event.text
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
        self.rounds.note_step_rate(progress.step_rate)

    # ---- what goes out ---------------------------------------------------------------------------------------

    def goodput(self, now: float) -> float | None:
        """The share of wall time spent in steps that count (see RoundHistory); None: no time has passed."""
        parts = self.rounds.goodput()
        since = parts["since"]
        seconds = (parts["seconds"] or 0.0) + (max(0.0, now - since) if since is not None else 0.0)
        return min(1.0, seconds / (now - self.began)) if now > self.began else None

    def since(self, revision: int) -> dict[str, Any]:
        """What has changed since a version, as it goes to the page; all of it since 0. What has not is left out."""
        if revision >= self.revision:
            return {}
        latest = self.rounds.latest
        counts = self.rounds.counts
        ended = self.ended
        changes: dict[str, Any] = {
            "version": self.revision,
            "head": {
                **self._limits,
                "began": self.began,
                "now": self.now,
                "doing": self.doing,
                "size": self.rounds.size,
                "round": latest.name if latest else None,
                "rounds": sum(counts.values()),
                "failures": max(counts["failure"], self._limits.get("failures", 0)),
                "preemptions": max(counts["preemption"], self._limits.get("preemptions", 0)),
                "resizes": max(counts["resize"], self._limits.get("resizes", 0)),
                "unproven": max(counts["unproven"], self._limits.get("unproven", 0)),
                "steps_lost": self.rounds.steps_lost,
                "goodput": self.rounds.goodput(),
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
            "hosts": self._hosts_since(revision),
            "log": [[line.seq, line.time, line.text, line.kind] for line in self.log[first:]],
        }
        return changes | {name: part for name, part in parts.items() if part}

    def _host(self, message: status_pb2.HostStatus) -> None:
        if self.hosts.get(message.name) == message:
            return
        self._hosts_changed.note(message.name, self.revision)
        if message.slots or message.connected:
            self.hosts[message.name] = message
        else:
            self.hosts.pop(message.name, None)
            gone = [name for name in self._hosts_changed if name not in self.hosts]
            if len(gone) > MAX_LOG_LINES:
                self._hosts_changed.forget(gone[0])

    def _hosts_since(self, revision: int) -> list[dict[str, Any]]:
        changes: list[dict[str, Any]] = []
        for name in self._hosts_changed.since(revision):
            host = self.hosts.get(name)
            if host is not None:
                changes.append(
                    {
                        "name": name,
                        "slots": host.slots,
                        "connected": host.connected,
                        "obstacles": [cause.text for cause in host.obstacles],
                        "since": epoch_seconds(host.discover_time),
                    }
                )
            elif revision:
                changes.append({"name": name, "slots": 0})
        return changes
