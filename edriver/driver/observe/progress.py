"""How far training is, and how fast it goes, from what workers say of themselves. Nothing is decided by it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from edriver.common.ids import NO_ROUND, RoundId
from edriver.common.wire import round_id_of, span_seconds
from edriver.driver.core.rounds.ranks import RoundPlan
from edriver.v1 import agent_pb2, notification_pb2, status_pb2

RATE_WINDOW: Final = 10.0
"""Seconds over which a rate is taken."""

MAX_STEPS: Final = 2**48
"""Steps beyond which a count is taken for nonsense."""

MAX_COMMIT_BYTES: Final = 2**60
"""Bytes beyond which a sum is,"""

MOST_SECONDS: Final = 2**40
"""and seconds."""


class Rate:
    """How fast a count grows."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, float]] = deque()

    def add(self, now: float, count: float) -> None:
        """The count is so high now. One that has fallen begins anew."""
        if self._counts and count < self._counts[-1][1]:
            self._counts.clear()
        self._counts.append((now, count))
        while len(self._counts) > 2 and self._counts[1][0] < now - RATE_WINDOW:
            self._counts.popleft()

    def at(self, now: float) -> float:
        """Its growth per second; 0 where nothing was added for a whole window."""
        if len(self._counts) < 2 or self._counts[-1][0] < now - RATE_WINDOW:
            return 0.0
        (first, low), (last, high) = self._counts[0], self._counts[-1]
        return (high - low) / (last - first) if last > first else 0.0


@dataclass(slots=True)
class Commits:
    """What all workers of the run have committed, as far as they have reported it.

    Attributes:
        count: commits; each worker's count.
        seconds: for how long scripts waited for them.
        nbytes: the bytes of their tensors.
    """

    count: int = 0
    seconds: float = 0.0
    nbytes: int = 0

    def add(self, before: notification_pb2.WorkerProgress, now: notification_pb2.WorkerProgress) -> None:
        """Add what a worker has reported since its last report."""
        self.count += max(0, now.commits - before.commits)
        self.seconds += max(0.0, span_seconds(now.commit_duration) - span_seconds(before.commit_duration))
        self.nbytes += max(0, now.commit_bytes - before.commit_bytes)


class WorkerProgress:
    """What is known of one worker."""

    def __init__(self) -> None:
        self.pid = 0
        self.latest = notification_pb2.WorkerProgress()
        self.steps = Rate()


class ProgressTracker:
    """Where a run's workers stand.

    Args:
        clock: seconds, monotonic.

    Attributes:
        steps_lost: steps that had to be repeated, as far as workers have reported them.
        commits: see Commits.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._standings: dict[int, WorkerProgress] = {}
        self._plan: RoundPlan | None = None
        self._before: dict[RoundId, int] = {NO_ROUND: 0}  # steps of the run before a round began
        self._steps = Rate()
        self._samples = Rate()
        self._gone: set[int] = set()
        self.steps_lost = 0
        self.commits = Commits()

    def assigned(self, plan: RoundPlan) -> int:
        """A round begins; returns how many of the reported steps are to be repeated."""
        begins = self._before.get(plan.version.round_id, 0) + plan.version.boundaries
        lost = 0
        if self._plan is not None:
            reached = max(self._boundaries(worker_id) for worker_id in self._plan.workers)
            lost = max(plan.steps_lost, self._before[self._plan.round_id] + reached - begins)
        self._before[plan.round_id] = begins
        self._plan = plan
        for worker_id in self._gone - set(plan.workers):
            self._standings.pop(worker_id, None)
        self._gone.clear()
        self.steps_lost += lost
        return lost

    def record_progress(self, report: agent_pb2.WorkerHeartbeat) -> None:
        """Record a worker's progress.

        Raises:
            ValueError: a count is beyond any that training reaches.
        """
        standing = report.progress
        commit_seconds = span_seconds(standing.commit_duration)
        if standing.boundaries > MAX_STEPS:
            raise ValueError(f"it says that worker {report.worker_id} has passed {standing.boundaries} boundaries")
        if standing.commits > MAX_STEPS or standing.commit_bytes > MAX_COMMIT_BYTES or commit_seconds > MOST_SECONDS:
            raise ValueError(
                f"it says that worker {report.worker_id} has made {standing.commits} commits of "
                f"{standing.commit_bytes} bytes in {commit_seconds} s"
            )
        known = self._standings.setdefault(report.worker_id, WorkerProgress())
        self.commits.add(known.latest, standing)
        known.pid = report.pid or known.pid
        if known.latest.round_id == standing.round_id and standing.boundaries < known.latest.boundaries:
            return  # it was on its way for longer than what has come before
        known.latest = standing
        now = self._clock()
        known.steps.add(now, report.progress.boundaries)
        if self.first == report.worker_id:
            progress = self._counted()
            self._steps.add(now, progress.steps)
            if progress.HasField("epoch"):
                self._samples.add(now, progress.epoch * progress.samples + progress.samples_done)

    @property
    def first(self) -> int | None:
        """Rank 0 of the round that is on, or was last."""
        return None if self._plan is None else self._plan.workers[0]

    def gone(self, worker_id: int) -> None:
        """A worker's process has ended."""
        self._gone.add(worker_id)  # its last report counts until the next round begins

    def fill(self, status: status_pb2.WorkerStatus) -> None:
        """Add what is known of this worker."""
        known = self._standings.get(status.worker_id)
        if known is None:
            return
        status.pid = known.pid
        status.step_rate = known.steps.at(self._clock())
        if known.latest.round_id.n:
            status.version.round_id.CopyFrom(known.latest.round_id)
            status.version.boundaries = known.latest.boundaries

    def progress(self) -> status_pb2.Progress | None:
        """How far training is; None before the first word of a member."""
        if self._plan is None or not self._standings:
            return None
        now = self._clock()
        message = self._counted()
        message.step_rate = self._steps.at(now)
        message.sample_rate = self._samples.at(now)
        return message

    def _counted(self) -> status_pb2.Progress:
        """As rank 0 says, in the round that is on."""
        assert self._plan is not None
        first = self._plan.workers[0]
        message = status_pb2.Progress(steps=self._before[self._plan.round_id] + self._boundaries(first))
        if (known := self._standings.get(first)) is not None:
            latest = known.latest  # of a newcomer to rank 0, once it is synced: before, it knows of no epoch
            if latest.HasField("epoch"):
                message.epoch, message.samples_done, message.samples = latest.epoch, latest.samples_done, latest.samples
            message.reported.update(latest.reported)
        return message

    def _boundaries(self, worker_id: int) -> int:
        """Of the round that is on."""
        assert self._plan is not None
        known = self._standings.get(worker_id)
        if known is None or round_id_of(known.latest.round_id) != self._plan.round_id:
            return 0
        return known.latest.boundaries
