"""A training job written twice: for Horovod, with one line changed, and for edriver. Prints a time after each step."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import edriver
import edriver.horovod as hvd

WIDTH, LAYERS = 512, 8


def model_of() -> torch.nn.Module:
    """Two million parameters."""
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def passed(rank: int, size: int, step: int) -> None:
    """Say that a step is done."""
    print(f"rank {rank} of {size} pid {os.getpid()} step {step} at {time.monotonic():.6f}", flush=True)


def main() -> None:
    """Train until the run is stopped."""
    batch = torch.ones(4, WIDTH)
    model = model_of()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3)
    if sys.argv[1] == "horovod":
        hvd.init()
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

        @hvd.elastic.run
        def train(state: Any) -> None:
            while True:
                optimizer.zero_grad()
                torch.autograd.backward(model(batch).square().mean())
                optimizer.step()
                state.step += 1
                state.check_host_updates()
                passed(hvd.rank(), hvd.size(), state.step)

        train(hvd.elastic.TorchState(model, optimizer, step=0))
        return

    @edriver.run
    def train_natively(state: Any) -> None:
        wrapped = DistributedDataParallel(state.model, init_sync=False)
        while True:
            state.optimizer.zero_grad()
            torch.autograd.backward(wrapped(batch).square().mean())
            state.optimizer.step()
            state.step += 1
            state.check_host_updates()
            passed(edriver.rank(), edriver.size(), state.step)

    train_natively(edriver.TorchState(model, optimizer, step=0))


if __name__ == "__main__":
    main()
