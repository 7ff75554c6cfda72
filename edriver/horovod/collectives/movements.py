"""Collectives that move tensors: allgather, broadcast, alltoall. Elements travel as bytes, so of any type.

Gradients pass through those that are not in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from edriver.horovod.collectives.arguments import checked_tensors, no_rows
from edriver.horovod.collectives.handles import Pending
from edriver.horovod.collectives.negotiation import Agreed, CollectiveCall, agree, all_reduced, outline
from edriver.horovod.collectives.operations import Operation
from edriver.horovod.errors import peer_loss_translated
from edriver.horovod.process_sets import CollectiveLane, ProcessSet, global_process_set


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, flat, in the same memory."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def exchanged_rows(
    tensor: torch.Tensor, give: Sequence[int], take: Sequence[int], lane: CollectiveLane
) -> tuple[torch.Tensor, dist.Work | None]:
    """Start to send rows of a contiguous tensor to each member, and receive theirs.

    Args:
        tensor: what to send.
        give: how many of its rows each member gets,
        take: and how many come from each.
        lane: who takes part; they have agreed.

    Returns:
        where the rows arrive, in the order of the members, and what to wait for.

    Raises:
        HorovodInternalError: a member is lost.
    """
    result = tensor.new_empty(sum(take), *tensor.shape[1:])
    row = tensor[:1].numel() * tensor.element_size() if len(tensor) else _row_bytes(tensor)
    with peer_loss_translated():
        work = dist.all_to_all_single(
            bytes_of(result),
            bytes_of(tensor[: sum(give)]),
            [rows * row for rows in take],
            [rows * row for rows in give],
            group=lane.group(),
            async_op=True,
        )
    return result, work


def _row_bytes(tensor: torch.Tensor) -> int:
    return tensor.new_empty(1, *tensor.shape[1:]).numel() * tensor.element_size()


# ---- allgather


def gathered_rows(tensor: torch.Tensor, rows: Sequence[int], lane: CollectiveLane) -> Pending:
    """Start to put the members' rows after one another.

    Args:
        tensor: this member's.
        rows: how many each member has.
        lane: who takes part; they have agreed.

    Raises:
        HorovodInternalError: a member is lost.
    """
    padded = tensor.detach()
    if len(padded) < max(rows):
        padded = torch.cat([padded, padded.new_empty(max(rows) - len(padded), *padded.shape[1:])])
    everyone = padded.new_empty(lane.size, max(rows), *padded.shape[1:])
    works: list[dist.Work | None] = []
    if everyone.numel():
        size = everyone[0].numel() * everyone.element_size()
        with peer_loss_translated():
            work = dist.all_gather(
                list(torch.split(bytes_of(everyone), size)),
                bytes_of(padded.contiguous()),
                group=lane.group(),
                async_op=True,
            )
        works.append(work)
    return Pending(works, lambda: torch.cat([one[:count] for one, count in zip(everyone, rows, strict=True)]))


def together(parts: Sequence[Pending], finish: Callable[[list[Any]], Any]) -> Pending:
    """Several collectives as one, which ends when all of them have."""
    works = [work for part in parts for work in part.works]
    return Pending(works, lambda: finish([part.finish() for part in parts]))


def rows_of_all(counts: Sequence[int], lane: CollectiveLane) -> list[list[int]]:
    """Numbers of all members, by member; each has equally many. Raises HorovodInternalError."""
    everyone = torch.zeros(lane.size, len(counts), dtype=torch.int64, device="cpu")
    everyone[lane.place] = torch.tensor(counts, dtype=torch.int64, device="cpu")
    numbers: list[list[int]] = all_reduced(everyone, lane).tolist()
    return numbers


def _gather(
    kind: str,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    members: ProcessSet,
    finish: Callable[[list[torch.Tensor]], Any],
) -> Operation:
    checked_tensors(kind, tensors, members)
    outlines = tuple(outline(each, free_rows=True) for each in tensors)
    counts = [len(tensor) if tensor.dim() else 0 for tensor in tensors]

    def begin(agreed: Agreed) -> Pending:
        rows = [agreed.extras] if len(counts) == 1 else [*zip(*rows_of_all(counts, agreed.lane), strict=True)]
        parts = [gathered_rows(tensor, each, agreed.lane) for tensor, each in zip(tensors, rows, strict=True)]
        return together(parts, finish)

    call = CollectiveCall(kind, name, outlines, refusal=no_rows(tensors))
    return Operation(call, members, begin, counts[0] if counts else 0)


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start to gather the members' tensors; returns a handle. See `allgather`."""
    return _gather("allgather", [tensor], name, process_set, lambda results: results[0]).later()


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to gather several tensors; returns one handle, for the list of results. See `allgather`."""
    return _gather("grouped_allgather", tensors, name, process_set, lambda results: results).later()


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate the members' tensors along the first dimension. Gradients flow through the operation.

    Args:
        tensor: a tensor of the same type and, except for the first dimension, the same shape on all members.
        name: the name of the operation in errors; the same on all members.
        process_set: the ranks that take part.

    Raises:
        MismatchError: the members' calls differ; the message names the ranks, types and shapes.
        HorovodInternalError: a member is lost.
        ValueError: the tensor has no dimension, or this rank is not a member.
    """
    (result,) = _Allgather.apply("allgather", name, process_set, tensor)  # type: ignore[no-untyped-call]
    gathered: torch.Tensor = result
    return gathered


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Gather several tensors; returns the list of results. Gradients pass through it. See `allgather`."""
    return list(_Allgather.apply("grouped_allgather", name, process_set, *tensors))  # type: ignore[no-untyped-call]


class _Allgather(torch.autograd.Function):
    """A tensor goes to all members: its gradient is the average of theirs, as Horovod has it."""

    @staticmethod
    def forward(ctx: Any, kind: str, name: str | None, members: ProcessSet, *tensors: torch.Tensor) -> Any:
        results = tuple(_gather(kind, tensors, name, members, lambda results: results).now())
        ctx.kind, ctx.members, ctx.rows = kind, members, [len(tensor) for tensor in tensors]
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        members = ctx.members
        agreed = agree(CollectiveCall(f"{ctx.kind}'s gradient", None, tuple(map(outline, gradients))), members)
        results = []
        for gradient, *rows in zip(gradients, *rows_of_all(ctx.rows, agreed.lane), strict=True):
            total = all_reduced(gradient.detach().clone(memory_format=torch.contiguous_format), agreed.lane)
            start, length = sum(rows[: agreed.lane.place]), rows[agreed.lane.place]
            results.append(total[start : start + length] / agreed.lane.size)
        return None, None, None, *results


# ---- broadcast


def _broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None, members: ProcessSet, in_place: bool
) -> Operation:
    checked_tensors("broadcast", [tensor], members)
    if not isinstance(root_rank, int):
        raise TypeError(f"broadcast: root_rank is an int, not {root_rank!r}")
    refusal = "" if root_rank in members.ranks else f"root rank {root_rank} is not among {members.ranks}"

    def begin(agreed: Agreed) -> Pending:
        buffer = tensor.detach()
        if not in_place or not buffer.is_contiguous():
            buffer = buffer.clone(memory_format=torch.contiguous_format)
        work = None
        if agreed.lane.size > 1 and buffer.numel():
            with peer_loss_translated():
                work = dist.broadcast(bytes_of(buffer), src=root_rank, group=agreed.lane.group(), async_op=True)

        def result() -> torch.Tensor:
            if not in_place:
                return buffer
            with torch.no_grad():
                # Where the bytes arrived directly in the tensor's memory, this tells torch that it was written to.
                tensor.copy_(buffer)
            return tensor

        return Pending([work], result)

    call = CollectiveCall("broadcast", name, (outline(tensor),), f"root_rank={root_rank}", refusal=refusal)
    return Operation(call, members, begin)


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to broadcast a tensor, which stays as it is; returns a handle. See `broadcast`."""
    return _broadcast(tensor, root_rank, name, process_set, in_place=False).later()


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to broadcast a tensor in place; returns a handle. See `broadcast`."""
    return _broadcast(tensor, root_rank, name, process_set, in_place=True).later()


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Broadcast a tensor in place; returns it. See `broadcast`."""
    result: torch.Tensor = _broadcast(tensor, root_rank, name, process_set, in_place=True).now()
    return result


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Broadcast one member's tensor to all members; returns a new tensor. Gradients flow through the operation.

    Args:
        tensor: a tensor of the same type and shape on all members; it is not modified.
        root_rank: the rank whose tensor is broadcast: a global rank, also in a process set.
        name: the name of the operation in errors; the same on all members.
        process_set: the ranks that take part.

    Raises:
        MismatchError: the members' calls differ; the message names the ranks, types and shapes.
        HorovodInternalError: a member is lost.
        ValueError: the root, or this rank, is not a member.
    """
    result: torch.Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call]
    return result


class _Broadcast(torch.autograd.Function):
    """The root's tensor goes to all members: its gradient is the average of theirs, as Horovod has it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, members: ProcessSet) -> Any:
        ctx.root_rank, ctx.members = root_rank, members
        return _broadcast(tensor, root_rank, name, members, in_place=False).now()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        agreed = agree(CollectiveCall("broadcast's gradient", None, (outline(gradient),)), ctx.members)
        lane = agreed.lane
        total = all_reduced(gradient.detach().clone(memory_format=torch.contiguous_format), lane) / lane.size
        is_root = lane.ranks[lane.place] == ctx.root_rank
        return total if is_root else torch.zeros_like(total), None, None, None


