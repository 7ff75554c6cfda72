"""A state that writes checkpoints, and its training."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from edriver.worker.sampler.elastic_sampler import ElasticSampler
from edriver.worker.state.torch_state import TorchState


def new_state(location: str | Path, seed: int = 3, every: timedelta | int = 1, **objects: Any) -> TorchState:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    groups: list[dict[str, Any]] = [{"params": model[0].parameters()}, {"params": model[3].parameters(), "lr": 0.2}]
    optimizer = torch.optim.AdamW(groups)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    sampler = ElasticSampler(range(100), seed=seed)
    return TorchState(
        model, optimizer, scheduler=scheduler, sampler=sampler, checkpoint=location, every=every, **objects
    )


def train(state: TorchState, steps: int) -> None:
    for _ in range(steps):
        state.optimizer.zero_grad()
        batch = torch.randn(6, 4, generator=torch.Generator().manual_seed(state.steps_made))
        state.model(batch).square().sum().backward()
        state.optimizer.step()
        state.scheduler.step()
        state.sampler.set_epoch(state.steps_made + 1)
        state.sampler.record_batch(0, 5)
        state.commit()
