"""A model that all workers of a round hold once between them, from round to round: its shards, and their shadows.

Each worker has a shard of its own, and keeps the shadow of another's (shadow.py). Each round cuts the state anew, into
as many shards as it has workers: each position's rows go to where they are needed, in memory (resharding.py), from its
own worker or from the keeper of its shadow. New shards are new memory. Those before are kept until the seal of the
round's first step: then all members have theirs, and until then a loss may lead back to those before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from edriver.model.plan import Assignment
from edriver.model.shards import NO_SHARDING, HeldShards, Sharding, shadow_keeper, shadowed_position
from edriver.worker.backend import fsdp2
from edriver.worker.backend.tensors import writes
from edriver.worker.copies.side_stream import SideCopies
from edriver.worker.copies.snapshot import SnapshotBuffers
from edriver.worker.errors import PeerLostError
from edriver.worker.state.resharding import (
    PARAMETER,
    Column,
    ReshardPlan,
    StateShard,
    empty_shard,
    gathered,
    give_values,
    live_shard,
    reshard,
    sharded_columns,
)
from edriver.worker.state.shadow import Shadow, Written
from edriver.worker.sync.pairs import Sends
from edriver.worker.sync.sync import send_along

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


logger = logging.getLogger("edriver.worker")


@dataclass(frozen=True)
class _Cut:
    """The shards of a round, before the model trains with them.

    Attributes:
        sharding: theirs.
        rank: this worker's in the round.
        own: its shard; None: it stays as the model has been made.
        padded: what FSDP2 keeps of it: see fsdp2.empty_shards.
        shadow: the shadow's shard; None: this worker keeps none.
        before: what they were cut from, and this worker held of that.
    """

    sharding: Sharding
    rank: int
    own: StateShard | None
    padded: list[torch.Tensor]
    shadow: StateShard | None
    before: tuple[Sharding, dict[int, StateShard]]


class ElasticShards:
    """This worker's shards.

    Args:
        side: what copies tensors that do not lie in host memory.
    """

    def __init__(self, side: SideCopies) -> None:
        self._sharding = NO_SHARDING
        self._rank = 0
        self._shadow: Shadow | None = None
        self._before: tuple[Sharding, dict[int, StateShard]] = (NO_SHARDING, {})
        self._under_way: list[Sends] = []
        self._cut: _Cut | None = None
        self._buffers = SnapshotBuffers(side)
        self._saved: dict[str, Any] | None = None
        self._saved_written = False
        self._optimizer: Optimizer | None = None
        self._parameters: list[torch.Tensor] = []
        self._writes: list[int] | None = []
        self._values: list[Any] | None = []
        self._writes_to_values: list[int] | None = []
        self._script_writes = False

    # ---- a round begins

    def cut(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer,
        assignment: Assignment,
        outline: Callable[[], Any],
        take: Callable[[Any], None],
    ) -> None:
        """Get this worker's shards of the round, beside those that it has. All members of the round call this.

        Args:
            model: this worker's, with the shards of any round.
            optimizer: its optimizer.
            assignment: this worker's place in the round.
            outline: returns all of the state that is not sharded, for those that do not have it.
            take: takes that over, from another worker.

        Raises:
            RuntimeError: a peer was lost. This worker still has what it had.
            PeerLostError: so was the shard of a position, which the round was formed with. What workers have offered
                they may lack since: see `held`.
            TypeError: the optimizer keeps what cannot be cut.
        """
        rank, size = assignment.rank, assignment.size
        before = assignment.sharding or NO_SHARDING
        mine = {} if rank in assignment.receivers else self._held(before, model, optimizer)
        held = gathered(mine, before.size, size)
        if missing := {*range(before.size)} - {position for positions in held for position in positions}:
            raise PeerLostError(f"the shards of positions {', '.join(map(str, sorted(missing)))} are lost")
        holders = [member for member, positions in enumerate(held) if positions]
        source = holders[0] if holders else 0
        everyone = range(size)
        if assignment.checkpoint:  # which each of them has loaded
            lacking: Sequence[int] = ()
        else:
            lacking = everyone if assignment.first_sync or not holders else sorted({*everyone} - {*holders})
        sent = (outline(), [(c.shape, c.dtypes) for c in sharded_columns(model, optimizer)]) if rank == source else ()
        arrived = send_along((source, *(r for r in lacking if r != source)), sent, assignment)
        columns = sharded_columns(model, optimizer)
        if arrived is not None:
            common, sent_columns = arrived
            columns = _matching(columns, [Column(*parts) for parts in sent_columns])
            take(common)
        shadowed = shadowed_position(rank, size)
        shadow = empty_shard(columns, size, shadowed, _device(model)) if size > 1 else None
        into = {} if shadow is None else {shadowed: shadow}
        own, padded = None, list[torch.Tensor]()
        if holders:
            own, padded = _empty_own(model, columns, size, rank)
            into[rank] = own
        else:  # each has made its own, to which the script may write while the keeper of its shadow receives it
            copied = [{key: row.clone() for key, row in rows.items()} for rows in live_shard(model, optimizer)]
            before, mine = Sharding(assignment.round_id, size), {rank: copied}
            held = [frozenset({member}) for member in range(size)]
        targets = [{shadowed_position(member, size)} | ({member} if holders else set()) for member in range(size)]
        if size > 1 or holders:
            self._under_way.append(reshard(ReshardPlan(columns, before.size, size, held, targets), rank, mine, into))
        kept = (before, mine) if holders else (NO_SHARDING, dict[int, StateShard]())
        self._cut = _Cut(Sharding(assignment.round_id, size), rank, own, padded, shadow, kept)

    def enter(self, model: torch.nn.Module, optimizer: Optimizer, mesh: DeviceMesh, binds: bool) -> None:
        """Have a model train on the round's mesh, with the shards that `cut` has got.

        Args:
            model: that `cut` was given.
            optimizer: its optimizer.
            mesh: the round's.
            binds: whether the model can be bound to it; else it has been made for it.
        """
        cut, self._cut = self._cut, None
        assert cut is not None, "cut comes first"
        if cut.own is not None:
            if binds:
                fsdp2.bind(model, optimizer, mesh, cut.padded)
            for parameter, rows in zip(fsdp2.sharded(model), cut.own, strict=True):
                if not binds:
                    with torch.no_grad():
                        fsdp2.local(parameter).copy_(rows[PARAMETER])
                give_values(optimizer, parameter, rows)
        self._sharding, self._rank, self._before = cut.sharding, cut.rank, cut.before
        self._shadow = None
        if cut.shadow is not None:
            position = shadowed_position(self._rank, cut.sharding.size)
            self._shadow = Shadow(model, optimizer, position, cut.shadow)
        self._optimizer = optimizer
        self._parameters = [tensor for p in fsdp2.sharded(model) for tensor in (p, fsdp2.local(p))]
        self._note_writes()

    def _note_writes(self) -> None:
        """The shadow is up to date."""
        self._writes = writes(self._parameters)
        self._values = self._kept_values()
        self._writes_to_values = writes(_tensors(self._values))

    @property
    def _written(self) -> Written:
        """What the script has written to since. All workers do the same: so it has to the shadow's."""
        values = self._kept_values()
        if self._values is None or len(values) != len(self._values) or not all(map(is_, values, self._values)):
            return Written.STATE
        if self._writes_to_values is None or self._writes_to_values != writes(_tensors(values)):
            return Written.STATE
        if self._writes is None or self._writes != writes(self._parameters):
            return Written.PARAMETERS
        return Written.NOTHING

    def _kept_values(self) -> list[Any]:
        """What the optimizer keeps of its parameters."""
        kept = [] if self._optimizer is None else self._optimizer.state.values()
        return [value for of_one in kept if isinstance(of_one, dict) for value in of_one.values()]

    # ---- a step

    def exchange_gradients(self) -> None:
        """Before the seal of a step: send this worker's gradients, and receive those of its shadow.

        Raises:
            RuntimeError: a peer was lost.
        """
        if self._shadow is None:
            return
        written = self._written
        if written and not self._script_writes and self._sharding.size > 1:
            self._script_writes = True
            logger.info(
                "parameters, or what the optimizer keeps of them, are written to outside of its steps: such a write "
                "reaches the copy on another worker with the next step's gradients, and until then the loss of a "
                "worker cannot be made up for"
            )
        keeper = shadow_keeper(self._rank, self._sharding.size)
        self._under_way += self._shadow.exchange_gradients(keeper, written)
        if written:
            self._note_writes()

    def complete_shadows(self) -> None:
        """Have the shadow up to date with what the script has written since the last step. All members call this.

        Raises:
            RuntimeError: a peer was lost.
        """
        if self._shadow is None:
            return
        written = torch.tensor([self._written], dtype=torch.uint8, device="cpu")
        dist.all_reduce(written, dist.ReduceOp.MAX)
        if written:
            keeper = shadow_keeper(self._rank, self._sharding.size)
            under_way = self._shadow.exchange_rows(keeper, Written(int(written)))
            dist.all_reduce(written, dist.ReduceOp.MAX)  # none leaves before what it has sent is there
            del under_way
        self._note_writes()

    def sealed(self) -> None:
        """All members have their shards of this round, and what was sent to them."""
        self._under_way.clear()
        self._before = (NO_SHARDING, {})

    def stepped(self) -> None:
        """The optimizer has made its step: make the shadow's."""
        if self._shadow is not None:
            self._shadow.step()
        self._note_writes()

    def clear_gradients(self) -> None:
        """Discard the shadow's gradients."""
        if self._shadow is not None:
            self._shadow.clear_gradients()

    # ---- a round ends

    def held(self) -> tuple[HeldShards, ...]:
        """What this worker holds of the last boundary's version, the latest sharding first.

        The first is what it holds of the version that follows, too, with gradients that it has kept. That is its own
        shard alone if the script writes to parameters: it may do so once that step is made, and to the other worker's.
        It may also write for the first time then; so a round may find that it lacks what was offered.
        """
        sharding, shards = self._before
        found = [HeldShards(self._sharding, (self._rank,))] if self._sharding.size and self._script_writes else []
        if self._sharding.size and not (self._script_writes and self._written):
            found.append(HeldShards(self._sharding, (self._rank,) if self._written else self._positions))
        if shards:
            found.append(HeldShards(sharding, tuple(sorted(shards))))
        return tuple(found)

    def held_of_commit(self) -> tuple[HeldShards, ...]:
        """What it holds of the last commit's version."""
        if self._saved is None:
            return ()
        return (HeldShards(self._sharding, (self._rank,) if self._saved_written else self._positions),)

    @property
    def _positions(self) -> tuple[int, ...]:
        return tuple(sorted({self._rank, *(() if self._shadow is None else (self._shadow.position,))}))

    def _held(self, sharding: Sharding, model: torch.nn.Module, optimizer: Optimizer) -> dict[int, StateShard]:
        """This worker's shards of a sharding, by position."""
        if not sharding.size:
            return {}
        if sharding == self._before[0]:
            return self._before[1]
        if sharding != self._sharding:
            return {}
        found = {self._rank: live_shard(model, optimizer)}
        if self._shadow is not None and not self._written:
            found[self._shadow.position] = self._shadow.shard
        return found

    # ---- commits

    def save(self) -> None:
        """Copy the shadow aside."""
        tree = {"shadow": None if self._shadow is None else self._shadow.capture()}
        self._saved = self._buffers.copied(tree, _changes)
        self._saved_written = bool(self._written)

    def restore(self) -> None:
        """Go back to the last copy."""
        if self._saved is not None and self._shadow is not None:
            self._shadow.load(self._saved["shadow"])
        self._note_writes()
        if self._saved_written:
            self._values = None


