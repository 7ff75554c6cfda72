"""A simulated worker's shards, where all workers of a round hold the state once between them: see Job.one_replica.

What elastic_shards.py is in a worker, step by step, with the real rule of which rows go from whom to whom. A row is a
hash of all that has been made of it, so rows of unequal versions, or of unequal pasts, differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from edriver.model.plan import Assignment
from edriver.model.shards import NO_SHARDING, HeldShards, Sharding, shadow_keeper, shadowed_position
from edriver.worker.state.row_slices import RowSlice, plan_moves, shard_rows
from tests.sim.fabric import Severed
from tests.sim.sim_rounds import Meet, Steps

ROWS = (5, 8)
"""The rows of each parameter; in large rounds some shards have none of them."""

Row = tuple[int, int]

Shard = dict[Row, int]

Gradients = tuple[int, tuple[int, ...]]
"""Of a step: its epoch, and the samples of all workers."""


def rows_at(position: int, size: int) -> list[Row]:
    """The rows of a position's shard."""
    return [(column, row) for column, count in enumerate(ROWS) for row in range(*shard_rows(count, size, position))]


def rows_in(rows: RowSlice) -> Iterator[Row]:
    """The rows that are sent with a slice."""
    return ((rows.column, row) for row in range(rows.first, rows.end))


def stepped(shard: Shard, gradients: Gradients) -> Shard:
    """What the optimizer's step makes of a shard."""
    return {row: hash((value, gradients)) for row, value in shard.items()}


@dataclass(frozen=True)
class Held:
    """A worker's shards of a sharding, by position.

    Attributes:
        sharding: the sharding.
        shards: the shards. They are replaced, and never changed.
        own: the position of its own one.
    """

    sharding: Sharding
    shards: dict[int, Shard]
    own: int = 0

    @property
    def named(self) -> HeldShards:
        """As it is offered."""
        return HeldShards(self.sharding, tuple(sorted(self.shards)))

    def only_own(self) -> Held:
        """Without the shadow."""
        return Held(self.sharding, {self.own: self.shards[self.own]}, self.own)


NOTHING = Held(NO_SHARDING, {})


