"""Reductions: allreduce and reducescatter, one tensor or several, in place or not, now or later.

Gradients pass through those that are not in place.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from edriver.horovod.collectives.handles import Pending, handle_of, synchronize
from edriver.horovod.collectives.movements import exchanged_rows
from edriver.horovod.collectives.negotiation import Call, Reduction, agree, outline
from edriver.horovod.compression import Compression, Compressor
from edriver.horovod.errors import peer_loss_translated
from edriver.horovod.process_sets import Lane, ProcessSet, global_process_set


class ReduceOp(enum.Enum):
    """How tensors are combined."""

    AVERAGE = "Average"
    SUM = "Sum"
    ADASUM = "Adasum"
    MIN = "Min"
    MAX = "Max"
    PRODUCT = "Product"


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Adasum = ReduceOp.ADASUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT

_TORCH_OPS = {
    Average: dist.ReduceOp.SUM,
    Sum: dist.ReduceOp.SUM,
    Min: dist.ReduceOp.MIN,
    Max: dist.ReduceOp.MAX,
    Product: dist.ReduceOp.PRODUCT,
}

_WIDER = {torch.int16: torch.int32, torch.bool: torch.uint8}
"""Types that Gloo does not reduce, or not in all ways, and what they travel as."""

ADASUM_REFUSED = (
    "Adasum is not supported: use op=hvd.Average, and scale the learning rate as for any other synchronous training"
)


def chosen_op(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    """The operation that was asked for, with Horovod's two ways to ask.

    Raises:
        ValueError: both were used, or it is none of Horovod's operations.
        NotImplementedError: it is Adasum.
    """
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if op is None:
        op = Sum if average is False else Average
    if not isinstance(op, ReduceOp):
        raise ValueError(f"{op!r} is none of hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product")
    if op is Adasum:
        raise NotImplementedError(ADASUM_REFUSED)
    return op


class _Reduction:
    """How tensors of one call are reduced.

    Args:
        op: how they are combined.
        prescale: what they are multiplied with before,
        postscale: and after.
        members: who takes part.
    """

    def __init__(self, op: ReduceOp, prescale: float, postscale: float, members: ProcessSet) -> None:
        self.op, self.prescale, self.postscale, self.members = op, prescale, postscale, members

    def call(self, kind: str, name: str | None, tensors: Sequence[torch.Tensor]) -> Call:
        """The call, as members agree on it."""
        options = f"op={self.op.value}" + "".join(
            f", {word}={value:g}" for word, value in (("prescale", self.prescale), ("postscale", self.postscale))
            if value != 1.0
        )  # fmt: skip
        refused = next((f"a {t.layout} tensor cannot be reduced" for t in tensors if t.layout != torch.strided), "")
        reductions = None
        if not refused:
            reductions = tuple(
                Reduction(length, str(dtype).removeprefix("torch."), self.op.value)
                for length, dtype in _travelling(tensors)
            )
        return Call(kind, name, tuple(map(outline, tensors)), options, reductions, refused)

    def before(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor as it travels: a copy."""
        wide = _WIDER.get(tensor.dtype, tensor.dtype)
        return _scaled(tensor, self.prescale).to(wide).contiguous() if self.prescale != 1.0 else tensor.to(wide)

    def after(self, total: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """What has arrived, in its own type."""
        if self.op is Average:
            size = self.members.size()
            total = total.div_(size) if dtype.is_floating_point or dtype.is_complex else _truncated(total, size)
        if self.postscale != 1.0:
            total = _scaled(total, self.postscale)
        return total.to(dtype)


def _travelling(tensors: Sequence[torch.Tensor]) -> list[tuple[int, torch.dtype]]:
    """What all-reduces there are: how many elements of which type."""
    lengths: dict[torch.dtype, int] = {}
    for tensor in tensors:
        wide = _WIDER.get(tensor.dtype, tensor.dtype)
        lengths[wide] = lengths.get(wide, 0) + tensor.numel()
    return [(length, dtype) for dtype, length in lengths.items() if length]


def _scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return tensor * factor
    return (tensor.to(torch.float64) * factor).to(tensor.dtype)


def _truncated(total: torch.Tensor, size: int) -> torch.Tensor:
    return torch.div(total, size, rounding_mode="trunc")


def _start(
    kind: str,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    reduction: _Reduction,
    finish: Callable[[list[torch.Tensor]], Any],
    in_place: bool = False,
) -> int:
    """Start all-reduces of tensors, those of one type together; returns the handle.

    Args:
        kind: of the call.
        tensors: what is reduced.
        name: what the script calls it.
        reduction: how.
        finish: answers with the call's result from the reduced tensors.
        in_place: whether the tensors may be written to.
    """
    members = reduction.members
    agree(reduction.call(kind, name, tensors), members)
    with torch.no_grad():
        ready = [reduction.before(tensor.detach()) for tensor in tensors]
        together: dict[torch.dtype, list[torch.Tensor]] = {}
        for part in ready:
            together.setdefault(part.dtype, []).append(part.reshape(-1))
        flat = {dtype: torch.cat(parts) if len(parts) > 1 else parts[0] for dtype, parts in together.items()}
        if not in_place:
            given = {tensor.data_ptr() for tensor in tensors}
            flat = {dtype: total.clone() if total.data_ptr() in given else total for dtype, total in flat.items()}
        works = [reduce_async(total, reduction.op, Lane(members)) for total in flat.values()]

    def result() -> Any:
        with torch.no_grad():
            starts = dict.fromkeys(flat, 0)
            totals = []
            for tensor, part in zip(tensors, ready, strict=True):
                start = starts[part.dtype]
                starts[part.dtype] += part.numel()
                total = flat[part.dtype][start : start + part.numel()].view(tensor.shape)
                totals.append(reduction.after(total, tensor.dtype))
            return finish(totals)

    return handle_of(Pending(works, result))


def reduce_async(total: torch.Tensor, op: ReduceOp, lane: Lane) -> dist.Work | None:
    """Start to reduce a flat tensor in place, once all members have agreed.

    Raises:
        HorovodInternalError: a member is gone.
    """
    if lane.members.size() == 1 or not total.numel():
        return None
    with peer_loss_translated():
        work: dist.Work | None = dist.all_reduce(total, op=_TORCH_OPS[op], group=lane.group(), async_op=True)
        return work


def _into(tensors: Sequence[torch.Tensor], totals: list[torch.Tensor]) -> list[torch.Tensor]:
    for tensor, total in zip(tensors, totals, strict=True):
        tensor.copy_(total)
    return list(tensors)


# ---- allreduce


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce a tensor, which stays as it is; returns a handle. See `allreduce`."""
    reduction = _Reduction(chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    return _start("allreduce", [tensor], name, reduction, lambda totals: totals[0])


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce a tensor in place; returns a handle. See `allreduce`."""
    reduction = _Reduction(chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    return _start("allreduce", [tensor], name, reduction, lambda totals: _into([tensor], totals)[0], True)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor in place; returns it. See `allreduce`."""
    result: torch.Tensor = synchronize(
        allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    )
    return result


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Combine the members' tensors; returns the result, the same on all of them. Gradients pass through it.

    Args:
        tensor: of the same type and shape on all members; it stays as it is.
        average: deprecated: use op.
        name: what the operation is called in errors; the same on all members.
        compression: how it travels.
        op: hvd.Average (None), Sum, Min, Max or Product. An average of integers is truncated towards zero.
        prescale_factor: what each tensor is multiplied with,
        postscale_factor: and the result.
        process_set: who takes part.

    Raises:
        MismatchError: the members call different things; names the ranks, types and shapes.
        HorovodInternalError: a member is gone.
        NotImplementedError: Adasum was asked for.
        ValueError: the tensor is sparse.
    """
    reduction = _Reduction(chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    (total,) = _compressed(_Allreduce, "allreduce", name, reduction, compression, [tensor])
    return total


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce several tensors as one; returns one handle, for the list of results. See `allreduce`."""
    reduction = _Reduction(chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    return _start("grouped_allreduce", tensors, name, reduction, lambda totals: totals)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce several tensors as one, in place; returns one handle, for their list. See `allreduce`."""
    reduction = _Reduction(chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    return _start("grouped_allreduce", tensors, name, reduction, lambda totals: _into(tensors, totals), True)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce several tensors as one, in place; returns their list. See `allreduce`."""
    result: list[torch.Tensor] = synchronize(
        grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    )
    return result


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce several tensors as one; returns the list of results. Gradients pass through it. See `allreduce`."""
    reduction = _Reduction(chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    return _compressed(_Allreduce, "grouped_allreduce", name, reduction, compression, tensors)


def _compressed(
    function: type[torch.autograd.Function],
    kind: str,
    name: str | None,
    reduction: _Reduction,
    compression: type[Compressor],
    tensors: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """Reduce several tensors as one by a function that gradients pass through, compressed on their way."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    totals = function.apply(kind, name, reduction, *(compressed for compressed, _ in pairs))  # type: ignore[no-untyped-call]
    return [compression.decompress(total, ctx) for total, (_, ctx) in zip(totals, pairs, strict=True)]


class _Allreduce(torch.autograd.Function):
    """The gradient of a reduction is the same reduction of the gradient."""

    @staticmethod
    def forward(ctx: Any, kind: str, name: str | None, reduction: _Reduction, *tensors: torch.Tensor) -> Any:
        ctx.kind, ctx.reduction = kind, reduction
        return tuple(synchronize(_start(kind, tensors, name, reduction, lambda totals: totals)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        handle = _start(f"{ctx.kind}'s gradient", gradients, None, ctx.reduction, lambda totals: totals)
        return None, None, None, *synchronize(handle)


# ---- reducescatter


def shares(rows: int, size: int) -> list[int]:
    """How many rows of a tensor each member gets: the first ones get one more where it does not come out even."""
    return [rows // size + (place < rows % size) for place in range(size)]


def _start_scatter(
    kind: str, tensors: Sequence[torch.Tensor], name: str | None, reduction: _Reduction, single: bool
) -> int:
    if reduction.op not in (Average, Sum):
        raise NotImplementedError("reducescatter: op is hvd.Average or hvd.Sum")
    members = reduction.members
    call = reduction.call(kind, name, tensors)
    refusal = call.refusal or next(("a tensor without a dimension has no rows" for t in tensors if not t.dim()), "")
    agree(Call(kind, name, call.tensors, call.options, None, refusal), members)
    size, place = members.size(), members.rank()
    parts, works = [], []
    with torch.no_grad():
        for tensor in tensors:
            ready = reduction.before(tensor.detach()).contiguous()
            give = shares(len(ready), size)
            gathered, work = exchanged_rows(ready, give, [give[place]] * size, members)
            parts.append(gathered.view(size, give[place], *ready.shape[1:]))
            works.append(work)

    def result() -> Any:
        with torch.no_grad():
            totals = [
                reduction.after(part.sum(0, dtype=part.dtype), tensor.dtype)
                for part, tensor in zip(parts, tensors, strict=True)
            ]
        return totals[0] if single else totals

    return handle_of(Pending(works, result))


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to reduce a tensor and share out its rows; returns a handle. See `reducescatter`."""
    reduction = _Reduction(chosen_op(op, None), prescale_factor, postscale_factor, process_set)
    return _start_scatter("reducescatter", [tensor], name, reduction, single=True)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Combine the members' tensors and share out the rows of the result: the first members get the first rows.

    Gradients pass through it. The arguments are those of `allreduce`; op is Average or Sum.

    Raises:
        MismatchError: the members call different things; names the ranks, types and shapes.
        HorovodInternalError: a member is gone.
        NotImplementedError: another operation was asked for.
        ValueError: the tensor has no rows.
    """
    reduction = _Reduction(chosen_op(op, None), prescale_factor, postscale_factor, process_set)
    (total,) = _compressed(_Reducescatter, "reducescatter", name, reduction, compression, [tensor])
    return total


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to reduce and share out several tensors; returns one handle, for the list. See `reducescatter`."""
    reduction = _Reduction(chosen_op(op, None), prescale_factor, postscale_factor, process_set)
    return _start_scatter("grouped_reducescatter", tensors, name, reduction, single=False)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduce and share out several tensors; returns the list. Gradients pass through it. See `reducescatter`."""
    reduction = _Reduction(chosen_op(op, None), prescale_factor, postscale_factor, process_set)
    return _compressed(_Reducescatter, "grouped_reducescatter", name, reduction, compression, tensors)


class _Reducescatter(torch.autograd.Function):
    """Every member's row comes from all of them: its gradient goes back to all of them."""

    @staticmethod
    def forward(ctx: Any, kind: str, name: str | None, reduction: _Reduction, *tensors: torch.Tensor) -> Any:
        ctx.kind, ctx.reduction, ctx.rows = kind, reduction, [len(tensor) for tensor in tensors]
        return tuple(synchronize(_start_scatter(kind, tensors, name, reduction, single=False)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        members, reduction = ctx.reduction.members, ctx.reduction
        kind = f"{ctx.kind}'s gradient"
        agree(Call(kind, None, tuple(outline(g, free_rows=True) for g in gradients)), members)
        factor = reduction.prescale * reduction.postscale / (members.size() if reduction.op is Average else 1)
        results = []
        for gradient, rows in zip(gradients, ctx.rows, strict=True):
            per_row = math.prod(gradient.shape[1:])
            gave = shares(rows, members.size())
            everyone, work = exchanged_rows(
                gradient.contiguous().repeat(members.size(), *[1] * (gradient.dim() - 1)),
                [len(gradient)] * members.size(),
                gave,
                members,
            )
            Pending([work], lambda: None).result()
            assert everyone.numel() == rows * per_row, "a row is missing"
            results.append(everyone.view(rows, *gradient.shape[1:]) * factor)
        return None, None, None, *results
