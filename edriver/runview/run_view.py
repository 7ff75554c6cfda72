"""How a run stands, as its events tell it: the one fold of them; pure.

Every place that shows a run reads its facts here: the driver's status, metrics and last event, and, from a stream or
records, the page, reports and exports. What is as long as the run, such as its rounds, is in `history.py`.

The state is plain data, of a size that does not depend on how long the run takes: a driver's journal holds it.

It has the rounds by cause, the lost steps, the lengths of recoveries and interruptions, and what else is counted. As it
is in the journal, what has been counted continues under the next driver.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from edriver.model.ids import NO_ROUND, RoundId
from edriver.runview.distribution import Distribution
from edriver.runview.recovery_times import RecoveryTimes
from edriver.runview.slowdowns import Slowdowns
from edriver.text.cause_names import CAUSE_NAMES, INTERRUPTION_NAMES, RECOVERY_PHASES, SCRIPT_WARNING_NAMES
from edriver.text.progress_text import knows_steps
from edriver.v1 import cause_pb2, status_pb2
from edriver.wire.conversion import epoch_seconds, round_id_of, span_seconds

PHASE_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds: of a local abort, of a sync of many gigabytes, and what lies between."""

INTERRUPTION_BOUNDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Seconds: of a kill, of a worker that was silent for its lease, of a wait for hosts."""

MAX_LOSS_TIMES: Final = 64
"""Lost workers of which the time is remembered, the latest: more than the failures that end a run."""

ENDS: Final = ("failures", "preemptions", "resizes", "unproven")
"""What the end of a round counts as, by the names that these counts have in Run and RunEnded."""

_END_OF: Final = {
    status_pb2.ROUND_KIND_FAILURE: "failures",
    status_pb2.ROUND_KIND_PREEMPTION: "preemptions",
    status_pb2.ROUND_KIND_RESIZE: "resizes",
    status_pb2.ROUND_KIND_UNPROVEN: "unproven",
}

_ACTIVITIES: Final = frozenset(
    {
        cause_pb2.CAUSE_KIND_UNSPECIFIED,  # of records that an earlier release has written
        cause_pb2.CAUSE_KIND_RUN_BEGAN,
        cause_pb2.CAUSE_KIND_ROUND_RUNS,
        cause_pb2.CAUSE_KIND_ALL_DONE,
        cause_pb2.CAUSE_KIND_WORKERS_AWAITED,
        cause_pb2.CAUSE_KIND_HOLDER_AWAITED,
        cause_pb2.CAUSE_KIND_BOOT_AWAITED,
        cause_pb2.CAUSE_KIND_SUSPECTS_AWAITED,
        cause_pb2.CAUSE_KIND_SURVIVORS_AWAITED,
        cause_pb2.CAUSE_KIND_PAUSE_AWAITED,
        cause_pb2.CAUSE_KIND_RUN_CALL_AWAITED,
    }
)
"""Causes that a run's activity can have: other remarks tell of something beside it."""


@dataclass(slots=True)
class Syncs:
    """What workers have received of the state, as far as the events of rounds have the times of their members.

    Attributes:
        count: workers that have received tensors.
        seconds: that they took for it, once the process group of their round existed.
        nbytes: of these tensors.
    """

    count: int = 0
    seconds: float = 0.0
    nbytes: int = 0

    def add(self, members: Iterable[status_pb2.Member]) -> None:
        """The members of a round have made their first step."""
        for member in members:
            if member.times.received_bytes > 0:
                self.count += 1
                self.nbytes += member.times.received_bytes
                self.seconds += max(0.0, epoch_seconds(member.times.synced) - epoch_seconds(member.times.built))


@dataclass(slots=True)
class Told:
    """What the driver has counted itself, as it has said last: it knows of events that were not folded here.

    Attributes:
        counts: rounds, steps that had to be made again, and rounds by what their end counts as.
        recoveries: how long its recoveries from failures took; None: it has not said.
    """

    counts: dict[str, int] = field(default_factory=dict)
    recoveries: status_pb2.RecoverySummary | None = None

    def add(self, message: status_pb2.Run | status_pb2.RunEnded) -> None:
        """It has said so now."""
        for name in ("rounds", *ENDS):
            self.counts[name] = getattr(message, name)
        if isinstance(message, status_pb2.Run):
            self.counts["steps_lost"] = message.steps_lost
        if message.HasField("recoveries"):
            self.recoveries = message.recoveries


