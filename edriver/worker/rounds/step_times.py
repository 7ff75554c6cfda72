"""How long steps take, and when none was made for too long: what a run's goodput is made of.

The training thread only notes the time of each boundary, and what the script has reported by then. What follows from
these is worked out beside it, when the agent asks.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median
from types import MappingProxyType
from typing import Final

from edriver.model.ids import NO_ROUND, RoundId
from edriver.model.stall_limits import MIN_STALL_SECONDS, Phase, excess
from edriver.v1 import notification_pb2 as pb
from edriver.wire.conversion import duration, round_id_message, timestamp

STEPS_CONSIDERED: Final = 31
"""Of so many latest steps the median is the usual one. A script whose steps become slower for good is believed after
half of them."""

MIN_STEPS_CONSIDERED: Final = 3
"""With fewer, no step is known to be unusual."""

MAX_UNREAD: Final = 100_000
"""Notes after which the training thread works out on its own what nothing has asked for."""

NOTHING_REPORTED: Final[Mapping[str, float]] = MappingProxyType({})
"""What a script has reported that has reported nothing, or whose reports are not shown."""

_DECLARED: Final = (Phase.EVAL, Phase.SAVE)

_Note = float | Mapping[str, float] | tuple[float, RoundId | Phase | Mapping[str, float]]
"""A boundary; what the script reports at its end; a boundary and what is new at it, or what else begins then."""


class StepTimer:
    """The boundaries of the round that this worker was last synced in.

    Args:
        clock: seconds, monotonic.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._notes: deque[_Note] = deque()
        self._usual: float | None = None
        self._steps: deque[float] = deque(maxlen=STEPS_CONSIDERED)
        self._round_id = NO_ROUND
        self._boundaries = 0
        self._synced = self._latest = 0.0
        self._stalled = 0.0
        self._stall: tuple[float, float, int] | None = None
        self._declared_since: float | None = None
        self._declared = 0.0  # since the latest boundary
        self._declares = False  # whether there was or is any of it
        self._noted = self._reported = NOTHING_REPORTED  # as the training thread, and as the agent, knows it

    def passed(self, reported: Mapping[str, float] = NOTHING_REPORTED) -> None:
        """A boundary was passed. Takes a fraction of a microsecond.

        Args:
            reported: what the script has reported by then; never changed, but replaced.
        """
        now = self._clock()
        if reported is self._noted:
            self._notes.append(now)
        else:
            self._noted = reported
            self._notes.append((now, reported))
        if len(self._notes) > MAX_UNREAD:
            with self._lock:
                self._read()

    def synced(self, round_id: RoundId) -> None:
        """The state was synced in a round: its first step begins."""
        self._notes.append((self._clock(), round_id))

    def entered(self, phase: Phase) -> None:
        """Record that the training thread has entered a phase. Declared evaluation and saving are not stalls."""
        self._notes.append((self._clock(), phase))

    def ended(self, reported: Mapping[str, float]) -> None:
        """The script has left `run`: what it reported last is shown, though no boundary follows."""
        self._notes.append(reported)

    @property
    def usual(self) -> float | None:
        """Seconds of a usual step; None: too few have been made. As of the last time that `fill` was called."""
        return self._usual

    def fill(self, progress: pb.WorkerProgress) -> None:
        """Add what is known of the round."""
        with self._lock:
            self._read()
            progress.round_id.CopyFrom(round_id_message(self._round_id))
            progress.boundaries = self._boundaries
            progress.reported.update(self._reported)
            if self._round_id == NO_ROUND:
                return
            ahead = self._wall_clock() - self._clock()
            progress.boundary_time.CopyFrom(timestamp(self._latest + ahead))
            progress.stalled_duration.CopyFrom(duration(self._stalled))
            progress.training_duration.CopyFrom(duration(max(0.0, self._latest - self._synced - self._stalled)))
            progress.declared_duration.CopyFrom(duration(self._declared_by(self._clock())))
            if self._usual is not None:
                progress.usual_step.CopyFrom(duration(self._usual))
            if self._stall is not None:
                start, seconds, boundary = self._stall
                progress.last_stall.CopyFrom(
                    pb.Stall(start_time=timestamp(start + ahead), duration=duration(seconds), boundary=boundary)
                )

    def _read(self) -> None:
        while self._notes:
            note = self._notes.popleft()
            match note:
                case float():
                    self._boundary(note)
                case (now, RoundId() as round_id):
                    self._begin(now, round_id)
                case (now, Phase() as phase):
                    self._phase(now, phase)
                case (now, reported):
                    self._boundary(now)
                    self._reported = reported
                case reported:
                    self._reported = reported
        if len(self._steps) >= MIN_STEPS_CONSIDERED:
            self._usual = median(self._steps)

    def _begin(self, now: float, round_id: RoundId) -> None:
        self._round_id, self._boundaries = round_id, 0
        self._synced = self._latest = now
        self._stalled, self._stall, self._declared = 0.0, None, 0.0
        self._declares = self._declared_since is not None

    def _phase(self, now: float, phase: Phase) -> None:
        self._declared = self._declared_by(now)
        self._declared_since = now if phase in _DECLARED else None
        self._declares = self._declared > 0.0 or self._declared_since is not None

    def _boundary(self, now: float) -> None:
        usual = self._usual
        step = now - self._latest
        # Nearly all are like this, and where steps are short the training thread feels what is done beside it.
        if usual is not None and 0.0 <= step <= usual + MIN_STALL_SECONDS and self._boundaries and not self._declares:
            self._boundaries += 1
            self._steps.append(step)
            self._latest = now
            return
        step = max(0.0, step - self._declared_by(now))
        if usual is None and len(self._steps) >= MIN_STEPS_CONSIDERED:
            usual = self._usual = median(self._steps)
        self._boundaries += 1
        if stalled := excess(step, usual):
            self._stalled += stalled
            self._stall = (now - stalled, stalled, self._boundaries)
        if self._boundaries > 1:  # the first one of a round is slower
            self._steps.append(step)
        self._latest, self._declared = now, 0.0
        self._declares = self._declared_since is not None

    def _declared_by(self, now: float) -> float:
        """Seconds between the latest boundary and now that the script has declared."""
        if self._declared_since is None:
            return self._declared
        return self._declared + max(0.0, now - max(self._declared_since, self._latest))
