"""A simulated worker's rounds: the real loop and the real Participant, whose effects are carried out in virtual time.

What training_thread.py is in a worker. Everything that takes time is a generator, which yields what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol, TypeVar

from edriver.model.ids import NO_VERSION, Version
from edriver.model.plan import Assignment
from edriver.model.shards import HeldShards
from edriver.model.store_address import StoreAddress
from edriver.v1 import notification_pb2 as pb
from edriver.wire.conversion import held_shards_of, version_of
from edriver.worker.reports import Copied
from edriver.worker.rounds import effects
from edriver.worker.rounds.effects import Answer, Effect, Raised
from edriver.worker.rounds.participant import BoundaryVerdict, End, Participant, RoundLoop, SealVerdict
from edriver.worker.rounds.round_times import RoundTimes
from tests.sim.fabric import Severed


class Sleep(NamedTuple):
    """Wait for some time."""

    seconds: float


class Meet(NamedTuple):
    """Wait in a collective."""

    name: Any
    parties: frozenset[int]
    what: Any


class WaitChange(NamedTuple):
    """Wait until a notice has been taken."""


Wait = Sleep | Meet | WaitChange
SETTLE_SECONDS = 0.002
"""For which a device works on after its host has come to the end of a round."""

T = TypeVar("T")
Steps = Generator[Wait, Any, T]


class Interrupted(Exception):  # noqa: N818  HostsUpdatedInterrupt
    """All members stop at this boundary."""


class Unproven(Severed):
    """Another process took a member's place in a connection."""


class Exploded(Exception):  # noqa: N818
    """An exception of the script's own, at a line of it."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line

    def traceback(self, worker_id: int) -> str:
        """As the worker reports it."""
        where = f'  File "train.py", line {self.line}, in train\n'
        return f"Traceback (most recent call last):\n{where}ValueError: worker {worker_id}'s\n"


class Script(Protocol):
    """What the rounds need of a script: a State, and a function to call.

    Attributes:
        swallow_at: the line at which it goes on although a boundary ordered it to leave its round; 0: it does not.
    """

    swallow_at: int

    @property
    def clean(self) -> bool:
        """Whether it can return to its last boundary."""

    def save(self) -> None:
        """Commit."""

    def keep_small(self) -> None:
        """Keep what a boundary keeps."""

    def digest(self, committed: bool) -> str:
        """Its digest of its state."""

    def shards_held(self, committed: bool) -> tuple[HeldShards, ...]:
        """See State.shards_held."""

    def complete_shadows(self) -> Steps[None]:
        """See State.complete_shadows."""

    def newest_checkpoint(self, look: bool) -> int | None:
        """See State.newest_checkpoint."""

    def go_back(self, to_boundary: bool) -> Steps[None]:
        """Go back to the last boundary, or to the last commit."""

    def sync(self, place: Assignment, members: dict[int, int]) -> Steps[bool]:
        """Bring receivers to the source's state; returns whether that counts as committed."""

    def train(self) -> Steps[None]:
        """The training function."""

    def passed(self) -> None:
        """Take note that a boundary counts."""


