"""One round as the driver sees it, and the agreed interrupt that may end it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from edriver.common.ids import RoundId, Version
from edriver.driver.core import events
from edriver.driver.core.cause import BoundaryMissed, Cause, CauseKind, Digests, Done, Members, Unanswered, WorkerName
from edriver.driver.core.failures.blocked_members import BlockedMembers, UnevenState
from edriver.driver.core.failures.script_error import ScriptError
from edriver.driver.core.mode import CheckpointWay
from edriver.driver.core.rounds.ranks import RoundPlan

Report: TypeAlias = (
    events.BoundaryReached
    | events.CheckpointSaved
    | events.FirstBoundaryPassed
    | events.WorkerDone
    | events.WorkerBlocked
)


@dataclass(slots=True)
class Interrupt:
    """An agreed interrupt: all members stop at the same boundary (docs/architecture.md, "Agreed interrupt").

    Every member answers a notice at once with the boundaries it has passed, and from then on waits for the verdict
    at its next one. The highest answer plus one is then a boundary that no member has passed and that all members
    reach.

    Attributes:
        number: distinguishes it from other interrupts of the round.
        deadline: when a member that has not answered, or has not stopped, counts as hung.
        awaited: members that have not been seen to have answered; also some that have, or are members no more.
        reports: boundaries passed, by worker_id.
        boundary: the boundary at which all stop, once the verdict is known,
        cause: and why they do.
        ways: in restart mode, by what members can be asked for a checkpoint; those that cannot be are not in it.
        saved: members that have had their time for that.
    """

    number: int
    deadline: float
    awaited: set[int]
    reports: dict[int, int] = field(default_factory=dict)
    boundary: int | None = None
    cause: Cause | None = None
    ways: dict[int, CheckpointWay] = field(default_factory=dict)
    saved: set[int] = field(default_factory=set)

    def answered(self, members: set[int]) -> bool:
        """Whether every one of the round's members has reported."""
        return not _any_left(self.awaited, lambda worker_id: worker_id in members and worker_id not in self.reports)

    def agree(self) -> int:
        """The boundary at which all stop."""
        return max(self.reports.values()) + 1


