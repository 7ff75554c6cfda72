"""A state whose boundaries are all taken, a step with it, and a copy of all that is in it."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy
import torch

from edriver.worker.state.torch_state import TorchState


class Rounds:
    """Takes every boundary."""

    abort_cause: str | None = None

    def boundary(self, committed: bool) -> None:
        pass

    def check(self) -> None:
        pass

    def clipped(self, norm: float) -> None:
        pass

    def seal_broken(self, error: Exception) -> None:
        raise error


def new_state(**objects: Any) -> TorchState:
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)
    )
    state = TorchState(model, torch.optim.Adam(model.parameters(), lr=0.1), **objects)
    state.bind(Rounds())
    return state


def half_step(state: TorchState) -> torch.Tensor:
    """The part of a step that other workers can interrupt; its result depends on all that it draws."""
    noise = torch.rand(8, 4) + float(numpy.random.rand()) + random.random() + float(numpy.random.normal())
    loss = state.model(noise).square().mean()
    loss.backward()
    detached: torch.Tensor = loss.detach()
    return detached


def step(state: TorchState) -> torch.Tensor:
    loss = half_step(state)
    state.optimizer.step()
    state.optimizer.zero_grad()
    return loss


def everything(state: TorchState) -> Any:
    return copy.deepcopy(
        (
            [*state.model.parameters(), *state.model.buffers()],
            state.optimizer.state_dict(),
            {name: getattr(state, name) for name in state._names if name not in state._handlers},
        )
    )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
