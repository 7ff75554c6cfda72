"""A sharded model (HSDP) that trains without a commit: a worker waits in a step to be killed, and all for another one.

Every rank has the same data, and sizes are powers of two, so the mean of all gradients is each rank's own, bit for bit.
"""

from tests.quick_start import end_quickly, start_quickly

# isort: split
import os
import signal
import time

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import edriver
from edriver.worker import context
from tests.torch.shard_digest import shard_digest

start_quickly()

STEPS, GATE = 16, 10
SIZE = int(os.environ["SIZE"])
"""The number of workers for which all wait before step GATE."""

VICTIM, PLACE, AT = (os.environ.get("VICTIM", " ") + " 0").split(" ")[:3]
"""A rank of the first round, and the place and the step at which it waits to be killed."""


def reaches(place: str) -> None:
    """This worker is at a place of a step."""
    if (str(edriver.rank()), edriver.size(), place, state.step) == (VICTIM, SIZE, PLACE, int(AT)):
        print(f"rank {VICTIM} waits in step {AT} pid {os.getpid()}", flush=True)
        signal.pause()


def build(mesh: DeviceMesh) -> torch.nn.Module:
    when = "in a round" if context.in_round() else "ahead of its first round"
    print(f"worker {os.environ['EDRIVER_WORKER_ID']} makes its model {when}", flush=True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
    )
    for layer in (model[0], model[2], model[4]):
        fully_shard(layer, mesh=mesh)
    model[2].register_forward_pre_hook(lambda *_: reaches("forward"))  # the first layer has been gathered
    model[2].register_full_backward_hook(lambda *_: reaches("backward"))  # the last one is about to be reduced
    fully_shard(model, mesh=mesh)
    return model


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer.register_step_post_hook(lambda *_: reaches("optimizer"))
    return optimizer


state = edriver.ShardedState(build=build, optimizer=make_optimizer, step=0)


def make_step(state: edriver.ShardedState, batch: torch.Tensor) -> None:
    state.optimizer.zero_grad()
    state.model(batch).square().sum().backward()
    state.optimizer.step()
    state.step += 1
    state.check_host_updates()


def warm_up(state: edriver.ShardedState) -> None:
    for _ in range(2):
        make_step(state, torch.randn(6, 4))
    print(f"worker {os.environ['EDRIVER_WORKER_ID']} warms up as rank {edriver.rank()} of {edriver.size()}", flush=True)


@edriver.run(warm_up=warm_up)
def train(state: edriver.ShardedState) -> None:
    shape = "x".join(map(str, edriver.mesh().shape))
    print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} at step {state.step}, {shape}", flush=True)
    while state.step < STEPS:
        while state.step == GATE and edriver.size() != SIZE:
            time.sleep(0.01)  # leaves the processor to processes that start
            state.check_host_updates()
        make_step(state, torch.randn(6, 4, generator=torch.Generator().manual_seed(state.step)))


train(state)
print(f"rank {edriver.rank()} ends at step {state.step} with {shard_digest(state)}", flush=True)
end_quickly()
