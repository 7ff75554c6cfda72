"""The loop of a worker's rounds, pure: generators that yield effects, and are sent what came of them.

`run` is what `edriver.run` does between its entry and its return, `boundary` what a boundary does when there is news.
A worker's threads drive them (worker_rounds.py), and so does the simulation (tests/sim/sim_rounds.py): these lines are
the ones that both run.

Between two effects no time passes: who drives a generator holds the Participant's lock while it runs, and lets go of it
to carry out an effect, except for WaitForChange, which waits with it, and Say, so that reports keep their order.
"""

from __future__ import annotations

import enum
from collections.abc import Generator
from typing import Any

from edriver.model.ids import NO_VERSION, Version
from edriver.model.store_address import StoreAddress
from edriver.v1 import notification_pb2 as pb
from edriver.worker.rounds import effects
from edriver.worker.rounds.effects import Complaint, Effect, Raised
from edriver.worker.rounds.participant import BoundaryVerdict, Participant, Stage


class End(enum.Enum):
    """How a `run` call ends."""

    FINISHED = "finished"  # all members were done
    SKIPPED = "skipped"  # the driver lets this worker skip it
    LEFT = "left"  # the worker is to exit
    FAILED = "failed"  # what was raised last is the script's own: it is to be raised again


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
            while participant.stage is Stage.WAITING:
                if participant.finds_newest_checkpoint:
                    checkpoint: int | None = yield effects.NewestCheckpoint(look=True)
                    yield effects.Say(participant.waits_on(checkpoint))
                else:
                    yield effects.WaitForChange()
            if participant.stage is Stage.LEAVING:
                if participant.writes_last and participant.live != NO_VERSION:
                    yield effects.LastCheckpoint()
                return End.LEFT
            if participant.stage is Stage.SKIPPING:
                return End.SKIPPED
            raised = yield from self._round()
            if raised is None:
                return End.FINISHED
            # A worker that waits may be asked to leave, and its device may still be at work with those of the others.
            if raised is Raised.HOSTS_UPDATED and (raised := (yield effects.Settle())) is None:
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
        while (verdict := participant.verdict()) is BoundaryVerdict.WAIT:
            yield effects.WaitForChange(for_verdict=True)
        if verdict is BoundaryVerdict.SWALLOWED:
            yield effects.Complain(Complaint.CALLED_AGAIN)
        return verdict

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
        raised = yield effects.Train()
        if raised is not None:
            return raised
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
        torn: str = "" if clean else (yield effects.WhyTorn())
        yield from self._offer(clean, torn)
        yield effects.ReturnToBoundary() if clean else effects.Restore()

    def _offer(self, clean: bool, torn: str = "") -> Generator[Effect, Any, Version]:
        """Leave the round; ready for the next, which may be assigned from now on.

        Comes before any copying, which can go on while the others come back.

        Args:
            clean: the state on offer is that of the last boundary; else that of the last commit,
            torn: and why.

        Returns:
            the version on offer.
        """
        participant = self._participant
        digest: str = yield effects.Digest(committed=not clean)
        checkpoint: int | None = yield effects.NewestCheckpoint(look=not self._synced)
        offer = participant.live if clean else participant.committed
        yield effects.Say(participant.wait(offer, self._store, digest, torn, checkpoint))
        return offer
