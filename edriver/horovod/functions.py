"""Parameters and optimizer state from one member to the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from edriver.horovod import basics
from edriver.horovod.collectives.movements import bytes_of
from edriver.horovod.collectives.negotiation import CollectiveCall, agree, outline
from edriver.horovod.collectives.objects import broadcast_object
from edriver.horovod.errors import peer_loss_translated
from edriver.horovod.process_sets import ProcessSet, global_process_set

_CHUNK_BYTES = 64 << 20
"""Small tensors travel together, up to so many bytes."""


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Broadcast one member's parameters to all members, in place.

    Args:
        params: `model.state_dict()`, `model.named_parameters()` or `model.parameters()`, with the same tensors on all
            members. Values that are not tensors are skipped.
        root_rank: the rank whose parameters are broadcast.
        process_set: the ranks that take part.

    Raises:
        ValueError: `params` has another form.
        MismatchError: the members' tensors differ; the message names the ranks and the difference.
        HorovodInternalError: a member is lost.
    """
    tensors = _named_tensors(params)
    outlines = tuple(f"{name or 'tensor'}: {outline(tensor)}" for name, tensor in tensors)
    agree(CollectiveCall("broadcast_parameters", None, outlines, f"root_rank={root_rank}"), process_set)
    if process_set.size() > 1:
        _broadcast_together([tensor for _, tensor in tensors], root_rank, process_set)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give all members the optimizer's state of one: options and what it keeps for each parameter.

    Args:
        optimizer: of the same class and for the same parameters on all members.
        root_rank: whose state it is.
        model: of no effect; Horovod's argument.
        process_set: who takes part.

    Raises:
        ValueError: it is an LBFGS, as in Horovod.
        MismatchError: the members call different things.
        HorovodInternalError: a member is gone.
    """
    del model
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    is_root = basics.rank() == root_rank
    state = optimizer.state_dict()
    tensors: list[torch.Tensor] = []
    outlined = broadcast_object(_without_tensors(state, tensors), root_rank, "optimizer state", process_set)
    if not is_root:
        received: list[torch.Tensor] = []
        state = _with_tensors(outlined, received)
        tensors = received
    _broadcast_together(tensors, root_rank, process_set)
    if not is_root:
        optimizer.load_state_dict(state)


def _named_tensors(params: Mapping[str, Any] | Iterable[Any]) -> list[tuple[str, torch.Tensor]]:
    if isinstance(params, torch.Tensor | str) or not hasattr(params, "__iter__"):
        raise ValueError(f"invalid params of type: {type(params)}")
    if isinstance(params, Mapping):
        pairs: list[Any] = sorted(params.items())
    else:
        pairs = [each if isinstance(each, tuple) else ("", each) for each in params]
    return [(name, value) for name, value in pairs if isinstance(value, torch.Tensor)]


def _broadcast_together(tensors: list[torch.Tensor], root_rank: int, members: ProcessSet) -> None:
    """Broadcast tensors in place, small ones in chunks; all members have agreed."""
    chunk: list[torch.Tensor] = []
    size = 0
    with torch.no_grad():
        for tensor in tensors:
            if chunk and (size + tensor.nbytes > _CHUNK_BYTES or tensor.device != chunk[0].device):
                _broadcast_chunk(chunk, root_rank, members)
                chunk, size = [], 0
            chunk.append(tensor)
            size += tensor.nbytes
        if chunk:
            _broadcast_chunk(chunk, root_rank, members)


def _broadcast_chunk(tensors: list[torch.Tensor], root_rank: int, members: ProcessSet) -> None:
    flat = torch.cat([bytes_of(tensor.contiguous()) for tensor in tensors])
    if members.size() == 1 or not flat.numel():
        return
    with peer_loss_translated():
        torch.distributed.broadcast(flat, src=root_rank, group=members.group())
    if basics.rank() == root_rank:
        return
    for tensor, part in zip(tensors, torch.split(flat, [tensor.nbytes for tensor in tensors]), strict=True):
        tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))  # a clone begins where its type may


class _Outline:
    """The placeholder for a tensor in a state, while the tensor is sent separately."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.device = tuple(tensor.shape), tensor.dtype, tensor.device.type


def _without_tensors(tree: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(tree, torch.Tensor):
        tensors.append(tree)
        return _Outline(tree)
    if isinstance(tree, dict):
        return {key: _without_tensors(value, tensors) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_without_tensors(value, tensors) for value in tree)
    return tree


def _with_tensors(tree: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(tree, _Outline):
        tensors.append(torch.empty(tree.shape, dtype=tree.dtype, device=tree.device))
        return tensors[-1]
    if isinstance(tree, dict):
        return {key: _with_tensors(value, tensors) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_with_tensors(value, tensors) for value in tree)
    return tree
