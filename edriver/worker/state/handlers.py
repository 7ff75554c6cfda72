"""Handlers: how a model, an optimizer or anything else with its own state is captured and brought back.

Handlers are found by the value's class, the most specific first; `register_handler` adds one. A class
without one that has `state_dict` and `load_state_dict` (learning-rate schedulers, GradScaler) is handled
through those.
"""

from __future__ import annotations

import abc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import is_
from typing import Any, Final, NoReturn

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DistributedSampler

from edriver.worker.backend import grad_scaler
from edriver.worker.backend.grad_scaler import ScalerState
from edriver.worker.backend.modules import StateOfModule, class_versions, is_managed_by_fsdp
from edriver.worker.copies.small_copy import IMMUTABLE_TYPES, Fixed, NotSmallError
from edriver.worker.copies.snapshot import TakeOver
from edriver.worker.sampler.elastic_sampler import ElasticSampler
from edriver.worker.sampler.elastic_stream import ElasticStream
from edriver.worker.state import added_groups
from edriver.worker.state.modes import ModelModes
from edriver.worker.state.state_to_come import kept_dtypes


class StateHandler(abc.ABC):
    """Saves, restores and syncs one value of a state.

    Args:
        value: the value.

    Attributes:
        value: the value, or the object inside it that is kept (for a wrapped model, the model).

    Raises:
        TypeError: the value cannot be kept, because its state differs between workers.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    @abc.abstractmethod
    def capture(self) -> Any:
        """The value's state as a tree (dicts, lists, tuples) that may refer to live tensors."""

    @abc.abstractmethod
    def load(self, tree: Any) -> None:
        """Set the value to a captured state, without keeping a reference to any part of it.

        Raises:
            ValueError: the state belongs to another kind of value; the value is unchanged.
        """

    def keep(self) -> Any:
        """The part of the value's state that a boundary keeps: a tree of small values, without `lasting` tensors."""
        return self.capture()

    def bring_back(self, kept: Any) -> None:
        """Go back to what `keep` returned at the last boundary, while no optimizer has begun a step."""
        self.load(kept)

    def lasting(self) -> Iterable[torch.Tensor]:
        """The tensors that only optimizers change, so that a boundary need not copy them."""
        return ()

    def counting(self) -> Iterable[torch.Tensor]:
        """The tensors whose counters of writes show a write to one of the `lasting`."""
        return self.lasting()

    def reset(self) -> None:  # noqa: B027  most values do not depend on rank and size
        """Adapt to a round's rank and size."""

    def digest(self, tree: Any) -> object:
        """The part of a captured state that is small and the same on all workers, or None."""
        del tree
        return None

    def readable(self, tree: Any) -> Any:
        """The form of a captured state in a checkpoint, for scripts that read it without edriver."""
        return tree

    def clear_gradients(self) -> None:  # noqa: B027  most values have no gradients
        """Discard accumulated gradients."""


_STATEFUL_LOADER: Final = "torchdata.stateful_dataloader."
_POWER_SGD: Final = "torch.distributed.algorithms.ddp_comm_hooks."

_registry: dict[type | str, type[StateHandler]] = {}


def register_handler(cls: type | str, handler_cls: type[StateHandler]) -> None:
    """Register the handler of a class, and of its subclasses that have no other handler.

    Args:
        cls: the class, or its full name, which avoids the import of its library.
        handler_cls: the handler.
    """
    _registry[cls] = handler_cls


def handler_for(value: object) -> StateHandler | None:
    """Return a handler for a value, or None if the value is plain data.

    Raises:
        TypeError: the value cannot be kept; the message says why.
    """
    if isinstance(value, DistributedSampler):
        raise TypeError(
            "a DistributedSampler keeps the rank and size it was made with, so it would repeat and miss "
            "samples once workers come or go: use edriver.ElasticSampler"
        )
    if any(f"{cls.__module__}.{cls.__name__}".startswith(_STATEFUL_LOADER) for cls in type(value).__mro__):
        raise TypeError(
            "a StatefulDataLoader counts its own rank's batches, so it would repeat and miss samples once workers come "
            "or go: use a torch DataLoader with an edriver.ElasticSampler, and give the sampler to the state"
        )
    if type(value).__module__.startswith(_POWER_SGD):
        raise TypeError(
            "a PowerSGDState holds a process group, which lives for one round, and errors of this rank alone: make it "
            "inside the function, after DistributedDataParallel; what it has accumulated is lost when workers come or "
            "go"
        )
    for cls in type(value).__mro__:
        handler = _registry.get(cls) or _registry.get(f"{cls.__module__}.{cls.__qualname__}")
        if handler is not None:
            return handler(value)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict") and not isinstance(value, type):
        return StateDictHandler(value)
    return None


