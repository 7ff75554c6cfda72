"""The progress and speed of training, from the workers' reports. No decision depends on it.

Each worker's answer to a ping carries its boundaries, its sampler's place and what the script has reported, and the
agent's heartbeat carries the latest answers, in a large run not all of them (driver/agents/periods.py). A step sends
nothing. Samples are kept for clients that connect later, at most MAX_SAMPLES of common/downsample.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from edriver.common.downsample import Downsampled
from edriver.model.ids import NO_ROUND, RoundId
from edriver.model.plan import RoundPlan
from edriver.model.stall_limits import excess
from edriver.v1 import agent_pb2, notification_pb2, status_pb2
from edriver.wire.conversion import epoch_seconds, round_id_of, span_seconds, timestamp

RATE_WINDOW: Final = 10.0
"""Seconds over which a rate is taken, at least,"""

RATE_REPORTS: Final = 2.5
"""and times between two reports: in a large run these are rare."""

MAX_STEPS: Final = 2**48
"""Steps beyond which a count is taken for nonsense."""

MAX_COMMIT_BYTES: Final = 2**60
"""Bytes beyond which a sum is,"""

MAX_SECONDS: Final = 2**40
"""and seconds."""


class StepRate:
    """How fast steps and samples are made, by the clock of the one who makes them: reports may come late."""

    def __init__(self) -> None:
        self._points: deque[_Point] = deque()
        self._heard = 0.0
        self._window = RATE_WINDOW

    def add(self, heard: float, passed: float, steps: int, samples: int = 0) -> None:
        """So many there were at a boundary. Counts that have fallen, or a clock that was set back, start again.

        Args:
            heard: when the report of it came.
            passed: when the boundary was passed, by the other clock.
            steps: steps by then.
            samples: samples by then.
        """
        if self._points:
            self._window = max(RATE_WINDOW, RATE_REPORTS * (heard - self._heard))
        self._heard = heard
        point = _Point(heard, passed, steps, samples)
        if self._points:
            last = self._points[-1]
            if steps < last.steps or samples < last.samples or passed < last.passed:
                self._points.clear()
            elif steps == last.steps:
                return  # it is the same boundary
        self._points.append(point)
        while len(self._points) > 2 and self._points[1].heard < heard - self._window:
            self._points.popleft()

    def at(self, now: float) -> tuple[float, float]:
        """Steps and samples a second; 0 where no boundary was heard of for a whole window."""
        if len(self._points) < 2 or self._points[-1].heard < now - self._window:
            return 0.0, 0.0
        first, last = self._points[0], self._points[-1]
        seconds = last.passed - first.passed
        if seconds <= 0:
            return 0.0, 0.0
        usual = seconds / (last.steps - first.steps)
        seconds += excess(self._heard - last.heard, usual)  # it says so often that it has not got further
        return (last.steps - first.steps) / seconds, (last.samples - first.samples) / seconds


class _Point(NamedTuple):
    """The counts of one report, as StepRate.add takes them."""

    heard: float
    passed: float
    steps: int
    samples: int


class SampleCount:
    """Counts the samples that a run trains on, from where its epochs stand.

    Attributes:
        total: samples so far, those of steps that had to be made again included. If the script continues in the midst
            of an epoch that another run has begun, what that has done of it is counted, too.
    """

    def __init__(self) -> None:
        self.total = 0
        self._place: tuple[int, int, int] | None = None

    def at(self, epoch: int, done: int, samples: int) -> None:
        """The run is in this epoch, of so many samples, of which so many are done."""
        before, done_before, samples_before = self._place or (epoch, 0, samples)
        if epoch == before:
            self.total += max(0, done - done_before)
        elif epoch > before:
            whole = epoch - before - 1
            self.total += max(0, samples_before - done_before) + whole * samples + done
        self._place = epoch, done, samples


@dataclass(slots=True)
class Written:
    """Checkpoints that workers have written to disk, as far as they have reported them.

    Attributes:
        count: the number of checkpoints.
        seconds: the total time that writing them took, in parallel with training.
        nbytes: the total size of their files, in bytes.
        failures: the number of checkpoints that could not be written.
        steps: the number of steps of the newest.
    """

    count: int = 0
    seconds: float = 0.0
    nbytes: int = 0
    failures: int = 0
    steps: int = 0

    def add(self, before: notification_pb2.WorkerProgress, now: notification_pb2.WorkerProgress) -> None:
        """Add what a worker has reported since its last report."""
        seconds = span_seconds(now.checkpoint_duration) - span_seconds(before.checkpoint_duration)
        self.seconds += max(0.0, seconds)
        self.nbytes += max(0, now.checkpoint_bytes - before.checkpoint_bytes)
        self.failures += max(0, now.checkpoint_failures - before.checkpoint_failures)
        if now.checkpoints > before.checkpoints:
            self.count += now.checkpoints - before.checkpoints
            self.steps = now.checkpoint_steps


@dataclass(slots=True)
class Commits:
    """Commits of all workers of the run, as far as they have reported them.

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
    """What is known of one worker. A snapshot has no rate: a few reports make it anew."""

    __slots__ = ("latest", "pid", "rate", "totals")

    def __init__(self) -> None:
        self.pid = 0
        self.latest = notification_pb2.WorkerProgress()
        self.rate = StepRate()
        self.totals: _Totals | None = None  # of the latest, once another is compared with it


