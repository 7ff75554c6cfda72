"""A model that all workers hold once between them; it trains until a lost worker has been replaced.

DIE: the worker that kills itself, and at which step: "3 10". WAITS: whether the others wait for its replacement. WIDTH:
of its layers.
"""

from __future__ import annotations

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

start_quickly()

WIDTH = int(os.environ.get("WIDTH", "16"))
DIE = os.environ["DIE"]
WAITS = "WAITS" in os.environ
AFTER = 5
"""How many steps it makes once there are as many workers as at first."""


def build(mesh: DeviceMesh) -> torch.nn.Module:
    when = "in a round" if context.in_round() else f"ahead of its first round, for {mesh.size()} workers"
    print(f"worker {os.environ['EDRIVER_WORKER_ID']} makes its model {when}", flush=True)
    torch.manual_seed(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(6)])
    for part in model:
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


state = edriver.ShardedState(
    build=build,
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
    step=0,
    most=0,
    lost=False,
    after=0,
)


def warm_up(state: edriver.ShardedState) -> None:
    for _ in range(2):
        state.model(torch.randn(4, WIDTH)).square().mean().backward()
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.check_host_updates()
    print(f"worker {os.environ['EDRIVER_WORKER_ID']} warms up as one of {edriver.size()}", flush=True)


@edriver.run(warm_up=warm_up)
def train(state: edriver.ShardedState) -> None:
    while state.after < AFTER:
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(state.step))
        state.model(x).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(state.model.parameters(), 1.0)
        if f"{os.environ['EDRIVER_WORKER_ID']} {state.step}" == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.step += 1
        state.most = max(state.most, edriver.size())
        state.lost = state.lost or edriver.size() < state.most or (WAITS and state.step > 10)
        state.after += state.lost and edriver.size() == state.most
        print(f"step {state.step} of {edriver.size()} by rank {edriver.rank()} pid {os.getpid()}", flush=True)
        state.check_host_updates()
        time.sleep(0.05)  # leaves the processor to processes that start


train(state)
end_quickly()