class StateDictHandler(StateHandler):
    """Handles any object with state_dict and load_state_dict."""

    def capture(self) -> Any:
        """The state_dict."""
        return self.value.state_dict()

    def load(self, tree: Any) -> None:
        """Pass a copy to load_state_dict, which may keep it."""
        self.value.load_state_dict(TakeOver().value(tree))


class SamplerHandler(StateDictHandler):
    """Handles an ElasticSampler."""

    def reset(self) -> None:
        """Split the rest of the epoch again."""
        self.value.reset()

    def digest(self, tree: Any) -> object:
        """The cursor."""
        return tree


class StreamHandler(SamplerHandler):
    """Handles an ElasticStream: the progress in each shard."""

    def keep(self) -> Any:
        """The values from which the boundary's state can be computed, without a copy."""
        return Fixed(self.value.kept())

    def bring_back(self, kept: Any) -> None:
        """Go back to what `keep` returned."""
        self.value.bring_back(kept.contents)


class ModuleHandler(StateHandler):
    """Handles a torch.nn.Module: writes parameters, persistent buffers and extra state in place.

    For a model wrapped in DistributedDataParallel it keeps the model itself, since a wrapper lives for one round.

    Attributes:
        modes: which of its modules are in training mode.
    """

    def __init__(self, value: torch.nn.Module) -> None:
        super().__init__(value.module if isinstance(value, DistributedDataParallel) else value)
        self._refuse_unkept()
        own = torch.nn.Module.get_extra_state
        self._has_extra_state = any(type(part).get_extra_state is not own for part in self.value.modules())
        self.modes = ModelModes(self.value)

    def _refuse_unkept(self) -> None:
        """Refuse a model that this handler cannot keep; raises TypeError."""
        refuse_sharded_module(self.value)

    def capture(self) -> Any:
        """The state_dict with its modules' versions, the frozen parameters, and the modules in evaluation mode."""
        state = self.value.state_dict()
        return {
            "state": self._parts(state),
            "metadata": class_versions(state),
            "frozen": frozenset(name for name, p in self.value.named_parameters() if not p.requires_grad),
            "evaluating": frozenset(self.modes.evaluating()),
        }

    def keep(self) -> Any:
        """Return nothing: see `lasting`, and buffer_copies.py.

        Raises:
            NotSmallError: a module has extra state, which only a commit can keep.
        """
        if self._has_extra_state:
            raise NotSmallError("one of its modules has get_extra_state")

    def bring_back(self, kept: Any) -> None:
        """Do nothing."""

    def lasting(self) -> Iterable[torch.Tensor]:
        """The parameters."""
        parameters: Iterable[torch.Tensor] = self.value.parameters()
        return parameters

    def load(self, tree: Any) -> None:
        """Copy into the existing parameters and buffers.

        Raises:
            ValueError: the model has other keys or shapes; the message names them.
        """
        own = self._parts(self.value.state_dict())
        self._check(own, tree["state"])
        frozen = tree["frozen"]
        for name, parameter in self.value.named_parameters():
            if parameter.requires_grad == (name in frozen):
                parameter.requires_grad_(name not in frozen)
        if (evaluating := tree.get("evaluating")) is not None:  # checkpoints of earlier releases lack the key
            self.modes.take(evaluating)
        values = TakeOver()
        state = {key: v if isinstance(v, torch.Tensor) else values.value(v) for key, v in tree["state"].items()}
        self._write(own, StateOfModule(state, tree["metadata"]))

    def _parts(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """What this worker holds of the values of a state_dict."""
        return dict(state)

    def _write(self, own: dict[str, Any], state: StateOfModule) -> None:
        """Set the model to a state whose keys and shapes are those of its `own` parts."""
        del own
        self.value.load_state_dict(state)

    def readable(self, tree: Any) -> Any:
        """The state_dict."""
        return tree["state"]

    def _check(self, own: dict[str, Any], state: dict[str, Any]) -> None:
        wrong = [f"{key} is missing from the saved one" for key in own if key not in state]
        wrong += [f"{key} is not in this model" for key in state if key not in own]
        for key in own:
            mine, saved = _shape(own[key]), _shape(state.get(key))
            if mine is not None and saved is not None and mine != saved:
                wrong.append(f"{key} has shape {mine} here and {saved} there")
        if wrong:
            raise ValueError(
                f"this {type(self.value).__name__} is not the model whose state it should load: "
                f"{_first_few(wrong)}; all workers must build the same model"
            )

    def clear_gradients(self) -> None:
        """Set all gradients to None."""
        self.value.zero_grad(set_to_none=True)


def _shape(value: object) -> tuple[int, ...] | None:
    """Of a tensor, or one that stands for it."""
    return tuple(value.shape) if isinstance(value, torch.Tensor) else value if isinstance(value, tuple) else None


class OptimizerHandler(StateHandler):
    """Handles a torch.optim.Optimizer: writes existing tensors in place, bit for bit.

    (Optimizer.load_state_dict makes new tensors, and casts them to the parameters' type.)

    Attributes:
        models: the state's models, by name, in which to find the parameters of groups that were added later.
    """

    def __init__(self, value: Optimizer) -> None:
        super().__init__(value)
        self._refuse_unkept()
        self.models: Callable[[], Mapping[str, torch.nn.Module]] = dict
        self._first_groups = len(value.param_groups)
        self._fixed = Fixed([])
        self._fixed_values: list[Any] = []
        self._fixed_counts: list[int] = []
        self._ready: dict[torch.Tensor, list[torch.Tensor]] = {}

    def _refuse_unkept(self) -> None:
        """Refuse an optimizer that this handler cannot keep; raises TypeError."""
        refuse_sharded_optimizer(self.value)

    def capture(self) -> Any:
        """The state_dict, and the parameters of groups that were added since this handler was made."""
        tree = self.value.state_dict()
        added = self.value.param_groups[self._first_groups :]
        return {**tree, "added": added_groups.parameter_names(added, self.models())} if added else tree

    def load(self, tree: Any) -> None:
        """Restore the per-parameter state and the groups' options.

        Groups that were added after the capture are removed, and groups that another worker added are added here.
        Options that the saved groups lack are kept: a scheduler created since may have added them.

        Raises:
            ValueError: the optimizer has fewer groups, or groups with other numbers of parameters.
        """
        if type(self.value).load_state_dict is not Optimizer.load_state_dict:  # a subclass may keep state elsewhere
            self.value.load_state_dict(TakeOver().value(tree))
            return
        live_groups, saved_groups = self.value.param_groups, tree["param_groups"]
        if missing := len(saved_groups) - len(live_groups):
            added_groups.add(self.value, tree.get("added", [])[-missing:] if missing > 0 else [], self.models())
        self._check(live_groups, saved_groups)
        del live_groups[len(saved_groups) :]
        params: dict[int, torch.Tensor] = {}
        for live, saved in zip(live_groups, saved_groups, strict=True):
            values = TakeOver()
            for key in saved.keys() - {"params"}:
                live[key] = values.value(saved[key], live.get(key))
            params.update(zip(saved["params"], live["params"], strict=True))
        self._load_state(tree["state"], params)

    def keep(self) -> Any:
        """The groups' options, which schedulers change; in a box if none of them can be changed in place.

        While the options stay equal, as at most boundaries, this returns the same box again.
        """
        groups = self.value.param_groups
        values = [value for group in groups for value in group.values()]
        counts = [len(group["params"]) for group in groups]
        as_before = counts == self._fixed_counts and len(values) == len(self._fixed_values)
        if as_before and all(map(is_, values, self._fixed_values)):
            return self._fixed
        options = [
            (count, {key: value for key, value in group.items() if key != "params"})
            for count, group in zip(counts, groups, strict=True)
        ]
        if not all(_is_fixed(value) for _, of_group in options for value in of_group.values()):
            return options
        self._fixed, self._fixed_values, self._fixed_counts = Fixed(options), values, counts
        return self._fixed

    def bring_back(self, kept: Any) -> None:
        """Restore the groups' options; groups that were added since are removed."""
        options = kept.contents if isinstance(kept, Fixed) else kept
        del self.value.param_groups[len(options) :]
        for live, (_, of_group) in zip(self.value.param_groups, options, strict=True):
            values = TakeOver()
            for key, value in of_group.items():
                live[key] = values.value(value, live.get(key))

    def readable(self, tree: Any) -> Any:
        """By the parameters' names, as torch.distributed.checkpoint.state_dict has it, if one model has them all."""
        names = self._names_in_one_model()
        if names is None or type(self.value).load_state_dict is not Optimizer.load_state_dict:
            return tree
        of = dict(zip((i for group in tree["param_groups"] for i in group["params"]), names, strict=True))
        groups = [{**group, "params": [of[i] for i in group["params"]]} for group in tree["param_groups"]]
        return {"state": {of.get(i, i): kept for i, kept in tree["state"].items()}, "param_groups": groups}

    def _names_in_one_model(self) -> list[str] | None:
        for model in self.models().values():
            names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
            found = [names.get(parameter) for parameter in self._parameters()]
            if None not in found:
                return [name for name in found if name is not None]
        return None

    def lasting(self) -> Iterable[torch.Tensor]:
        """The parameters; their optimizer state changes only together with them."""
        return self._parameters()

    def make_ready(self) -> list[torch.Tensor]:
        """Make what the first step will make of each parameter, and write to it: loads take it, until it is forgotten.

        Returns:
            it, where the parameters are; empty where nothing is to come.
        """
        dtypes: dict[tuple[int, torch.dtype], list[torch.dtype]] = {}
        for number, parameter, tensor in self._trained():
            if self.value.state.get(parameter) or not tensor.ndim:  # such a one is like the count of its steps
                continue
            kind = number, tensor.dtype
            if kind not in dtypes:
                dtypes[kind] = kept_dtypes(self.value, self.value.param_groups[number], tensor.dtype)
            empty = (torch.empty(tensor.shape, dtype=of, device=tensor.device) for of in dtypes[kind])
            self._ready[parameter] = [each.zero_() for each in empty]
        return [tensor for of_one in self._ready.values() for tensor in of_one]

    def trained(self) -> Iterator[torch.Tensor]:
        """What this worker has of each parameter that gets a gradient."""
        return (tensor for _, _, tensor in self._trained())

    def _trained(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        numbers = (number for number, group in enumerate(self.value.param_groups) for _ in group["params"])
        each = zip(numbers, self._parameters(), self.lasting(), strict=True)
        return (found for found in each if found[1].requires_grad)

    def forget_ready(self) -> None:
        """Give back what is ready and was not taken."""
        self._ready = {}

    def _parameters(self) -> Iterator[torch.Tensor]:
        return (param for group in self.value.param_groups for param in group["params"])

    def _load_state(self, saved_state: dict[Any, Any], params: dict[int, torch.Tensor]) -> None:
        state = self.value.state
        before = dict(state)
        state.clear()  # not replaced by a new object: others may refer to it
        values = TakeOver()
        for index, saved in saved_state.items():
            key = params.get(index, index)
            live = before[key] if key in before else self._ready_for(key, saved)
            state[key] = self._restored(values, index, key, saved, live)

    def _ready_for(self, key: Any, saved: Any) -> dict[str, torch.Tensor] | None:
        """Of what is ready, what corresponds to what was saved of a parameter; None: nothing is."""
        ready = self._ready.get(key) if isinstance(key, torch.Tensor) else None
        if not ready or not isinstance(saved, dict):
            return None
        left, found = list(ready), {}
        for name, value in saved.items():
            kind = (value.shape, value.dtype) if isinstance(value, torch.Tensor) else None
            at = next((at for at, tensor in enumerate(left) if (tensor.shape, tensor.dtype) == kind), None)
            if at is not None:
                found[name] = left.pop(at)
        return found

    def _restored(self, values: TakeOver, index: Any, key: Any, saved: Any, live: Any) -> Any:
        """What the optimizer keeps of a parameter.

        Args:
            values: where values go.
            index: the parameter's number in the state_dict.
            key: the parameter; or the index, of what is kept of no parameter.
            saved: what was captured of it.
            live: what there is of it; None: nothing.
        """
        del index, key
        return values.value(saved, live)

    def _check(self, live_groups: list[dict[str, Any]], saved_groups: list[dict[str, Any]]) -> None:
        live = [len(group["params"]) for group in live_groups]
        saved = [len(group["params"]) for group in saved_groups]
        if live[: len(saved)] != saved:
            raise ValueError(
                f"this {type(self.value).__name__} is not the optimizer whose state it should load: "
                f"its groups have {live} parameters, the saved one's {saved}; all workers must build the "
                "same optimizer"
            )

    def clear_gradients(self) -> None:
        """Set the gradients of all parameters in the groups to None."""
        for group in self.value.param_groups:
            for param in group["params"]:
                param.grad = None


def _is_fixed(value: object) -> bool:
    return type(value) in IMMUTABLE_TYPES or (type(value) is tuple and all(map(_is_fixed, value)))


class GradScalerHandler(StateDictHandler):
    """Handles a torch.amp.GradScaler, without its state_dict, which would wait for the device."""

    def keep(self) -> Any:
        """The scale and the growth tracker, as tensors (None before the first use)."""
        return tuple(grad_scaler.scale_of(self.value)) if grad_scaler.is_known(self.value) else super().keep()

    def bring_back(self, kept: Any) -> None:
        """Write the kept values in place."""
        if not grad_scaler.is_known(self.value):
            super().bring_back(kept)
            return
        values = TakeOver()
        grad_scaler.set_scale(self.value, ScalerState(*map(values.value, kept, grad_scaler.scale_of(self.value))))

    def clear_gradients(self) -> None:
        """Discard the record of which optimizers' gradients an interrupted step has unscaled."""
        grad_scaler.forget_unscaled(self.value)


register_handler(torch.nn.Module, ModuleHandler)
register_handler(torch.amp.GradScaler, GradScalerHandler)
register_handler(Optimizer, OptimizerHandler)
register_handler(ElasticSampler, SamplerHandler)
register_handler(ElasticStream, StreamHandler)


def refuse_sharded_module(module: torch.nn.Module) -> None:
    """Refuse a model that is sharded over the workers: a lost worker's part would be lost.

    Raises:
        TypeError: the model contains FSDP modules or DTensors.
    """
    fsdp2 = _classes("torch.distributed.fsdp", "FSDPModule")
    for name, part in module.named_modules():
        if isinstance(part, fsdp2):
            raise TypeError(f"{_path('module', name)} is sharded by fully_shard: {_FULLY_SHARD_ADVICE}")
        if is_managed_by_fsdp(part):  # fully_shard says this of the modules in those that it has sharded, too
            _refuse_wrapped(name)
    refuse_wrapped_shards(module)
    dtensor = _classes("torch.distributed.tensor", "DTensor")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(tensor, dtensor) or isinstance(tensor.data, dtensor):
            raise TypeError(f"{_path('tensor', name)} is a DTensor: {_SHARDED_ADVICE}")


def refuse_wrapped_shards(module: torch.nn.Module) -> None:
    """Refuse a model with FullyShardedDataParallel in it, which keeps flat shards that no name leads to.

    Raises:
        TypeError: there is one.
    """
    wrapper = _classes("torch.distributed.fsdp", "FullyShardedDataParallel")
    for name, part in module.named_modules():
        if isinstance(part, wrapper):
            _refuse_wrapped(name)


def _refuse_wrapped(name: str) -> NoReturn:
    """Refuse a model whose module of this name is sharded by FullyShardedDataParallel; raises TypeError."""
    raise TypeError(
        f"{_path('module', name)} is sharded by FullyShardedDataParallel: use fully_shard with edriver.ShardedState, "
        f"or {_RESTART_MODE}"
    )


def refuse_zero(optimizer: Optimizer) -> None:
    """Refuse a ZeroRedundancyOptimizer, whose step sends what it has written before it has written all.

    Raises:
        TypeError: it is one.
    """
    if isinstance(optimizer, _classes("torch.distributed.optim", "ZeroRedundancyOptimizer")):
        raise TypeError(
            "ZeroRedundancyOptimizer shards the optimizer's state, and communicates in its step, so a loss there would "
            f"leave workers at unequal steps: use fully_shard with edriver.ShardedState, or {_RESTART_MODE}"
        )


def refuse_sharded_optimizer(optimizer: Optimizer) -> None:
    """Refuse an optimizer that is sharded over the workers.

    Raises:
        TypeError: it is a ZeroRedundancyOptimizer, or one of its parameters is a DTensor.
    """
    refuse_zero(optimizer)
    dtensor = _classes("torch.distributed.tensor", "DTensor")
    if any(isinstance(param, dtensor) for group in optimizer.param_groups for param in group["params"]):
        raise TypeError(f"a parameter of this {type(optimizer).__name__} is a DTensor: {_SHARDED_ADVICE}")


_RESTART_MODE: Final = "train in restart mode, with edriver.checkpoints in memory"
_FULLY_SHARD_ADVICE: Final = (
    "this state keeps what every worker holds in full. Use edriver.ShardedState, which shards the model itself, "
    f"DistributedDataParallel, or {_RESTART_MODE}"
)
_SHARDED_ADVICE: Final = (
    "this state keeps what every worker holds in full. Use DistributedDataParallel, edriver.ShardedState for a model "
    f"that fully_shard shards, or {_RESTART_MODE}"
)


def _classes(module: str, *names: str) -> tuple[type, ...]:
    """Return classes of a torch module that is expensive to import; empty if it has not been imported yet."""
    loaded = sys.modules.get(module)
    return tuple(getattr(loaded, name) for name in names if hasattr(loaded, name))


def _path(kind: str, name: str) -> str:
    return f"the model's {kind} {name!r}" if name else "the model"


def _first_few(texts: list[str]) -> str:
    more = f" and {len(texts) - 5} more" if len(texts) > 5 else ""
    return "; ".join(texts[:5]) + more
