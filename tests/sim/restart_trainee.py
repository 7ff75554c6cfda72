"""A simulated worker of restart mode: a script that loads and saves its own checkpoint, in one round.

The Participant is the real one; what OneRound does around it, which is mixed with processes and signals, is done again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from edriver.model.ids import NO_VERSION
from edriver.model.store_address import StoreAddress
from edriver.v1 import notification_pb2 as pb
from edriver.wire.conversion import round_id_message, round_id_of
from edriver.worker.restart.one_round import ROOT_CAUSE_TIMEOUT
from edriver.worker.rounds.participant import BoundaryVerdict, Participant, Stage
from tests.sim.fabric import Severed
from tests.sim.sim_rounds import Exploded, Meet, Sleep, Steps, WaitChange
from tests.sim.trainee import SIZE_LINE


@dataclass(frozen=True)
class RestartJob:
    """The script.

    Attributes:
        steps: how many it makes in all.
        save_every: steps between checkpoints.
        way: how it can be asked for a checkpoint: "", "signal", "call" or "rank 0" (only rank 0 calls).
        last_evaluation: seconds that rank 0 takes after the last step.
        bad_size: with how many workers every worker raises as it begins to train; 0: with none.
        memory_every: steps between checkpoints in memory; 0: there are none.
    """

    steps: int
    save_every: int
    way: str
    last_evaluation: float
    bug: str = ""
    bad_size: int = 0
    memory_every: int = 0


class Watcher(Protocol):
    """Holds the checkpoint, and sees what scripts do."""

    checkpoint: int

    def is_beyond_reach(self, trainee: RestartTrainee) -> bool: ...

    def script_begins(self, trainee: RestartTrainee) -> None: ...

    def script_ended(self, trainee: RestartTrainee) -> None: ...

    def save(self, trainee: RestartTrainee, step: int) -> None: ...

    def load(self, trainee: RestartTrainee) -> int: ...


class OneRoundParticipant(Participant):
    """Answers as OneRound does."""

    stop_ordered = False
    handles_signal = False
    signalled = False

    def take(self, notice: pb.Notice) -> pb.Report | None:
        answer = super().take(notice)
        way = pb.CHECKPOINT_WAY_UNSPECIFIED
        if self.boundaries:
            way = pb.CHECKPOINT_WAY_CALL
        elif self.handles_signal:
            way = pb.CHECKPOINT_WAY_SIGNAL
        if notice.HasField("stop_at") and round_id_of(notice.stop_at.round_id) == self.round_id:
            self.stop_ordered = True
            self.signalled = self.signalled or way == pb.CHECKPOINT_WAY_SIGNAL
        if answer is not None and answer.HasField("boundary_reached"):
            answer.boundary_reached.checkpoint_way = way
        return answer


class _Rounds:
    unproven = 0


class RestartTrainee:
    """One process."""

    def __init__(
        self,
        worker_id: int,
        job: RestartJob,
        report: Callable[[pb.Report], None],
        watcher: Watcher,
        boot: float,
        step_time: Callable[[], float],
    ) -> None:
        self.worker_id = worker_id
        self.participant = OneRoundParticipant()
        self.rounds = _Rounds()
        self.explode_at = 0
        self.swallow_at = 0
        self.glitch = False
        self.running = False
        self.ended = False
        self.zero = False
        self.step = 0
        self._job = job
        self._report = report
        self._watcher = watcher
        self._boot = boot
        self._step_time = step_time
        self.script: Steps[int] = self._live()

    def _live(self) -> Steps[int]:
        yield Sleep(self._boot)
        participant = self.participant
        participant.enter()
        self._report(participant.wait(NO_VERSION, StoreAddress("127.0.0.1", 1), ""))
        while participant.stage is Stage.WAITING:
            yield WaitChange()
        if participant.stage is not Stage.ASSIGNED:
            return 0
        seats = yield Meet("who", frozenset(), None)
        self.running = True
        while self._watcher.is_beyond_reach(self):
            yield WaitChange()  # until its agent ends it: what it would train on is another round's by now
        self._watcher.script_begins(self)
        try:
            yield from self._train(frozenset(seats.values()))
        except Severed:
            if participant.stop_ordered:
                yield from self._wait_to_be_stopped()
            yield Sleep(ROOT_CAUSE_TIMEOUT)
            self._report(participant.raised("a peer is lost"))
            return 1
        self.ended = True
        self._watcher.script_ended(self)
        if participant.stop_ordered:
            yield from self._wait_to_be_stopped()
        self._report(participant.done())
        while self._is_done:
            yield WaitChange()
        return 0

    @property
    def _is_done(self) -> bool:
        return self.participant.stage is Stage.DONE

    def _train(self, members: frozenset[int]) -> Steps[None]:
        assert self.participant.assignment is not None
        zero = self.zero = self.participant.assignment.rank == 0
        self.participant.handles_signal = self._job.way == "signal"
        begin = self.step = self._watcher.load(self)
        loaded = yield Meet("load", members, begin)
        assert set(loaded.values()) == {begin}, f"ranks load different checkpoints: {loaded}"
        if len(members) == self._job.bad_size:
            raise Exploded(SIZE_LINE)
        for step in range(begin + 1, self._job.steps + 1):
            yield Sleep(self._step_time())
            if self.explode_at:
                raise Exploded(self.explode_at)
            if self.glitch:
                raise Severed
            yield Meet(step, members, None)
            self.step = step
            if self._job.memory_every and step % self._job.memory_every == 0:
                yield Sleep(self._step_time() * 0.2)
                self._watcher.save(self, step)
            asked = self.participant.signalled
            if self._job.way == "call" or (self._job.way == "rank 0" and zero):
                asked = yield from self._checkpoint_requested()
            due = step % self._job.save_every == 0 or step == self._job.steps
            if zero and (asked or due):
                yield Sleep(self._step_time())
                self._watcher.checkpoint = step
        if zero:
            yield Sleep(self._job.last_evaluation)

    def _checkpoint_requested(self) -> Steps[bool]:
        if not self.participant.passed(committed=False):
            return False
        while (verdict := self.participant.verdict()) is BoundaryVerdict.WAIT:
            yield WaitChange()
        if verdict in (BoundaryVerdict.ABORT, BoundaryVerdict.SWALLOWED):
            yield from self._wait_to_be_stopped()
        return verdict is BoundaryVerdict.STOP

    def _wait_to_be_stopped(self) -> Steps[None]:
        self._report(
            pb.Report(checkpoint_saved=pb.CheckpointSaved(round_id=round_id_message(self.participant.round_id)))
        )
        while True:
            yield WaitChange()
