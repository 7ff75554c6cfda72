"""Steps of GlobalBatch, in which workers wait to be killed, and before which all wait for another number of workers.

A parameter of the model counts samples: the gradient of the step's mean loss by its element i is, times the number of
samples in the step, how often sample i has counted in that step. The state keeps the sums of these for each epoch.
"""

from tests.quick_start import end_quickly, start_quickly

# isort: split
import functools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import edriver
from edriver.worker import context
from edriver.worker.rounds.worker_rounds import WorkerRounds
from tests.torch.global_batch_training import Numbered
from tests.waiting import until

start_quickly()

SAMPLES, SIZE, MICRO_BATCH = 100, 24, 2
"""Five steps of an epoch, of 12 micro-batches, the last one of 2."""

EPOCHS = 3
VICTIMS: dict[str, list[int]] = json.loads(os.environ.get("VICTIMS", "{}"))
"""For a step the ranks that wait in front of their third micro-batch to be killed. The others wait there as well, until
they know of a loss. Nobody waits once there is a file in the working folder that has the step as its name."""

SHARDS = [30, 7, 0, 45, 18] if "STREAMED" in os.environ else []
"""Lengths of the shards, where samples are streamed."""

SIZES: dict[str, int] = json.loads(os.environ.get("SIZES", "{}"))
"""In front of a step all wait until there are so many workers."""


class Counting(torch.nn.Module):
    """A small classifier whose loss also tells which samples it is of."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).double()
        self.counts = torch.nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))

    def forward(self, numbers: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(self.classifier(inputs), labels) + self.counts[numbers].mean()


def read(shard: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The samples of a shard."""
    numbered, first = Numbered(SAMPLES), sum(SHARDS[:shard])
    for number in range(first, first + SHARDS[shard]):
        yield numbered[number]


torch.manual_seed(3)
model = Counting()
optimizer = torch.optim.Adam(model.classifier.parameters(), lr=0.01)
optimizer.add_param_group({"params": [model.counts], "lr": 0.0})
source: edriver.ElasticStream | edriver.ElasticSampler
if SHARDS:
    source = stream = edriver.ElasticStream(range(len(SHARDS)), read, seed=5)
    loader: Any = stream.loader(MICRO_BATCH, num_workers=1, persistent_workers=True)
else:
    source = edriver.ElasticSampler(range(SAMPLES), seed=5)
    loader = DataLoader(Numbered(SAMPLES), MICRO_BATCH, sampler=source)
state = edriver.TorchState(
    model, optimizer, source=source, epoch=0, step=0, counted=[[0.0] * SAMPLES for _ in range(EPOCHS)]
)


def wait_for_losses(at: int) -> None:
    """Between two micro-batches: wait for what is to happen there."""
    if at != 2 or str(state.step) not in VICTIMS or Path(str(state.step)).exists():
        return
    rank, rounds = edriver.rank(), context.current.rounds
    assert isinstance(rounds, WorkerRounds)
    if rank not in VICTIMS[str(state.step)]:
        print(f"rank {rank} waits for a loss in step {state.step} pid {os.getpid()}", flush=True)
        until(functools.partial(getattr, rounds, "abort_cause"), every=0.01)
        return
    print(f"rank {rank} waits in step {state.step} pid {os.getpid()}", flush=True)
    while True:
        time.sleep(60)


def wait_for_size() -> None:
    """In front of a step: wait for as many workers as it is to have."""
    size = SIZES.get(str(state.step), edriver.size())
    while edriver.size() != size:
        time.sleep(0.01)  # leaves the processor to processes that start
        state.check_host_updates()


@edriver.run
def train(state: edriver.TorchState) -> None:
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} at step {state.step}", flush=True)
    wrapped = DistributedDataParallel(model, init_sync=False)
    while state.epoch < EPOCHS:
        source.set_epoch(state.epoch)
        for step in edriver.GlobalBatch(loader, wrapped, size=SIZE):
            wait_for_size()
            optimizer.zero_grad()
            for at, (numbers, inputs, labels) in enumerate(step):
                print(f"pid {os.getpid()} computes in step {state.step}: {numbers.tolist()}", flush=True)
                step.scale(wrapped(numbers, inputs, labels)).backward()  # type: ignore[no-untyped-call]
                wait_for_losses(at + 1)
            optimizer.step()
            assert model.counts.grad is not None
            counted = torch.tensor(state.counted[state.epoch]) + model.counts.grad * step.samples
            state.counted[state.epoch] = counted.tolist()
            state.step += 1
            state.check_host_updates()
        state.epoch += 1
        state.check_host_updates()


train(state)
found = torch.cat([p.detach().flatten() for p in model.classifier.parameters()]).tolist()
print(f"rank {edriver.rank()} ends with {json.dumps({'parameters': found, 'counted': state.counted})}", flush=True)
end_quickly()
