"""Have an optimizer step on this worker's shards themselves, and not through DTensor.

Adam works on each element alone, so its step on a shard needs to know nothing of meshes. DTensor works out, for each
operation and shape, how its result is sharded, and a new round's mesh has it do that again: 35 times, or 0.1 s of
processor time, in a round's first step with a small model, while all others wait. Each later step costs it some 0.2 ms
an operation.

Interface: Adam._init_group, which fills the lists that it is given with tensors, on which the step works in place
(found in torch 2.13). If it is gone, or is called in another way, steps go through DTensor, which takes longer and
comes to the same.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.autograd.graph import increment_version
from torch.distributed.tensor import DTensor
from torch.optim import Adam, AdamW, Optimizer

REPLACED: Final = "_init_group"
"""The attribute of an optimizer that `step_on_shards` sets. A copy of the optimizer must not have it: it is bound."""

_KNOWN: Final = (Adam, AdamW)
"""Those that work on each element alone, and keep nothing under the tensors that those lists have. Others may have a
rule for a matrix as a whole, or, as SGD, keep its momentum under the parameter of the list."""


def step_on_shards(optimizer: Optimizer) -> None:
    """Have an optimizer of DTensors do so, if it is one of which it is known to come to the same."""
    gather = getattr(optimizer, REPLACED, None)
    if type(optimizer) not in _KNOWN or gather is None:
        return

    def gather_shards(group: dict[str, Any], *lists: list[torch.Tensor], **others: Any) -> Any:
        answer = gather(group, *lists, **others)
        if not others and len(lists) >= 2 and _comes_to_the_same(group, *lists):
            # The step writes to what these share: autograd is to notice, where a loss of before has yet to go back.
            increment_version([tensor for tensor in lists[0] if isinstance(tensor, DTensor)])
            for tensors in lists:
                tensors[:] = [tensor._local_tensor if isinstance(tensor, DTensor) else tensor for tensor in tensors]
        return answer

    setattr(optimizer, REPLACED, gather_shards)


def _comes_to_the_same(group: dict[str, Any], parameters: list[torch.Tensor], *others: list[torch.Tensor]) -> bool:
    """Whether a step on shards has the same operations as one on DTensors."""
    if group["differentiable"] or torch.compiler.is_compiling():
        return False
    # Of plain tensors on a GPU torch would by default step on all at once, which rounds in another way.
    if group["foreach"] is None and group["fused"] is None and any(p.device.type != "cpu" for p in parameters):
        return False
    return all(_like(p, tensor) for tensors in others for p, tensor in zip(parameters, tensors, strict=bool(tensors)))


def _like(parameter: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether what goes with a parameter is sharded as it is, or is no matter of shards, as the count of its steps."""
    if not isinstance(other, DTensor):
        return not (isinstance(parameter, DTensor) and other.ndim)
    if not isinstance(parameter, DTensor):
        return False
    return (parameter.device_mesh, parameter.placements) == (other.device_mesh, other.placements)
