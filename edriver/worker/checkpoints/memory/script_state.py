"""A script's state, as its checkpoints hold it: modules, optimizers, schedulers, tensors and plain values by name.

torch.distributed.checkpoint.state_dict gives modules and optimizers the form in which DDP, FSDP and tensor parallelism
look alike, with parameters by their names in the module. So an optimizer needs the module that has its parameters.
"""

from __future__ import annotations

import copy
import io
import logging
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, WriteItem
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from edriver.worker.checkpoints import pickles
from edriver.worker.checkpoints.memory import deepspeed_engine
from edriver.worker.checkpoints.memory.optimizer_state import make_state
from edriver.worker.checkpoints.memory.replicas import written_once
from edriver.worker.errors import CheckpointError

logger = logging.getLogger("edriver.worker")

_OPTIONS: Final = StateDictOptions(flatten_optimizer_state_dict=True)
"""Each parameter with its options: ranks whose optimizers have different parameters (pipeline parallelism) do not
collide."""

_PLAIN_TENSORS: Final = (torch.Tensor, nn.Parameter)
_SCALARS: Final = (int, float, bool, str, type(None))


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
        if type(value) not in _SCALARS and not isinstance(value, torch.Tensor):
            try:
                pickles.packed(value)
            except Exception as error:
                raise _unpicklable(name, error) from error


def _unpicklable(name: str, error: Exception) -> CheckpointError:
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


class MadePlan(NamedTuple):
    """A local plan, and what it was made of: see `structure_of`, and DefaultSavePlanner's `mappings`."""

    structure: dict[str, Any] | None
    mappings: Mapping[str, Any]
    plan: SavePlan


