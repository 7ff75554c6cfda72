"""A simulated worker: a user's script around the real rounds, with the real Cursor and a model that is a hash.

Its state is a chain of hashes over the samples of every step, so two workers with equal chains have trained on the same
samples in the same order. In replicas of several workers, each holds the shard of its position beside what all hold
alike, as in a ShardedState: a step is reduced in the replica, then over the workers of each position, then sealed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from edriver.model.ids import Version
from edriver.model.plan import Assignment
from edriver.model.shards import HeldShards
from edriver.v1 import notification_pb2 as pb
from edriver.worker.rounds.participant import End
from edriver.worker.sampler.cursor import Cursor, CursorState
from tests.sim.fabric import Severed
from tests.sim.sim_rounds import Exploded, Interrupted, Meet, SimRounds, Sleep, Steps
from tests.sim.sim_shards import SimShards


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
        seals: whether a seal comes before the optimizer's step.
        replica_size: the number of workers in a replica.
        one_replica: whether all workers of a round hold the state once between them; replica_size is 1 then.
        write_every: steps after which the script itself writes to parameters, before the boundary; 0: it never does.
        bug: which worker raises at one place of the first epoch: "rank 0": the worker with rank 0, in the step after
            which `bug_at` samples are done; "sample": the worker that gets the sample `bug_at`; "uneven": the last rank
            leaves out the last step, and the others wait for it; "": the script has no bug.
        bug_at: a number of samples, or a sample's index: see `bug`.
        bad_size: with how many workers every worker raises as it begins to train; 0: with none.
        large: whether the state is too large to be kept at a boundary: what is not committed is lost with a member.
        checkpoint_every: steps between checkpoints on disk; 0: there are none.
    """

    samples: int
    batch: int
    epochs: int
    runs: int
    commit_every: int
    late_collective: bool
    seals: bool = False
    replica_size: int = 1
    one_replica: bool = False
    write_every: int = 0
    bug: str = ""
    bug_at: int = 0
    bad_size: int = 0
    large: bool = False
    checkpoint_every: int = 0

    @property
    def sharded(self) -> bool:
        """Whether a worker holds a part of the state only."""
        return self.replica_size > 1 or self.one_replica


@dataclass(frozen=True, eq=False)
class Trained:
    """One step in a state's history, a list that shares its past. The chain tells histories apart."""

    before: Trained | None
    epoch: int
    positions: tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """All that a state consists of.

    Attributes:
        shard: a chain of its own for each position: the part of the model that workers of this position hold.
    """

    epoch: int
    chain: int
    trained: Trained | None = field(compare=False, repr=False)
    cursor: CursorState
    steps: int = 0
    shard: int = 0


class Disk(Protocol):
    """Where checkpoints are written."""

    def write(self, worker_id: int, model: Model, position: int) -> None:
        """Begin to write a position's part of one. It is whole after a while, if the worker lives then."""

    def newest(self, position: int = 0) -> Model | None:
        """A position's part of the whole one with the most steps."""


BUG_LINE = 1
"""Where the script has its bug. An accident of one worker is raised in another line each time."""


SIZE_LINE = 1000
"""Where the script raises for its number of workers."""