class SimRounds:
    """What a worker process has around its script.

    Attributes:
        participant: what decides.
        ranks: the workers of the round whose group was built last, by rank,
        members: all of them,
        replica: those of this worker's replica,
        alike: and those of its position in all of them.
        offered: the version that it has offered last,
        sealed: the version that it has said it reaches by a step of its own; NO_VERSION: none,
        digest: and the digest that it has offered with it,
        shards: and what it has said that it holds of that version.
        entered_at: the version that it has offered first in this `run` call.
        unproven: in how many of the next groups another process takes a member's place.

    Args:
        worker_id: its id.
        script: its script.
        report: says something to the driver.
        tear_down: called when it closes its connections of its last round, to begin another.
    """

    def __init__(
        self, worker_id: int, script: Script, report: Callable[[pb.Report], None], tear_down: Callable[[], None]
    ) -> None:
        self.participant = Participant()
        self.members: frozenset[int] = frozenset()
        self.replica: frozenset[int] = frozenset()
        self.alike: frozenset[int] = frozenset()
        self.offered: Version = NO_VERSION
        self.sealed: Version = NO_VERSION
        self.digest = ""
        self.shards: tuple[HeldShards, ...] = ()
        self.entered_at: Version | None = None
        self.unproven = 0
        self._worker_id = worker_id
        self._script = script
        self._report = report
        self._tear_down = tear_down
        self._loop = RoundLoop(self.participant, StoreAddress("sim", worker_id))
        self.ranks: dict[int, int] = {}
        self._raised: Exception | None = None

    def run(self) -> Steps[End]:
        """One `run` call of the script."""
        self.entered_at = None
        yield from self._carry_out(self._loop.enter())
        end = yield from self._carry_out(self._loop.run())
        if end is End.FAILED:
            assert isinstance(self._raised, Exploded), "the loss of a peer ends a worker"
            raise self._raised
        return end

    def boundary(self, committed: bool) -> Steps[None]:
        """Count a boundary, and do what its news ask for."""
        news = self.participant.passed(committed)
        if not self.participant.must_leave:
            self._script.passed()
        if not news:
            return
        verdict = yield from self._carry_out(self._loop.boundary())
        if verdict is BoundaryVerdict.STOP:
            raise Interrupted
        if verdict is BoundaryVerdict.ABORT:
            raise Severed
        assert verdict is BoundaryVerdict.PASS, "there is no other verdict"

    def seal_broken(self, error: Severed) -> Steps[float | None]:
        """The seal of a step has broken: returns if the step is to be made, with the norm to clip its gradients by.

        Raises:
            Severed: it is not.
        """
        self._raised = error
        if (yield from self._carry_out(self._loop.seal_broken())) is SealVerdict.LEAVE:
            raise Severed
        assert self.participant.assignment is not None
        return self.participant.assignment.gradient_norm

    def _carry_out(self, steps: Generator[Effect, Any, T]) -> Steps[T]:
        answer: Answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                ended: T = end.value
                return ended
            try:
                answer = yield from self._perform(step)
            except (Interrupted, Severed, Exploded) as error:
                if not isinstance(step, effects.Attempt):
                    raise
                self._raised = error
                answer = self._kind_of(error)

    def _perform(self, step: Effect) -> Steps[Answer]:
        script = self._script
        match step:
            case effects.WaitForChange():
                yield WaitChange()
            case effects.Say(report):
                if report.HasField("worker_waiting"):
                    self.offered = version_of(report.worker_waiting.version)
                    self.sealed = version_of(report.worker_waiting.sealed)
                    self.digest = report.worker_waiting.digest
                    self.shards = tuple(map(held_shards_of, report.worker_waiting.shards))
                    self.entered_at = self.entered_at or self.offered
                self._report(report)
            case effects.Build():
                assert self.participant.assignment is not None
                yield from self._build(self.participant.assignment)
            case effects.Sync():
                assert self.participant.assignment is not None
                return (yield from script.sync(self.participant.assignment, self.ranks))
            case effects.Train():
                yield from script.train()
            case effects.CompleteShadows():
                yield from script.complete_shadows()
            case effects.Settle():
                if self.participant.assignment is not None and self.participant.assignment.hands_over:
                    script.passed()
                if self.participant.must_leave:
                    yield Sleep(SETTLE_SECONDS)
                if self.participant.abort_cause is not None:
                    raise Severed
            case effects.Describe():
                if isinstance(self._raised, Exploded):
                    return self._raised.traceback(self._worker_id)
                return "a stranger" if isinstance(self._raised, Unproven) else "severed"
            case effects.IsClean():
                return script.clean
            case effects.WhyTorn():
                return "the optimizer had begun a step"
            case effects.UncountedSteps():
                return 0
            case effects.Digest(committed):
                return script.digest(committed)
            case effects.ShardsHeld(committed):
                return script.shards_held(committed)
            case effects.NewestCheckpoint(look):
                return script.newest_checkpoint(look)
            case effects.Save():
                script.save()
            case effects.Keep():
                script.keep_small()
            case effects.ReturnToBoundary() | effects.Restore():
                yield from script.go_back(isinstance(step, effects.ReturnToBoundary))
            case effects.FirstBoundary():
                self._report(RoundTimes(lambda: 0.0).first_boundary(self.participant.round_id, Copied()))
            case effects.CompareState():
                self._report(self.participant.compared(script.digest(committed=False)))
            case effects.Complain():
                raise Exploded(script.swallow_at)
        return None

    def _build(self, place: Assignment) -> Steps[None]:
        self._tear_down()
        who = Meet("who", frozenset(), (place.rank, self._worker_id))  # answered at once: see World
        self.ranks = yield who
        self.members = frozenset(self.ranks.values())
        size = place.replica_size
        replica, position = divmod(place.rank, size)
        self.replica = frozenset(worker for rank, worker in self.ranks.items() if rank // size == replica)
        self.alike = frozenset(worker for rank, worker in self.ranks.items() if rank % size == position)
        yield Meet("build", self.members, None)
        if self.unproven and len(self.members) > 1:
            self.unproven -= 1
            raise Unproven

    def _kind_of(self, error: Exception) -> Raised:
        match error:
            case Interrupted():
                return Raised.HOSTS_UPDATED
            case Unproven():
                return Raised.UNPROVEN
            case Severed():  # by whichever came first: its own notification thread, or another member
                return Raised.PEER_LOST if self.participant.abort_cause is None else Raised.RUNTIME_ERROR
        return Raised.OWN
