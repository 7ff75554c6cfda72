"""A simulated worker: the real Participant and the real Cursor, a model that is a hash, and a training script.

`script` mirrors what worker/rounds.py and a user's loop do, as a generator that yields what it waits for. Its state is
a chain of hashes over the samples of every step, so two workers with equal chains have trained on the same samples in
the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from edriver.common.ids import NO_VERSION, Version
from edriver.common.store_address import StoreAddress
from edriver.v1 import notification_pb2 as pb
from edriver.worker.reports import Copied
from edriver.worker.rounds.participant import Participant, Stage, Verdict
from edriver.worker.rounds.round_times import RoundTimes
from edriver.worker.sampler.cursor import Cursor, CursorState
from tests.sim.fabric import Severed


@dataclass(frozen=True)
class Job:
    """The training script.

    Attributes:
        samples: length of the dataset.
        batch: samples per rank and step.
        epochs: epochs of each `run` call.
        runs: how many `run` calls the script has.
        commit_every: boundaries between commits; the others only check for news. 0: it never commits.
        late_collective: whether a collective follows the optimizer's step before the boundary: a loss there tears.
        bug: who raises at one place of the first epoch: "rank 0", whichever worker that is, in the step after which so
            many samples are done; "sample", whoever gets that sample; "uneven": the last rank leaves out the last step,
            and the others wait for it; "": the script has no bug.
        bug_at: that many, or that one.
    """

    samples: int
    batch: int
    epochs: int
    runs: int
    commit_every: int
    late_collective: bool
    bug: str = ""
    bug_at: int = 0


@dataclass(frozen=True, eq=False)
class Trained:
    """One step in a state's history, a list that shares its past. The chain tells histories apart."""

    before: Trained | None
    epoch: int
    positions: tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """All that a state consists of."""

    epoch: int
    chain: int
    trained: Trained | None = field(compare=False, repr=False)
    cursor: CursorState


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


class Interrupted(Exception):  # noqa: N818  HostsUpdatedInterrupt
    """All stop here."""


class Unproven(Severed):
    """A stranger was faster than a member."""


