"""A run as a trace that chrome://tracing and https://ui.perfetto.dev open: what happens becomes slices; pure.

The format is that of "Trace Event Format" (Google, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU),
in its JSON Array Format, of which the closing bracket is optional: so the file of a driver that was killed opens, too.

Each host is a process there and each of its slots a thread, on which one slice follows the other, none in another: what
the slot's worker does. The run is a separate process, with a thread for its rounds, one for the phases of each
recovery, and one for losses and remarks.

The page's lanes (runview/lanes.py) also say what stood in a slot. They are bounded, and become coarser; a trace is
written as the run goes, with each member's phases, and is as long as the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from edriver.driver.observe.recovery_phases import MEMBER_PHASE_ENDS
from edriver.text.cause_names import CAUSE_NAMES, RECOVERY_PHASES
from edriver.v1 import status_pb2
from edriver.wire.conversion import epoch_seconds, span_seconds

Entry = dict[str, Any]
Track = tuple[int, int]
"""A process and a thread of the trace."""

RUN_PROCESS: Final = 1
ROUNDS_TRACK, RECOVERY_TRACK, REMARKS_TRACK = (RUN_PROCESS, 1), (RUN_PROCESS, 2), (RUN_PROCESS, 3)
"""The run's process and its threads."""

ABORT_PHASE: Final = "abort"
"""The first phase of a member's recovery: from the end of a round until the member has left it."""

TRAINING_SLICE: Final = "training"

_SLICE_NAMES: Final = {
    status_pb2.WORKER_STATE_BOOTING: "booting",
    status_pb2.WORKER_STATE_WAITING: "waiting",
    status_pb2.WORKER_STATE_DONE: "done",
    status_pb2.WORKER_STATE_FINISHED: "finished",
    status_pb2.WORKER_STATE_STOPPING: "stopping",
}
"""What a worker does by its state; that it trains is known from its rounds."""


FILE_OPENING, FILE_CLOSING = "[", "\n]\n"
"""What a file has in place of its first entry's comma, and what it ends with."""

_to_json: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
"""`json.dumps` would make an encoder for each call: for the recovery of 8,000 workers there are some 60,000."""


def trace_text(entry: Entry) -> str:
    """An entry in the file, which lacks no more than the closing bracket at any time."""
    return f",\n{_to_json(entry)}"


def gap_text(missing: int) -> str:
    """The same of an entry that stands for those that are missing."""
    return trace_text({"ph": "M", "name": "missing", "pid": 0, "args": {"entries": missing}})


