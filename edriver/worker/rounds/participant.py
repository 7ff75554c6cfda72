"""A worker's side of the protocol, pure: what a notice means, what a boundary decides, what may be offered; its loop.

The Participant decides. The RoundLoop is made of generators that yield effects, and are sent what came of them: `run`
is what `edriver.run` does between its entry and its return, `boundary` what a boundary does when there is news. A
worker's threads drive them (worker_rounds.py), and so does the simulation (tests/sim/sim_rounds.py): these lines are
the ones that both run.

Two threads of a worker meet here: the notification thread, which calls `take` for each notice, and the training thread,
which drives the loop. This file knows of neither; its owner holds one lock around every call, except for the one line
that makes a quiet boundary cheap, `passed`. Between two effects no time passes: who drives a generator holds that lock
while it runs, and lets go of it to carry out an effect, except for WaitForChange, which waits with it, and Say, so that
reports keep their order.

A round may break in the seal of a step (worker/state), when gradients are complete but not every member is known to
have them. Then `seal_broken` offers both versions, that of the last boundary and that of the step, and waits inside the
training function for the next round's version: with its gradients a sealed worker makes the step alone, and the script
goes on to its boundary, as if nothing had happened; there it leaves the round. Or it goes back, as after any loss.

Why a boundary needs no lock: `passed` adds to `boundaries` and only then reads `news`; `take` sets `news` and only then
reads `boundaries` for its answer. Whichever comes first, either the answer counts the boundary, or the boundary sees
the news.
"""

from __future__ import annotations

import enum
from collections.abc import Generator, Iterable
from typing import Any, Final

from edriver.model.ids import NO_ROUND, NO_VERSION, RoundId, Version
from edriver.model.plan import Assignment
from edriver.model.shards import HeldShards
from edriver.model.store_address import StoreAddress
from edriver.v1 import notification_pb2 as pb
from edriver.v1 import rounds_pb2
from edriver.wire.assignments import assignment_of
from edriver.wire.conversion import (
    duration,
    held_shards_message,
    round_id_message,
    round_id_of,
    store_address_message,
    version_message,
)
from edriver.worker.rounds import effects
from edriver.worker.rounds.effects import Complaint, Effect, Raised

COMPARED_MEMBERS: Final = 8
"""About so many members of a round compare their states at its later boundaries: the 2nd, the 4th, the 8th, ..."""


class Stage(enum.Enum):
    """Where the worker stands."""

    OUTSIDE = "outside"  # in none of the script's `run` calls
    WAITING = "waiting"  # ready for a round
    ASSIGNED = "assigned"  # has a place in a round, and may train
    DONE = "done"  # its training function has returned
    FINISHED = "finished"  # all were done; the round's group is still there for collectives after `run`
    LEAVING = "leaving"  # ordered to exit
    SKIPPING = "skipping"  # informed that this `run` call is over


class BoundaryVerdict(enum.Enum):
    """What the training thread does at a boundary."""

    PASS = "pass"
    WAIT = "wait"  # ask again when something has changed
    STOP = "stop"  # this is the agreed boundary
    ABORT = "abort"  # the round is broken
    SWALLOWED = "swallowed"  # it had to leave the round at an earlier boundary, and continued


class SealVerdict(enum.Enum):
    """What becomes of the step in whose seal a round has broken."""

    APPLY = "apply"  # the next round continues from it: make it, and go on to its boundary
    LEAVE = "leave"  # leave the training function; the gradients are discarded


class End(enum.Enum):
    """How a `run` call ends."""

    FINISHED = "finished"  # all members were done
    SKIPPED = "skipped"  # the driver lets this worker skip it
    LEFT = "left"  # the worker is to exit
    FAILED = "failed"  # what was raised last is the script's own: it is to be raised again


