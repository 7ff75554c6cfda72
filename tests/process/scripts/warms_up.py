"""A job whose workers take a step with made-up data before they are ready; each waits in it for a file of its own."""

from tests.quick_start import end_quickly, start_quickly

# isort: split
import os
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import edriver
from tests.process.running import BOUND

start_quickly()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
state = edriver.TorchState(model=model, optimizer=optimizer, steps=0)
initial = model.weight.detach().clone()
worker = os.environ["EDRIVER_WORKER_ID"]


def take_step(state: edriver.TorchState, ddp: DistributedDataParallel) -> None:
    optimizer.zero_grad()
    ddp(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    state.steps += 1
    state.commit()


def warm_up(state: edriver.TorchState) -> None:
    take_step(state, DistributedDataParallel(model))
    assert not torch.equal(model.weight, initial)
    print(f"worker {worker} warms up as rank {edriver.rank()} of {edriver.size()}", flush=True)
    deadline = time.monotonic() + BOUND
    while not Path(f"ready-{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)


@edriver.run(warm_up=warm_up)
def train(state: edriver.TorchState) -> None:
    if not state.steps:
        print(f"worker {worker} begins with what it was made with: {torch.equal(model.weight, initial)}", flush=True)
    print(f"worker {worker} is rank {edriver.rank()} of {edriver.size()} at step {state.steps}", flush=True)
    ddp = DistributedDataParallel(state.model, init_sync=False)
    while True:
        take_step(state, ddp)
        time.sleep(0.02)
        if state.steps % 10 == 0:
            print(f"worker {worker} passed step {state.steps}", flush=True)


train(state)
end_quickly()
