"""One round as the driver sees it, with the states of a round, and the agreed interrupt that may end it.

A round changes by the methods of `Round` alone; `round_control.py` says when.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Container
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, TypeAlias

from edriver.driver.core.blocked_members import BlockedMembers, UnevenState
from edriver.model import events
from edriver.model.cause import BoundaryMissed, Cause, CauseKind, Digests, Done, Members, Unanswered, WorkerName
from edriver.model.ids import NO_ROUND, NO_VERSION, RoundId, Version
from edriver.model.limits import MAX_NAMED
from edriver.model.mode import CheckpointWay
from edriver.model.plan import RoundPlan
from edriver.model.script_error import ScriptError
from edriver.model.transitions import next_state

MAX_LEFT_AT: Final = 8
"""Places in the script at which members were that are remembered."""

MAX_COMPARED_BOUNDARIES: Final = 4
"""Later boundaries at which members' digests are compared, at a time: members report them some steps apart at most."""

Report: TypeAlias = (
    events.BoundaryReached
    | events.CheckpointSaved
    | events.FirstBoundaryPassed
    | events.StateDigest
    | events.WorkerDone
    | events.WorkerBlocked
    | events.WorkerIdle
)


class RoundState(enum.Enum):
    """The state of a round. It has ended once it is STOPPING, ABORTED or FINISHED; members may still be in it. One that
    is HANDING_OVER ends as its members come back.
    """

    __hash__ = object.__hash__  # Enum's own is Python code, and the core looks these up in every step

    RUNNING = "running"  # its members train
    HANDING_OVER = "handing-over"  # it has guests: its members send and receive state, and come back
    NOTIFIED = "notified"  # they do, and must report the number of boundaries passed
    STOPPING = "stopping"  # each of them stops at the agreed boundary
    ABORTED = "aborted"  # its collectives are broken: each of them comes back from where it is
    FINISHED = "finished"  # all members were done: the `run` call is over


class RoundStep(enum.Enum):
    """What changes a round's state: an order to its members."""

    __hash__ = object.__hash__  # Enum's own is Python code, and the core looks these up in every step

    HOSTS_UPDATED = "HostsUpdated"
    GO_ON = "GoOn"
    STOP_AT = "StopAt"
    ABORT = "Abort"
    FINISH = "Finish"


ROUND_TRANSITIONS: Final = {
    (RoundState.RUNNING, RoundStep.HOSTS_UPDATED): RoundState.NOTIFIED,
    (RoundState.RUNNING, RoundStep.ABORT): RoundState.ABORTED,
    (RoundState.RUNNING, RoundStep.FINISH): RoundState.FINISHED,
    (RoundState.NOTIFIED, RoundStep.GO_ON): RoundState.RUNNING,
    (RoundState.NOTIFIED, RoundStep.STOP_AT): RoundState.STOPPING,
    (RoundState.NOTIFIED, RoundStep.ABORT): RoundState.ABORTED,
    (RoundState.NOTIFIED, RoundStep.FINISH): RoundState.FINISHED,
    (RoundState.STOPPING, RoundStep.ABORT): RoundState.ABORTED,
    (RoundState.STOPPING, RoundStep.FINISH): RoundState.FINISHED,  # all returned before the boundary
    (RoundState.HANDING_OVER, RoundStep.ABORT): RoundState.ABORTED,
}
"""What follows from what. A round begins as RUNNING, by its RoundPlan, or as HANDING_OVER if that has guests."""