@dataclass(slots=True)
class Round:
    """The running round, or the last one.

    Attributes:
        plan: as it was assigned.
        members: the workers still in it: not lost, not yet waiting for the next one.
        done: members whose training function has returned, with the boundaries they passed.
        completed: members whose process has ended with code 0 meanwhile; only in restart mode.
        lost: members that failed.
        expired: members that are being stopped, and must have ended before the next round.
        raised: tracebacks of collectives that failed, by worker_id.
        broke: whether it was one of these that ended the round; others fail because it has ended.
        errors: exceptions of the script's own, by worker_id.
        blocked: members that wait in a collective.
        interrupt: the agreed interrupt under way.
        interrupts: how many there have been.
        abort_cause: why the round was aborted.
        long_lived: whether it had lasted so long by then that the causes that ended earlier ones are forgotten.
        resume_at: after an unproven connection: when the next round may be begun,
        unproven_since: and since when one round after the other has ended so.
        rejoin_deadline: when a round that has ended is given up by those that have not come back.
        newcomers_start_at: when newcomers' processes are started at the latest, see `is_under_way`.
        open_at: from when on it may be interrupted to take in newcomers.
        under_way: members that have passed a boundary.
        digests: of the state at their first boundary, each with the member that reported it first: there should be one.
        finished: whether all were done and have received Finish.
        entered_next: whether a member has since entered the script's next `run`.
        before_first: members that have not been seen to be under way; also some that are, or are members no more.
        ranks: of all that were members, by worker_id.
    """

    plan: RoundPlan
    members: set[int]
    newcomers_start_at: float
    open_at: float = 0.0
    under_way: set[int] = field(default_factory=set)
    digests: dict[str, int] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)
    completed: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    expired: set[int] = field(default_factory=set)
    raised: dict[int, str] = field(default_factory=dict)
    broke: bool = False
    errors: dict[int, ScriptError] = field(default_factory=dict)
    blocked: BlockedMembers = field(default_factory=BlockedMembers)
    interrupt: Interrupt | None = None
    interrupts: int = 0
    abort_cause: Cause | None = None
    long_lived: bool = False
    resume_at: float | None = None
    unproven_since: float | None = None
    rejoin_deadline: float | None = None
    finished: bool = False
    entered_next: bool = False
    before_first: set[int] = field(init=False)
    ranks: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        """Begin."""
        self.before_first = set(self.plan.workers)
        self.ranks = {worker_id: rank for rank, worker_id in enumerate(self.plan.workers)}

    @property
    def running(self) -> bool:
        """Whether its members train, as far as the driver has decided."""
        return not self.finished and self.abort_cause is None and not self.stopping

    @property
    def stopping(self) -> bool:
        """Whether its members have received the boundary at which to stop."""
        return self.interrupt is not None and self.interrupt.boundary is not None

    def note_raised(self, worker_id: int, traceback: str) -> None:
        """A member's collective has failed."""
        self.raised[worker_id] = traceback
        self.broke = self.broke or self.abort_cause is None

    @property
    def met_unproven(self) -> bool:
        """Whether it has met a connection that did not prove to lead to a member."""
        return self.resume_at is not None

    def hits(self, worker_id: int) -> bool:
        """Whether a process of it ends of what the round has met: a lost peer (a member that stays in a collective
        ends), an unproven connection.
        """
        return worker_id in self.members and (bool(self.lost) or self.met_unproven)

    def uneven(self) -> UnevenState | None:
        """Whether members wait in collectives for others that are done, or have stopped."""
        blocked = self.blocked
        if not (blocked.blocked or blocked.idle) or self.finished or self.abort_cause is not None:
            return None
        if blocked.waits_from is None:
            return None
        boundary = self.interrupt.boundary if self.interrupt else None
        gone = self.members | self.lost | self.completed
        away = () if boundary is None else (w for w in self.plan.workers if w not in gone)
        done = {**dict.fromkeys(self.completed, 0), **self.done}
        return blocked.uneven(self.members, done, dict.fromkeys(away, boundary or 0), self.names)

    @property
    def cannot_stop(self) -> bool:
        """Whether all members that have not come to the agreed boundary wait in collectives for those that have."""
        found = self.uneven() if self.stopping else None
        return found is not None and found.unresolvable and bool(found.steps.stopped) and not found.steps.done

    def begin_interrupt(self, deadline: float) -> None:
        """Ask all members for their boundaries; those that are done have answered."""
        self.interrupts += 1
        self.interrupt = Interrupt(self.interrupts, deadline, set(self.members), dict(self.done))

    def note(self, event: Report, now: float) -> None:
        """Record a member's report of its progress in this round."""
        match event:
            case events.BoundaryReached(worker_id, _, number, boundaries, way):
                if self.interrupt and self.interrupt.number == number:
                    self.interrupt.reports[worker_id] = boundaries
                    if way is not CheckpointWay.NONE:
                        self.interrupt.ways[worker_id] = way
            case events.CheckpointSaved(worker_id):
                if self.interrupt:
                    self.interrupt.saved.add(worker_id)
            case events.FirstBoundaryPassed(worker_id, digest=digest):
                self.under_way.add(worker_id)
                if digest:
                    self.digests.setdefault(digest, worker_id)
            case events.WorkerDone(worker_id, _, boundaries):
                self.done[worker_id], self.blocked.waits_from = boundaries, now
                if self.interrupt:  # it will pass no further boundary, and answers no further notice
                    self.interrupt.reports[worker_id] = boundaries
            case events.WorkerBlocked(worker_id, _, boundaries, seconds):
                self.blocked.note(worker_id, now - seconds, boundaries, seconds)

    def has(self, worker_id: int, round_id: RoundId) -> bool:
        """Whether this is the round's ID and the worker is still in it; else the message is an old one."""
        return self.plan.round_id == round_id and worker_id in self.members and not self.finished

    def is_under_way(self, now: float) -> bool:
        """Whether its members have their first step behind them, so that others may use their hosts' processors."""
        return now >= self.newcomers_start_at or not self._awaits_first_step

    @property
    def _awaits_first_step(self) -> bool:
        """Whether a member has made no step yet."""
        return _any_left(
            self.before_first, lambda w: w in self.members and w not in self.under_way and w not in self.done
        )

    def deadlines(self) -> Iterator[float]:
        """When something may be due here."""
        if self.running and self._awaits_first_step:
            yield self.newcomers_start_at
        if self.running:
            yield self.open_at
        if self.interrupt and not self.finished and self.abort_cause is None:
            yield self.interrupt.deadline
        if self.rejoin_deadline is not None:
            yield self.rejoin_deadline
        if self.resume_at is not None:
            yield self.resume_at

    # ---- as causes -------------------------------------------------------------------------------------------

    @property
    def runs(self) -> Cause:
        """What the run does during this round."""
        hosts = tuple(dict.fromkeys(seat.host for seat in self.plan.seats))
        plan = self.plan
        members = Members(plan.round_id, len(plan.seats), hosts, plan.steps_lost, plan.torn, plan.checkpoint)
        return Cause(CauseKind.ROUND_RUNS, detail=members)

    @property
    def all_done(self) -> Cause:
        """Its end, once all are done."""
        counts = self.done.values()
        return Cause(CauseKind.ALL_DONE, detail=Done(min(counts, default=0), max(counts, default=0)))

    @property
    def unequal(self) -> Cause | None:
        """What the members' states differ in at their first boundary; None: nothing."""
        if len(self.digests) < 2:
            return None
        version = Version(self.plan.round_id, 1)
        found = Digests(version, tuple((self.name(worker), digest) for digest, worker in self.digests.items()))
        return Cause(CauseKind.ATTRIBUTES_DIFFER, detail=found)

    def unanswered(self, interrupt: Interrupt, bound: float) -> Cause:
        """The cause of its end, if members have not answered within this many seconds."""
        silent = self.names(self.members - interrupt.reports.keys())
        return Cause(CauseKind.NO_ANSWER, detail=Unanswered(bound, silent))

    def missed(self, interrupt: Interrupt) -> Cause:
        """Its end, where members have not come to the agreed boundary in time."""
        assert interrupt.boundary is not None
        return Cause(CauseKind.BOUNDARY_MISSED, detail=BoundaryMissed(interrupt.boundary, self.names(self.members)))

    def names(self, workers: Collection[int]) -> tuple[WorkerName, ...]:
        """These of its workers, in order of rank."""
        seats = (self.plan.seats[self.ranks[worker_id]] for worker_id in self.order(workers))
        return tuple(WorkerName(seat.worker_id, seat.host, seat.slot, seat.rank) for seat in seats)

    def name(self, worker_id: int) -> WorkerName:
        """One of its workers."""
        (name,) = self.names({worker_id})
        return name

    def order(self, workers: Collection[int]) -> tuple[int, ...]:
        """Those of these workers that were members, in order of rank."""
        return tuple(sorted((w for w in workers if w in self.ranks), key=self.ranks.__getitem__))

    def had(self, worker_id: int) -> bool:
        """Whether a worker was one of its members."""
        return worker_id in self.ranks


def _any_left(workers: set[int], belongs: Callable[[int], bool]) -> bool:
    """Whether any of these still belongs to a set that none comes back to; what no longer does is dropped here."""
    while workers:
        worker_id = next(iter(workers))
        if belongs(worker_id):
            return True
        workers.discard(worker_id)
    return False
