"""A worker that lives and does not answer, as its agent sees it: native code keeps the interpreter's lock.

Such a worker cannot watch itself (stall.py), so its agent does: what it is doing may last as long as its phase. One
that waits for others has let the lock go, and answers. A phase that changes is a sign of life: right after a long call
the worker is in its next phase, and has not answered yet.

The worker shows its phase in the memory that it shares with its agent anyway (edriver/system/life_lock.py). When the
phase's limit has passed, the agent asks with a signal that is answered in C (faulthandler): the worker's standard error
says where each thread stands. What follows is a stall like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from edriver.model.stall_limits import Phase
from edriver.v1 import notification_pb2, rounds_pb2
from edriver.wire.conversion import duration


class UnresponsiveWatch:
    """Reports each silence once that lasts longer than the worker's phase may.

    Args:
        ask: has the worker write to its standard error where it stands.

    Attributes:
        round_id: the worker's latest round.
    """

    def __init__(self, ask: Callable[[], None]) -> None:
        self.round_id = rounds_pb2.RoundId()
        self._ask = ask
        self._seconds = math.inf
        self._phase: Phase | None = None
        self._phase_began = 0.0
        self._asked = False
        self._reported = False

    def check(self, seconds: float, phase: Phase | None, limits: Mapping[str, float]) -> notification_pb2.Report | None:
        """Check again; returns the report that the worker would make of itself, if it has been silent for too long.

        One check asks the worker for its stacks, and the next one reports it, so that its answer arrives first.

        Args:
            seconds: the time for which it has been silent.
            phase: its phase; None: it is in no round, and has no time limit.
            limits: the time limit of each phase, in seconds; 0 or missing: no limit.
        """
        answered = seconds < self._seconds
        if answered or phase is not self._phase:
            self._asked = self._reported = False
            self._phase, self._phase_began = phase, 0.0 if answered else seconds
        self._seconds = seconds
        limit, lasted = limits.get(phase, 0.0) if phase else 0.0, seconds - self._phase_began
        if phase is None or not limit or lasted < limit or self._reported:
            return None
        if not self._asked:
            self._asked = True
            self._ask()
            return None
        self._reported = True
        stalled = notification_pb2.WorkerStalled(
            round_id=self.round_id,
            phase=phase,
            duration=duration(lasted),
            stacks_on_stderr=notification_pb2.StacksOnStderr(),
        )
        return notification_pb2.Report(worker_stalled=stalled)
