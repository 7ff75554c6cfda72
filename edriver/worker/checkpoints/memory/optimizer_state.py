"""The state of a new optimizer, before a checkpoint is loaded into it.

An optimizer makes its state in its first step. torch.distributed.checkpoint therefore has it take one, with gradients
of zero (torch/distributed/checkpoint/state_dict.py, _init_optim_state). Under FSDP2 DTensor then works out the sharding
of each operation of that step, half the time of a load. What the state consists of is known from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, Final, TypeAlias

import torch
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

_WRAPPERS: Final = ("_orig_mod.", "_checkpoint_wrapped_module.")
"""In names of parameters, by torch.compile and activation checkpointing; a checkpoint's names lack them."""

_PLAIN: Final = (torch.Tensor, nn.Parameter)

_Made: TypeAlias = dict[torch.Tensor, dict[str, torch.Tensor]]


def make_state(name: str, optimizer: Optimizer, module: nn.Module, stored: Metadata) -> None:
    """Give an optimizer that has made no step the state that a checkpoint has for it, all zeros, to be loaded into.

    Left as it is, for torch's way, is an optimizer that is not torch's own, which may make more in its first step than
    its state; one whose state is not a tensor like the parameter, or a single number, for each name; and one of which
    the checkpoint has no state for some parameter, or under another name than is known here: with a state for some,
    torch would make none for the others.

    Args:
        name: its name in the script's state.
        optimizer: the optimizer.
        module: has its parameters.
        stored: the checkpoint's metadata.
    """
    if optimizer.state or not type(optimizer).__module__.startswith("torch.optim"):
        return
    optimized = set(chain.from_iterable(group["params"] for group in optimizer.param_groups))
    parameters = {key: parameter for key, parameter in _by_name(module).items() if parameter in optimized}
    made = _made(f"{name}.state.", parameters, stored.state_dict_metadata)
    if made is not None and all(parameter in made for parameter in optimized if parameter.requires_grad):
        optimizer.state.update(made)


def _by_name(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters by their names in a checkpoint. Those of FSDP1 have other names there, or other shapes."""
    bare = module.module if isinstance(module, DistributedDataParallel) else module
    return {_without_wrappers(name): parameter for name, parameter in bare.named_parameters()}


def _without_wrappers(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _made(prefix: str, parameters: Mapping[str, torch.Tensor], stored: Mapping[str, Any]) -> _Made | None:
    """Zeros for what is stored of parameters; None: some of it is neither like its parameter nor a number."""
    made: _Made = {}
    for key, entry in stored.items():
        owner, _, name = key.removeprefix(prefix).rpartition(".")
        if not key.startswith(prefix) or (parameter := parameters.get(owner)) is None:
            continue  # such as that of another stage of a pipeline, or of a parameter that is optimized no longer
        if (zeros := _zeros(parameter, entry)) is None:
            return None
        made.setdefault(parameter, {})[name] = zeros
    return made


def _zeros(parameter: torch.Tensor, entry: object) -> torch.Tensor | None:
    if not isinstance(entry, TensorStorageMetadata) or parameter.is_meta or not parameter.dim():
        return None  # to a parameter of no dimension, a number and what is like it look the same
    if not entry.size:
        return torch.zeros((), dtype=entry.properties.dtype, device="cpu")
    if entry.size != parameter.shape or entry.properties.dtype != parameter.dtype:
        return None
    if isinstance(parameter, DTensor):
        return DTensor.from_local(
            torch.zeros_like(parameter.to_local().detach()),
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
    return torch.zeros_like(parameter.detach()) if type(parameter) in _PLAIN else None
