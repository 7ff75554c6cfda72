"""Trains until the file `end` is there, and makes the mistake that MISTAKE names from the first step on."""

from tests.quick_start import end_quickly, start_quickly

# isort: split
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, RandomSampler, Sampler, TensorDataset, WeightedRandomSampler

import edriver

start_quickly()

MISTAKE = os.environ["MISTAKE"]
SAMPLES, BATCH = 192, 8
torch.manual_seed(0)
data = TensorDataset(torch.rand(SAMPLES, 4))
model = torch.nn.Linear(4, 1)
sampler = edriver.ElasticSampler(data)
state = edriver.TorchState(model, torch.optim.SGD(model.parameters(), lr=0.001), sampler=sampler, step=0, epoch=0)


def chosen_sampler() -> Sampler[int]:
    if MISTAKE == "no-sampler":
        return RandomSampler(data)
    if MISTAKE == "weighted":
        return WeightedRandomSampler([1.0] * SAMPLES, SAMPLES, generator=torch.Generator().manual_seed(0))
    return sampler


def batches(state: edriver.TorchState) -> Iterator[torch.Tensor]:
    """Epoch after epoch, with an evaluation of all samples by all ranks before each."""
    while True:
        for (batch,) in DataLoader(data, BATCH):
            model(batch)
        sampler.set_epoch(state.epoch)
        for index, (batch,) in enumerate(DataLoader(data, BATCH, sampler=chosen_sampler())):
            yield batch
            if MISTAKE not in ("no-sampler", "weighted"):
                sampler.record_batch(index, BATCH)
        state.epoch += 1


def at_end() -> bool:
    """Whether a rank has seen the file: all ranks make equally many steps."""
    seen = torch.tensor(float(Path("end").exists()))
    dist.all_reduce(seen)
    return bool(seen.item())


def take_step(batch: torch.Tensor) -> float:
    loss = model(batch).square().mean()
    state.optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    state.optimizer.step()
    return float(loss.item())


@edriver.run
def train(state: edriver.TorchState) -> None:
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} at step {state.step}", flush=True)
    for batch in batches(state):
        if at_end():
            break
        loss = take_step(batch)
        state.step += 1
        if state.step == 1:
            print(f"rank {edriver.rank()} of {edriver.size()} has made a step", flush=True)
        if MISTAKE == "not-finite" and edriver.rank() == 1 and state.step == 3:
            loss = math.nan
        state.report(loss=loss)
        if MISTAKE != "no-boundary":
            state.check_host_updates()
        time.sleep(0.01)


train(state)
end_quickly()
