"""Collectives that move tensors: allgather, broadcast, alltoall. Elements travel as bytes, so of any type.

Gradients pass through those that are not in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from edriver.horovod.collectives.handles import Pending, handle_of, synchronize
from edriver.horovod.collectives.negotiation import Call, agree, outline
from edriver.horovod.errors import peer_loss_translated
from edriver.horovod.process_sets import ProcessSet, global_process_set


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, flat, in the same memory."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def exchanged_rows(
    tensor: torch.Tensor, give: Sequence[int], take: Sequence[int], members: ProcessSet
) -> tuple[torch.Tensor, dist.Work | None]:
    """Start to send rows of a contiguous tensor to each member, and receive theirs.

    Args:
        tensor: what to send.
        give: how many of its rows each member gets,
        take: and how many come from each.
        members: who takes part; they have agreed.

    Returns:
        where the rows arrive, in the order of the members, and what to wait for.

    Raises:
        HorovodInternalError: a member is gone.
    """
    result = tensor.new_empty(sum(take), *tensor.shape[1:])
    row = tensor[:1].numel() * tensor.element_size() if len(tensor) else _row_bytes(tensor)
    with peer_loss_translated():
        work = dist.all_to_all_single(
            bytes_of(result),
            bytes_of(tensor),
            [rows * row for rows in take],
            [rows * row for rows in give],
            group=members.group(),
            async_op=True,
        )
    return result, work


def _row_bytes(tensor: torch.Tensor) -> int:
    return tensor.new_empty(1, *tensor.shape[1:]).numel() * tensor.element_size()


def _no_rows(tensors: Sequence[torch.Tensor]) -> str:
    return "a tensor without a dimension has no rows" if any(not tensor.dim() for tensor in tensors) else ""


# ---- allgather


def _start_gather(
    kind: str,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    members: ProcessSet,
    finish: Callable[[list[torch.Tensor]], Any],
) -> int:
    gathered: list[torch.Tensor] = []
    lengths: list[list[int]] = []
    works: list[dist.Work | None] = []
    for at, tensor in enumerate(tensors):
        outlines = tuple(outline(each, free_rows=True) for each in tensors)
        part = f"the one at {at}" if at else ""
        call = Call(kind, name, outlines, options=part, refusal=_no_rows(tensors))
        rows = agree(call, members, extra=len(tensor) if tensor.dim() else 0)
        padded = tensor.detach()
        if len(padded) < max(rows):
            padded = torch.cat([padded, padded.new_empty(max(rows) - len(padded), *padded.shape[1:])])
        everyone = padded.new_empty(members.size(), max(rows), *padded.shape[1:])
        if everyone.numel():
            size = everyone[0].numel() * everyone.element_size()
            with peer_loss_translated():
                work = dist.all_gather(
                    list(torch.split(bytes_of(everyone), size)),
                    bytes_of(padded.contiguous()),
                    group=members.group(),
                    async_op=True,
                )
            works.append(work)
        gathered.append(everyone)
        lengths.append(rows)

    def result() -> Any:
        return finish(
            [
                torch.cat([one[:count] for one, count in zip(everyone, rows, strict=True)])
                for everyone, rows in zip(gathered, lengths, strict=True)
            ]
        )

    return handle_of(Pending(works, result))


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start to gather the members' tensors; returns a handle. See `allgather`."""
    return _start_gather("allgather", [tensor], name, process_set, lambda results: results[0])


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to gather several tensors; returns one handle, for the list of results. See `allgather`."""
    return _start_gather("grouped_allgather", tensors, name, process_set, lambda results: results)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Put the members' tensors after one another, along the first dimension. Gradients pass through it.

    Args:
        tensor: of the same type, and the same shape but for the first dimension, on all members.
        name: what the operation is called in errors; the same on all members.
        process_set: who takes part.

    Raises:
        MismatchError: the members call different things; names the ranks, types and shapes.
        HorovodInternalError: a member is gone.
        ValueError: the tensor has no dimension.
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
        ctx.kind, ctx.members = kind, members
        ctx.rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        return tuple(synchronize(_start_gather(kind, tensors, name, members, lambda results: results)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        members = ctx.members
        results = []
        for gradient, rows in zip(gradients, ctx.rows, strict=True):
            counts = agree(Call(f"{ctx.kind}'s gradient", None, (outline(gradient),)), members, extra=rows)
            total = gradient.detach().clone(memory_format=torch.contiguous_format)
            with peer_loss_translated():
                dist.all_reduce(total, group=members.group())
            start = sum(counts[: members.rank()])
            results.append(total[start : start + rows] / members.size())
        return None, None, None, *results


# ---- broadcast


def _start_broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None, members: ProcessSet, in_place: bool
) -> int:
    refusal = "" if root_rank in members.ranks else f"rank {root_rank} is not among {members.ranks}"
    agree(Call("broadcast", name, (outline(tensor),), f"root_rank={root_rank}", refusal=refusal), members)
    buffer = tensor.detach()
    if not in_place or not buffer.is_contiguous():
        buffer = buffer.clone(memory_format=torch.contiguous_format)
    work = None
    if members.size() > 1 and buffer.numel():
        with peer_loss_translated():
            work = dist.broadcast(bytes_of(buffer), src=root_rank, group=members.group(), async_op=True)

    def result() -> torch.Tensor:
        if not in_place:
            return buffer
        with torch.no_grad():
            # Where the bytes have arrived in its own memory, this tells torch that it was written to.
            tensor.copy_(buffer)
        return tensor

    return handle_of(Pending([work], result))


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to broadcast a tensor, which stays as it is; returns a handle. See `broadcast`."""
    return _start_broadcast(tensor, root_rank, name, process_set, in_place=False)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to broadcast a tensor in place; returns a handle. See `broadcast`."""
    return _start_broadcast(tensor, root_rank, name, process_set, in_place=True)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Broadcast a tensor in place; returns it. See `broadcast`."""
    result: torch.Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return result


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Give all members the tensor of one; returns it. Gradients pass through it.

    Args:
        tensor: of the same type and shape on all members; it stays as it is.
        root_rank: whose tensor it is: a rank among all, also in a process set.
        name: what the operation is called in errors; the same on all members.
        process_set: who takes part.

    Raises:
        MismatchError: the members call different things; names the ranks, types and shapes.
        HorovodInternalError: a member is gone.
        ValueError: the root is no member.
    """
    result: torch.Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call]
    return result


class _Broadcast(torch.autograd.Function):
    """The root's tensor goes to all members: its gradient is the average of theirs, as Horovod has it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, members: ProcessSet) -> Any:
        ctx.root_rank, ctx.members = root_rank, members
        return synchronize(_start_broadcast(tensor, root_rank, name, members, in_place=False))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        members = ctx.members
        agree(Call("broadcast's gradient", None, (outline(gradient),)), members)
        total = gradient.detach().clone(memory_format=torch.contiguous_format)
        with peer_loss_translated():
            dist.all_reduce(total, group=members.group())
        total /= members.size()
        is_root = members.ranks[members.rank()] == ctx.root_rank
        return total if is_root else torch.zeros_like(total), None, None, None


