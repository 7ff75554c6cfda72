"""What the core knows of the run, shared by its parts. Part of the core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edriver.common.ids import NO_ROUND, NO_VERSION, RoundId, Version
from edriver.driver.core.actions import Action, Failure, FinishRun, Leave, RunEnd
from edriver.driver.core.cause import Cause, CauseKind, TimedOut
from edriver.driver.core.failures.budgets import Budgets
from edriver.driver.core.failures.long_work import LongWork
from edriver.driver.core.failures.new_sizes import NewSizes
from edriver.driver.core.failures.root_cause import in_order
from edriver.driver.core.failures.suspicion import Suspects
from edriver.driver.core.roster import Roster, Worker, WorkerState
from edriver.driver.core.rounds.round import Round
from edriver.driver.core.run_activity import RunActivity
from edriver.driver.core.settings import Settings
from edriver.driver.core.staffing import Staffing


@dataclass(slots=True, eq=False)
class RunState:
    """Hosts, workers and rounds as of the last event, and the actions that follow from it.

    Attributes:
        settings: the operator's limits.
        started: when the run began, in seconds of the clock that the core is given.
        draw: see Membership.
        now: the time of the event that is being taken in.
        actions: what is to be done about it, in this order.
        roster: the workers.
        sizes: how many workers there may be.
        staffing: the hosts, and which workers they get.
        suspects: workers that are suspected.
        long_work: where members have stalled.
        budgets: how many failures and changes the run may still see.
        doing: what the run does, or waits for.
        round: the running round, or the last one; None before the first.
        ordinal: which call of `run` in the script the rounds belong to, from 1.
        best: the highest version that has been offered in this call.
        checkpoints: whether the state of this call is written to disk.
        previous_call: the last round of the script's previous call.
        idle_since: since when no round has run; None: one runs. Before the first, when --start-timeout is over.
        failures: of workers since the round was formed, by worker_id.
        survived: the latest failures before that; the processes may be reaped, and their last words known, only later.
        ended: whether FinishRun has been among the actions.
    """

    settings: Settings
    started: float
    draw: Callable[[], float]
    now: float = field(init=False)
    actions: list[Action] = field(default_factory=list)
    roster: Roster = field(default_factory=Roster)
    sizes: NewSizes = field(init=False)
    staffing: Staffing = field(init=False)
    suspects: Suspects = field(init=False)
    long_work: LongWork = field(init=False)
    budgets: Budgets = field(init=False)
    doing: RunActivity = field(default_factory=RunActivity)
    round: Round | None = None
    ordinal: int = 1
    best: Version = NO_VERSION
    checkpoints: bool = False
    previous_call: RoundId = NO_ROUND
    idle_since: float | None = field(init=False)
    failures: dict[int, Failure] = field(default_factory=dict)
    survived: dict[int, Failure] = field(default_factory=dict)
    ended: bool = False

    def __post_init__(self) -> None:
        """Begin, with no hosts."""
        self.now = self.started
        self.idle_since = self.started + self.settings.start_timeout  # until then the other timeout counts
        self.sizes = NewSizes(self.settings, self.roster)
        self.staffing = Staffing(self.settings, self.roster, self.sizes, self.draw)
        self.suspects = Suspects(self.settings, self.roster)
        self.long_work = LongWork(self.settings.long_work_timeout)
        self.budgets = Budgets(self.settings)

    def round_of(self, worker_id: int, round_id: RoundId) -> Round | None:
        """The current round, if this is its id and the worker is still in it; else the message is an old one."""
        current = self.round
        return current if current and current.has(worker_id, round_id) else None

    @property
    def holds_state(self) -> bool:
        """Whether a worker may hold state of a round."""
        return bool(self.roster.may_hold)

    @property
    def awaits_checkpoint(self) -> bool:
        """Whether a worker that is ending may still write a checkpoint."""
        return self.checkpoints and bool(self.roster.may_write)

    @property
    def completed_round(self) -> RoundId | None:
        """The last round, once no worker may hold its state or write it to disk; None: one may.

        Only a worker that was ordered to look after that sees every checkpoint: the messages in which others offer what
        they have found may be on their way for longer than the last holder lives.
        """
        if self.holds_state or self.awaits_checkpoint:
            return None
        return self.round.plan.round_id if self.round else NO_ROUND

    def unequal(self, version: Version) -> bool:
        """Whether holders of this version may differ: it is older than this `run` call, whose first sync is to come."""
        return version.round_id <= self.previous_call

    def dismiss(self, worker: Worker) -> None:
        """Have a waiting worker leave."""
        self.actions.append(Leave(worker.worker_id))
        worker.stop_at = self.now + self.settings.leave_grace
        self.roster.move(worker, WorkerState.STOPPING)

    def timed_out(self, cause: Cause | None) -> Cause:
        """Why a run ends that has waited for too long."""
        return Cause(CauseKind.TIMED_OUT, detail=TimedOut(self.settings.elastic_timeout, cause))

    def give_up(self, cause: Cause) -> None:
        """The run has failed. If a worker has ended, wait for its exit, which has the reason."""
        if not self.roster.ending:
            self.finish(RunEnd.FAILED, self.sizes.explained(cause, self.round, self.failures))

    def finish(self, end: RunEnd, cause: Cause) -> None:
        """End the run."""
        self.ended = True
        self.actions.append(FinishRun(end, cause, () if end is RunEnd.DONE else in_order(self.failures.values())))
