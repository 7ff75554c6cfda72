"""Looking at the training thread, twenty times a second, from a separate thread: what a step's time goes into.

In synchronous training all members make their steps at the same pace, so a step's time says nothing about who is slow:
the slow one is the one that waits least for the others. A look costs the training thread nothing but the time for which
the interpreter's lock is held, some microseconds. What it cannot see: work of a GPU, which the host does not wait for;
and code that holds the lock, which is counted once it lets go.

What is looked at is the innermost Python frame, and whether the kernel lets the thread sleep there. DDP's own
statistics would be exact, but they are private, sampled, of DDP alone, and know nothing of data loading; a look works
for whatever the script does, and names its line. A worker without a boundary for as long as makes a stall says at once
what it does, and its agent says that its process is stopped.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable
from typing import Final, Protocol

from edriver.model.stall_limits import Phase, excess
from edriver.text.wire_text import wire_text
from edriver.v1 import notification_pb2 as pb
from edriver.v1 import pace_pb2
from edriver.wire.conversion import duration
from edriver.worker.backend.interpreter import frames
from edriver.worker.watch.activity import activity_of, may_wait
from edriver.worker.watch.forked import CreatorProcess
from edriver.worker.watch.script_location import place_of

LOOK_INTERVAL: Final = 0.05
"""Seconds between two looks."""

MAX_LOOK_INTERVAL: Final = 1.0
"""After so many seconds without a look the process was stopped, or native code held the interpreter's lock: the time
counts as its own, whatever it does now."""

UNKNOWN_STEP: Final = 10.0
"""Seconds without a boundary that are long where it is not known how long a step usually takes."""

STOP_BOUND: Final = 1.0
"""Seconds that the last look may take: it may wait for the agent to take a report."""

REPORT_INTERVAL: Final = 1.0
"""Seconds between two reports of what it does, at least."""

_DECLARED: Final = {Phase.EVAL: pace_pb2.WORKER_ACTIVITY_EVALUATING, Phase.SAVE: pace_pb2.WORKER_ACTIVITY_SAVING}


class Watched(Protocol):
    """What the looks have to know of the worker."""

    @property
    def progress(self) -> Hashable:
        """Changes at each boundary; None: it is in no round, or has not passed the round's first boundary."""

    @property
    def phase(self) -> Phase:
        """What its script has declared."""

    @property
    def waits_for_verdict(self) -> bool:
        """Whether it waits at a boundary for the other members."""

    @property
    def usual_step(self) -> float | None:
        """Seconds of a usual step; None: not known."""

    @property
    def waiting_is_seen(self) -> bool:
        """Whether its thread waits where its collectives do: not where a GPU does."""


class TrainingLooks:
    """The looks at one thread.

    Args:
        thread: the training thread, which has been started.
        watched: the worker.
        changed: called when no boundary was passed for long, when it does something else then, and when it continues.
        clock: seconds, monotonic.
        frame_of: the innermost frame of a thread.
        is_asleep: whether the training thread sleeps.
    """

    def __init__(
        self,
        thread: threading.Thread,
        watched: Watched,
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        is_asleep: Callable[[], bool] | None = None,
    ) -> None:
        assert thread.ident is not None
        self._ident = thread.ident
        self._watched = watched
        self._changed = changed
        self._clock = clock
        self._task = f"/proc/self/task/{thread.native_id}"
        self._stat: int | None = None
        self._is_asleep = is_asleep or self._sleeps
        self._stopping = threading.Event()
        self._owner = CreatorProcess()
        self._thread: threading.Thread | None = None
        self._progress: Hashable = None
        self._looked_at = self._since = clock()
        self._reported_at = -REPORT_INTERVAL
        self._reported: pace_pb2.WorkerActivity.ValueType | None = None
        self._activity: pace_pb2.WorkerActivity.ValueType | None = None
        self._watched_seconds = self._waiting = self._loading = 0.0

    def start(self) -> None:
        """Look from now on."""
        self._stopping.clear()
        self._looked_at = self._since = self._clock()
        self._thread = threading.Thread(target=self._run, name="edriver-looks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more. In a forked child, where nothing looks and a lock may be held for ever, nothing happens."""
        if not self._owner.is_here:
            return
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_BOUND)
            self._thread = None
        if self._stat is not None:
            os.close(self._stat)
            self._stat = None

    def look(self) -> None:
        """Look once."""
        now = self._clock()
        elapsed, self._looked_at = now - self._looked_at, now
        progress = self._watched.progress
        if progress is None:
            self._progress, self._since, self._activity = None, now, None
            self._report(now, None)
            return
        if progress != self._progress:
            self._progress, self._since = progress, now
        activity = self._now()
        if self._watched.phase not in _DECLARED:
            self._watched_seconds += elapsed
            if elapsed <= MAX_LOOK_INTERVAL:
                if activity == pace_pb2.WORKER_ACTIVITY_WAITING:
                    self._waiting += elapsed
                elif activity == pace_pb2.WORKER_ACTIVITY_LOADING:
                    self._loading += elapsed
        usual = self._watched.usual_step
        lasted = now - self._since
        overdue = lasted > UNKNOWN_STEP if usual is None else excess(lasted, usual) > 0
        self._activity = activity if overdue else None
        self._report(now, self._activity)

    def fill(self, progress: pb.WorkerProgress) -> None:
        """Add what was seen. On any thread."""
        progress.watched_duration.CopyFrom(duration(self._watched_seconds))
        if self._watched.waiting_is_seen:
            progress.waiting_duration.CopyFrom(duration(self._waiting))
        progress.loading_duration.CopyFrom(duration(self._loading))
        if (delayed := self._delayed()) is not None:
            progress.delayed_duration.CopyFrom(duration(delayed))
        if (activity := self._activity) is not None:
            frame = frames().get(self._ident)
            progress.standing.activity = activity
            progress.standing.place = "" if frame is None else wire_text(place_of(frame))
            progress.standing.duration.CopyFrom(duration(max(0.0, self._clock() - self._since)))

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_INTERVAL):
            self.look()

    def _report(self, now: float, activity: pace_pb2.WorkerActivity.ValueType | None) -> None:
        """Say what it does, if that has changed."""
        if activity != self._reported and now - self._reported_at >= REPORT_INTERVAL:
            self._reported, self._reported_at = activity, now
            self._changed()

    def _now(self) -> pace_pb2.WorkerActivity.ValueType:
        phase = self._watched.phase
        if phase in _DECLARED:
            return _DECLARED[phase]
        if phase is Phase.COMMIT:
            return pace_pb2.WORKER_ACTIVITY_COMMITTING
        if self._watched.waits_for_verdict:
            return pace_pb2.WORKER_ACTIVITY_WAITING
        frame = frames().get(self._ident)
        if frame is None:
            return pace_pb2.WORKER_ACTIVITY_UNSPECIFIED
        return activity_of(frame, may_wait(frame) and self._is_asleep())

    def _sleeps(self) -> bool:
        try:
            if self._stat is None:
                self._stat = os.open(f"{self._task}/stat", os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._stat, 512, 0).rpartition(b")")[2].split(None, 1)[0] == b"S"
        except (OSError, IndexError):
            return False

    def _delayed(self) -> float | None:
        """Seconds for which the thread could have run and had no processor (Documentation/scheduler/sched-stats)."""
        try:
            with open(f"{self._task}/schedstat", "rb") as file:  # noqa: PTH123  as cheap as can be
                return int(file.read().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return None
