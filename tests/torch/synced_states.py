"""States that ranks pass on to one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d as c10d

from edriver.worker.sampler.elastic_sampler import ElasticSampler
from edriver.worker.state.torch_state import TorchState
from edriver.worker.sync import sync
from edriver.worker.sync.sync import SyncRecord


class Net(torch.nn.Module):
    """Batch normalisation and tied weights."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.second = torch.nn.Linear(width, 4)
        self.tied = torch.nn.Linear(width, 4)
        self.tied.weight = self.second.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(x))
        return torch.as_tensor(self.second(hidden) + self.tied(hidden))


def new_state(seed: int) -> TorchState:
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    sampler = ElasticSampler(range(20))
    return TorchState(model, optimizer, scheduler=scheduler, sampler=sampler, step=0, ema=torch.zeros(3))


def train(state: TorchState, steps: int) -> None:
    for _ in range(steps):
        generator = torch.Generator().manual_seed(state.step)
        state.optimizer.zero_grad()
        state.model(torch.randn(6, 4, generator=generator)).square().sum().backward()
        state.optimizer.step()
        state.scheduler.step()
        state.ema.mul_(0.5).add_(state.step)
        state.step += 1


@dataclass
class Custom:
    """An object of the script's own with a tensor in it."""

    tensor: torch.Tensor


class Sink:
    """A next rank that only keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[torch.Tensor] = []

    def pass_on(self, piece: torch.Tensor) -> None:
        self.sent.append(piece.clone())

    def finish(self) -> None:
        pass


def sent(tree: Any) -> tuple[torch.Tensor, SyncRecord]:
    """The stream and the record that a source makes of a tree."""
    sink, store = Sink(), HashStore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(c10d, "_get_default_store", lambda: store)
        patch.setattr(sync, "Downstream", lambda _rank, _window: sink)
        sync._send(tree, (0, 1), "key")
    return torch.cat(sink.sent), SyncRecord.read(bytes(store.get("key")))
