"""The script that sharded_chaos.py disturbs: a sharded model, of which it writes down a digest now and then.

Every rank has the same data, and there are 1, 2 or 4 replicas of 2, so the mean of all gradients is each rank's own,
bit for bit: what a position has at a step does not depend on what its run went through. `Undisturbed` computes the same
in one process.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import edriver
from benchmarks.notebook import notebook

SHARDS: Final = 2
NOTED_EVERY: Final = 10
"""Steps between two digests."""

PAUSE: Final = 0.01
"""Seconds of a step in which the processor is left to others."""


def new_model() -> torch.nn.Sequential:
    """Three layers, of even sizes."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
    )


def new_optimizer(parameters: Iterable[torch.Tensor]) -> torch.optim.Adam:
    """The same here and there."""
    return torch.optim.Adam(parameters, lr=0.001)


def loss_of(model: torch.nn.Module, step: int) -> torch.Tensor:
    """The same on every rank."""
    batch = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
    return torch.as_tensor(model(batch).square().mean())


def digest(parameters: Iterable[torch.Tensor], optimizer: torch.optim.Optimizer) -> str:
    """Of shards, and of all that the optimizer keeps of them."""
    found = hashlib.sha256()
    for parameter in parameters:
        for tensor in (parameter, *optimizer.state[parameter].values()):
            part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            found.update(part.detach().numpy().tobytes())
    return found.hexdigest()[:16]


class Undisturbed:
    """The same training in one process: the model is whole, and the optimizer works on shards."""

    def __init__(self) -> None:
        self._model = new_model()
        self._shards = [
            [part.clone() for part in parameter.detach().chunk(SHARDS)] for parameter in self._model.parameters()
        ]
        self._optimizers = [new_optimizer([of[place] for of in self._shards]) for place in range(SHARDS)]
        self._noted: list[list[str]] = []
        self._step = 0

    def digests(self, step: int) -> list[str]:
        """What the positions have after so many steps, of which some are noted."""
        while self._step < step:
            self._make_step()
        return self._noted[step // NOTED_EVERY - 1]

    def _make_step(self) -> None:
        self._model.zero_grad()
        loss_of(self._model, self._step).backward()  # type: ignore[no-untyped-call]
        for parameter, parts in zip(self._model.parameters(), self._shards, strict=True):
            assert parameter.grad is not None, "it takes part in the loss"
            for part, grad in zip(parts, parameter.grad.chunk(SHARDS), strict=True):
                part.grad = grad.clone()
        for optimizer in self._optimizers:
            optimizer.step()
        with torch.no_grad():
            for parameter, parts in zip(self._model.parameters(), self._shards, strict=True):
                parameter.copy_(torch.cat(parts))
        self._step += 1
        if self._step % NOTED_EVERY == 0:
            self._noted.append(
                [digest([of[place] for of in self._shards], self._optimizers[place]) for place in range(SHARDS)]
            )


def build(mesh: DeviceMesh) -> torch.nn.Module:
    """Sharded, each layer on its own."""
    model = new_model()
    for layer in (model[0], model[2], model[4]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def main() -> None:
    """Train until this is killed."""
    state = edriver.ShardedState(build=build, optimizer=lambda model: new_optimizer(model.parameters()), step=0)
    note = notebook(Path(sys.argv[1]), state)

    @edriver.run
    def train(state: edriver.ShardedState) -> None:
        note("begins")
        while True:
            state.optimizer.zero_grad()
            loss_of(state.model, state.step).backward()  # type: ignore[no-untyped-call]
            state.optimizer.step()
            state.step += 1
            state.check_host_updates()
            if state.step % NOTED_EVERY == 0:
                note("notes", digest=digest(state.model.parameters(), state.optimizer))
            time.sleep(PAUSE)

    train(state)


if __name__ == "__main__":
    main()