class _Totals(NamedTuple):
    """What a process has committed and written so far."""

    commits: int
    commit_bytes: int
    commit_seconds: float
    checkpoints: int
    checkpoint_failures: int
    checkpoint_steps: int
    checkpoint_bytes: int
    checkpoint_seconds: float

    @classmethod
    def of(cls, progress: notification_pb2.WorkerProgress) -> _Totals:
        """Those that it reports."""
        return cls(
            progress.commits,
            progress.commit_bytes,
            span_seconds(progress.commit_duration),
            progress.checkpoints,
            progress.checkpoint_failures,
            progress.checkpoint_steps,
            progress.checkpoint_bytes,
            span_seconds(progress.checkpoint_duration),
        )


def _check_totals(worker_id: int, totals: _Totals) -> None:
    """Refuse numbers that cannot be.

    Raises:
        ValueError: one is beyond any that training reaches.
    """
    if totals.commits > MAX_STEPS or totals.commit_bytes > MAX_COMMIT_BYTES or totals.commit_seconds > MAX_SECONDS:
        raise ValueError(
            f"it says that worker {worker_id} has made {totals.commits} commits of {totals.commit_bytes} bytes in "
            f"{totals.commit_seconds} s"
        )
    if (
        max(totals.checkpoints, totals.checkpoint_failures, totals.checkpoint_steps) > MAX_STEPS
        or totals.checkpoint_bytes > MAX_COMMIT_BYTES
        or totals.checkpoint_seconds > MAX_SECONDS
    ):
        raise ValueError(
            f"it says that worker {worker_id} has written {totals.checkpoints} checkpoints of "
            f"{totals.checkpoint_bytes} bytes, up to step {totals.checkpoint_steps}"
        )


