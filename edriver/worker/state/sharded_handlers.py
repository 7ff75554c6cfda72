"""Handlers of a model that fully_shard has sharded, and of its optimizer: they keep this worker's shards.

What they capture has plain tensors in the place of DTensors: the shards themselves. So copies, commits and syncs treat
it like any other state, and it fits every worker of the same position.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
        self._check(self._shapes(), tree["shapes"])
        super().load(tree)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {key: tuple(v.shape) for key, v in self.value.state_dict().items() if isinstance(v, torch.Tensor)}

    def lasting(self) -> Iterable[torch.Tensor]:
        """This worker's shards of the parameters, and the parameters that are not sharded."""
        return (fsdp2.local(parameter) for parameter in fsdp2.parameters(self.value))

    def counting(self) -> Iterable[torch.Tensor]:
        """The shards and the parameters: some writes count in the one, some in the other."""
        return (tensor for p in fsdp2.parameters(self.value) for tensor in (p, fsdp2.local(p)))

    def _parts(self, state: Any) -> dict[str, Any]:
        return {key: fsdp2.local(v) if isinstance(v, torch.Tensor) else v for key, v in state.items()}

    def _write(self, own: dict[str, Any], state: StateOfModule) -> None:
        sharded = [key for key, value in self.value.state_dict().items() if isinstance(value, DTensor)]
        with torch.no_grad():
            for key in sharded:
                own[key].copy_(state.pop(key))
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
        self._sharded = tree["sharded"]
        super().load(tree)

    def lasting(self) -> Iterable[torch.Tensor]:
        """This worker's shards of the parameters."""
        return map(fsdp2.local, super().lasting())

    def counting(self) -> Iterable[torch.Tensor]:
        """The shards and the parameters."""
        return (tensor for p in super().lasting() for tensor in (p, fsdp2.local(p)))

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
            brought = values.value(saved)
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