class Participant:
    """One worker's part in its rounds.

    Attributes:
        stage: see Stage.
        assignment: its place in the current round, or the last one.
        boundaries: the number of boundaries passed in this round.
        news: the number of notices received; compared at a boundary with `news_seen`.
        abort_cause: why the round was aborted, or None.
        committed: the version of the last commit or sync, to which the state can go back; NO_VERSION before the first.
        must_leave: whether a boundary of this round has returned STOP or ABORT.
        finds_newest_checkpoint: whether the driver has asked for the newest checkpoint since the last report on it.
        driver_gone: whether the run has lost its driver for good.
        writes_last: whether this worker then writes a checkpoint of the whole state before it exits.
        compares_at: the boundary of this round at which it next reports its state's digest; 0: it is not to.
        sealed: while it waits in a seal, the version that it reaches with its gradients; else NO_VERSION.
        has_offered: whether it has left its round in a seal, and what it goes back to is on offer already.
        owes_boundary: whether it then makes the step, whose boundary it has not reached yet.
    """

    def __init__(self) -> None:
        self.stage = Stage.OUTSIDE
        self.assignment: Assignment | None = None
        self.round_id: RoundId = NO_ROUND
        self.boundaries = 0
        self.news = 0
        self.news_seen = 0
        self.abort_cause: str | None = None
        self.committed: Version = NO_VERSION
        self.ordinal = 0
        self.must_leave = False
        self.finds_newest_checkpoint = False
        self.driver_gone = False
        self.writes_last = False
        self.compares_at = 0
        self.sealed: Version = NO_VERSION
        self.has_offered = False
        self.owes_boundary = False
        # The norm by which the gradients of the last step were clipped, and the version to which that step leads:
        self._clipped: tuple[Version, float] | None = None
        self._waiting = b""  # serialized, so that all attributes are immutable: tests compare and hash them
        self._brought = NO_VERSION
        self._carried = 0
        self._in_step = False
        self._number = 0
        self._reported: int | None = None
        self._stop_at: int | None = None

    @property
    def live(self) -> Version:
        """The version of the last boundary: what a state that is clean can go back to without a commit.

        Up to a round's first boundary it has the name that it had before the round. Members that gave it a name of the
        round, as they are synced one after the other, could not be matched with those that were not when it broke.
        """
        return Version(self.round_id, self.boundaries) if self._in_step and self.boundaries else self._brought

    @property
    def grown(self) -> bool:
        """Whether the round has more members than the script has trained with, and this one has passed no boundary."""
        return self.assignment is not None and self.assignment.fallback_size > 0 and self.boundaries == 0

    @property
    def writes_part(self) -> bool:
        """Whether the driver is gone, and this worker writes its part of a checkpoint: none has the whole."""
        place = self.assignment
        return self.driver_gone and place is not None and (place.replica_size > 1 or place.sharding is not None)

    @property
    def leaves_shadows(self) -> bool:
        """Whether all members stop where this one does, and shadows are to stand in for those that leave.

        Without that, a run whose script writes to parameters in each step could not shrink: those that leave would be
        needed for their shards in each round, and so would train a step in it.
        """
        place = self.assignment
        agreed = self._stop_at == self.boundaries and not self.driver_gone
        return agreed and place is not None and place.sharding is not None

    @property
    def uncommitted(self) -> int:
        """The number of boundaries passed since the last commit, in whichever rounds."""
        if not self._in_step:
            return 0 if self.committed == self._brought else self._carried
        if self.committed.round_id == self.round_id:
            return self.boundaries - self.committed.boundaries
        return self._carried + self.boundaries

    # ---- the notification thread ----------------------------------------------------------------------------

    def take(self, notice: pb.Notice) -> pb.Report | None:
        """Take in a notice; returns the answer that is due at once, if any. One of another round is dropped."""
        if notice.HasField("ping"):
            return pb.Report(pong=pb.Pong(number=notice.ping.number))
        self.news += 1  # before boundaries is read: see the module's text
        match notice.WhichOneof("kind"):
            case "hosts_updated":
                return self._begin_interrupt(notice.hosts_updated)
            case "stop_at" if self._means_us(notice.stop_at.round_id, notice.stop_at.number):
                self._stop_at = notice.stop_at.boundary
            case "go_on" if self._means_us(notice.go_on.round_id, notice.go_on.number):
                self._reported = None
            case "abort" if self._is_ours(notice.abort.round_id):
                self.abort_cause = notice.abort.cause.text
            case "assignment" if self.stage is Stage.WAITING:
                self._take_assignment(notice.assignment)
            case "finish" if self.stage is Stage.DONE and self._is_ours(notice.finish.round_id):
                self.stage = Stage.FINISHED
            case "leave" if self.stage is Stage.WAITING:
                self.stage = Stage.LEAVING
            case "find_newest_checkpoint" if self.stage is Stage.WAITING:
                self.finds_newest_checkpoint = True
            case "driver_gone":
                self._take_driver_gone(notice.driver_gone)
            case "skip" if self.stage is Stage.WAITING and notice.skip.ordinal == self.ordinal:
                self.stage = Stage.SKIPPING
        return None

    def _take_driver_gone(self, message: pb.DriverGone) -> None:
        self.driver_gone, self.writes_last = True, message.checkpoint
        if self.stage is Stage.WAITING:
            self.stage = Stage.LEAVING
        elif self.stage is Stage.DONE:
            self.abort_cause = "the run no longer has a driver"

    def _begin_interrupt(self, notice: pb.HostsUpdated) -> pb.Report | None:
        if not self._is_ours(notice.round_id) or notice.number <= self._number:
            return None
        if self.stage not in (Stage.ASSIGNED, Stage.DONE):
            return None
        self._number = notice.number
        self._stop_at = None
        self._reported = self.boundaries
        return pb.Report(
            boundary_reached=pb.BoundaryReached(
                round_id=round_id_message(self.round_id), number=self._number, boundaries=self._reported
            )
        )

    def _take_assignment(self, message: pb.Assignment) -> None:
        assignment = assignment_of(message)
        if assignment.round_id <= self.round_id:
            return
        self.assignment = assignment
        if assignment.gradient_norm is not None:
            self._clipped = assignment.version, assignment.gradient_norm
        self.round_id = assignment.round_id
        self.boundaries = 0
        self.abort_cause = None
        self.must_leave = False
        self._number, self._reported, self._stop_at = 0, None, None
        # Of thousands of members some are enough, of all hosts: what is not equal on all ranks differs among these.
        compares = assignment.size > 1 and assignment.rank % max(1, assignment.size // COMPARED_MEMBERS) == 0
        self.compares_at = 2 if compares else 0
        self.stage = Stage.ASSIGNED

    def _is_ours(self, message: rounds_pb2.RoundId) -> bool:
        """Whether a notice of this round still concerns us: we are in it, and have not stopped in it."""
        return round_id_of(message) == self.round_id and self.stage in (
            Stage.ASSIGNED,
            Stage.DONE,
            Stage.FINISHED,
        )

    def _means_us(self, message: rounds_pb2.RoundId, number: int) -> bool:
        return self._is_ours(message) and number == self._number and self._reported is not None

    # ---- the training thread --------------------------------------------------------------------------------

    def enter(self) -> None:
        """Enter the script's next `run` call."""
        self.ordinal += 1

    def wait(
        self,
        offer: Version,
        store: StoreAddress,
        digest: str,
        torn: str = "",
        checkpoint: int | None = None,
        uncounted: int = 0,
        sealed: bool = False,
        shards: Iterable[HeldShards] = (),
    ) -> pb.Report:
        """Leave the round, if in one, and become ready for the next: returns the report to the driver.

        Args:
            offer: the version that it can go back to.
            store: where its store listens.
            digest: of the state of that version.
            torn: why the offer is not the last boundary; empty: it is.
            checkpoint: see effects.NewestCheckpoint.
            uncounted: see effects.UncountedSteps.
            sealed: whether it can also make the step that follows, alone.
            shards: what it holds of that version: see State.shards_held.
        """
        self.stage = Stage.LEAVING if self.driver_gone else Stage.WAITING
        lost, self._carried = (0, self.uncommitted) if offer == self.live else (self.uncommitted, 0)
        self._brought, self._in_step = offer, False
        self.has_offered, self.owes_boundary = sealed, False
        self.sealed = Version(self.round_id, self.boundaries + 1) if sealed else NO_VERSION
        self._waiting = pb.WorkerWaiting(
            ordinal=self.ordinal,
            version=version_message(offer),
            store=store_address_message(store),
            digest=digest,
            steps_lost=lost + uncounted,
            torn=torn,
            sealed=version_message(self.sealed) if sealed else None,
            gradient_norm=self._clipped[1] if self._clipped is not None and self._clipped[0] == offer else None,
            shards=map(held_shards_message, shards),
        ).SerializeToString()
        return self.waits_on(checkpoint)

    def waits_on(self, checkpoint: int | None) -> pb.Report:
        """Go on waiting, with another newest checkpoint: returns the report to the driver."""
        self.finds_newest_checkpoint = False
        report = pb.Report(worker_waiting=pb.WorkerWaiting.FromString(self._waiting))
        if checkpoint is not None:
            report.worker_waiting.checkpoint_steps = checkpoint
        return report

    def synced(self, committed: bool = True) -> None:
        """State was received, or confirmed, at the start of the round: see `State.sync` for what is committed."""
        assert self.assignment is not None, "a sync is part of a round"
        self._carried = 0 if committed else self.uncommitted
        version = self.assignment.version
        # States of one version may differ before the call's first sync, and must not share its name with what that
        # makes of them.
        new = self.assignment.first_sync or version == NO_VERSION
        self._brought = Version(self.round_id, 0) if new else version
        self._in_step = True
        if committed:
            self.committed = self._brought
        self.news_seen = -1  # the round's first boundary is news, to the driver

    def clipped(self, norm: float) -> None:
        """The seal of the step that is about to be made has carried the norm by which its gradients are clipped."""
        self._clipped = Version(self.round_id, self.boundaries + 1), norm

    def settle_seal(self) -> SealVerdict:
        """What becomes of the step in whose seal this worker has waited, now that it waits no longer."""
        sealed, self.sealed = self.sealed, NO_VERSION
        if self.stage is not Stage.ASSIGNED or self.assignment is None or self.assignment.version != sealed:
            return SealVerdict.LEAVE
        self._brought, self.owes_boundary = sealed, True
        self._carried += 1
        return SealVerdict.APPLY

    def passed(self, committed: bool) -> bool:
        """Count a boundary; returns whether `RoundLoop.boundary` has to decide: there is news, or states are compared.

        Args:
            committed: whether a copy of the state was made for it.
        """
        if self.owes_boundary:  # of a round that it has left
            if committed:
                self.committed, self._carried = self._brought, 0
            return True
        self.boundaries += 1
        if committed:
            self.committed = Version(self.round_id, self.boundaries)
        return self.news != self.news_seen or self.boundaries == self.compares_at

    def verdict(self) -> BoundaryVerdict:
        """What to do at the boundary that was just counted."""
        if self.must_leave:
            return BoundaryVerdict.SWALLOWED
        if self.owes_boundary:
            self.owes_boundary, self.must_leave = False, True
            return BoundaryVerdict.STOP
        if self.abort_cause is not None:
            self.must_leave = True
            return BoundaryVerdict.ABORT
        if self.driver_gone:
            self.must_leave = True
            return BoundaryVerdict.STOP
        if self._stop_at is not None and self.boundaries >= self._stop_at:
            self.must_leave = True
            # Beyond it: the script caught what a signal handler raised while the boundary waited for this verdict.
            return BoundaryVerdict.STOP if self.boundaries == self._stop_at else BoundaryVerdict.SWALLOWED
        if self._stop_at is not None:
            return BoundaryVerdict.PASS
        if self._reported is not None and self.boundaries > self._reported:
            return BoundaryVerdict.WAIT
        if self._reported is None:
            self.news_seen = self.news
        return BoundaryVerdict.PASS

    def done(self) -> pb.Report:
        """The training function has returned: returns the report to the driver."""
        self.stage = Stage.DONE
        return pb.Report(
            worker_done=pb.WorkerDone(round_id=round_id_message(self.round_id), boundaries=self.boundaries)
        )

    def compared(self, digest: str) -> pb.Report:
        """What is small in the state at the boundary just passed: returns the report to the driver."""
        round_id = round_id_message(self.round_id)
        return pb.Report(state_digest=pb.StateDigest(round_id=round_id, boundaries=self.boundaries, digest=digest))

    def blocked(self, seconds: float) -> pb.Report:
        """The training thread stands still in a collective, or (0 seconds) continues: returns the report to the
        driver.
        """
        round_id, span = round_id_message(self.round_id), duration(seconds) if seconds else None
        return pb.Report(worker_blocked=pb.WorkerBlocked(round_id=round_id, boundaries=self.boundaries, duration=span))

    def raised(self, traceback: str) -> pb.Report:
        """A collective of the round failed: returns the report to the driver."""
        return pb.Report(
            collective_raised=pb.CollectiveRaised(round_id=round_id_message(self.round_id), traceback=traceback)
        )

    def unproven(self, reason: str) -> pb.Report:
        """A connection of the round did not lead to a member: returns the report to the driver."""
        return pb.Report(peer_unproven=pb.PeerUnproven(round_id=round_id_message(self.round_id), reason=reason))


class RoundLoop:
    """The rounds of one worker process.

    Args:
        participant: what decides; notices go to it.
        store: where this worker's store listens.
    """

    def __init__(self, participant: Participant, store: StoreAddress) -> None:
        self._participant = participant
        self._store = store
        self._begun = False
        self._synced = False

    def enter(self) -> Generator[Effect, Any, None]:
        """Enter the script's next `run` call: what the script changed since the last one is part of the state."""
        participant = self._participant
        participant.enter()
        self._synced = False
        if self._begun:
            yield effects.Save()
            yield effects.Keep()
            participant.committed = participant.live

    def run(self) -> Generator[Effect, Any, End]:
        """Go through one round after the other until all members are done."""
        participant = self._participant
        yield from self._offer(clean=False)
        while True:
            yield from self._await_place()
            if participant.stage is Stage.LEAVING:
                if (participant.writes_last or participant.writes_part) and participant.live != NO_VERSION:
                    yield effects.LastCheckpoint(participant.writes_last)
                return End.LEFT
            if participant.stage is Stage.SKIPPING:
                return End.SKIPPED
            raised = yield from self._round()
            if raised is None:
                return End.FINISHED
            if participant.has_offered:
                failed = yield from self._leave_seal(raised)
                if failed:
                    return End.FAILED
                yield effects.Forget()
                continue
            if raised is Raised.HOSTS_UPDATED:
                # A worker that waits may be asked to leave, and its device may still be at work with the others'.
                raised = yield effects.Settle()
                if raised is None and participant.leaves_shadows:
                    raised = yield effects.CompleteShadows()
            if raised is None:
                yield from self._stop()
            elif self._is_loss(raised) or participant.grown:
                yield from self._go_back(raised)
            else:
                return End.FAILED
            yield effects.Forget()

    def boundary(self) -> Generator[Effect, Any, BoundaryVerdict]:
        """Decide at a boundary that was just counted, and at which there is news: PASS, STOP or ABORT."""
        participant = self._participant
        if participant.boundaries == 1:
            yield effects.FirstBoundary()
        elif 0 < participant.boundaries == participant.compares_at:  # none is passed yet by one that owes a boundary
            participant.compares_at *= 2
            yield effects.CompareState()
        while (verdict := participant.verdict()) is BoundaryVerdict.WAIT:
            yield effects.WaitForChange(for_verdict=True)
        if verdict is BoundaryVerdict.SWALLOWED:
            yield effects.Complain(Complaint.CALLED_AGAIN)
        return verdict

    def seal_broken(self) -> Generator[Effect, Any, SealVerdict]:
        """The round has broken in the seal of a step that the script is about to make: find out whether it makes it.

        The next round's version decides, so this worker is ready for that round from here on, in the midst of the
        training function.
        """
        participant = self._participant
        clean: bool = yield effects.IsClean()
        if not clean:
            return SealVerdict.LEAVE
        yield effects.Stopped(loss=True)
        if participant.abort_cause is None:
            text: str = yield effects.Describe()
            yield effects.Say(participant.raised(text))
        yield from self._offer(clean=True, sealed=True)
        yield from self._await_place()
        return participant.settle_seal()

    def _leave_seal(self, raised: Raised) -> Generator[Effect, Any, bool]:
        """Leave the training function after a seal that has broken; returns whether the script itself has failed."""
        participant = self._participant
        if raised is Raised.OWN and (participant.owes_boundary or participant.must_leave):
            return True
        if participant.owes_boundary:  # something between the optimizer's step and the boundary needs the others
            yield from self._go_back(Raised.PEER_LOST)
            return False
        if raised is not Raised.HOSTS_UPDATED:
            yield effects.ReturnToBoundary()
        participant.has_offered = participant.must_leave = False
        return False

    def _await_place(self) -> Generator[Effect, Any, None]:
        """Wait until the driver assigns a place, or sends this worker away."""
        participant = self._participant
        while participant.stage is Stage.WAITING:
            if participant.finds_newest_checkpoint:
                checkpoint: int | None = yield effects.NewestCheckpoint(look=True)
                yield effects.Say(participant.waits_on(checkpoint))
            else:
                yield effects.WaitForChange()

    def _round(self) -> Generator[Effect, Any, Raised | None]:
        """Train in the round that this worker has a place in; None: it is finished."""
        participant = self._participant
        raised: Raised | None = yield effects.Build()
        if raised is None and self._begun:
            raised = yield effects.Adapt()
        if raised is not None:
            return raised
        self._begun = True
        synced: Raised | bool = yield effects.Sync()
        if isinstance(synced, Raised):
            return synced
        self._synced = True
        participant.synced(committed=synced)
        if participant.assignment is not None and participant.assignment.hands_over:
            return Raised.HOSTS_UPDATED  # with guests no script can train: the next round is without them
        raised = yield effects.Train()
        if raised is not None:
            return raised
        if participant.owes_boundary:  # what the step has made of the state has no boundary to continue from
            participant.abort_cause = "the training function returned before the boundary of a step"
            return Raised.PEER_LOST
        if participant.must_leave and participant.abort_cause is None:
            yield effects.Complain(Complaint.RETURNED)
        raised = yield effects.Settle()  # once all are done, their processes end, and what they have on their devices
        if raised is not None:
            return raised
        yield effects.Say(participant.done())
        while participant.stage is Stage.DONE and participant.abort_cause is None:
            yield effects.WaitForChange()
        return None if participant.stage is Stage.FINISHED else Raised.PEER_LOST

    def _is_loss(self, raised: Raised) -> bool:
        if raised is Raised.RUNTIME_ERROR:
            return self._participant.abort_cause is not None
        return raised in (Raised.PEER_LOST, Raised.UNPROVEN)

    def _stop(self) -> Generator[Effect, Any, None]:
        """Leave the round at its agreed boundary, with the state as it is there."""
        participant = self._participant
        yield effects.Stopped(loss=False)
        offer = yield from self._offer(clean=True)
        clean: bool = yield effects.IsClean()
        if not clean and participant.committed != offer:
            yield effects.Save()  # it was offered, so it must be possible to go back to it
            participant.committed = offer

    def _go_back(self, raised: Raised) -> Generator[Effect, Any, None]:
        """Leave a round that is broken, and go back to the last boundary, or to the last commit.

        So is one in which the script fails before a step, where it has trained with fewer workers: the driver has the
        next one be of fewer, or ends the run.
        """
        participant = self._participant
        loss = self._is_loss(raised)
        place = participant.assignment
        yield effects.Stopped(loss, size=0 if loss or place is None else place.size)
        if not loss:
            why: str = yield effects.Describe()
            yield effects.Say(pb.Report(worker_failed=pb.WorkerFailed(traceback=why, rejoins=True)))
        elif participant.abort_cause is None:
            text: str = yield effects.Describe()
            sent = participant.unproven(text) if raised is Raised.UNPROVEN else participant.raised(text)
            yield effects.Say(sent)
        clean: bool = yield effects.IsClean()
        uncounted: int = 0 if participant.boundaries else (yield effects.UncountedSteps())
        torn: str = "" if clean and not uncounted else (yield effects.WhyTorn())
        yield from self._offer(clean, torn, uncounted)
        yield effects.ReturnToBoundary() if clean else effects.Restore()

    def _offer(
        self, clean: bool, torn: str = "", uncounted: int = 0, sealed: bool = False
    ) -> Generator[Effect, Any, Version]:
        """Leave the round; ready for the next, which may be assigned from now on.

        Comes before any copying, which can go on while the others come back.

        Args:
            clean: the state on offer is that of the last boundary; else that of the last commit,
            torn: and why.
            uncounted: see effects.UncountedSteps.
            sealed: see Participant.wait.

        Returns:
            the version on offer.
        """
        participant = self._participant
        digest: str = yield effects.Digest(committed=not clean)
        one_replica = participant.assignment is not None and participant.assignment.sharding is not None
        shards: tuple[HeldShards, ...] = (yield effects.ShardsHeld(committed=not clean)) if one_replica else ()
        checkpoint: int | None = yield effects.NewestCheckpoint(look=not self._synced)
        offer = participant.live if clean else participant.committed
        yield effects.Say(participant.wait(offer, self._store, digest, torn, checkpoint, uncounted, sealed, shards))
        return offer
