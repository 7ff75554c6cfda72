"""The seal of a step: a collective over all members, and the norm of all gradients, which it can carry.

See sharded_state.py for what it is there for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from edriver.worker.backend.process_modes import without_tensor_modes
from edriver.worker.state.wishes import Wishes


def sealed(
    wishes: Wishes, value: float | None = None, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
) -> tuple[Wishes, float]:
    """Return once all members of the round have called this: with what any of them wishes for, and the values reduced.

    The tensor lies in host memory, so the host knows of it before it asks a device for the optimizer's step. It has one
    element, or two with a sum: Gloo sends as many messages as there are parts to reduce, and with four members four
    elements, as with a maximum, take three times as long as one.

    Args:
        wishes: of this member.
        value: of this member; None on all of them: there is nothing to reduce.
        op: SUM or MAX.

    Raises:
        RuntimeError: a member is lost. Others may have returned, if all have called this.
    """
    with without_tensor_modes():
        if value is None:
            bits = torch.tensor([wishes.in_bits()], dtype=torch.uint8, device="cpu")
            dist.all_reduce(bits, dist.ReduceOp.BOR)
            return Wishes.of_bits(int(bits)), 0.0
        members = dist.get_world_size()
        flags = [wishes.in_sum(members)] if op == dist.ReduceOp.SUM else list(map(float, wishes))
        message = torch.tensor([value, *flags], dtype=torch.float64, device="cpu")
        dist.all_reduce(message, op)
        reduced, *found = message.tolist()
        if op == dist.ReduceOp.SUM:
            return Wishes.of_sum(found[0], members), reduced
        return Wishes(*(number > 0 for number in found)), reduced


def power_sum(tensors: Sequence[torch.Tensor], p: float) -> float:
    """The sum of the absolute values of all elements to the power of p; with p infinite, the largest one."""
    with torch.no_grad(), without_tensor_modes():
        norm = torch.nn.utils.get_total_norm(tensors, p).item()
    return norm if p == math.inf else norm**p


def power_sum_of_shards(shards: Mapping[int, Sequence[torch.Tensor]], p: float) -> float:
    """This worker's part of a replica's power_sum.

    Args:
        shards: by the number of workers of the replica that have each.
        p: may be infinite.
    """
    parts = [(power_sum(tensors, p), workers) for workers, tensors in shards.items()]
    return max((part for part, _ in parts), default=0.0) if p == math.inf else sum(part / n for part, n in parts)


def total_norm(sharded: float, whole: float, replicas: int, p: float) -> float:
    """The p-norm of all gradients.

    Args:
        sharded: power_sum_of_shards of those that are sharded, reduced over all members.
        whole: power_sum of those that each member has in full.
        replicas: their number.
        p: may be infinite.
    """
    return max(sharded, whole) if p == math.inf else (sharded / replicas + whole) ** (1 / p)
