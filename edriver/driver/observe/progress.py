"""How far training is, and how fast it goes, from what workers say of themselves. Nothing is decided by it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from edriver.common.ids import NO_ROUND, RoundId
from edriver.common.wire import round_id_of
from edriver.driver.core.ranks import RoundPlan
from edriver.v1 import agent_pb2, notification_pb2, status_pb2

WINDOW: Final = 10.0
"""Seconds over which a rate is taken."""

FARTHEST: Final = 2**48
"""Steps beyond which a count is taken for nonsense."""

MOST_BYTES: Final = 2**60
"""Bytes beyond which a sum is."""


class Rate:
    """How fast a count grows."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, float]] = deque()

    def add(self, now: float, count: float) -> None:
        """The count is so high now. One that has fallen begins anew."""
        if self._counts and count < self._counts[-1][1]:
            self._counts.clear()
        self._counts.append((now, count))
        while len(self._counts) > 2 and self._counts[1][0] < now - WINDOW:
            self._counts.popleft()

    def at(self, now: float) -> float:
        """How much it grows a second; 0 where nothing was heard for a whole window."""
        if len(self._counts) < 2 or self._counts[-1][0] < now - WINDOW:
            return 0.0
        (first, low), (last, high) = self._counts[0], self._counts[-1]
        return (high - low) / (last - first) if last > first else 0.0


@dataclass(slots=True)
class Commits:
    """What all workers that there ever were have committed, as far as they were heard of.

    Attributes:
        count: commits; each worker's count.
        seconds: for how long scripts waited for them.
        nbytes: the bytes of their tensors.
    """

    count: int = 0
    seconds: float = 0.0
    nbytes: int = 0

    def add(self, before: notification_pb2.Standing, now: notification_pb2.Standing) -> None:
        """A worker has said this after that."""
        self.count += max(0, now.commits - before.commits)
        self.seconds += max(0.0, now.commit_seconds - before.commit_seconds)
        self.nbytes += max(0, now.commit_bytes - before.commit_bytes)


class Standing:
    """What is known of one worker."""

    def __init__(self) -> None:
        self.pid = 0
        self.latest = notification_pb2.Standing()
        self.steps = Rate()


class Pace:
    """Where a run's workers stand.

    Args:
        clock: seconds, monotonic.

    Attributes:
        steps_lost: steps that were made, and had to be made again, as far as they were heard of.
        commits: see Commits.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._standings: dict[int, Standing] = {}
        self._plan: RoundPlan | None = None
        self._before: dict[RoundId, int] = {NO_ROUND: 0}  # steps of the run before a round began
        self._steps = Rate()
        self._samples = Rate()
        self._gone: set[int] = set()
        self.steps_lost = 0
        self.commits = Commits()

    def assigned(self, plan: RoundPlan) -> int:
        """A round begins; returns how many steps are to be made again, of those that were heard of."""
        begins = self._before.get(plan.version.round_id, 0) + plan.version.boundaries
        lost = 0
        if self._plan is not None:
            reached = max(self._boundaries(worker_id) for worker_id in self._plan.workers)
            lost = max(0, self._before[self._plan.round_id] + reached - begins)
        self._before[plan.round_id] = begins
        self._plan = plan
        for worker_id in self._gone - set(plan.workers):
            self._standings.pop(worker_id, None)
        self._gone.clear()
        self.steps_lost += lost
        return lost

    def heard(self, said: agent_pb2.WorkerStanding) -> None:
        """A worker has said how far it has come.

        Raises:
            ValueError: a count is beyond any that training reaches.
        """
        standing = said.standing
        if standing.boundaries > FARTHEST:
            raise ValueError(f"it says that worker {said.worker_id} has passed {standing.boundaries} boundaries")
        if (
            standing.commits > FARTHEST
            or standing.commit_bytes > MOST_BYTES
            or not math.isfinite(standing.commit_seconds)
        ):
            raise ValueError(
                f"it says that worker {said.worker_id} has made {standing.commits} commits of "
                f"{standing.commit_bytes} bytes in {standing.commit_seconds} s"
            )
        known = self._standings.setdefault(said.worker_id, Standing())
        self.commits.add(known.latest, standing)
        known.pid, known.latest = said.pid, said.standing
        now = self._clock()
        known.steps.add(now, said.standing.boundaries)
        if self.first == said.worker_id:
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
        self._gone.add(worker_id)  # what it has said counts until the next round begins

    def fill(self, told: status_pb2.WorkerStatus) -> None:
        """Add what is known of this worker."""
        known = self._standings.get(told.worker_id)
        if known is None:
            return
        told.pid = known.pid
        told.step_rate = known.steps.at(self._clock())
        if known.latest.round_id.n:
            told.version.round_id.CopyFrom(known.latest.round_id)
            told.version.boundaries = known.latest.boundaries

    def progress(self) -> status_pb2.Progress | None:
        """How far training is; None before the first word of a member."""
        if self._plan is None or not self._standings:
            return None
        now = self._clock()
        told = self._counted()
        told.step_rate = self._steps.at(now)
        told.sample_rate = self._samples.at(now)
        return told

    def _counted(self) -> status_pb2.Progress:
        """As rank 0 says, in the round that is on."""
        assert self._plan is not None
        first = self._plan.workers[0]
        told = status_pb2.Progress(steps=self._before[self._plan.round_id] + self._boundaries(first))
        if (known := self._standings.get(first)) is not None:
            latest = known.latest
            if latest.HasField("epoch"):
                told.epoch, told.samples_done, told.samples = latest.epoch, latest.samples_done, latest.samples
            told.reported.update(latest.reported)
        return told

    def _boundaries(self, worker_id: int) -> int:
        """Of the round that is on."""
        assert self._plan is not None
        known = self._standings.get(worker_id)
        if known is None or round_id_of(known.latest.round_id) != self._plan.round_id:
            return 0
        return known.latest.boundaries
