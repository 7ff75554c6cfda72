"""Sparse tensors, which are reduced by gathering their rows."""

from __future__ import annotations

from collections.abc import Callable

import torch

from edriver.horovod.collectives.arguments import checked_tensors
from edriver.horovod.collectives.handles import Pending
from edriver.horovod.collectives.movements import gathered_rows, together
from edriver.horovod.collectives.negotiation import Agreed, CollectiveCall, outline
from edriver.horovod.collectives.operations import begun_later
from edriver.horovod.collectives.reductions import Average, ReduceOp, Sum, chosen_op
from edriver.horovod.process_sets import ProcessSet, global_process_set


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: ReduceOp, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start to reduce the members' sparse tensors; returns a function that waits for the result and returns it.

    As in Horovod, the handle is a function to call, and cannot be passed to `hvd.synchronize`.

    Args:
        tensor: a COO tensor with any number of entries, of the same shape and type on all members.
        name: the name of the operation in errors; the same on all members.
        op: hvd.Average or hvd.Sum.
        process_set: the ranks that take part.

    Raises:
        NotImplementedError: op is another operation.
        TypeError: `tensor` is not a tensor.

    The function raises:
        ValueError: the tensor is not sparse.
        MismatchError: the members' calls differ; the message names the ranks, types and shapes.
        HorovodInternalError: a member is lost.
    """
    if chosen_op(op, None) not in (Average, Sum):
        raise NotImplementedError("sparse_allreduce: op is hvd.Average or hvd.Sum")
    checked_tensors("sparse_allreduce", [tensor], process_set)
    refusal = "" if tensor.layout == torch.sparse_coo else f"a {tensor.layout} tensor is not sparse"
    own = tensor.detach().coalesce() if not refusal else tensor

    def begin(agreed: Agreed) -> Pending:
        def total(parts: list[torch.Tensor]) -> torch.Tensor:
            whole = torch.sparse_coo_tensor(parts[0].t(), parts[1], own.shape).coalesce()
            return whole / agreed.lane.size if op is Average else whole

        indices = gathered_rows(own.indices().t().contiguous(), agreed.extras, agreed.lane)
        values = gathered_rows(own.values(), agreed.extras, agreed.lane)
        return together([indices, values], total)

    call = CollectiveCall("sparse_allreduce", name, (outline(tensor),), f"op={op.value}", refusal=refusal)
    return begun_later(call, process_set, begin, 0 if refusal else own._nnz()).result
