"""Trains until the file `end` is there, and makes the mistake that MISTAKE names from the first step on."""

from tests.quick_start import end_quickly, start_quickly

# isort: split
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

import edriver

start_quickly()

MISTAKE = os.environ["MISTAKE"]
model = torch.nn.Linear(4, 1)
state = edriver.TorchState(model, torch.optim.SGD(model.parameters(), lr=0.001), step=0)


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
    while not at_end():
        loss = take_step(torch.ones(2, 4))
        state.step += 1
        if MISTAKE == "not-finite" and edriver.rank() == 1 and state.step == 3:
            loss = math.nan
        state.report(loss=loss)
        if MISTAKE != "no-boundary":
            state.check_host_updates()
        time.sleep(0.01)


train(state)
end_quickly()