class Trace:
    """Translates a run's events, in their order.

    Times are whole microseconds since the run's beginning by the driver's clock, and never go back: those that a member
    reports are moved between the driver's orders and their answers, should the host's clock be wrong.

    Args:
        run_id: the run.
        began: when it began, in seconds since the epoch.
    """

    def __init__(self, run_id: str, began: float) -> None:
        self._began = began
        self._now = 0
        self._hosts: dict[str, int] = {}
        self._tracks: dict[tuple[str, int], Track] = {}
        self._names: list[Entry] = []  # of new processes and threads, not in the trace yet
        self._open: dict[Track, tuple[int, str]] = {}  # whose slice it is, and its name
        self._members: dict[int, Track] = {}  # of the current round, without those that have ended
        self._assigned = 0
        self._joined = False
        self._recovered = 0
        self._name_process(RUN_PROCESS, f"run {run_id}")
        for track, name in ((ROUNDS_TRACK, "rounds"), (RECOVERY_TRACK, "recovery"), (REMARKS_TRACK, "events")):
            self._name_thread(track, name)

    def entries(self, event: status_pb2.Event) -> Iterator[Entry]:
        """What an event adds to the trace."""
        self._now = max(self._now, self._microseconds(epoch_seconds(event.time)))
        match event.WhichOneof("kind"):
            case "worker":
                yield from self._worker(event.worker, event.text)
            case "round" if event.round.HasField("end_time"):
                yield from self._round_ended(event.round)
            case "round" if event.round.HasField("first_step_time"):
                yield from self._under_way(event.round)
            case "round":
                yield from self._round_assigned(event.round)
            case "run_ended":
                for track in list(self._open):
                    yield from self._end(track)
        if event.text and event.WhichOneof("kind") != "round":
            yield self._instant(REMARKS_TRACK, event.text)
        yield from self._names
        self._names.clear()

    # ---- workers ---------------------------------------------------------------------------------------------

    def _worker(self, worker: status_pb2.WorkerStatus, text: str) -> Iterator[Entry]:
        track = self._track(worker.host, worker.slot)
        owner, name = self._open.get(track, (0, ""))
        if worker.state == status_pb2.WORKER_STATE_GONE:
            self._members.pop(worker.worker_id, None)
            if owner == worker.worker_id:
                yield from self._end(track)
        elif (found := _SLICE_NAMES.get(worker.state)) and (worker.worker_id, found) != (owner, name):
            yield from self._begin(track, worker.worker_id, found)
        if text:
            yield self._instant(track, text)

    def _round_assigned(self, message: status_pb2.Round) -> Iterator[Entry]:
        self._assigned = self._now
        self._joined = False
        self._members = {}
        for member in message.members:
            track = self._track(member.host, member.slot)
            self._members[member.worker_id] = track
            if self._open.get(track, (0, ""))[0] == member.worker_id:
                yield from self._end(track)
        yield from self._end(ROUNDS_TRACK)
        number = f"{message.round_id.incarnation}.{message.round_id.n}"
        about = {
            "cause": message.cause.text,
            "kind": CAUSE_NAMES[message.kind],
            "size": len(message.members),
            "steps_lost": message.steps_lost,
        }
        yield from self._begin(ROUNDS_TRACK, 0, f"round {number}", about)

    def _under_way(self, message: status_pb2.Round) -> Iterator[Entry]:
        """Its members' times are known now, and have all passed."""
        yield from self._joining(message)
        yield from self._recovery(message)

    def _joining(self, message: status_pb2.Round) -> Iterator[Entry]:
        """Each member's way into the round, as far as it got; from then on it trains."""
        self._joined = True
        number = f"{message.round_id.incarnation}.{message.round_id.n}"
        for member in message.members:
            track = self._members.get(member.worker_id)
            if track is None or track in self._open:  # it has ended, or is done, already
                continue
            at = self._assigned
            for phase, end in MEMBER_PHASE_ENDS.items():
                reached = min(max(at, self._microseconds(epoch_seconds(getattr(member.times, end)))), self._now)
                if reached > at:
                    yield _slice(track, phase, at, reached, {"round": number})
                at = reached
            if member.times.HasField("stepped"):
                yield from self._begin(track, member.worker_id, TRAINING_SLICE, {"round": number}, at)

    def _recovery(self, message: status_pb2.Round) -> Iterator[Entry]:
        """The run's, phase after phase; the assignment lies between `wait` and what the members take."""
        phases = message.phases
        before = sum(
            span_seconds(getattr(phases, phase)) for phase in RECOVERY_PHASES if phase not in MEMBER_PHASE_ENDS
        )
        at = max(self._recovered, self._microseconds(epoch_seconds(message.assign_time) - before))
        number = f"{message.round_id.incarnation}.{message.round_id.n}"
        for phase in RECOVERY_PHASES:
            end = min(at + round(span_seconds(getattr(phases, phase)) * 1e6), self._now)
            if end > at:
                yield _slice(RECOVERY_TRACK, phase, at, end, {"round": number})
                at = end
        self._recovered = at

    def _round_ended(self, message: status_pb2.Round) -> Iterator[Entry]:
        if not self._joined:
            yield from self._joining(message)
        for worker_id, track in self._members.items():
            if self._open.get(track, (worker_id, TRAINING_SLICE)) == (worker_id, TRAINING_SLICE):
                yield from self._begin(track, worker_id, ABORT_PHASE)
        yield from self._end(ROUNDS_TRACK)

    # ---- entries ---------------------------------------------------------------------------------------------

    def _begin(
        self, track: Track, owner: int, name: str, about: Entry | None = None, at: int | None = None
    ) -> Iterator[Entry]:
        """A slice begins; the one before it ends."""
        yield from self._end(track)
        self._open[track] = (owner, name)
        entry = _entry("B", track, self._now if at is None else at, name=name, cat="edriver")
        yield entry | {"args": ({"worker": owner} if owner else {}) | (about or {})}

    def _end(self, track: Track) -> Iterator[Entry]:
        if self._open.pop(track, None):
            yield _entry("E", track, self._now)

    def _instant(self, track: Track, text: str) -> Entry:
        return _entry("i", track, self._now, name=text, cat="edriver", s="t")

    def _track(self, host: str, slot: int) -> Track:
        """A slot's, which is given its name."""
        if found := self._tracks.get((host, slot)):
            return found
        if host not in self._hosts:
            self._hosts[host] = RUN_PROCESS + 1 + len(self._hosts)
            self._name_process(self._hosts[host], host)
        track = self._tracks[host, slot] = (self._hosts[host], slot + 1)
        self._name_thread(track, f"slot {slot}")
        return track

    def _name_process(self, process: int, name: str) -> None:
        self._names.append(_entry("M", (process, 0), 0, name="process_name", args={"name": name}))
        self._names.append(_entry("M", (process, 0), 0, name="process_sort_index", args={"sort_index": process}))

    def _name_thread(self, track: Track, name: str) -> None:
        self._names.append(_entry("M", track, 0, name="thread_name", args={"name": name}))
        self._names.append(_entry("M", track, 0, name="thread_sort_index", args={"sort_index": track[1]}))

    def _microseconds(self, time: float) -> int:
        return max(0, round((time - self._began) * 1e6))


def _entry(kind: str, track: Track, at: int, **more: Any) -> Entry:
    return {"ph": kind, "pid": track[0], "tid": track[1], "ts": at, **more}


def _slice(track: Track, name: str, start: int, end: int, about: Entry) -> Entry:
    return _entry("X", track, start, dur=end - start, name=name, cat="edriver", args=about)