# ---- alltoall


def _alltoall(tensor: torch.Tensor, splits: Any, name: str | None, members: ProcessSet) -> Operation:
    checked_tensors("alltoall", [tensor], members)
    size = members.size()
    give, refusal = _splits(tensor, splits, size)

    def begin(agreed: Agreed) -> Pending:
        take = [row[agreed.lane.place] for row in rows_of_all(give, agreed.lane)]
        result, work = exchanged_rows(tensor.detach().contiguous(), give, take, agreed.lane)
        return Pending([work], lambda: (result, torch.tensor(take, dtype=torch.int32, device="cpu")))

    call = CollectiveCall("alltoall", name, (outline(tensor, free_rows=True),), refusal=refusal)
    return Operation(call, members, begin)


def _splits(tensor: torch.Tensor, splits: Any, size: int) -> tuple[list[int], str]:
    """The number of rows for each member, and an error message, empty if the arguments are valid."""
    nothing = [0] * size
    if refusal := no_rows([tensor]):
        return nothing, refusal
    rows = tensor.shape[0]
    given = torch.tensor([], dtype=torch.int32, device="cpu") if splits is None else torch.as_tensor(splits).cpu()
    if given.dim() != 1:
        return nothing, f"it expects a 1D splits tensor, not one of shape {tuple(given.shape)}"
    if not len(given):
        if rows % size:
            return nothing, f"{rows} rows cannot be shared out evenly to {size} members: give splits"
        return [rows // size] * size, ""
    if given.dtype.is_floating_point or given.dtype.is_complex or given.dtype == torch.bool:
        return nothing, f"it expects splits to be integers, not {str(given.dtype).removeprefix('torch.')}"
    counts: list[int] = given.tolist()
    if len(counts) != size or sum(counts) > rows or min(counts) < 0:
        return nothing, f"splits {counts} do not share out {rows} rows to {size} members"
    return counts, ""


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an exchange of rows; returns a handle, whose result is a pair, also without splits. See `alltoall`."""
    return _alltoall(tensor, splits, name, process_set).later()


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows to each member, and receive theirs. Gradients pass through it.

    Args:
        tensor: a tensor of the same type and, except for the first dimension, the same shape on all members.
        splits: how many rows go to each member, in their order; None: equally many. Rows that are left over stay here.
        name: the name of the operation in errors; the same on all members.
        process_set: the ranks that take part.

    Returns:
        The rows received, in the order of the members; with splits, a pair of those and of how many came from each.

    Raises:
        MismatchError: the members' calls differ; the message names the ranks, types and shapes.
        HorovodInternalError: a member is lost.
        ValueError: the splits are not integers, one for each member, or add up to more than there is.
    """
    result, taken = _Alltoall.apply(tensor, splits, name, process_set)  # type: ignore[no-untyped-call]
    return (result, taken) if splits is not None else result


class _Alltoall(torch.autograd.Function):
    """The gradients go back to where the rows came from."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, members: ProcessSet) -> Any:
        result, taken = _alltoall(tensor, splits, name, members).now()
        ctx.rows, ctx.taken, ctx.members = len(tensor), taken, members
        ctx.mark_non_differentiable(taken)
        return result, taken

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        result, _ = _alltoall(gradients[0], ctx.taken, "alltoall's gradient", ctx.members).now()
        left_over = result.new_zeros(ctx.rows - len(result), *result.shape[1:])
        return torch.cat([result, left_over]) if len(left_over) else result, None, None, None


# ---- barrier


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all members have called it.

    Raises:
        MismatchError: a member called something else.
        HorovodInternalError: a member is lost.
        ValueError: this rank is not a member.
    """
    checked_tensors("barrier", [], process_set)
    agree(CollectiveCall("barrier", None, (), reductions=()), process_set)