class Exploded(Exception):  # noqa: N818
    """An exception of the script's own, at a line of it."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


BUG_LINE = 1
"""Where the script has its bug. An accident of one worker is raised in another line each time."""


Wait = Sleep | Meet | WaitChange
Script = Generator[Wait, Any, int]


class Trainee:
    """One worker process.

    Args:
        worker_id: its id.
        job: the script.
        report: says something to the driver.
        passed: told of every boundary passed: version and chain.
        tear_down: told when it closes its connections of its round.
        boot: seconds until it enters its first `run`.
        pace: draws the seconds of a step's computation.
    """

    def __init__(
        self,
        worker_id: int,
        job: Job,
        report: Callable[[pb.Report], None],
        passed: Callable[[Trainee, Version, int], None],
        tear_down: Callable[[], None],
        boot: float,
        pace: Callable[[], float],
    ) -> None:
        self.worker_id = worker_id
        self.participant = Participant()
        self.members: frozenset[int] = frozenset()
        self.model = Model(0, 0, None, CursorState(0, 0, 0))
        self.saved = self.model
        self.kept = self.model
        self.stepped = False
        self.cursor = Cursor(job.samples)
        self.offered = NO_VERSION
        self.explode_at = 0
        self.glitch = False
        self.strangers = 0
        self.outcome: list[Model] = []
        self._job = job
        self._report = report
        self._passed = passed
        self._tear_down = tear_down
        self._boot = boot
        self._pace = pace
        self.script: Script = self._script()

    def _script(self) -> Script:
        yield Sleep(self._boot)
        for run in range(self._job.runs):
            self.participant.enter()
            if run:  # what the script makes of its state in between need not be the same everywhere
                self.model = replace(self.model, chain=hash((self.model.chain, self.worker_id)))
                self._save()
                self._keep()
            ended = yield from self._run((run + 1) * self._job.epochs)
            if ended == "leave":
                return 0
            if ended == "done":
                self.outcome.append(self.model)
            yield Sleep(self._pace())
        return 0

    def _run(self, epochs: int) -> Generator[Wait, Any, str]:
        part = self.participant
        self._wait(part.committed, self.saved)
        while True:
            while part.stage is Stage.WAITING:
                yield WaitChange()
            if part.stage is Stage.LEAVING:
                return "leave"
            if part.stage is Stage.SKIPPING:
                return "skip"
            try:
                yield from self._begin()
                yield from self._train(epochs)
                self._report(part.done())
                while part.stage is Stage.DONE and part.abort_cause is None:
                    yield WaitChange()
                if part.stage is Stage.FINISHED:
                    return "done"
                raise Severed
            except Interrupted:
                self._wait(part.live, self.kept)
            except Severed as error:
                if part.abort_cause is None:
                    self._report(part.unproven("a stranger") if isinstance(error, Unproven) else part.raised("severed"))
                clean = self.clean
                self._wait(part.live if clean else part.committed, self.kept if clean else self.saved)
                yield Sleep(self._pace() / 10)  # bringing it back, while the next place may come
                self._go_back(clean)

    @property
    def clean(self) -> bool:
        """Whether no optimizer step has begun since the last boundary."""
        return not self.stepped

    def _wait(self, offer: Version, model: Model) -> None:
        self.offered = offer
        self._report(self.participant.wait(offer, StoreAddress("sim", self.worker_id), f"{model.cursor}"))

    def _begin(self) -> Generator[Wait, Any, None]:
        part, place = self.participant, self.participant.place
        assert place is not None
        self._tear_down()
        members = yield Meet("who", frozenset(), (place.rank, self.worker_id))  # answered at once: see World
        self.members = frozenset(members.values())
        yield Meet("build", self.members, None)
        if self.strangers and len(self.members) > 1:
            self.strangers -= 1
            raise Unproven
        if place.receivers and (place.rank == place.source or place.rank in place.receivers):
            parties = frozenset(members[r] for r in (place.source, *place.receivers))
            brought = yield Meet("sync", parties, (place.rank, self.model))
            if place.rank in place.receivers:
                self.model = next(model for rank, model in brought.values() if rank == place.source)
        self.cursor.load(self.model.cursor)
        self.cursor.enter(place.rank, place.size)
        received = place.rank in place.receivers
        if received or part.committed == NO_VERSION:  # a holder keeps the commit that it has
            self.saved = self.model
        self._keep()
        part.synced(committed=self.saved is self.model)
        self._passed(self, part.live, self.model.chain)

    def _train(self, epochs: int) -> Generator[Wait, Any, None]:
        step = 0
        for epoch in range(self.model.epoch, epochs):
            self.cursor.set_epoch(epoch)
            while self.cursor.recorded < self.cursor.share:
                if self._leaves_the_last_step_out(epoch == epochs - 1):
                    return
                yield Sleep(self._pace())
                if self.explode_at:
                    raise Exploded(self.explode_at)
                step += 1
                count = min(self._job.batch, self.cursor.share - self.cursor.recorded)
                mine = tuple(self.cursor.next_positions(count))
                if epoch == 0 and self._meets_the_bug(mine):
                    raise Exploded(BUG_LINE)
                if self.glitch:
                    self.glitch = False
                    raise Severed
                brought = yield Meet(step, self.members, (self.model.chain, self.cursor.rank, mine))
                chains = {chain for chain, _, _ in brought.values()}
                assert len(chains) == 1, f"members train on different states: {brought}"
                positions = tuple(p for _, _, batch in sorted(brought.values(), key=lambda b: b[1]) for p in batch)
                self.cursor.record(count)
                self.stepped = True
                self.model = Model(
                    epoch,
                    hash((self.model.chain, epoch, positions)),
                    Trained(self.model.trained, epoch, positions),
                    self.cursor.state(),
                )
                if self._job.late_collective:
                    yield Meet(-step, self.members, None)
                yield from self._boundary(committed=self._job.commit_every > 0 and step % self._job.commit_every == 0)
            self.model = replace(self.model, epoch=epoch + 1)

    def _meets_the_bug(self, mine: tuple[int, ...]) -> bool:
        if self._job.bug == "sample":
            return self._job.bug_at in mine
        reached = self.cursor.offset + len(mine) * len(self.members) > self._job.bug_at
        return self._job.bug == "rank 0" and self.cursor.rank == 0 and reached

    def _leaves_the_last_step_out(self, last_epoch: bool) -> bool:
        last_rank = self.cursor.rank == len(self.members) - 1 > 0
        last_step = self.cursor.recorded + self._job.batch >= self.cursor.share
        return self._job.bug == "uneven" and last_epoch and last_rank and last_step

    def _boundary(self, committed: bool) -> Generator[Wait, Any, None]:
        part = self.participant
        if committed:
            self.saved = self.model
        self._keep()
        news = part.passed(committed)
        self._passed(self, part.live, self.model.chain)
        if not news:
            return
        if part.boundaries == 1:
            self._report(RoundTimes(lambda: 0.0).first_boundary(part.round_id, Copied()))
        while (verdict := part.verdict()) is Verdict.WAIT:
            yield WaitChange()
        if verdict is Verdict.STOP:
            raise Interrupted
        if verdict is Verdict.ABORT:
            raise Severed
        assert verdict is Verdict.PASS, "passed an agreed boundary"

    def _save(self) -> None:
        self.saved = self.model
        self.participant.committed = self.participant.live

    def _keep(self) -> None:
        self.kept = self.model
        self.stepped = False

    def _go_back(self, clean: bool) -> None:
        self.model = self.kept if clean else self.saved
        self._keep()
