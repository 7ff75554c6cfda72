"""Resharding: the shards that a round's workers hold are cut anew, in memory, and go to those that are to hold them.

Only rows that a worker does not hold itself travel. Many are sent from where they lie, and received into where they
belong: a copy would be in new memory, which on a virtual machine can take longer than to send it. Others are packed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from edriver.worker.backend import fsdp2
from edriver.worker.backend.process_modes import without_tensor_modes
from edriver.worker.state.row_slices import Moves, RowSlice, plan_moves, shard_rows
from edriver.worker.sync.pairs import Sends, exchange
from edriver.worker.sync.relay import staging

PARAMETER: Final = ""
"""In a shard: the parameter's own rows."""

APART_BYTES: Final = 2**20
"""Rows of one tensor that take as many bytes are a message of their own; fewer are packed with others."""

StateShard = list[dict[str, torch.Tensor]]
"""For each sharded parameter, its rows, and the rows of what the optimizer keeps of it, by its key there."""


@dataclass(frozen=True)
class Column:
    """A parameter, as all workers know it.

    Attributes:
        shape: of the whole of it.
        dtypes: of what is kept of each of its rows, by PARAMETER and the optimizer's keys.
    """

    shape: tuple[int, ...]
    dtypes: dict[str, torch.dtype]


def live_shard(model: torch.nn.Module, optimizer: Optimizer) -> StateShard:
    """This worker's shard: the memory itself.

    Raises:
        TypeError: the optimizer keeps a DTensor of another shape than that of its parameter.
    """
    return [
        {PARAMETER: fsdp2.local(p), **{key: fsdp2.local(value) for key, value in sharded_values(optimizer, p).items()}}
        for p in fsdp2.sharded(model)
    ]


def sharded_values(optimizer: Optimizer, parameter: torch.nn.Parameter) -> dict[str, torch.Tensor]:
    """What an optimizer keeps of each element of a parameter: the values that are sharded as it is.

    Raises:
        TypeError: a value is sharded in another way, or is of this worker's shard and does not say how.
    """
    found: dict[str, torch.Tensor] = {
        key: v for key, v in optimizer.state.get(parameter, {}).items() if isinstance(v, torch.Tensor) and v.ndim
    }
    for key, value in found.items():
        placements = value.placements if isinstance(value, DTensor) else None
        if value.shape != parameter.shape or placements != parameter.placements:  # type: ignore[attr-defined]
            raise TypeError(
                f"{type(optimizer).__name__} keeps {key!r} in another shape than that of its parameter, which cannot "
                "be cut anew for another number of workers: use an optimizer such as torch's AdamW, or train in "
                "restart mode, with edriver.checkpoints in memory"
            )
    return dict(found)


def sharded_columns(model: torch.nn.Module, optimizer: Optimizer) -> list[Column]:
    """The sharded parameters of a model, with what its optimizer keeps of them."""
    return [
        Column(tuple(p.shape), {PARAMETER: p.dtype, **{k: v.dtype for k, v in sharded_values(optimizer, p).items()}})
        for p in fsdp2.sharded(model)
    ]


def empty_shard(columns: Iterable[Column], size: int, position: int, device: torch.device) -> StateShard:
    """Memory for a position's shard."""
    return [
        {
            key: torch.empty((_length(column, size, position), *column.shape[1:]), dtype=dtype, device=device)
            for key, dtype in column.dtypes.items()
        }
        for column in columns
    ]


def _length(column: Column, size: int, position: int) -> int:
    first, end = shard_rows(column.shape[0], size, position)
    return end - first


def gathered(positions: Collection[int], size: int, members: int) -> list[frozenset[int]]:
    """Which positions each member holds, by rank. All members of the round call this.

    Args:
        positions: that this one holds.
        size: the number of positions.
        members: the number of members.

    Raises:
        RuntimeError: a peer was lost.
    """
    if members == 1 or not size:
        return [frozenset(positions) for _ in range(members)]
    with without_tensor_modes():
        mine = torch.tensor([position in positions for position in range(size)], dtype=torch.uint8, device="cpu")
        all_of_them = [torch.empty_like(mine) for _ in range(members)]
        dist.all_gather(all_of_them, mine)
        return [frozenset(of.nonzero().flatten().tolist()) for of in all_of_them]


