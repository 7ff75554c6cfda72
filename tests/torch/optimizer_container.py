"""An optimizer that consists of several, as torchtitan's OptimizersContainer does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.checkpoint.stateful import Stateful


class OptimizerContainer(torch.optim.Optimizer, Stateful):
    """An Adam for each parameter. It has no state itself, but gives theirs by the parameters' names."""

    def __init__(self, model: torch.nn.Module, lr: float) -> None:
        self.optimizers = {name: torch.optim.Adam([each], lr) for name, each in model.named_parameters()}
        super().__init__(model.parameters(), {})

    def __iter__(self) -> Iterator[torch.optim.Optimizer]:
        return iter(self.optimizers.values())

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for each in self:
            each.step()

    def state_dict(self) -> dict[str, Any]:
        return {name: each.state_dict() for name, each in self.optimizers.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, each in self.optimizers.items():
            each.load_state_dict(state_dict[name])
