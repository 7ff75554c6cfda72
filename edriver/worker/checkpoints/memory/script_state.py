"""A script's state, as its checkpoints hold it: modules, optimizers, schedulers, tensors and plain values by name.

torch.distributed.checkpoint.state_dict gives modules and optimizers the form in which DDP, FSDP and tensor parallelism
look alike, with parameters by their names in the module. So an optimizer needs the module that has its parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer

from edriver.worker.checkpoints import pickles
from edriver.worker.checkpoints.memory import deepspeed_engine
from edriver.worker.checkpoints.memory.optimizer_state import make_state
from edriver.worker.errors import CheckpointError

_OPTIONS: Final = StateDictOptions(flatten_optimizer_state_dict=True)
"""Each parameter with its options: ranks whose optimizers have different parameters (pipeline parallelism) do not
collide."""

SCALARS: Final = (int, float, bool, str, type(None))
"""Types of plain values that nothing can change."""


def state_dict_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state as torch.distributed.checkpoint takes it: with the live tensors, not with copies.

    Raises:
        CheckpointError: it has something that cannot be saved by itself; names it.
    """
    objects = unwrapped(state)
    found = {}
    for name, value in objects.items():
        if isinstance(value, nn.Module):
            _require_elements(name, {**dict(value.named_parameters()), **dict(value.named_buffers())})
        found[name] = _part(name, value, objects)
        if not isinstance(value, nn.Module):
            _require_elements(name, found[name])
    return found


def target_of(state: Mapping[str, Any], stored: Metadata) -> dict[str, Any]:
    """As `state_dict_of`, to load a checkpoint into. Optimizers that have made no step have a state afterwards.

    Args:
        state: the script's state.
        stored: the checkpoint's metadata.

    Raises:
        CheckpointError: as `state_dict_of`.
    """
    objects = unwrapped(state)
    for name, value in objects.items():
        if isinstance(value, Optimizer) and not _is_stateful_by_itself(value):
            make_state(name, value, _owning_module(name, value, objects), stored)
    return state_dict_of(state)


def require_picklable(state: Mapping[str, Any]) -> None:
    """Refuse what cannot be written, before it is copied and written in the background.

    Args:
        state: as `state_dict_of` has returned it.

    Raises:
        CheckpointError: a value cannot be pickled; names it.
    """
    for name, value in _leaves("", state):
        if type(value) not in SCALARS and not isinstance(value, torch.Tensor):
            try:
                pickles.packed(value)
            except Exception as error:
                raise unpicklable(name, error) from error


def unpicklable(name: str, error: Exception) -> CheckpointError:
    """What to say of a value that cannot be pickled."""
    return CheckpointError(
        f"the state's {name} cannot be pickled ({error}): leave it out, and make it anew after load, or put what it is "
        "made of into the state"
    )


def _require_elements(name: str, value: Any) -> None:
    """Refuse tensors whose elements cannot be copied one by one.

    Raises:
        CheckpointError: there is one; names it.
    """
    for key, tensor in _leaves(name, value):
        if not isinstance(tensor, torch.Tensor) or hasattr(tensor, "local_shards"):  # FSDP1's, which answers nothing
            continue
        if tensor.is_meta:
            raise CheckpointError(
                f"the state's {key} is on the meta device and has no elements: give its module memory before "
                "(to_empty, and the initial values)"
            )
        if tensor.layout is not torch.strided or tensor.is_quantized:
            kind, way = ("quantized", "its dequantize()") if tensor.is_quantized else ("sparse", "its to_dense()")
            raise CheckpointError(
                f"the state's {key} is a {kind} tensor, which checkpoints cannot keep: put {way} into the state "
                "instead, or leave it out"
            )


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What is inside of dicts, lists and tuples, by names such as torch.distributed.checkpoint's."""
    if isinstance(value, Mapping):
        items: Iterable[tuple[Any, Any]] = value.items()
    elif type(value) in (list, tuple):
        items = enumerate(value)
    else:
        yield name, value
        return
    for key, item in items:
        yield from _leaves(f"{name}.{key}" if name else str(key), item)


@dataclass(frozen=True, slots=True)
class Whole:
    """A part of a state that is saved and loaded as a whole.

    Attributes:
        value: the part.
    """

    value: Any


def _in_parts(value: Any) -> Any:
    """A value, with dicts that must not be taken apart as a Whole each.

    torch.distributed.checkpoint takes dicts apart, and names the parts by strings. After a load, one with other keys
    (the milestones of a MultiStepLR) has what it had, and what was loaded under strings: see `_merged`, for those that
    have tensors, which are saved by themselves.
    """
    if isinstance(value, Mapping):
        if any(not isinstance(key, str) for key in value) and not _has_tensors(value):
            return Whole(value)
        changed = {key: part for key, inner in value.items() if (part := _in_parts(inner)) is not inner}
    elif type(value) in (list, tuple):
        parts = [_in_parts(inner) for inner in value]
        return type(value)(parts) if any(a is not b for a, b in zip(parts, value, strict=True)) else value
    else:
        return value
    if not changed:
        return value
    copied: Any = copy.copy(value)
    copied.update(changed)
    return copied


def _has_tensors(value: Any) -> bool:
    return any(isinstance(inner, torch.Tensor) for inner in _inside(value))


def _merged(value: Any) -> Any:
    """What was loaded, with each part under the key that it had when it was saved."""
    if isinstance(value, MutableMapping):
        for key in [key for key in value if not isinstance(key, str)]:
            if str(key) in value:
                value[key] = value.pop(str(key))
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        _merged(inner)
    return value


