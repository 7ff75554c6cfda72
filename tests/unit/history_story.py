"""A run told event by event, for the tests of what a page draws of it; and a page."""

from __future__ import annotations

import json
from typing import Any

from edriver.runview.history import History
from edriver.runview.lanes import SlotState
from edriver.v1 import cause_pb2, rounds_pb2, status_pb2
from edriver.wire.conversion import duration, timestamp

BOOTING, WAITING, TRAINING, STOPPING, GONE = (
    status_pb2.WORKER_STATE_BOOTING,
    status_pb2.WORKER_STATE_WAITING,
    status_pb2.WORKER_STATE_TRAINING,
    status_pb2.WORKER_STATE_STOPPING,
    status_pb2.WORKER_STATE_GONE,
)
START, FAILURE, RESIZE, UNPROVEN = (
    status_pb2.ROUND_KIND_START,
    status_pb2.ROUND_KIND_FAILURE,
    status_pb2.ROUND_KIND_RESIZE,
    status_pb2.ROUND_KIND_UNPROVEN,
)
BOOT, STALL, INTERRUPTION_FAILURE = (
    status_pb2.INTERRUPTION_KIND_BOOT,
    status_pb2.INTERRUPTION_KIND_STALL,
    status_pb2.INTERRUPTION_KIND_FAILURE,
)
PHASES = {
    "unnoticed": 0.125,
    "detect": 0.25,
    "abort": 0.25,
    "wait": 0.25,
    "rendezvous": 0.25,
    "sync": 0.5,
    "first_step": 0.25,
}


def phases_of(**seconds: float) -> status_pb2.RecoveryPhases:
    return status_pb2.RecoveryPhases(**{name: duration(span) for name, span in seconds.items()})


def spent_of(goodput: float | None, until: float, **seconds: float) -> status_pb2.TimeSpent:
    spans = {kind: duration(span) for kind, span in seconds.items()}
    return status_pb2.TimeSpent(goodput=goodput, until=timestamp(until), **spans)


class Page:
    """A page: it has only the data that it was sent."""

    def __init__(self) -> None:
        self.version = 0
        self.lanes: dict[tuple[str, int], list[Any]] = {}
        self.rounds: dict[str, Any] = {}
        self.interruptions: list[Any] = []
        self.points: list[Any] = []
        self.undone: list[Any] = []
        self.hosts: dict[str, Any] = {}
        self.log: list[Any] = []
        self.head: dict[str, Any] = {}

    def take(self, history: History) -> int:
        """Returns the message's length."""
        reported = history.since(self.version)
        text = json.dumps(reported, allow_nan=False)
        if not reported:
            return 0
        self.version, self.head = reported["version"], reported["head"]
        for name in ("lanes", "rounds", "interruptions", "curve"):
            if reported.get(name, {}).get("whole"):
                setattr(self, {"curve": "points"}.get(name, name), [] if name in ("interruptions", "curve") else {})
        for lane in reported.get("lanes", {}).get("lanes", []):
            steps = self.lanes.setdefault((lane["host"], lane["slot"]), [])
            steps[lane["from"] :] = lane["steps"]
        for each in reported.get("rounds", {}).get("rounds", []):
            self.rounds[each["id"]] = each
        self.interruptions += reported.get("interruptions", {}).get("interruptions", [])
        self.points += reported.get("curve", {}).get("points", [])
        self.undone = reported.get("curve", {}).get("undone", self.undone)
        for host in reported.get("hosts", []):
            self.hosts[host["name"]] = host
            if not host["slots"] and "since" not in host:
                del self.hosts[host["name"]]
        self.log += reported.get("log", [])
        return len(text)


