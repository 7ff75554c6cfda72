"""A small training job with a sharded model in elastic mode, which says where it is."""

from tests.quick_start import end_quickly, start_quickly

# isort: split
import os
import time

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import edriver

start_quickly()
STEPS = int(os.environ["STEPS"])
EVERY = int(os.environ["EVERY"])
EVERY_MEMORY = int(os.environ.get("EVERY_MEMORY", "5"))


def build(mesh: DeviceMesh) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 15), torch.nn.ReLU(), torch.nn.Linear(15, 2))
    fully_shard(model, mesh=mesh)
    return model


state = edriver.ShardedState(
    build=build,
    optimizer=lambda model: torch.optim.Adam(model.parameters()),
    checkpoint=os.environ["CHECKPOINT"],
    every=EVERY,
    every_memory=EVERY_MEMORY,
    step=0,
)


@edriver.run
def train(state: edriver.ShardedState) -> None:
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} at step {state.step}", flush=True)
    while state.step < STEPS:
        state.optimizer.zero_grad()
        batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(state.step))
        state.model(batch).square().sum().backward()
        state.optimizer.step()
        time.sleep(0.05)
        state.step += 1
        state.check_host_updates()
        if state.step % 5 == 0:
            print(f"rank {edriver.rank()} passed step {state.step}", flush=True)


train(state)
print(f"rank {edriver.rank()} is done: trained to step {state.step}", flush=True)
end_quickly()
