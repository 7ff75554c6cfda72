"""SPEED: real compute on two workers, under edriver or in a bare process group: the same script but for what is around.

    edriver -np 2 python -m benchmarks.speed_job FILE         or, with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT set,
    python -m benchmarks.speed_job FILE

Rank 0 writes its steps a second to the file.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import edriver

WARM_STEPS, STEPS = 30, 300
WIDTH, BATCH = 1024, 64


def steps_a_second(model: nn.Module, optimizer: torch.optim.Optimizer, boundary: Callable[[], None]) -> float:
    """Train; the last steps count."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    inputs = torch.randn(BATCH, WIDTH, generator=generator)
    labels = torch.randint(10, (BATCH,), generator=generator)
    wrapped = DistributedDataParallel(model)
    began = 0.0
    for step in range(WARM_STEPS + STEPS):
        if step == WARM_STEPS:
            began = time.perf_counter()
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(wrapped(inputs), labels))
        optimizer.step()
        boundary()
    return STEPS / (time.perf_counter() - began)


@edriver.run
def train(state: edriver.TorchState) -> float:
    """The training function."""
    return steps_a_second(state.model, state.optimizer, state.check_host_updates)


def main() -> None:
    """The whole script."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    optimizer = torch.optim.Adam(model.parameters())
    if "EDRIVER_WORKER_ID" in os.environ:
        found = train(edriver.TorchState(model, optimizer))
    else:
        dist.init_process_group("gloo")
        found = steps_a_second(model, optimizer, lambda: None)
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(str(found))


if __name__ == "__main__":
    main()
