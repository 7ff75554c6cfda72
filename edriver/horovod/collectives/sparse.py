"""Sparse tensors, which are reduced by gathering their rows."""

from __future__ import annotations

from collections.abc import Callable

import torch

from edriver.horovod.collectives.handles import synchronize
from edriver.horovod.collectives.movements import allgather_async
from edriver.horovod.collectives.negotiation import Call, agree, outline
from edriver.horovod.collectives.reductions import Average, ReduceOp, Sum, chosen_op
from edriver.horovod.process_sets import ProcessSet, global_process_set


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: ReduceOp, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start to combine the members' sparse tensors; returns a function that waits for the result and returns it.

    As in Horovod, the handle is a function to be called, and not for `hvd.synchronize`.

    Args:
        tensor: a COO tensor, of the same shape and type on all members, of any number of entries.
        name: what the operation is called in errors; the same on all members.
        op: hvd.Average or hvd.Sum.
        process_set: who takes part.

    Raises:
        ValueError: the tensor is not sparse.
        NotImplementedError: another operation was asked for.
        MismatchError: the members call different things; names the ranks, types and shapes.
        HorovodInternalError: a member is gone; the function raises it too.
    """
    if chosen_op(op, None) not in (Average, Sum):
        raise NotImplementedError("sparse_allreduce: op is hvd.Average or hvd.Sum")
    refusal = "" if tensor.layout == torch.sparse_coo else f"a {tensor.layout} tensor is not sparse"
    agree(Call("sparse_allreduce", name, (outline(tensor),), f"op={op.value}", refusal=refusal), process_set)
    own = tensor.detach().coalesce()
    indices = allgather_async(own.indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(own.values(), f"{name}.values", process_set)

    def result() -> torch.Tensor:
        total = torch.sparse_coo_tensor(synchronize(indices).t(), synchronize(values), own.shape).coalesce()
        return total / process_set.size() if op is Average else total

    return result
