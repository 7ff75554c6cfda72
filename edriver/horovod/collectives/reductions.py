"""Reductions: allreduce and reducescatter, one tensor or several, in place or not, now or later.

Gradients pass through those that are not in place. Half of the file is what Horovod's functions promise, each in full.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from edriver.horovod.collectives.arguments import checked_tensors, no_rows
from edriver.horovod.collectives.handles import Pending
from edriver.horovod.collectives.movements import exchanged_rows, gathered_rows, rows_of_all, together
from edriver.horovod.collectives.negotiation import Agreed, CollectiveCall, Reduction, agree, outline
from edriver.horovod.collectives.operations import Operation
from edriver.horovod.compression import Compression, Compressor
from edriver.horovod.errors import peer_loss_translated
from edriver.horovod.process_sets import CollectiveLane, ProcessSet, global_process_set


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
    """The requested operation, given in one of Horovod's two ways.

    Raises:
        ValueError: both ways were used, or it is not an operation of Horovod.
        NotImplementedError: the operation is Adasum.
    """
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if op is None:
        op = Sum if average is False else Average
    if not isinstance(op, ReduceOp):
        raise ValueError(f"{op!r} is not one of hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product")
    if op is Adasum:
        raise NotImplementedError(ADASUM_REFUSED)
    return op


class _Reduction:
    """How the tensors of one call are reduced.

    Args:
        op: the operation that combines them.
        prescale: the factor for the tensors before the reduction.
        postscale: the factor for the result.
        members: the ranks that take part.

    Raises:
        TypeError: a factor is not a number.
    """

    def __init__(self, op: ReduceOp, prescale: float, postscale: float, members: ProcessSet) -> None:
        self.op, self.members = op, members
        self.prescale, self.postscale = float(prescale), float(postscale)

    def call(self, kind: str, name: str | None, tensors: Sequence[torch.Tensor]) -> CollectiveCall:
        """The call, as members agree on it."""
        checked_tensors(kind, tensors, self.members)
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
        return CollectiveCall(kind, name, tuple(map(outline, tensors)), options, reductions, refused)

    def before(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor as it travels: a copy."""
        wide = _WIDER.get(tensor.dtype, tensor.dtype)
        return _scaled(tensor, self.prescale).to(wide).contiguous() if self.prescale != 1.0 else tensor.to(wide)

    def after(self, total: torch.Tensor, dtype: torch.dtype, size: int) -> torch.Tensor:
        """The result from so many members, in the tensor's original type."""
        if self.op is Average:
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


def _reduce(
    kind: str,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    reduction: _Reduction,
    finish: Callable[[list[torch.Tensor]], Any],
    in_place: bool = False,
) -> Operation:
    """All-reduce tensors, those of the same type together.

    Args:
        kind: the kind of call.
        tensors: the tensors to reduce.
        name: the script's name for the operation.
        reduction: how to reduce them.
        finish: returns the call's result from the reduced tensors.
        in_place: whether the tensors may be modified.
    """
    call = reduction.call(kind, name, tensors)
    ready: list[torch.Tensor] = []
    flat: dict[torch.dtype, torch.Tensor] = {}
    if not call.refusal:
        with torch.no_grad():
            ready = [reduction.before(tensor.detach()) for tensor in tensors]
            together: dict[torch.dtype, list[torch.Tensor]] = {}
            for part in ready:
                together.setdefault(part.dtype, []).append(part.reshape(-1))
            flat = {dtype: torch.cat(parts) if len(parts) > 1 else parts[0] for dtype, parts in together.items()}
            if not in_place:
                given = {tensor.data_ptr() for tensor in tensors}
                flat = {dtype: total.clone() if total.data_ptr() in given else total for dtype, total in flat.items()}

    def begin(agreed: Agreed) -> Pending:
        works = [reduce_async(total, reduction.op, agreed.lane) for total in flat.values()]

        def result() -> Any:
            with torch.no_grad():
                starts = dict.fromkeys(flat, 0)
                totals = []
                for tensor, part in zip(tensors, ready, strict=True):
                    start = starts[part.dtype]
                    starts[part.dtype] += part.numel()
                    total = flat[part.dtype][start : start + part.numel()].view(tensor.shape)
                    totals.append(reduction.after(total, tensor.dtype, agreed.lane.size))
                return finish(totals)

        return Pending(works, result)

    return Operation(call, reduction.members, begin)


def reduce_async(total: torch.Tensor, op: ReduceOp, lane: CollectiveLane) -> dist.Work | None:
    """Start to reduce a flat tensor in place, once all members have agreed.

    Raises:
        HorovodInternalError: a member is gone.
    """
    if lane.size == 1 or not total.numel():
        return None
    with peer_loss_translated():
        work: dist.Work | None = dist.all_reduce(total, op=_TORCH_OPS[op], group=lane.group(), async_op=True)
        return work