@dataclass(slots=True)
class RunCall:
    """The script's current call of `edriver.run`: its rounds pass one state on.

    Up to the first boundary of a round a version keeps its name. Members are synced one after the other; were what one
    position holds to have a new name, and the same of another position still the old one, both would be lost. Only the
    first sync of a call gives its version a new name, because states may differ before it. If that sync breaks and
    leaves a position without the name, while a member was not synced, no step can have followed. So it is undone, and
    what those that were synced hold counts as what the call began with.

    Attributes:
        ordinal: which call of the script it is, from 1.
        best: the highest version that has been offered in it.
        checkpoints: whether its state is written to disk, so that new workers may find a checkpoint.
        previous: the last round of the call before.
        without_boundary: whether its latest steps were made without a boundary, so that no agreed interrupt can end.
        best_before: `best` before its latest first sync.
        undone: first syncs that have come to nothing, by their rounds: the versions that these had continued from.
    """

    ordinal: int = 1
    best: Version = NO_VERSION
    checkpoints: bool = False
    previous: RoundId = NO_ROUND
    without_boundary: bool = False
    best_before: Version = NO_VERSION
    undone: dict[RoundId, Version] = field(default_factory=dict)

    def note_offer(self, version: Version, checkpoint: int | None) -> None:
        """A worker offers a state in it; `checkpoint` as in WorkerWaiting."""
        self.best = max(self.best, self.worth(version))
        self.checkpoints = self.checkpoints or checkpoint is not None

    def note_trained(self, round_id: RoundId) -> None:
        """A round may have trained, and none of its members has offered what it holds."""
        self.best = max(self.best, Version(round_id, 0))

    def begin_first_sync(self) -> None:
        """A round begins that makes the states of its members equal."""
        self.best_before = self.best

    def undo_first_sync(self, plan: RoundPlan) -> None:
        """It has broken before all of them had their state, so no step has followed it."""
        self.undone[plan.round_id] = plan.version
        self.best = self.best_before

    def worth(self, version: Version) -> Version:
        """The version that a state counts as: what a first sync that was undone has made is as good as before."""
        while version.round_id in self.undone:
            version = self.undone[version.round_id]
        return version

    def end(self, last: RoundId) -> None:
        """Its last round is finished: the script may enter the next one."""
        self.ordinal += 1
        self.best, self.checkpoints, self.previous = NO_VERSION, False, last
        self.undone.clear()
        self.without_boundary = False

    def may_differ(self, version: Version) -> bool:
        """Whether holders of this version may differ: it is older than this call, whose first sync is to come."""
        return version.round_id <= self.previous


@dataclass(slots=True)
class Interrupt:
    """An agreed interrupt: all members stop at the same boundary (docs/architecture.md, "Agreed interrupt").

    Every member answers a notice at once with the boundaries it has passed, and from then on waits for the verdict
    at its next one. The highest answer plus one is then a boundary that no member has passed and that all members
    reach. The notification thread answers, not the training loop: one rank could wait at its boundary for the answer of
    another that waits in a collective for the first. A member that is done answers with its final count.

    No member leaves before all have stopped: one that exits early would reset connections that others still use in the
    step before that boundary.

    Where ranks make unequal numbers of steps (torch's Join, `hvd.join`), some cannot reach it: they wait in collectives
    for those that have stopped there. Once all that are left do, the round is aborted for the cause of the interrupt,
    and counts as the change of members that it is. Nothing is lost by that: those that stopped offer the highest
    version.

    Attributes:
        number: distinguishes it from other interrupts of the round.
        deadline: when a member that has not answered, or has not stopped, counts as hung.
        awaited: members that have not been seen to have answered; also some that have, or are members no more.
        reports: boundaries passed, by worker_id.
        boundary: the boundary at which all stop, once the verdict is known,
        cause: and why they do.
        counted: whether the round's end has been counted for that, when the verdict was given.
        ways: in restart mode, by what members can be asked for a checkpoint; those that cannot be are not in it.
        saved: members that have had their time for that.
        unsaved: those whose checkpoint is awaited, once that is known; also some that have saved, or have left.
    """

    number: int
    deadline: float
    awaited: set[int]
    reports: dict[int, int] = field(default_factory=dict)
    boundary: int | None = None
    cause: Cause | None = None
    counted: bool = False
    ways: dict[int, CheckpointWay] = field(default_factory=dict)
    saved: set[int] = field(default_factory=set)
    unsaved: set[int] | None = None

    def answered(self, members: set[int]) -> bool:
        """Whether every one of the round's members has reported."""
        return not _any_left(self.awaited, lambda worker_id: worker_id in members and worker_id not in self.reports)

    def awaits_save(self, members: set[int], done: Container[int]) -> bool:
        """Whether a member may still save a checkpoint. One that is done will not.

        Where some save by a call, those that only handle a signal are not waited for: they may never report it.
        """
        if self.unsaved is None:
            awaited = CheckpointWay.CALL if CheckpointWay.CALL in self.ways.values() else CheckpointWay.SIGNAL
            self.unsaved = {worker_id for worker_id, way in self.ways.items() if way is awaited}
        saved = self.saved
        return _any_left(self.unsaved, lambda w: w in members and w not in saved and w not in done)

    def agree(self) -> int:
        """The boundary at which all stop."""
        return max(self.reports.values()) + 1


