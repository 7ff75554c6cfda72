"""Tensor parallelism inside shards, trained without a commit: a worker waits in a step to be killed.

Every rank has the same data, and sizes are powers of two, so the mean of all gradients is each rank's own, bit for bit.
"""

from tests.quick_start import end_quickly, start_quickly

# isort: split
import os
import signal
import time

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import DataLoader

import edriver
from tests.torch.parallel_model import parallel_model, train_step
from tests.torch.shard_digest import shard_digest

start_quickly()

STEPS, GATE = 12, 8
SIZE = int(os.environ["SIZE"])
"""The number of workers for which all wait before step GATE."""

VICTIM, AT = (int(word) for word in os.environ.get("VICTIM", "-1 0").split())
"""A rank of the first round, and the step in whose backward pass it waits to be killed."""


def reaches_backward() -> None:
    if (edriver.rank(), edriver.size(), state.step) == (VICTIM, SIZE, AT):
        print(f"rank {VICTIM} waits in step {AT} pid {os.getpid()}", flush=True)
        signal.pause()


def build(mesh: DeviceMesh) -> torch.nn.Module:
    model = parallel_model(mesh)
    model[1].register_full_backward_hook(lambda *_: reaches_backward())
    return model


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


DATASET = torch.arange(96)
"""What is drawn of it is printed, and not trained on."""

state = edriver.ShardedState(
    build,
    make_optimizer,
    replica_mesh={"shard": 2, "tensor": 2},
    sampler=edriver.ElasticSampler(DATASET, shuffle=False),
    step=0,
)


@edriver.run
def train(state: edriver.ShardedState) -> None:
    shape = "x".join(map(str, edriver.mesh().shape))
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} at step {state.step}, {shape}", flush=True)
    loader: DataLoader[torch.Tensor] = DataLoader(DATASET, sampler=state.sampler)  # type: ignore[arg-type]
    samples = enumerate(loader)
    while state.step < STEPS:
        while state.step == GATE and edriver.size() != SIZE:
            time.sleep(0.01)  # leaves the processor to processes that start
            state.check_host_updates()
        number, sample = next(samples)
        print(f"rank {edriver.rank()} of {edriver.size()} draws {int(sample)} for step {state.step}", flush=True)
        state.sampler.record_batch(number, 1)
        train_step(state)


train(state)
print(f"rank {edriver.rank()} ends at step {state.step} with {shard_digest(state)}", flush=True)
end_quickly()