class ProgressTracker:
    """The progress of a run's workers.

    Args:
        clock: seconds, monotonic.

    Attributes:
        commits: see Commits.
        checkpoints: see Written.
        samples: see SampleCount.
        without_boundary: whether the script makes steps without a boundary, so that they are not counted.
    """

    STATE = (
        "pids",
        "reports",
        "_before",
        "_reached",
        "_rate",
        "_gone",
        "commits",
        "checkpoints",
        "samples",
        "without_boundary",
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._standings: dict[int, WorkerProgress] = {}
        self._plan: RoundPlan | None = None
        self._before: dict[RoundId, int] = {NO_ROUND: 0}  # steps of the run before a round began
        self._reached = 0  # boundaries of the round that is on, of the member that is farthest
        self._rate = StepRate()
        self._gone: set[int] = set()
        self.commits = Commits()
        self.checkpoints = Written()
        self.samples = SampleCount()
        self.without_boundary = False

    @property
    def pids(self) -> dict[int, int]:
        """The process of each worker, by worker_id."""
        return {worker_id: known.pid for worker_id, known in self._standings.items()}

    @pids.setter
    def pids(self, pids: dict[int, int]) -> None:
        for worker_id, pid in pids.items():
            self._standings.setdefault(worker_id, WorkerProgress()).pid = pid

    @property
    def reports(self) -> dict[int, notification_pb2.WorkerProgress]:
        """The latest report of each worker, by worker_id."""
        return {worker_id: known.latest for worker_id, known in self._standings.items()}

    @reports.setter
    def reports(self, reports: dict[int, notification_pb2.WorkerProgress]) -> None:
        for worker_id, latest in reports.items():
            self._standings.setdefault(worker_id, WorkerProgress()).latest = latest

    def restore_plan(self, plan: RoundPlan | None) -> None:
        """After a snapshot: this is the latest round."""
        self._plan = plan

    def assigned(self, plan: RoundPlan) -> int:
        """Begin a round; returns the number of reported steps that must be repeated."""
        begins = plan.checkpoint or self._before.get(plan.version.round_id, 0) + plan.version.boundaries
        lost = 0
        if self._plan is not None:
            lost = max(plan.steps_lost, self._before[self._plan.round_id] + self._reached - begins)
        self._before[plan.round_id] = begins
        self._plan, self._reached = plan, 0
        for worker_id in self._gone - set(plan.workers):
            self._standings.pop(worker_id, None)
        self._gone.clear()
        return lost

    def step_after(self, round_id: RoundId, boundaries: int) -> int:
        """The step of the run that follows so many boundaries of a round, from 1; 0: it is not known."""
        before = self._before.get(round_id)
        if before is None or round_id == NO_ROUND or self.without_boundary:
            return 0
        return before + boundaries + 1

    def go_on_after(self, steps: int) -> None:
        """Another driver has written that so many steps were made; what workers report is not replayed."""
        if self._plan is not None:
            self._reached = max(self._reached, steps - self._before[self._plan.round_id])

    def record_progress(self, report: agent_pb2.WorkerHeartbeat) -> None:
        """Record a worker's progress.

        Raises:
            ValueError: a count is beyond any that training reaches.
        """
        standing = report.progress
        if standing.boundaries > MAX_STEPS:
            raise ValueError(f"it says that worker {report.worker_id} has passed {standing.boundaries} boundaries")
        totals = _Totals.of(standing)
        known = self._standings.get(report.worker_id) or WorkerProgress()
        if totals != known.totals:
            _check_totals(report.worker_id, totals)
            self.commits.add(known.latest, standing)
            self.checkpoints.add(known.latest, standing)
        self._standings[report.worker_id] = known
        known.pid = report.pid or known.pid
        if known.latest.round_id == standing.round_id and standing.boundaries < known.latest.boundaries:
            return  # it took longer than a later report, which has arrived
        if known.latest.round_id != standing.round_id:
            known.rate = StepRate()  # before its first round a worker has passed no boundary: its time is 0
        known.latest, known.totals = standing, totals
        now, passed = self._clock(), epoch_seconds(standing.boundary_time)
        known.rate.add(now, passed, standing.boundaries)
        if self._plan is None or round_id_of(standing.round_id) != self._plan.round_id:
            return
        self._reached = max(self._reached, standing.boundaries)
        if report.worker_id == self.first:
            if standing.HasField("epoch"):
                self.samples.at(standing.epoch, standing.samples_done, standing.samples)
            steps = self._before[self._plan.round_id] + standing.boundaries
            self._rate.add(now, passed, steps, self.samples.total)

    @property
    def first(self) -> int | None:
        """Rank 0 of the current round, or else of the last one."""
        return None if self._plan is None else self._plan.workers[0]

    def gone(self, worker_id: int) -> None:
        """A worker's process has ended."""
        self._gone.add(worker_id)  # its last report counts until the next round begins

    def fill(self, status: status_pb2.WorkerStatus) -> None:
        """Add what is known about this worker."""
        known = self._standings.get(status.worker_id)
        if known is None:
            return
        status.pid = known.pid
        status.step_rate, _ = known.rate.at(self._clock())
        if known.latest.round_id.n:
            status.version.round_id.CopyFrom(known.latest.round_id)
            status.version.boundaries = known.latest.boundaries

    def progress(self) -> status_pb2.Progress | None:
        """The progress of training; None before the first report of a member."""
        if self._plan is None or not self._standings:
            return None
        now = self._clock()
        message = self._counted()
        message.step_rate, message.sample_rate = self._rate.at(now)
        return message

    def _counted(self) -> status_pb2.Progress:
        """The steps of the member that is furthest ahead; everything else as rank 0 of the current round reports it."""
        assert self._plan is not None
        message = status_pb2.Progress(steps=self._before[self._plan.round_id] + self._reached)
        if self.without_boundary:
            message.without_boundary = True
        if (known := self._standings.get(self._plan.workers[0])) is not None:
            latest = known.latest  # of a newcomer to rank 0, once it is synced: before, it knows of no epoch
            round_id = round_id_of(latest.round_id)
            if round_id != NO_ROUND and round_id in self._before:
                message.rank_0_steps = self._before[round_id] + latest.boundaries
            if latest.HasField("epoch"):
                message.epoch, message.samples_done, message.samples = latest.epoch, latest.samples_done, latest.samples
            message.reported.update(latest.reported)
        return message


class ProgressHistory:
    """The training progress since the run began, for observers that connect later.

    It remembers a bounded number of samples; the longer the run, the farther they lie apart.

    Args:
        tracker: the training progress.
        clock: seconds since the epoch.
    """

    def __init__(self, tracker: ProgressTracker, clock: Callable[[], float]) -> None:
        self._tracker = tracker
        self._clock = clock
        self._samples: Downsampled[status_pb2.Progress] = Downsampled()

    def record_progress(self, report: agent_pb2.WorkerHeartbeat) -> None:
        """Record a worker's progress, which the tracker has already. Only rank 0's counts."""
        if report.worker_id != self._tracker.first:
            return
        now = self._clock()
        if self._samples.due(now) and (progress := self._tracker.progress()):
            self._samples.add(now, progress)

    def samples(self) -> Iterator[status_pb2.ProgressSample]:
        """All that are remembered, oldest first."""
        return (
            status_pb2.ProgressSample(time=timestamp(time), progress=progress)
            for time, progress in self._samples.samples
        )