class StatePlanner(DefaultSavePlanner):
    """DCP's planner. Of plain values that are the same, such as the learning rates of all parameters, it packs one; and
    it makes a plan only if the structure of the state is another than at the save before: a plan takes a millisecond
    for each DTensor, seconds for a large model.

    Args:
        made: the plan of the save before, if any.

    Attributes:
        made: the plan of this save, after `create_local_plan`.
    """

    def __init__(self, made: MadePlan | None = None) -> None:
        super().__init__()
        self.made = made
        self._packed: dict[tuple[type, str], Any] = {}

    def create_local_plan(self) -> SavePlan:
        """Plan this rank's items. A state of the same structure as before gets the very same plan object."""
        structure = structure_of(self.state_dict)
        if self.made is None or structure is None or self.made[:2] != (structure, self.mappings):
            super().create_local_plan()
            self.made = MadePlan(structure, self.mappings, self.plan)
        self.plan = self.made.plan
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Have each value that several ranks hold written by one of them."""
        return super().create_global_plan(written_once(all_plans))

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: A002  torch's name
        """The value to be written: what a Whole holds, and of a lazy view its values."""
        if isinstance(object, Whole):
            object = object.value  # noqa: A001
        elif isinstance(object, torch.Tensor):  # the bytes of a conjugate or negative view are not its values
            object = object.resolve_conj().resolve_neg()  # noqa: A001
        if type(object) not in _SCALARS:
            try:
                return super().transform_object(write_item, object)
            except Exception as error:
                if isinstance(object, torch.Tensor):
                    raise
                raise _unpicklable(write_item.index.fqn, error) from error
        key = type(object), repr(object)
        if key not in self._packed:
            self._packed[key] = super().transform_object(write_item, object)
        return self._packed[key]


def structure_of(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """All of a flattened state on which its local plan depends; None: that is not known for all of its values."""
    found: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, DTensor):
            found[key] = value.shape, value.dtype, value.requires_grad, value.placements, value.device_mesh
        elif not isinstance(value, torch.Tensor):
            found[key] = None  # it is packed, whatever it is
        elif type(value) in _PLAIN_TENSORS:
            found[key] = value.shape, value.dtype, value.requires_grad, value.layout
        else:
            return None
    return found


class CheckedLoadPlanner(DefaultLoadPlanner):
    """DCP's planner, which says what to do where the state has changed since it was saved."""

    def __init__(self) -> None:
        super().__init__()
        self._unpacked: dict[bytes, Any] = {}

    def create_local_plan(self) -> LoadPlan:
        """See DefaultLoadPlanner.

        Raises:
            CheckpointError: the checkpoint has not what the state needs; names it.
        """
        assert self.metadata is not None, "it was given"
        stored = self.metadata.state_dict_metadata
        missing = [key for key in self.state_dict if key not in stored and not _is_unsaved(key, stored)]
        if missing:
            if (size := deepspeed_engine.size_in(missing[0])) is not None:
                raise CheckpointError(
                    f"the checkpoint has no part of {missing[0]}: in ZeRO each rank has its own, and those of another "
                    f"number of ranks than {size} cannot be loaded. Start as many as have saved it"
                )
            if grown := [key for key in missing if _is_inside(key, stored)]:
                raise CheckpointError(
                    f"the checkpoint does not fit the state: it has no {named(grown)}, which the state has. A dict or "
                    "list of tensors needs for load the keys and the length with which it was saved: make it as long "
                    "before load, or keep what grows in one tensor of its final size, or as numbers"
                )
            raise _changed(f"it has no {named(missing)}, which the state has")
        converted = []
        for key, value in self.state_dict.items():
            if key not in stored:
                continue
            entry = stored[key]
            if isinstance(value, torch.Tensor) != isinstance(entry, TensorStorageMetadata):
                raise _changed(f"{key} is a tensor in one of the two, and a plain value in the other")
            if isinstance(entry, TensorStorageMetadata) and entry.size != value.size():
                raise _changed(f"{key} has the shape {tuple(entry.size)} in it, and {tuple(value.size())} in the state")
            if isinstance(entry, TensorStorageMetadata) and entry.properties.dtype != value.dtype:
                converted.append(f"{key} ({entry.properties.dtype} in it, {value.dtype} in the state)")
        if converted:
            logger.warning("the checkpoint is converted where the state has another dtype: %s", named(converted))
        unused = [key for key in stored if key not in self.state_dict]
        if unused:
            logger.warning("the checkpoint has %s, which the state has not: it is left out", named(unused))
        self.allow_partial_load = True  # what is missing has been looked at
        return super().create_local_plan()

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """See DefaultLoadPlanner. What many keys have, such as the options of an optimizer, is unpacked once."""
        path, data = self.mappings[read_item.dest_index.fqn], value.getvalue()
        part = self.original_state_dict.get(str(path[0])) if len(path) == 2 else None
        if data in self._unpacked and isinstance(part, dict):
            part[path[1]] = self._unpacked[data]
            return
        super().load_bytes(read_item, value)
        if isinstance(part, dict) and _is_constant(part[path[1]]):
            self._unpacked[data] = part[path[1]]


def _is_constant(value: Any) -> bool:
    """Whether several may have the same object, as nothing can change it."""
    return all(type(inner) in _SCALARS for inner in (value if type(value) is tuple else (value,)))


def _is_unsaved(key: str, stored: Mapping[str, Any]) -> bool:
    """Whether a key is of the state of a parameter that an optimizer knew, and had no state for."""
    name, found, rest = key.partition(".state.")
    parameter = rest.rpartition(".")[0]
    known = any(other.startswith(f"{name}.param_groups.{parameter}.") for other in stored)
    return bool(found) and known and not any(other.startswith(f"{name}.state.{parameter}.") for other in stored)


def _is_inside(key: str, stored: Iterable[str]) -> bool:
    """Whether a key belongs to a dict or list that the checkpoint has with other keys, or another length."""
    parent, inside, last = key.rpartition(".")
    siblings = bool(inside) and last.isdecimal() and any(other.startswith(f"{parent}.") for other in stored)
    return siblings or any(other.startswith(f"{key}.") for other in stored)


def _changed(how: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint does not fit the state: {how}. Give load a state of the structure that was saved, or begin "
        "in another folder"
    )


def named(keys: Sequence[str], most: int = 3) -> str:
    """The first of many names, and how many more there are."""
    more = f" and {len(keys) - most} more" if len(keys) > most else ""
    return ", ".join(keys[:most]) + more