class SimShards:
    """A worker's shards.

    Args:
        worker_id: of the worker.

    Attributes:
        now: its own shard, and the shadow that it keeps,
        before: and what those were cut from, until the seal of the round's first step.
    """

    def __init__(self, worker_id: int) -> None:
        self._worker_id = worker_id
        self.now = NOTHING
        self.before = NOTHING
        self._cut: tuple[Held, Held] | None = None
        self._saved: tuple[Held, bool] | None = None
        self._written = False
        self._script_writes = False
        self._gradients: dict[int, Gradients] = {}

    # ---- a round begins

    def cut(
        self, assignment: Assignment, members: dict[int, int], common: Any, take: Callable[[Any], None]
    ) -> Steps[None]:
        """Get this worker's shards of the round: see ElasticShards.cut.

        Args:
            assignment: its place in the round.
            members: the workers, by rank.
            common: all of its state that is not sharded.
            take: takes that over, from another worker.
        """
        rank, size = assignment.rank, assignment.size
        before = assignment.sharding or NO_SHARDING
        mine = {} if rank in assignment.receivers else dict(self._of(before).shards)
        held = [frozenset(mine)] * size
        if size > 1 and before.size:
            found = yield Meet("held", frozenset(members.values()), (rank, frozenset(mine)))
            held = [positions for _, positions in sorted(found.values())]
        if before.size and set[int]().union(*held) != {*range(before.size)}:
            raise Severed
        holders = [member for member, positions in enumerate(held) if positions]
        source = holders[0] if holders else 0
        lacking = range(size) if assignment.first_sync or not holders else sorted({*range(size)} - {*holders})
        parties = {source, *lacking}
        if rank in parties and len(parties) > 1:
            brought = yield Meet("outline", frozenset(members[r] for r in parties), (rank, common))
            if rank != source:
                take(dict(brought.values())[source])
        if not holders:  # each has made its own, and only shadows are lacking
            before = Sharding(assignment.round_id, size)
            mine = {rank: {row: hash(("made", self._worker_id, row)) for row in rows_at(rank, size)}}
            held = [frozenset({member}) for member in range(size)]
        targets = [sorted({member, shadowed_position(member, size)}) for member in range(size)]
        into: dict[int, Shard] = {position: {} for position in targets[rank]}

        moves = plan_moves(rank, ROWS, (before.size, size), held, targets)

        def between(sender: int, receiver: int) -> list[RowSlice]:
            return moves.incoming.get(sender, []) if receiver == rank else moves.outgoing.get(receiver, [])

        _copy(mine, into, between(rank, rank))
        for sender, receiver in ((s, r) for s in range(size) for r in range(size) if s != r and rank in (s, r)):
            if sent := between(sender, receiver):
                pair = frozenset({members[sender], members[receiver]})
                brought = yield Meet(("rows", sender, receiver), pair, (rank, mine))
                if rank == receiver:
                    _copy(dict(brought.values())[sender], into, sent)
        for position, shard in into.items():
            assert sorted(shard) == rows_at(position, size), f"rows of position {position} are lacking"
        kept = Held(before, mine, self._of(before).own) if holders else NOTHING
        self._cut = Held(Sharding(assignment.round_id, size), into, rank), kept

    def enter(self) -> None:
        """Train with what `cut` has got."""
        assert self._cut is not None, "cut comes first"
        (self.now, self.before), self._cut = self._cut, None
        self._written = False

    # ---- a step

    def exchange_gradients(self, step: int, members: dict[int, int], gradients: Gradients) -> Steps[None]:
        """Before the seal of a step: send this worker's gradients, and receive those of its shadow; and parameters,
        if the script has written to them.
        """
        size, rank = self.now.sharding.size, self.now.own
        self._gradients = {rank: gradients}
        if size == 1:
            return
        shadowed = shadowed_position(rank, size)
        rows = self.now.shards[rank] if self._written else None
        for owner in sorted({rank, shadowed}):
            pair = frozenset({members[owner], members[shadow_keeper(owner, size)]})
            brought = yield Meet(("gradients", step, owner), pair, (rank, gradients, rows))
            if owner == shadowed:
                _, self._gradients[shadowed], arrived = next(b for b in brought.values() if b[0] == owner)
                if arrived is not None:
                    self._script_writes = True
                    self.now = Held(self.now.sharding, {**self.now.shards, shadowed: arrived}, rank)
        self._written = False

    def complete(self, members: dict[int, int]) -> Steps[None]:
        """Have the shadow up to date: see ElasticShards.complete_shadows."""
        size, rank, everyone = self.now.sharding.size, self.now.own, frozenset(members.values())
        if size == 1:
            return
        told = yield Meet("written", everyone, self._written)
        if not any(told.values()):
            return
        shadowed = shadowed_position(rank, size)
        for owner in sorted({rank, shadowed}):
            pair = frozenset({members[owner], members[shadow_keeper(owner, size)]})
            brought = yield Meet(("shadow", owner), pair, (rank, self.now.shards[rank]))
            if owner == shadowed:
                arrived = next(shard for sender, shard in brought.values() if sender == owner)
                self.now = Held(self.now.sharding, {**self.now.shards, shadowed: arrived}, rank)
        yield Meet("shadows", everyone, None)
        self._written = False

    def sealed(self) -> None:
        """All members have their shards of this round."""
        self.before = NOTHING

    def step(self) -> None:
        """Make the optimizer's step, to the shadow as well."""
        made = {position: stepped(shard, self._gradients[position]) for position, shard in self.now.shards.items()}
        self.now = Held(self.now.sharding, made, self.now.own)

    def write(self, what: object) -> None:
        """The script writes to parameters outside of the optimizer's steps."""
        own = {row: hash((value, what)) for row, value in self.now.shards[self.now.own].items()}
        self.now = Held(self.now.sharding, {**self.now.shards, self.now.own: own}, self.now.own)
        self._written = len(self.now.shards) > 1
        self._script_writes = True

    # ---- a round ends

    def held(self) -> list[Held]:
        """What it holds of the last boundary's version, the latest sharding first.

        Before that comes what it holds of the version that follows.
        """
        latest = [self.latest.only_own(), self.latest] if self._script_writes and self.latest.shards else [self.latest]
        return [held for held in (*latest, self.before) if held.shards]

    def held_of_commit(self) -> list[Held]:
        """What it holds of the last commit's version."""
        if self._saved is None:
            return []
        saved, written = self._saved
        return [saved.only_own() if written else saved]

    @property
    def latest(self) -> Held:
        """What is of the state as it is now: not the shadow, while the script has written to what it is of."""
        return self.now.only_own() if self._written else self.now

    def _of(self, sharding: Sharding) -> Held:
        if not sharding.size:
            return NOTHING
        return next((held for held in (self.before, self.latest) if held.sharding == sharding), NOTHING)

    # ---- commits

    def save(self) -> None:
        """Keep a copy."""
        if self.now.sharding.size:
            self._saved = self.now, self._written

    def restore(self) -> None:
        """Go back to the last copy."""
        if self._saved is not None:
            self.now, self._written = self._saved


def _copy(shards: dict[int, Shard], into: dict[int, Shard], sent: Iterable[RowSlice]) -> None:
    for rows in sent:
        for row in rows_in(rows):
            into[rows.new][row] = shards[rows.old][row]