def _reduce_in_place(
    kind: str,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    reduction: _Reduction,
    finish: Callable[[list[torch.Tensor]], Any],
) -> Operation:
    def into(totals: list[torch.Tensor]) -> Any:
        for tensor, total in zip(tensors, totals, strict=True):
            tensor.copy_(total)
        return finish(list(tensors))

    return _reduce(kind, tensors, name, reduction, into, in_place=True)


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
    return _reduce("allreduce", [tensor], name, reduction, lambda totals: totals[0]).later()


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
    return _reduce_in_place("allreduce", [tensor], name, reduction, lambda totals: totals[0]).later()


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
    reduction = _Reduction(chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    result: torch.Tensor = _reduce_in_place("allreduce", [tensor], name, reduction, lambda totals: totals[0]).now()
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
    return _reduce("grouped_allreduce", tensors, name, reduction, lambda totals: totals).later()


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
    return _reduce_in_place("grouped_allreduce", tensors, name, reduction, lambda totals: totals).later()


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
    reduction = _Reduction(chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    result: list[torch.Tensor] = _reduce_in_place(
        "grouped_allreduce", tensors, name, reduction, lambda totals: totals
    ).now()
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
        return tuple(_reduce(kind, tensors, name, reduction, lambda totals: totals).now())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        totals = _reduce(f"{ctx.kind}'s gradient", gradients, None, ctx.reduction, lambda totals: totals).now()
        return None, None, None, *totals


# ---- reducescatter


def shares(rows: int, size: int) -> list[int]:
    """How many rows of a tensor each member gets: the first ones get one more where it does not come out even."""
    return [rows // size + (place < rows % size) for place in range(size)]


def _scatter(
    kind: str, tensors: Sequence[torch.Tensor], name: str | None, reduction: _Reduction, single: bool
) -> Operation:
    if reduction.op not in (Average, Sum):
        raise NotImplementedError("reducescatter: op is hvd.Average or hvd.Sum")
    call = reduction.call(kind, name, tensors)

    def begin(agreed: Agreed) -> Pending:
        lane, parts = agreed.lane, []
        for tensor in tensors:
            ready = reduction.before(tensor.detach()).contiguous()
            give = shares(len(ready), lane.size)
            gathered, work = exchanged_rows(ready, give, [give[lane.place]] * lane.size, lane)
            rows = gathered.view(lane.size, give[lane.place], *ready.shape[1:])
            parts.append(Pending([work], functools.partial(_summed, rows, reduction, tensor.dtype)))
        return together(parts, lambda totals: totals[0] if single else totals)

    refusal = call.refusal or no_rows(tensors)
    return Operation(CollectiveCall(kind, name, call.tensors, call.options, None, refusal), reduction.members, begin)


def _summed(rows: torch.Tensor, reduction: _Reduction, dtype: torch.dtype) -> torch.Tensor:
    with torch.no_grad():
        return reduction.after(rows.sum(0, dtype=rows.dtype), dtype, len(rows))


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
    return _scatter("reducescatter", [tensor], name, reduction, single=True).later()


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce the members' tensors and scatter the rows of the result: the first members get the first rows.

    Gradients flow through the operation. The arguments are those of `allreduce`; op is Average or Sum.

    Raises:
        MismatchError: the members' calls differ; the message names the ranks, types and shapes.
        HorovodInternalError: a member is lost.
        NotImplementedError: op is another operation.
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
    return _scatter("grouped_reducescatter", tensors, name, reduction, single=False).later()


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
    """Every member's row comes from all of them: its gradient goes back to all of them.

    As in Horovod, an average's gradient is that of its result, and a sum's is larger by the number of members.
    """

    @staticmethod
    def forward(ctx: Any, kind: str, name: str | None, reduction: _Reduction, *tensors: torch.Tensor) -> Any:
        ctx.kind, ctx.reduction = kind, reduction
        return tuple(_scatter(kind, tensors, name, reduction, single=False).now())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        reduction = ctx.reduction
        outlines = tuple(outline(gradient, free_rows=True) for gradient in gradients)
        lane = agree(CollectiveCall(f"{ctx.kind}'s gradient", None, outlines), reduction.members).lane
        factor = reduction.prescale * reduction.postscale * (1 if reduction.op is Average else lane.size)
        rows = zip(*rows_of_all([len(gradient) for gradient in gradients], lane), strict=True)
        parts = [gathered_rows(gradient * factor, each, lane) for gradient, each in zip(gradients, rows, strict=True)]
        return None, None, None, *together(parts, lambda results: results).result()
