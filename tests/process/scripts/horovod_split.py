"""A script for Horovod, in the shape of its elastic MNIST example: a DistributedSampler of torch's splits its data.

The sampler is made before `elastic.run`, by the rank and size of then; an epoch ends when as many batches are done as
the loader has. It trains EPOCHS more epochs once there are WORKERS workers.
"""

from __future__ import annotations

from tests.quick_start import end_quickly, start_quickly

# isort: split
import os
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import edriver.horovod as hvd

start_quickly()

WORKERS, EPOCHS = int(os.environ["WORKERS"]), 3

hvd.init()
torch.manual_seed(42)
dataset = TensorDataset(torch.randn(240, 8), torch.arange(240) % 3)
sampler: Any = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(dataset, batch_size=4, sampler=sampler)
model = torch.nn.Linear(8, 3)
optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state: Any) -> None:
    print(f"rank {hvd.rank()} of {hvd.size()} pid {os.getpid()} has {len(loader)} batches", flush=True)
    for state.epoch in range(state.epoch, 1_000_000):  # noqa: B020  as Horovod's examples have it
        sampler.set_epoch(state.epoch)
        left = len(loader) - state.batch
        for state.batch, (data, target) in enumerate(loader):
            if state.batch >= left:
                break
            state.optimizer.zero_grad()
            loss: Any = torch.nn.functional.cross_entropy(state.model(data), target)
            loss.backward()
            state.optimizer.step()
            state.steps += 1
            state.commit()
            time.sleep(0.02)  # leaves the processor to processes that start
        state.batch = 0
        state.complete += hvd.size() == WORKERS
        if state.complete == EPOCHS:
            return


state = hvd.elastic.TorchState(model, optimizer, epoch=1, batch=0, steps=0, complete=0)
train(state)
mean = float(hvd.allreduce(torch.tensor(float(state.steps)), name="steps"))
print(f"rank {hvd.rank()} of {hvd.size()} is done: {state.steps} steps, on average {mean:g}", flush=True)
end_quickly()