@dataclass(slots=True)
class Round:
    """The running round, or the last one.

    Attributes:
        plan: the plan as assigned.
        state: see RoundState.
        members: the workers still in it: not lost, not yet waiting for the next one.
        done: the members whose training function has returned, with the number of boundaries they passed.
        completed: the members whose process has meanwhile ended with code 0; only in restart mode.
        lost: the members that failed.
        exits_awaited: the members that are being killed or stopped, and must have ended before the next round; also
            some that have.
        raised: tracebacks of collectives that failed, by worker_id.
        broke: whether such a failure ended the round; other collectives fail because the round has ended.
        errors: exceptions of the script itself, by worker_id.
        blocked: the members that wait in a collective.
        interrupt: the agreed interrupt in progress.
        interrupts: the number of interrupts so far.
        abort_cause: why the round was aborted.
        long_lived: whether it had by then lasted so long that the causes that ended earlier rounds are forgotten.
        resume_at: after an unproven connection, when the next round may begin.
        unproven_since: since when consecutive rounds have ended for an unproven connection.
        rejoin_deadline: when to form the next round without the members that have not returned.
        newcomers_start_at: the latest time to start newcomers' processes; see `is_under_way`.
        open_at: from when on it may be interrupted to take in newcomers.
        newcomers: the members with whom the others have made no step yet; empty in restart mode.
        joined_at: when these joined it.
        without_place: workers that waited for it and got no place in it. They leave once it is under way.
        under_way: the members that have passed a boundary.
        digests: the digests of the state at the members' first boundary, each with the member that reported it first;
            there should be only one.
        later_digests: the same at the latest of the later boundaries at which members report them.
        entered_next: whether a member has since entered the script's next `run`.
        before_first: the members not yet seen to be under way; may include some that are, or are no longer members.
        ranks: the ranks of all current and former members, by worker_id.
        last_step: the last step that a former member's script has made, in restart mode; 0: not known.
        state_keepers: the number of workers that are in it for the state that only they hold: they have no slot.
        left_at: where in the script members were when they left it for the loss of a peer, each place with one of them.
    """

    plan: RoundPlan
    members: set[int]
    newcomers_start_at: float
    open_at: float = 0.0
    newcomers: set[int] = field(default_factory=set)
    joined_at: float = 0.0
    state: RoundState = RoundState.RUNNING
    under_way: set[int] = field(default_factory=set)
    digests: dict[str, int] = field(default_factory=dict)
    later_digests: dict[int, dict[str, int]] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)
    completed: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    exits_awaited: set[int] = field(default_factory=set)
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
    entered_next: bool = False
    last_step: int = 0
    state_keepers: int = 0
    left_at: dict[ScriptError, int] = field(default_factory=dict)
    without_place: set[int] = field(default_factory=set)
    before_first: set[int] = field(init=False)
    ranks: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        """Begin."""
        self.before_first = set(self.plan.workers)
        self.ranks = {worker_id: rank for rank, worker_id in enumerate(self.plan.workers)}
        if self.plan.hands_over and self.state is RoundState.RUNNING:
            self.state = RoundState.HANDING_OVER

    # ---- its state -------------------------------------------------------------------------------------------

    def _move(self, step: RoundStep) -> None:
        self.state = next_state(ROUND_TRANSITIONS, self.state, step, f"round {self.plan.round_id}")

    @property
    def running(self) -> bool:
        """Whether its members train, as far as the driver has decided."""
        return self.state in (RoundState.RUNNING, RoundState.NOTIFIED)

    @property
    def stopping(self) -> bool:
        """Whether its members have received the boundary at which to stop, and it is not aborted."""
        return self.state is RoundState.STOPPING

    @property
    def handing_over(self) -> bool:
        """Whether its members send and receive state, and come back without training; it is not aborted."""
        return self.state is RoundState.HANDING_OVER

    @property
    def aborted(self) -> bool:
        """Whether it was aborted."""
        return self.state is RoundState.ABORTED

    @property
    def finished(self) -> bool:
        """Whether all were done and have received Finish."""
        return self.state is RoundState.FINISHED

    def ask(self, deadline: float) -> Interrupt:
        """Notify all members, who answer with the boundaries they have passed; those that are done have answered.

        Args:
            deadline: see Interrupt.
        """
        self._move(RoundStep.HOSTS_UPDATED)
        self.interrupts += 1
        self.interrupt = Interrupt(self.interrupts, deadline, set(self.members), dict(self.done))
        return self.interrupt

    def go_on(self) -> None:
        """No member stops: what the interrupt was for has disappeared."""
        self._move(RoundStep.GO_ON)
        self.interrupt = None

    def stop_at_boundary(self, cause: Cause, deadline: float, counted: bool) -> int:
        """All members stop at one boundary, which is returned; arguments as the attributes of Interrupt."""
        interrupt = self.interrupt
        assert interrupt is not None, "its members have been asked"
        assert interrupt.answered(self.members), "a member that has not answered may be past the boundary"
        self._move(RoundStep.STOP_AT)
        interrupt.boundary, interrupt.cause, interrupt.counted = interrupt.agree(), cause, counted
        interrupt.deadline = deadline
        return interrupt.boundary

    def hasten(self, deadline: float) -> None:
        """If members are to stop at a boundary, they have until then at most."""
        if self.stopping and self.interrupt is not None:
            self.interrupt.deadline = min(self.interrupt.deadline, deadline)

    def abort(self, cause: Cause, rejoin_deadline: float) -> None:
        """It is broken; those of its members that have not come back by then are not waited for."""
        self._move(RoundStep.ABORT)
        self.abort_cause = cause
        self.rejoin_deadline = rejoin_deadline

    def finish(self) -> None:
        """All members are done."""
        self._move(RoundStep.FINISH)

    # ---- its members -----------------------------------------------------------------------------------------

    def lose(self, worker_id: int) -> None:
        """A member has failed, and is a member no more."""
        self._remove(worker_id)
        self.lost.add(worker_id)

    def blame(self, worker_id: int) -> None:
        """A member, for whose sake the round is to be aborted, counts as lost; it may come back."""
        assert worker_id in self.members, f"worker {worker_id} is in the round"
        self.lost.add(worker_id)

    def leave(self, worker_id: int, now: float) -> None:
        """A member waits for its next round."""
        self._remove(worker_id)
        self.blocked.waits_from = now

    def note_left(self, worker_id: int, place: ScriptError) -> None:
        """Where in the script a member was when it left the round for the loss of a peer."""
        if len(self.left_at) < MAX_LEFT_AT:
            self.left_at.setdefault(place, worker_id)

    def complete(self, worker_id: int, now: float) -> None:
        """A member's process has ended well while others continue; in restart mode."""
        self._remove(worker_id)
        self.completed.add(worker_id)
        self.blocked.waits_from = now

    def process_ended(self, worker_id: int) -> None:
        """A member of a round that is finished has ended."""
        self.members.discard(worker_id)

    def enter_next(self, worker_id: int) -> None:
        """A member of a round that is finished has entered the script's next `run`."""
        self.entered_next = True
        self.members.discard(worker_id)

    def await_exit(self, worker_id: int) -> None:
        """A member is killed: the next round waits until it has ended."""
        self.exits_awaited.add(worker_id)

    def awaits_exit(self, known: Container[int]) -> bool:
        """Whether one of those must still end; `known` are the workers that are not known to have exited."""
        return _any_left(self.exits_awaited, known.__contains__)

    def trainer_ended(self, worker_id: int) -> None:
        """A process trains no more: the next round need not wait for it."""
        self.exits_awaited.discard(worker_id)

    def stop_all(self, long_lived: bool, rejoin_deadline: float) -> None:
        """All members are stopped, and the next round waits until they have ended; in restart mode."""
        self.long_lived = long_lived
        self.rejoin_deadline = rejoin_deadline
        self.exits_awaited |= self.lost | self.members
        self.members.clear()
        self.done.clear()

    def extend(self, rejoin_deadline: float) -> None:
        """Members are waited for, once it has ended, until then."""
        self.rejoin_deadline = rejoin_deadline

    def _remove(self, worker_id: int) -> None:
        self.members.discard(worker_id)
        self.done.pop(worker_id, None)

    # ---- what they report ------------------------------------------------------------------------------------

    def note_raised(self, worker_id: int, traceback: str) -> None:
        """A member's collective has failed."""
        self.raised[worker_id] = traceback
        self.broke = self.broke or not self.aborted

    def note_error(self, worker_id: int, error: ScriptError) -> None:
        """A member's script has raised an exception."""
        self.errors[worker_id] = error

    def note_unproven(self, since: float, resume_at: float) -> None:
        """A connection did not prove to lead to a member; arguments as the attributes."""
        self.unproven_since, self.resume_at = since, resume_at

    @property
    def met_unproven(self) -> bool:
        """Whether it has met a connection that did not prove to lead to a member."""
        return self.resume_at is not None

    def explains_exit(self, worker_id: int) -> bool:
        """Whether a member's process ends of what the round has met: a lost peer (a member that stays in a collective
        ends), an unproven connection.
        """
        return worker_id in self.members and (bool(self.lost) or self.met_unproven)

    def uneven(self) -> UnevenState | None:
        """Whether members wait in collectives for others that are done, or have stopped."""
        blocked = self.blocked
        if not (blocked.blocked or blocked.idle) or self.finished or self.aborted:
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

    def note(self, event: Report, now: float) -> None:
        """Record a member's report of its progress in this round."""
        match event:
            case events.BoundaryReached(worker_id, _, number, boundaries, way):
                if self.interrupt and self.interrupt.number == number:
                    self.interrupt.reports[worker_id] = boundaries
                    if way is not CheckpointWay.NONE:
                        self.interrupt.ways[worker_id], self.interrupt.unsaved = way, None
            case events.CheckpointSaved(worker_id):
                if self.interrupt:
                    self.interrupt.saved.add(worker_id)
            case events.FirstBoundaryPassed(worker_id, digest=digest):
                self.under_way.add(worker_id)
                self._settle(now)
                if digest:
                    self.digests.setdefault(digest, worker_id)
            case events.StateDigest(worker_id, _, boundaries, digest):
                self.later_digests.setdefault(boundaries, {}).setdefault(digest, worker_id)
                if len(self.later_digests) > MAX_COMPARED_BOUNDARIES:
                    del self.later_digests[min(self.later_digests)]
            case events.WorkerDone(worker_id, _, boundaries):
                self.done[worker_id], self.blocked.waits_from = boundaries, now
                self._settle(now)
                if self.interrupt:  # it will pass no further boundary, and answers no further notice
                    self.interrupt.reports[worker_id] = boundaries
            case events.WorkerBlocked(worker_id, _, boundaries, seconds):
                self.blocked.note(worker_id, now - seconds, boundaries, seconds)
            case events.WorkerIdle(worker_id, _, seconds):
                self.blocked.note_idle(worker_id, now, seconds)

    def has(self, worker_id: int, round_id: RoundId) -> bool:
        """Whether this is the round's ID and the worker is still in it; else the message is an old one."""
        return self.plan.round_id == round_id and worker_id in self.members and not self.finished

    def is_under_way(self, now: float) -> bool:
        """Whether its members have their first step behind them, so that others may use their hosts' processors."""
        return now >= self.newcomers_start_at or not self.awaits_first_step

    def may_take_newcomers(self, now: float) -> bool:
        """Whether it may be interrupted for them."""
        return not self.newcomers and now >= self.open_at

    def _settle(self, now: float) -> None:
        """If newcomers have joined it, and all members have made a step: train for as long as that took before others
        interrupt it. Where they come one after the other, and a first step takes long, the run would do nothing else.
        """
        if self.newcomers and not self.awaits_first_step:
            self.open_at = max(self.open_at, now + (now - self.joined_at))
            self.newcomers.clear()

    @property
    def awaits_first_step(self) -> bool:
        """Whether a member has made no step yet."""
        return _any_left(
            self.before_first, lambda w: w in self.members and w not in self.under_way and w not in self.done
        )

    def deadlines(self) -> list[float]:
        """When something may be due here."""
        due = []
        if self.running:
            due.append(self.open_at)
            if self.awaits_first_step:
                due.append(self.newcomers_start_at)
        if self.interrupt and not self.finished and not self.aborted:
            due.append(self.interrupt.deadline)
        if self.rejoin_deadline is not None:
            due.append(self.rejoin_deadline)
        if self.resume_at is not None:
            due.append(self.resume_at)
        return due

    # ---- as causes -------------------------------------------------------------------------------------------

    def runs(self, replica_size: int) -> Cause:
        """What the run does during this round.

        Args:
            replica_size: as in Settings.
        """
        hosts = tuple(dict.fromkeys(seat.host for seat in self.plan.seats))
        plan, memory = self.plan, self.plan.memory_checkpoint
        checkpoint = plan.checkpoint if memory is None else memory.checkpoint.step
        members = Members(
            plan.round_id,
            plan.training_size,
            hosts,
            plan.steps_lost,
            plan.torn,
            checkpoint,
            in_memory=memory is not None,
            replica_size=replica_size,
        )
        return Cause(CauseKind.ROUND_RUNS, detail=members)

    @property
    def all_done(self) -> Cause:
        """Its end, once all are done."""
        counts = self.done.values()
        return Cause(CauseKind.ALL_DONE, detail=Done(min(counts, default=0), max(counts, default=0)))

    @property
    def unequal(self) -> Cause | None:
        """What the members' states differ in at their first boundary, or at a later one; None: nothing."""
        compared = chain([(1, self.digests)], self.later_digests.items())
        boundaries, digests = next((found for found in compared if len(found[1]) > 1), (0, {}))
        if not digests:
            return None
        named = tuple((self.name(worker), digest) for digest, worker in islice(digests.items(), MAX_NAMED))
        return Cause(CauseKind.ATTRIBUTES_DIFFER, detail=Digests(Version(self.plan.round_id, boundaries), named))

    @property
    def places_left(self) -> tuple[tuple[WorkerName, ScriptError], ...]:
        """Where members were when they left it for the loss of a peer, each place with one of them."""
        return tuple((self.name(worker_id), place) for place, worker_id in self.left_at.items())

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
        if isinstance(workers, set) and 4 * len(workers) > len(self.ranks):  # it has them in that order
            return tuple(filter(workers.__contains__, self.ranks))
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