def _changes(key: str, tensor: torch.Tensor) -> bool:
    """Nothing is said of what changes a shadow: its optimizer is not the state's."""
    del key, tensor
    return False


def _tensors(values: list[Any]) -> list[torch.Tensor]:
    """The tensors among what an optimizer keeps, and their shards."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return [*tensors, *(fsdp2.local(tensor) for tensor in tensors if fsdp2.is_sharded(tensor))]


def _device(model: torch.nn.Module) -> torch.device:
    return fsdp2.local(fsdp2.sharded(model)[0]).device


def _empty_own(
    model: torch.nn.Module, columns: list[Column], size: int, rank: int
) -> tuple[StateShard, list[torch.Tensor]]:
    """Memory for this worker's shard; and what FSDP2 keeps of the parameters, of which the shard's are parts."""
    shard = empty_shard(columns, size, rank, _device(model))
    padded = fsdp2.empty_shards(model, size)
    for rows, whole in zip(shard, padded, strict=True):
        rows[PARAMETER] = whole[: len(rows[PARAMETER])]
    return shard, padded


def _matching(own: list[Column], others: list[Column]) -> list[Column]:
    """The parameters, with what the optimizer keeps of them.

    Raises:
        ValueError: this worker's model is another one.
    """
    if [(c.shape, c.dtypes[PARAMETER]) for c in own] != [(c.shape, c.dtypes[PARAMETER]) for c in others]:
        raise ValueError(
            f"this worker's model has {len(own)} sharded parameters, whose shapes or types differ from the "
            f"{len(others)} of the model whose shards it is to take: all workers must build the same model"
        )
    return others