class Story:
    """A run that began at 100, of workers in slots of host a."""

    def __init__(self) -> None:
        self.history = History()
        self.seq = 0
        self.reported = status_pb2.Round()

    def event(self, time: float, text: str = "", **kind: Any) -> status_pb2.Event:
        self.seq += 1
        event = status_pb2.Event(seq=self.seq, time=timestamp(time), text=text, **kind)
        self.history.fold(event)
        return event

    def remark(self, time: float, text: str) -> None:
        self.event(time, text, remark=status_pb2.Remark())

    def worker(self, time: float, number: int, slot: int, state: Any) -> None:
        self.event(time, worker=status_pb2.WorkerStatus(worker_id=number, host="a", slot=slot, state=state))

    def lost(self, time: float, number: int, slot: int, text: str) -> None:
        gone = status_pb2.WorkerStatus(worker_id=number, host="a", slot=slot, state=GONE)
        self.event(time, text, worker=gone, cause=cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_KILLED, worker_id=number))

    def host(self, time: float, name: str, slots: int, *obstacles: str) -> None:
        host = status_pb2.HostStatus(
            name=name,
            slots=slots,
            connected=slots > 0,
            obstacles=[cause_pb2.Cause(text=text) for text in obstacles],
            discover_time=timestamp(time),
        )
        self.event(time, host=host)

    def assigned(
        self,
        time: float,
        n: int,
        kind: Any,
        members: dict[int, int],
        lost: int = 0,
        cause: cause_pb2.Cause | None = None,
    ) -> None:
        """Members: worker_id to slot."""
        before = self.reported.end_time if self.reported.HasField("end_time") else None
        self.reported = status_pb2.Round(
            round_id=rounds_pb2.RoundId(incarnation=1, n=n),
            kind=kind,
            cause=cause or cause_pb2.Cause(text=f"cause {n}"),
            members=[status_pb2.Member(worker_id=worker, host="a", slot=slot) for worker, slot in members.items()],
            assign_time=timestamp(time),
            previous_end_time=before,
            steps_lost=lost,
        )
        self.event(time, f"round 1.{n}", round=self.reported)

    def under_way(self, time: float, **phases: float) -> None:
        self.reported.first_step_time.CopyFrom(timestamp(time))
        self.reported.phases.CopyFrom(phases_of(**phases))
        self.event(time, round=self.reported)

    def ended(self, time: float, text: str = "") -> None:
        """With a text, by an abort."""
        self.reported.end_time.CopyFrom(timestamp(time))
        reported = status_pb2.Round()
        reported.CopyFrom(self.reported)
        reported.ClearField("members")
        cause = cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_ENDED) if text else None
        self.event(time, text, round=reported, cause=cause)

    def sample(self, time: float, steps: int, spent: status_pb2.TimeSpent | None = None, **reported: float) -> None:
        self.history.sample(time, status_pb2.Progress(steps=steps, step_rate=10.0, reported=reported, time_spent=spent))

    def interrupted(self, start: float, seconds: float, kind: Any = INTERRUPTION_FAILURE, **more: Any) -> None:
        """It is over, and led to the last round."""
        over = status_pb2.Interruption(
            kind=kind,
            start_time=timestamp(start),
            duration=duration(seconds),
            round_id=self.reported.round_id,
            size=len(self.reported.members),
            **more,
        )
        self.event(start + seconds, interruption=over)

    def killed(self) -> None:
        """Two workers, of which 2 is killed at 120; it is replaced by 3 at 130."""
        self.remark(100.0, "waiting: 0 of 2 workers are ready")
        self.host(100.0, "a", 2)
        for number in (1, 2):
            self.worker(100.0, number, number - 1, BOOTING)
        for number in (1, 2):
            self.worker(109.0, number, number - 1, WAITING)
        self.assigned(110.0, 1, START, {1: 0, 2: 1})
        self.under_way(112.0, rendezvous=0.5, sync=0.5, first_step=1.0)
        self.interrupted(100.0, 11.0, BOOT, phases=phases_of(wait=10.0, rendezvous=0.5, sync=0.5))
        self.sample(115.0, 50, spent_of(0.25, 115.0, booting=11.0, training=4.0), loss=1.5)
        self.worker(120.0, 2, 1, STOPPING)
        self.ended(120.0, "round 1.1 ended: worker 2 has ended")
        self.worker(120.5, 1, 0, WAITING)
        self.assigned(121.0, 2, FAILURE, {1: 0}, lost=20)
        self.under_way(122.0, **PHASES)
        cause = cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_ENDED, worker_id=2, text="worker 2 has ended")
        self.interrupted(119.5, 1.625, phases=phases_of(**PHASES), cause=cause, steps_lost=20, failed_rounds=1)
        self.lost(122.5, 2, 1, "worker 2 (rank 1, a:1) was killed by SIGKILL")
        self.worker(122.5, 3, 1, BOOTING)
        self.worker(129.0, 3, 1, WAITING)
        self.ended(130.0)
        self.assigned(130.0, 3, RESIZE, {1: 0, 3: 1})
        self.under_way(131.0, rendezvous=0.5, sync=0.5)

    def steps(self, slot: int) -> list[tuple[float, SlotState, int]]:
        return self.history.lanes.of_slots["a", slot].steps