# ---- alltoall


def _start_alltoall(tensor: torch.Tensor, splits: torch.Tensor | None, name: str | None, members: ProcessSet) -> int:
    size = members.size()
    give, refusal = _splits(tensor, splits, size)
    agree(Call("alltoall", name, (outline(tensor, free_rows=True),), refusal=refusal), members)
    everyone = torch.zeros(size, size, dtype=torch.int64, device="cpu")
    everyone[members.rank()] = torch.tensor(give, device="cpu")
    with peer_loss_translated():
        dist.all_reduce(everyone, group=members.group())
    take = everyone[:, members.rank()]
    result, work = exchanged_rows(tensor.detach().contiguous(), give, take.tolist(), members)
    return handle_of(Pending([work], lambda: (result, take.to(torch.int32)) if splits is not None else result))


def _splits(tensor: torch.Tensor, splits: torch.Tensor | None, size: int) -> tuple[list[int], str]:
    """How many rows go to each member, and what is wrong; empty: nothing."""
    if refusal := _no_rows([tensor]):
        return [0] * size, refusal
    rows = tensor.shape[0]
    if splits is None:
        if rows % size:
            return [0] * size, f"{rows} rows cannot be shared out evenly to {size} members: give splits"
        return [rows // size] * size, ""
    given = [int(count) for count in splits]
    if len(given) != size or sum(given) != rows or min(given) < 0:
        return [0] * size, f"splits {given} do not share out {rows} rows to {size} members"
    return given, ""


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an exchange of rows; returns a handle. See `alltoall`."""
    return _start_alltoall(tensor, splits, name, process_set)


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows to each member, and receive theirs. Gradients pass through it.

    Args:
        tensor: of the same type, and the same shape but for the first dimension, on all members.
        splits: how many rows go to each member, in their order; None: equally many.
        name: what the operation is called in errors; the same on all members.
        process_set: who takes part.

    Returns:
        The rows received, in the order of the members; with splits, a pair of those and of how many came from each.

    Raises:
        MismatchError: the members call different things; names the ranks, types and shapes.
        HorovodInternalError: a member is gone.
        ValueError: the splits do not add up.
    """
    result, taken = _Alltoall.apply(tensor, splits, name, process_set)  # type: ignore[no-untyped-call]
    return (result, taken) if splits is not None else result


class _Alltoall(torch.autograd.Function):
    """The gradients go back to where the rows came from."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: torch.Tensor | None, name: str | None, members: ProcessSet
    ) -> Any:
        handed = torch.tensor(_splits(tensor, splits, members.size())[0], device="cpu") if splits is None else splits
        if splits is None and tensor.dim() and tensor.shape[0] % members.size():
            synchronize(_start_alltoall(tensor, None, name, members))  # which refuses it, on all members
        result, taken = synchronize(_start_alltoall(tensor, handed, name, members))
        ctx.taken, ctx.members = taken, members
        ctx.mark_non_differentiable(taken)
        return result, taken

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gradient = gradients[0]
        result, _ = synchronize(_start_alltoall(gradient, ctx.taken, "alltoall's gradient", ctx.members))
        return result, None, None, None


# ---- barrier


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all members have called it.

    Raises:
        MismatchError: a member called something else.
        HorovodInternalError: a member is gone.
    """
    agree(Call("barrier", None, (), reductions=()), process_set)