@dataclass(frozen=True)
class ReshardPlan:
    """How shards are cut anew in a round.

    Attributes:
        columns: the parameters.
        before: the number of shards before,
        now: and of those that are to be held.
        held: by rank, the positions of the shards before that are held there.
        targets: by rank, the positions of the new shards that are to be held there.
    """

    columns: Sequence[Column]
    before: int
    now: int
    held: Sequence[Collection[int]]
    targets: Sequence[Collection[int]]

    def moves(self, rank: int) -> Moves:
        """What a rank takes from others and itself, and what others take from it."""
        rows = [column.shape[0] for column in self.columns]
        return plan_moves(rank, rows, (self.before, self.now), self.held, self.targets)

    def parts(self, rows: RowSlice, shard: StateShard, size: int, position: int) -> list[torch.Tensor]:
        """Those rows in a shard, in the order in which they are sent."""
        of, column = shard[rows.column], self.columns[rows.column]
        first, _ = shard_rows(column.shape[0], size, position)
        return [of[key][rows.first - first : rows.end - first].detach() for key in sorted(column.dtypes)]


def reshard(plan: ReshardPlan, rank: int, shards: Mapping[int, StateShard], into: Mapping[int, StateShard]) -> Sends:
    """Fill this rank's new shards, from those that it holds and those of others. All members of the round call this.

    Args:
        plan: the same on all.
        rank: this worker's.
        shards: by position, the shards before that it holds. They are only read, also while sends are under way.
        into: by position, memory for those that it is to hold.

    Returns:
        what is under way to others.

    Raises:
        RuntimeError: a peer was lost. The new shards may be half filled.
    """
    with without_tensor_modes(), torch.no_grad():
        moves = plan.moves(rank)
        for rows in moves.incoming.pop(rank, ()):
            old = plan.parts(rows, shards[rows.old], plan.before, rows.old)
            for source, target in zip(old, plan.parts(rows, into[rows.new], plan.now, rows.new), strict=True):
                target.copy_(source)
        outgoing = {
            other: [
                as_bytes(parts[0]) if lies_ready(parts) else _packed(parts)
                for parts in messages_of(p for s in found for p in plan.parts(s, shards[s.old], plan.before, s.old))
            ]
            for other, found in sorted(moves.outgoing.items())
        }
        awaited = {
            other: messages_of(p for s in found for p in plan.parts(s, into[s.new], plan.now, s.new))
            for other, found in sorted(moves.incoming.items())
        }
        incoming = {
            other: [as_bytes(parts[0]) if lies_ready(parts) else staging(_length_of(parts)) for parts in messages]
            for other, messages in awaited.items()
        }
        sends = exchange(outgoing, incoming)
        for other, messages in awaited.items():
            for parts, message in zip(messages, incoming[other], strict=True):
                if not lies_ready(parts):
                    _unpack(message, parts)
    return sends


def messages_of(parts: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The parts that travel between two ranks, by the message that has them; the same on both."""
    together, apart = list[torch.Tensor](), list[list[torch.Tensor]]()
    for part in parts:
        if part.nbytes >= APART_BYTES:
            apart.append([part])
        elif part.nbytes:
            together.append(part)
    return [together, *apart] if together else apart


def lies_ready(parts: Sequence[torch.Tensor]) -> bool:
    """Whether these parts are a message as they lie in memory."""
    return len(parts) == 1 and parts[0].device.type == "cpu" and parts[0].is_contiguous()


def _length_of(parts: Iterable[torch.Tensor]) -> int:
    return sum(part.nbytes for part in parts)


def _packed(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    message = staging(_length_of(parts))
    at = 0
    for part in parts:
        message[at : at + part.nbytes].copy_(as_bytes(part.contiguous()))
        at += part.nbytes
    return message


def _unpack(message: torch.Tensor, parts: Iterable[torch.Tensor]) -> None:
    at = 0
    for part in parts:
        as_bytes(part).copy_(message[at : at + part.nbytes])
        at += part.nbytes


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor, uint8 of one dimension."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def give_values(optimizer: Optimizer, parameter: torch.nn.Parameter, shard: Mapping[str, Any]) -> None:
    """Have an optimizer keep these rows of a sharded parameter, in the place of others."""
    assert isinstance(parameter, DTensor), "fully_shard has sharded it"
    for key, value in shard.items():
        if key != PARAMETER:
            with torch.no_grad():
                optimizer.state[parameter][key] = DTensor.from_local(
                    value,
                    parameter.device_mesh,
                    parameter.placements,
                    run_check=False,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )
