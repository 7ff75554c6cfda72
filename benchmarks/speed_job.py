"""SPEED: real compute on two workers, under edriver or in a bare process group: the same script but for what is around.

    edriver -np 2 python -m benchmarks.speed_job FILE         or, with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT set,
    python -m benchmarks.speed_job FILE

It trains until it is killed. Rank 0 appends to the file when it finished each step: a double, the monotonic clock.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import edriver

WIDTH, BATCH = 512, 512


def train_on(
    model: nn.Module, optimizer: torch.optim.Optimizer, boundary: Callable[[], None], width: int, batch: int
) -> None:
    """Train for ever.

    Args:
        model: the parallel one.
        optimizer: its optimizer.
        boundary: is called after each step.
        width: how many features a sample has.
        batch: how many samples a step has.
    """
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(batch, width, generator=generator)
    labels = torch.randint(10, (batch,), generator=generator)
    with Path(sys.argv[1]).open("ab", buffering=0) if rank == 0 else Path(os.devnull).open("wb", buffering=0) as file:
        while True:
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
            boundary()
            file.write(struct.pack("d", time.monotonic()))


@edriver.run
def train(state: edriver.TorchState) -> None:
    """The training function."""
    train_on(DistributedDataParallel(state.model), state.optimizer, state.check_host_updates, WIDTH, BATCH)


def main() -> None:
    """The whole script."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    optimizer = torch.optim.Adam(model.parameters())
    if "EDRIVER_WORKER_ID" in os.environ:
        train(edriver.TorchState(model, optimizer))
    else:
        dist.init_process_group("gloo")
        train_on(DistributedDataParallel(model), optimizer, lambda: None, WIDTH, BATCH)


if __name__ == "__main__":
    main()