def unwrapped(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state, with a DeepSpeed engine's parts, and with the optimizers inside of those of Accelerate and Lightning.

    The `step` of the latter may make none, and they take no hooks.

    Raises:
        CheckpointError: it has something of DeepSpeed that cannot be saved: names it.
    """
    objects: dict[str, Any] = {}
    for name, value in state.items():
        if deepspeed_engine.is_engine(value):
            objects |= deepspeed_engine.engine_parts(name, value)
        else:
            objects[name] = bare = _unwrapped(value)
            if deepspeed_engine.is_optimizer(bare):
                raise CheckpointError(
                    f"the state's {name!r} is an optimizer of DeepSpeed, of which each rank has another part: put the "
                    "engine into the state instead, which has its module, optimizer and scheduler"
                )
    return objects


def _unwrapped(value: Any) -> Any:
    while isinstance(value, Optimizer) and _is_optimizer(inner := getattr(value, "optimizer", None)):
        value = inner
    return value


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, Optimizer) or deepspeed_engine.is_optimizer(value)


def _is_stateful_by_itself(optimizer: Optimizer) -> bool:
    """Whether an optimizer's class derives from DCP's Stateful, as torchtitan's container of optimizers does.

    Its state is by the names of parameters already. Any optimizer has Stateful's methods; to torch's functions a
    container looks like one without state.
    """
    return Stateful in type(optimizer).__mro__


def load_into(state: MutableMapping[str, Any], loaded: Mapping[str, Any]) -> list[str]:
    """Give each object of the state what was loaded for it. Tensors have it already; plain values are replaced.

    Returns:
        The names of the plain values.

    Args:
        state: the state.
        loaded: what `state_dict_of` has returned, and was then loaded.
    """
    objects, replaced = unwrapped(state), []
    for name, value in objects.items():
        if isinstance(value, nn.Module):
            set_model_state_dict(value, loaded[name])
    for name, value in objects.items():
        if isinstance(value, nn.Module | torch.Tensor):
            continue
        if isinstance(value, Optimizer) and not _is_stateful_by_itself(value):
            set_optimizer_state_dict(_owning_module(name, value, objects), value, loaded[name], options=_OPTIONS)
        elif isinstance(value, Stateful):
            value.load_state_dict(_merged(loaded[name]))
        else:
            state[name] = _merged(loaded[name])
            replaced.append(name)
    return replaced


def _part(name: str, value: Any, state: Mapping[str, Any]) -> Any:
    if isinstance(value, nn.Module):
        return get_model_state_dict(value)
    if isinstance(value, Optimizer) and not _is_stateful_by_itself(value):
        return _optimizer_state(name, _owning_module(name, value, state), value)
    if isinstance(value, Stateful):  # a scheduler, a sampler, a data loader
        return _in_parts(value.state_dict())
    if any(isinstance(inner, nn.Module | Optimizer) for inner in _inside(value)):
        raise CheckpointError(
            f"the state's {name!r} has modules or optimizers inside a {type(value).__name__}: give each of them a name "
            "in the state"
        )
    return _in_parts(value)


def _optimizer_state(name: str, module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """The state of an optimizer by its parameters' names.

    torch gives an optimizer that has made no step its state by one with gradients of zero. It does not count.
    """
    new = not optimizer.state
    try:
        found: dict[str, Any] = dict(get_optimizer_state_dict(module, optimizer, options=_OPTIONS))
    except NotImplementedError as error:  # torch's, of LBFGS, whose state is lists that grow
        raise CheckpointError(
            f"the state's {name!r} is a {type(optimizer).__name__}, whose state is not tensors and numbers for each "
            f"parameter ({error}): leave it out of the state, so that it begins anew after a restart, or train with "
            "another optimizer"
        ) from error
    if new:
        for key, value in found.items():
            if key.startswith("state.") and key.endswith(".step") and isinstance(value, torch.Tensor):
                value.zero_()
    return found


def forget_first_step(optimizers: list[Optimizer]) -> None:
    """Leave optimizers that have made no step as they were before `state_dict_of`."""
    for optimizer in optimizers:
        optimizer.state.clear()


def without_steps(state: Mapping[str, Any]) -> list[Optimizer]:
    """The optimizers that have made no step."""
    return [optimizer for optimizer in optimizers_of(state) if not optimizer.state]


def optimizers_of(state: Mapping[str, Any]) -> list[Optimizer]:
    """The optimizers in a state: of a container, such as torchtitan's, those that it consists of."""
    found: list[Optimizer] = []
    for value in state.values():
        if isinstance(value, Optimizer):
            found.extend(value if isinstance(value, Iterable) else [value])
    return found


def _owning_module(name: str, optimizer: Optimizer, state: Mapping[str, Any]) -> nn.Module:
    """The module that has an optimizer's parameters; of several together, where no one has all.

    Raises:
        CheckpointError: a parameter is in none.
    """
    wanted = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    modules = {key: value for key, value in state.items() if isinstance(value, nn.Module)}
    for module in modules.values():
        if wanted <= set(module.parameters()):
            return module
    together = nn.ModuleDict(modules)
    if wanted <= set(together.parameters()):
        return together
    raise CheckpointError(
        f"the state's {name!r} optimizes parameters that no module in the state has: put the module into the state as "
        "well"
    )


def _inside(value: Any) -> Iterator[Any]:
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for item in items:
        yield item
        yield from _inside(item)