@dataclass(slots=True)
class RunView:
    """The state of a run, folded from its events.

    Attributes:
        seq: the number of the last folded event.
        began: when the run began, as far as known, in seconds since the epoch.
        now: the latest time in any folded event.
        doing: what the run does, or waits for.
        round_id: the latest round; NO_ROUND before the first.
        last_size: the number of that round's members.
        goes_on: whether that round has not ended.
        stepped: whether that round has made its first step.
        round_counts: the number of rounds by the kind of their cause, as in CAUSE_NAMES.
        phases: the durations of the phases of a round's formation, by the kind of its cause and by phase.
        interruption_lengths: the durations of the times without steps, by kind, as in INTERRUPTION_NAMES.
        syncs: the state that workers have received.
        slowdowns: what slows the run down.
        script_warnings: how often something that looks like a mistake of the script was reported, by its kind, as in
            SCRIPT_WARNING_NAMES.
        progress: the progress of training; None before the first report.
        time_spent: how its time was spent, as its driver last reported; None before that.
        failure: the root cause of its latest failures; None if no failure of a worker is known.
        loss_times: when the latest losses of workers were noticed, in seconds since the epoch, by worker_id.
        ended: the run's last event; None while it continues.
    """

    seq: int = 0
    began: float = 0.0
    now: float = 0.0
    doing: str = ""
    round_id: RoundId = NO_ROUND
    last_size: int = 0
    goes_on: bool = False
    stepped: bool = False
    round_counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSE_NAMES.values(), 0))
    phases: dict[str, dict[str, Distribution]] = field(
        default_factory=lambda: {
            cause: {phase: Distribution(PHASE_BOUNDS) for phase in RECOVERY_PHASES} for cause in CAUSE_NAMES.values()
        }
    )
    interruption_lengths: dict[str, Distribution] = field(
        default_factory=lambda: {name: Distribution(INTERRUPTION_BOUNDS) for name in INTERRUPTION_NAMES.values()}
    )
    syncs: Syncs = field(default_factory=Syncs)
    slowdowns: Slowdowns = field(default_factory=Slowdowns)
    script_warnings: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SCRIPT_WARNING_NAMES.values(), 0))
    progress: status_pb2.Progress | None = None
    time_spent: status_pb2.TimeSpent | None = None
    failure: status_pb2.WorkerFailure | None = None
    loss_times: dict[int, float] = field(default_factory=dict)
    ended: status_pb2.Event | None = None
    _ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDS, 0))
    _end: str = ""  # of the latest round, as it was counted last
    _steps_lost: int = 0
    _recovery_times: RecoveryTimes = field(default_factory=RecoveryTimes)
    _told: Told = field(default_factory=Told)

    # ---- what comes in ---------------------------------------------------------------------------------------

    def fold(self, event: status_pb2.Event) -> bool:
        """Take in the next event; returns whether it is one: one that is in it already is passed over."""
        if event.seq <= self.seq:
            return False
        self.seq = event.seq
        time = epoch_seconds(event.time)
        self.now = max(self.now, time)
        self.began = self.began or time
        if (name := SCRIPT_WARNING_NAMES.get(event.cause.kind)) is not None:
            self.script_warnings[name] += 1
        match event.WhichOneof("kind"):
            case "round":
                if self.fold_round(event.round) or (event.HasField("cause") and event.text):
                    self.doing = event.text
                if not self.goes_on:
                    self.slowdowns.ended()
            case "worker" if event.HasField("cause"):
                self._lost(event.worker.worker_id, time)
            case "interruption":
                self._interruption(event.interruption)
            case "hold_up":
                self.slowdowns.hold_up = event.hold_up
            case "straggler":
                self.slowdowns.straggler(event.straggler)
            case "run_ended":
                self._run_ended(event)
            case "remark" | None if event.cause.kind in _ACTIVITIES:
                self.doing = event.text
        return True

    def fold_round(self, message: status_pb2.Round) -> bool:
        """Take in a round, as far as it has got, whose event may be forgotten; returns whether it is a new one."""
        round_id = round_id_of(message.round_id)
        if round_id < self.round_id:
            return False
        new = round_id > self.round_id
        cause = CAUSE_NAMES.get(message.kind, "start")
        if new:
            if not self._end:  # an earlier release says of aborts alone why a round ends
                self._count(message.kind)
            self._end = ""
            self.round_id, self.last_size, self.goes_on = round_id, len(message.members), True
            self.stepped = False
            self.round_counts[cause] += 1
            self._steps_lost += message.steps_lost
        if not message.HasField("end_time"):
            if message.HasField("first_step_time"):
                self.stepped = True
                for phase, distribution in self.phases[cause].items():
                    distribution.add(span_seconds(getattr(message.phases, phase)))
                self.syncs.add(message.members)
        else:
            self.goes_on = False
            self._count(message.end_kind or message.abort_kind)
        return new

    def sample(self, time: float, progress: status_pb2.Progress) -> None:
        """Training was so far at this time, in seconds since the epoch."""
        self.now = max(self.now, time)
        self.began = self.began or time
        self.progress = progress
        if progress.HasField("time_spent"):
            self.time_spent = progress.time_spent

    def look(self, run: status_pb2.Run) -> None:
        """How the run stands, as its driver says now: what no event tells.

        How far training is, and where its time has gone, comes with `sample` alone once there is progress: the two have
        to be of one moment.
        """
        self.began = epoch_seconds(run.start_time)
        self.now = max(self.now, epoch_seconds(run.now))
        if self.ended is None:  # else the driver is ending its hosts, and the last activity stays
            self.doing = run.activity.text
        self._told.add(run)
        if run.HasField("last_failure"):
            self.failure = run.last_failure
        if (self.progress is None or self.time_spent is None) and run.HasField("time_spent"):
            self.time_spent = run.time_spent
        self.slowdowns.look(run)

    def _lost(self, worker_id: int, time: float) -> None:
        """The loss of a worker was noticed; what becomes known of it later changes nothing."""
        self.loss_times.setdefault(worker_id, time)
        if len(self.loss_times) > MAX_LOSS_TIMES:
            del self.loss_times[next(iter(self.loss_times))]

    def _count(self, kind: status_pb2.RoundKind.ValueType) -> None:
        """Record that the latest round has ended for a cause of this kind; called once per reported kind."""
        end = _END_OF.get(kind, "")
        if end and end != self._end:
            self._end = end
            self._ends[end] += 1

    def _interruption(self, interruption: status_pb2.Interruption) -> None:
        self.slowdowns.hold_up = None
        self._recovery_times.add(interruption)
        name = INTERRUPTION_NAMES.get(interruption.kind, "interruption")
        self.interruption_lengths[name].add(span_seconds(interruption.duration))
        if interruption.kind == status_pb2.INTERRUPTION_KIND_BOOT:  # from before the first event
            self.began = epoch_seconds(interruption.start_time)

    def _run_ended(self, event: status_pb2.Event) -> None:
        ended = event.run_ended
        self.ended, self.doing = event, event.text
        self.slowdowns.ended()
        self._told.add(ended)
        if ended.HasField("progress"):
            self.progress = ended.progress
        if ended.HasField("time_spent"):
            self.time_spent = ended.time_spent
        if ended.worker_failures:
            self.failure = ended.worker_failures[0]

    # ---- what goes out ---------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The number of workers that train now."""
        return self.last_size if self.goes_on else 0

    @property
    def healthy(self) -> bool:
        """Whether it trains, or has ended well, or was stopped while it trained: its failures are past."""
        trained = self.stepped or not self.knows_steps
        if self.ended is None:
            return self.goes_on and trained
        ended = self.ended.run_ended
        stopped_well = ended.end == status_pb2.RUN_END_STOPPED and not ended.worker_failures and trained
        return ended.end == status_pb2.RUN_END_DONE or stopped_well

    @property
    def call(self) -> int:
        """The number of the script's current call of `run`, from 0."""
        return max(0, self.round_counts["start"] - 1)

    @property
    def rounds(self) -> int:
        """Number of rounds so far."""
        return self._most("rounds", sum(self.round_counts.values()))

    @property
    def steps_lost(self) -> int:
        """Steps that had to be made again."""
        return self._most("steps_lost", self._steps_lost)

    def count(self, end: str) -> int:
        """The number of rounds that ended in this way, one of ENDS."""
        return self._most(end, self._ends[end])

    @property
    def goodput(self) -> float | None:
        """The share of wall time spent in steps that count, as the driver has worked it out; None: it has not."""
        spent = self.time_spent
        return spent.goodput if spent is not None and spent.HasField("goodput") else None

    @property
    def knows_steps(self) -> bool:
        """Whether the driver sees the script's steps: it does not in restart mode."""
        return self.time_spent is None or knows_steps(self.time_spent)

    @property
    def knows_losses(self) -> bool:
        """Whether the steps that had to be made again are counted: in restart mode checkpoints in memory tell."""
        return self.knows_steps or self.steps_lost > 0

    @property
    def recoveries(self) -> status_pb2.RecoverySummary:
        """How long recoveries from failures took; as the driver says, who has seen all of them, if it has."""
        own, told = self._recovery_times.summary(), self._told.recoveries
        return told if told is not None and told.count > own.count else own

    def _most(self, name: str, folded: int) -> int:
        """A count, which only grows: that of the driver may be older, that of the events may lack the first ones."""
        return max(folded, self._told.counts.get(name, 0))
