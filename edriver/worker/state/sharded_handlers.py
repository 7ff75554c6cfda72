"""Handlers of a model that fully_shard has sharded, and of its optimizer: they keep this worker's shards.

What they capture has plain tensors in the place of DTensors: the shards themselves. So copies, commits and syncs treat
it like any other state, and it fits every worker of the same position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from edriver.worker.backend import fsdp2
from edriver.worker.backend.modules import StateOfModule
from edriver.worker.copies.snapshot import TakeOver
from edriver.worker.state.handlers import (
    ModuleHandler,
    OptimizerHandler,
    refuse_wrapped_shards,
    refuse_zero,
)


class ShardTensor(NamedTuple):
    """A shard in a tree.

    Attributes:
        name: for people.
        tensor: in the tree.
        whole: the live tensor that shares its place in the mesh, and its shape.
    """

    name: str
    tensor: torch.Tensor
    whole: torch.Tensor


class ShardedModuleHandler(ModuleHandler):
    """Handles a model with modules that fully_shard has sharded."""

    def _refuse_unkept(self) -> None:
        refuse_wrapped_shards(self.value)

    def capture(self) -> Any:
        """The model with its shards, and what shapes its parameters have as a whole."""
        return {**super().capture(), "shapes": self._shapes()}

    def load(self, tree: Any) -> None:
        """Copy shards into the existing ones.

        Raises:
            ValueError: the model has other keys or shapes; the message names them. Shards may be alike where the whole
                ones differ.
        """
        if "shapes" in tree:  # a checkpoint that a TorchState has written has none, and is compared as it is read
            self._check(self._shapes(), tree["shapes"])
        super().load(tree)

    def capture_unsharded(self) -> Any:
        """What `capture` returns, without the shards: each worker has the same of it."""
        tree, sharded = self.capture(), self._sharded()
        return {**tree, "state": {key: value for key, value in tree["state"].items() if key not in sharded}}

    def load_unsharded(self, tree: Any) -> None:
        """Take over what `capture_unsharded` has returned on another worker; shards stay as they are.

        Raises:
            ValueError: the model has other keys or shapes; the message names them.
        """
        own = self.capture()["state"]
        self.load({**tree, "state": {**{key: own[key] for key in self._sharded()}, **tree["state"]}})

    def _sharded(self) -> set[str]:
        """The keys of its state_dict whose values are shards."""
        return {key for key, value in self.value.state_dict().items() if isinstance(value, DTensor)}

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {key: tuple(v.shape) for key, v in self.value.state_dict().items() if isinstance(v, torch.Tensor)}

    def lasting(self) -> Iterable[torch.Tensor]:
        """This worker's shards of the parameters, and the parameters that are not sharded."""
        return (fsdp2.local(parameter) for parameter in fsdp2.parameters(self.value))

    def counting(self) -> Iterable[torch.Tensor]:
        """The shards and the parameters: some writes count in the one, some in the other."""
        return (tensor for p in fsdp2.parameters(self.value) for tensor in (p, fsdp2.local(p)))

    def shards(self, tree: Any) -> Iterator[ShardTensor]:
        """The shards in a captured tree, or, in one of a checkpoint, what is to be one."""
        for key, value in self.value.state_dict().items():
            if isinstance(value, DTensor) and key in tree["state"]:
                yield ShardTensor(key, tree["state"][key], value)

    def _parts(self, state: Any) -> dict[str, Any]:
        return {key: fsdp2.local(v) if isinstance(v, torch.Tensor) else v for key, v in state.items()}

    def _write(self, own: dict[str, Any], state: StateOfModule) -> None:
        with torch.no_grad():
            for key in self._sharded():
                shard = state.pop(key)
                if shard.data_ptr() != own[key].data_ptr():  # else it would count as a write
                    own[key].copy_(shard)
        self.value.load_state_dict(state, strict=False)  # its keys have been compared


class ShardedOptimizerHandler(OptimizerHandler):
    """Handles the optimizer of such a model."""

    def _refuse_unkept(self) -> None:
        refuse_zero(self.value)
        if type(self.value).load_state_dict is not torch.optim.Optimizer.load_state_dict:
            raise TypeError(
                f"{type(self.value).__name__} has a load_state_dict of its own, through which edriver cannot bring "
                "shards back: train in restart mode, with edriver.checkpoints in memory"
            )

    def capture(self) -> Any:
        """The state_dict with shards, and which of its values are such."""
        tree = super().capture()
        state: dict[Any, Any] = {}
        sharded: dict[Any, list[str]] = {}
        for index, values in tree["state"].items():
            state[index] = {key: fsdp2.local(v) if isinstance(v, torch.Tensor) else v for key, v in values.items()}
            sharded[index] = [key for key, value in values.items() if isinstance(value, DTensor)]
        return {**tree, "state": state, "sharded": sharded}

    def load(self, tree: Any) -> None:
        """Restore the shards in place, and the groups' options."""
        self._sharded = self._sharded_in(tree)
        super().load(tree)

    def lasting(self) -> Iterable[torch.Tensor]:
        """This worker's shards of the parameters."""
        return map(fsdp2.local, super().lasting())

    def counting(self) -> Iterable[torch.Tensor]:
        """The shards and the parameters."""
        return (tensor for p in super().lasting() for tensor in (p, fsdp2.local(p)))

    def shards(self, tree: Any) -> Iterator[ShardTensor]:
        """The shards in a captured tree, or, in one of a checkpoint, what is to be one."""
        parameters, sharded = self._by_index(tree), self._sharded_in(tree)
        for index, names in sharded.items():
            for name in names:
                yield ShardTensor(f"{name} of parameter {index}", tree["state"][index][name], parameters[index])

    def with_shards_named(self, tree: Any) -> Any:
        """A tree that says which of its values are shards: one of a checkpoint of a TorchState does not."""
        return {**tree, "sharded": self._sharded_in(tree)}

    def _sharded_in(self, tree: Any) -> dict[Any, list[str]]:
        if "sharded" in tree:
            named: dict[Any, list[str]] = tree["sharded"]
            return named
        found: dict[Any, list[str]] = {}
        for index, parameter in self._by_index(tree).items():
            if isinstance(parameter, DTensor) and index in tree["state"]:
                shapes = parameter.shape, fsdp2.local(parameter).shape
                values = tree["state"][index].items()
                found[index] = [name for name, v in values if isinstance(v, torch.Tensor) and v.shape in shapes]
        return found

    def _by_index(self, tree: Any) -> dict[Any, torch.Tensor]:
        """The parameters, by their numbers in a tree; those that only one of the two has are left out."""
        numbers = (number for group in tree["param_groups"] for number in group["params"])
        return dict(zip(numbers, self._parameters(), strict=False))

    def _restored(self, values: TakeOver, index: Any, key: Any, saved: Any, live: Any) -> Any:
        of_live = live or {}
        return {
            name: self._shard(values, key, value, of_live.get(name))
            if name in self._sharded[index]
            else values.value(value, of_live.get(name))
            for name, value in saved.items()
        }

    def _shard(self, values: TakeOver, parameter: torch.Tensor, saved: torch.Tensor, live: Any) -> torch.Tensor:
        """A value of the same shape as its parameter, which shares its mesh."""
        assert isinstance(parameter, DTensor), "its state has DTensors"
        if isinstance(live, DTensor):
            brought = values.value(saved, fsdp2.local(live))
            if brought is fsdp2.local(live):
                return live
        else:
            brought = values.value(saved, live)
        with torch.no_grad():
            made: torch.Tensor = DTensor.from_local(
                brought,
                parameter.device_mesh,
                parameter.placements,
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )
        return made