class Trainee:
    """One worker process.

    Args:
        worker_id: its id.
        job: the script.
        report: says something to the driver.
        passed: called for every boundary passed, with version and state.
        tear_down: called when it closes its connections of its round.
        boot: seconds until it enters its first `run`.
        tracker: draws the seconds of a step's computation.
        disk: where checkpoints are written.
    """

    def __init__(
        self,
        worker_id: int,
        job: Job,
        report: Callable[[pb.Report], None],
        passed: Callable[[Trainee, Version, Model], None],
        tear_down: Callable[[], None],
        boot: float,
        tracker: Callable[[], float],
        disk: Disk,
    ) -> None:
        self.worker_id = worker_id
        self.rounds = SimRounds(worker_id, self, report, tear_down)
        self.participant = self.rounds.participant
        self.model = Model(0, 0, None, CursorState(0, 0, 0))
        self.saved: Model | None = None
        self.kept: Model | None = None
        self.stepped = False
        self.entered_with = self.model
        self.loaded: Model | None = None
        self.cursor = Cursor(job.samples)
        self.explode_at = 0
        self.swallow_at = 0
        self.glitch = False
        self.outcome: list[Model] = []
        self.alone = 0  # steps made without the others
        # In its replica, once it has been in a round. In a replica of all workers it does not matter to the driver.
        self.position: int | None = 0 if job.one_replica else None
        self.shards = SimShards(worker_id)  # where all workers of a round are one replica
        self._job = job
        self._passed = passed
        self._boot = boot
        self._tracker = tracker
        self._disk = disk
        self._epochs = 0
        self.script: Steps[int] = self._script()

    def _script(self) -> Steps[int]:
        yield Sleep(self._boot)
        for run in range(self._job.runs):
            self._epochs = (run + 1) * self._job.epochs
            if run:  # what the script makes of its state in between need not be the same everywhere
                chain, shard = (hash((part, self.worker_id)) for part in (self.model.chain, self.model.shard))
                self.model = replace(self.model, chain=chain, shard=shard)
                if self._job.write_every and self.shards.now.shards:
                    self.shards.write(("between", run))
            self.entered_with = self.model
            end = yield from self.rounds.run()
            if end is End.LEFT:
                return 0
            if end is End.FINISHED:
                self.outcome.append(self.model)
            yield Sleep(self._tracker())
        return 0

    # ---- its state --------------------------------------------------------------------------------------------

    @property
    def clean(self) -> bool:
        """Whether no optimizer step has begun since the last boundary, which has kept the state."""
        return self.kept is not None and not self.stepped

    def save(self) -> None:
        """Commit."""
        self.saved = self.model
        self.shards.save()

    def keep_small(self) -> None:
        """Keep what a boundary keeps."""
        self.kept = None if self._job.large else self.model
        self.stepped = False

    def digest(self, committed: bool) -> str:
        """Its digest of its state."""
        if committed:
            return str(self.saved.cursor) if self.saved else ""
        return str((self.kept or self.model).cursor)

    def shards_held(self, committed: bool) -> tuple[HeldShards, ...]:
        """What it holds of the last commit, or the last boundary."""
        found = self.shards.held_of_commit() if committed else self.shards.held()
        return tuple(held.named for held in found)

    def complete_shadows(self) -> Steps[None]:
        """Have all shadows up to date, where all members stop."""
        yield from self.shards.complete(self.rounds.ranks)

    def newest_checkpoint(self, look: bool) -> int | None:
        """The steps of the newest checkpoint that is ahead."""
        if not self._job.checkpoint_every:
            return None
        newest = self._disk.newest() if look else None
        return newest.steps if newest is not None and newest.steps > self.entered_with.steps else 0

    def go_back(self, to_boundary: bool) -> Steps[None]:
        """Go back to the last boundary, or to the last commit."""
        yield Sleep(self._tracker() / 10)  # the next place may come meanwhile
        back = self.kept if to_boundary else self.saved
        if back is not None:
            self.model = back
            if not to_boundary:
                self.shards.restore()
            self.keep_small()

    def sync(self, assignment: Assignment, members: dict[int, int]) -> Steps[bool]:
        """Bring receivers to the state of their position's source; returns whether that counts as committed."""
        rank, sources, size = assignment.rank, assignment.sources, assignment.replica_size
        if assignment.sharding is not None:
            yield from self._sync_shards(assignment, members)
            return True
        assert size == self._job.replica_size, "every round has replicas of the same size"
        self._enter_position(assignment.position)
        receives = rank in assignment.receivers
        loads = bool(assignment.checkpoint) and rank in sources
        if loads:
            yield Sleep(self._tracker())
            newest = self._disk.newest(assignment.position)
            assert newest is not None
            assert newest.steps >= assignment.checkpoint, "a checkpoint has gone"
            self.model = self.loaded = newest
        first = assignment.first_sync and size > 1
        if first and rank in sources:  # states may differ: what all hold alike comes from the first source alone
            brought = yield Meet("common", frozenset(members[r] for r in sources), (rank, self.model))
            common = next(model for other, model in brought.values() if other == sources[0])
            self.model = replace(common, shard=self.model.shard)
        source = sources[assignment.position]
        others = [r for r in assignment.receivers if r % size == assignment.position]
        if receives or (others and rank == source):
            parties = frozenset(members[r] for r in (source, *others))
            brought = yield Meet(("sync", source), parties, (rank, self.position, self.model))
            assert {position for _, position, _ in brought.values()} == {self.position}, "shards of another position"
            if receives:
                self.model = next(model for other, _, model in brought.values() if other == source)
        self.cursor.load(self.model.cursor)
        self.cursor.enter(rank, assignment.size)
        commits = receives or loads or first or self.saved is None  # else a holder keeps the commit that it has
        if commits:
            self.save()
        self.keep_small()
        return commits

    def _sync_shards(self, assignment: Assignment, members: dict[int, int]) -> Steps[None]:
        """Have this round's shards, whoever held those before."""

        def take(common: Model) -> None:
            self.model = common

        assert self._job.one_replica, "replicas of all workers are for scripts that know of them"
        yield from self.shards.cut(assignment, members, self.model, take)
        self.cursor.load(self.model.cursor)
        self.cursor.enter(assignment.rank, assignment.size)
        self.shards.enter()
        self.save()
        self.keep_small()

    def _enter_position(self, position: int) -> None:
        """Be a worker of this position, with the shard that its model is built with."""
        assert self.position in (None, position), f"worker {self.worker_id} changes from position {self.position}"
        if self.position is None and self._job.replica_size > 1:
            self.model = replace(self.model, shard=hash(("shard", position)))
        self.position = position

    def passed(self) -> None:
        """Take note that a boundary counts, the beginning of a round included."""
        self._passed(self, self.participant.live, self.model)

    # ---- its training function --------------------------------------------------------------------------------

    def train(self) -> Steps[None]:
        """Train to the end of this `run` call's last epoch."""
        self.passed()
        assignment = self.participant.assignment
        assert assignment is not None
        assert not assignment.hands_over, "a round with guests trains"
        if len(self.rounds.members) == self._job.bad_size:
            raise Exploded(SIZE_LINE)
        step = 0
        for epoch in range(self.model.epoch, self._epochs):
            self.cursor.set_epoch(epoch)
            while self.cursor.recorded < self.cursor.share:
                if self._leaves_the_last_step_out(epoch == self._epochs - 1):
                    return
                yield Sleep(self._tracker())
                if self.explode_at:
                    line, self.explode_at = self.explode_at, 0  # an accident: it may well go on where it survives that
                    raise Exploded(line)
                step += 1
                count = min(self._job.batch, self.cursor.share - self.cursor.recorded)
                mine = tuple(self.cursor.next_positions(count))
                if epoch == 0 and self._meets_the_bug(mine):
                    raise Exploded(BUG_LINE)
                if self.glitch:
                    self.glitch = False
                    raise Severed
                positions = yield from self._reduce(step, mine)
                if self._job.one_replica:
                    yield from self.shards.exchange_gradients(step, self.rounds.ranks, (epoch, positions))
                if self._job.seals:
                    yield from self._seal(step, norm=float(hash((self.model.chain, positions)) % 997))
                if self._job.one_replica:
                    self.shards.sealed()
                    self.shards.step()
                self.cursor.record(count)
                self.stepped = True
                self.model = Model(
                    epoch,
                    hash((self.model.chain, epoch, positions)),
                    Trained(self.model.trained, epoch, positions),
                    self.cursor.state(),
                    self.model.steps + 1,
                    hash((self.model.shard, epoch, positions)),
                )
                if self._job.write_every and self.model.steps % self._job.write_every == 0:
                    self.shards.write(self.model.steps)
                if self._job.late_collective:
                    yield Meet(-step, self.rounds.members, None)
                yield from self._boundary(committed=self._job.commit_every > 0 and step % self._job.commit_every == 0)
            self.model = replace(self.model, epoch=epoch + 1)

    def _reduce(self, step: int, mine: tuple[int, ...]) -> Steps[tuple[int, ...]]:
        """Reduce a step's gradients in the replica, and then with the workers of this position in the other replicas;
        returns the samples that they are of, in order of rank.
        """
        state = self.model
        batches = {self.cursor.rank: mine}
        if len(self.rounds.replica) > 1:
            alike = replace(state, shard=0)
            brought = yield Meet(("replica", step, min(self.rounds.replica)), self.rounds.replica, (alike, batches))
            assert {model for model, _ in brought.values()} == {alike}, (
                f"a replica trains on different states: {brought}"
            )
            batches = {rank: batch for _, other in brought.values() for rank, batch in other.items()}
        name = ("position", step, self.cursor.rank % len(self.rounds.replica))
        brought = yield Meet(name, self.rounds.alike, (state.chain, state.shard, batches))
        states = {(chain, shard) for chain, shard, _ in brought.values()}
        assert len(states) == 1, f"members train on different states: {brought}"
        batches = {rank: batch for _, _, other in brought.values() for rank, batch in other.items()}
        assert len(batches) == len(self.rounds.members), "gradients of some members are left out"
        return tuple(sample for rank in sorted(batches) for sample in batches[rank])

    def _seal(self, step: int, norm: float) -> Steps[None]:
        """Make the step only if all members have its gradients, or if the next round continues from it.

        Args:
            step: the round's.
            norm: of these gradients, which nobody knows before all are in the seal.
        """
        try:
            yield Meet(("seal", step), self.rounds.members, None)
            self.participant.clipped(norm)
            return
        except Severed as error:
            broken = error
        known = yield from self.rounds.seal_broken(broken)
        assert known == norm, f"gradients of norm {norm} are clipped by {known}"
        self.alone += 1

    def _meets_the_bug(self, mine: tuple[int, ...]) -> bool:
        if self._job.bug == "sample":
            return self._job.bug_at in mine
        reached = self.cursor.offset + len(mine) * len(self.rounds.members) > self._job.bug_at
        return self._job.bug == "rank 0" and self.cursor.rank == 0 and reached

    def _leaves_the_last_step_out(self, last_epoch: bool) -> bool:
        last_rank = self.cursor.rank == len(self.rounds.members) - 1 > 0
        last_step = self.cursor.recorded + self._job.batch >= self.cursor.share
        return self._job.bug == "uneven" and last_epoch and last_rank and last_step

    def _boundary(self, committed: bool) -> Steps[None]:
        every = self._job.checkpoint_every
        due = every > 0 and self.cursor.rank < self._job.replica_size and self.model.steps % every == 0
        if committed or due:
            self.save()
        if due:
            assert self.position is not None, "it is in a round"
            self._disk.write(self.worker_id, self.model, self.position)
        self.keep_small()
        try:
            yield from self.rounds.boundary(committed or due)
        except (Interrupted, Severed):
            if not self.swallow_at:
                raise
            yield from self._go_on()

    def _go_on(self) -> Steps[None]:
        """Catch the exception that leads out of the round, and go on: none of its boundaries may be passed any more."""
        yield from self.rounds.boundary(committed=False)
        raise AssertionError("a boundary lets the script pass in a round that is over")
