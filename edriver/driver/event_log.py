"""The event log: one JSON object a line, for whoever wants to know afterwards what happened and how long it took.

A round's line is written when all of its members have passed their first boundary, or when it ends before:

    {"event": "round", "time": T, "round": "1.3", "cause": "...", "size": 3,
     "noticed": T,                   when an agent noticed the death that ended the round before; else null
     "ended": T,                     when the driver told the round before to end; null for the first
     "assigned": T,                  when the driver assigned this one
     "members": [{"worker": 1, "rank": 0, "host": "a", "notified": T, ..., "commit_bytes": 1200, ...}]}

Members are those that have passed their first boundary, with the times of RoundTimes (notification.proto) and what they
have copied; what did not happen (a newcomer has left no round) is null. Times are seconds since the epoch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edriver.driver import actions, events
from edriver.driver.ranks import RoundPlan

_log = logging.getLogger("edriver.driver")

TIMES = ("notified", "stopped", "waiting", "assigned", "built", "synced", "stepped")
COPIED = ("received_bytes", "commit_bytes", "commit_seconds")


class EventLog:
    """Writes the log of one run.

    Args:
        path: the file, to which lines are appended; it is kept open for no longer than a line takes.
        clock: seconds since the epoch.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._plan: RoundPlan | None = None
        self._line: dict[str, Any] = {}
        self._cause = "the run began"
        self._noticed: float | None = None
        self._ended: float | None = None
        self._members: set[int] = set()
        self._broken = False

    def take(self, event: events.Event, step: Sequence[actions.Action]) -> None:
        """Take in what happened and what was ordered then."""
        now = self._clock()
        match event:
            case events.FirstBoundaryPassed():
                self._member(event)
            case events.WorkerEnding(worker_id, seen) if worker_id in self._members:
                self._noticed = self._noticed or seen  # which may come after the abort: a peer may notice first
            case events.WorkerExited(worker_id, code, _, reaped) if code and worker_id in self._members:
                self._noticed = self._noticed or reaped
        for action in step:
            match action:
                case actions.Abort(_, _, cause):
                    self._end(cause, now)
                case actions.StopAt():
                    self._end("the set of hosts or workers changed", now)
                case actions.AssignRound(plan):
                    self._begin(plan, now)
                case actions.Finish() | actions.FinishRun():
                    self._write()

    def _end(self, cause: str, now: float) -> None:
        self._write()
        self._cause, self._ended = cause, now

    def _begin(self, plan: RoundPlan, now: float) -> None:
        self._write()
        self._plan = plan
        self._line = {
            "event": "round",
            "time": now,
            "round": str(plan.round_id),
            "cause": self._cause,
            "size": len(plan.seats),
            "noticed": self._noticed,
            "ended": self._ended,
            "assigned": now,
            "members": [],
        }
        self._members = set(plan.workers)
        self._noticed = None

    def _member(self, event: events.FirstBoundaryPassed) -> None:
        plan = self._plan
        if plan is None or event.round_id != plan.round_id:
            return
        for seat in plan.seats:
            if seat.worker_id == event.worker_id:
                who = {"worker": seat.worker_id, "rank": seat.rank, "host": seat.host}
                self._line["members"].append(who | {name: event.times.get(name) for name in (*TIMES, *COPIED)})
        if len(self._line["members"]) == len(plan.seats):
            self._write()

    def _write(self) -> None:
        """Write the round's line, once. A log that cannot be written is no reason to end a run."""
        if self._plan is None:
            return
        self._plan = None
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(self._line) + "\n")
        except OSError as error:
            if not self._broken:
                _log.warning("the event log %s cannot be written: %s", self._path, error.strerror)
            self._broken = True
