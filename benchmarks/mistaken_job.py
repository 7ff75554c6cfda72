"""Trains a little as someone would who comes from torchrun, with the mistake that MISTAKE names: see mistakes.py."""

from tests.quick_start import start_quickly

# isort: split
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import edriver

start_quickly()

MISTAKE = os.environ["MISTAKE"]
SAMPLES, BATCH, EPOCHS = 192, 8, 3
torch.manual_seed(0)

if MISTAKE == "no-module":
    import a_module_that_nobody_has  # type: ignore[import-not-found]  # noqa: F401
if MISTAKE == "init":
    dist.init_process_group("gloo")
if MISTAKE == "rank":
    print("rank", int(os.environ["RANK"]))

data = TensorDataset(torch.rand(SAMPLES, 4))
model: torch.nn.Module = torch.nn.Linear(4, 1)
if MISTAKE == "ddp":
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
sampler: Any = DistributedSampler(data) if MISTAKE == "early-sampler" else edriver.ElasticSampler(data)
kept: dict[str, Any] = {"model": model, "optimizer": optimizer, "sampler": sampler}
if MISTAKE == "not-kept":
    del kept["model"], kept["optimizer"]
if MISTAKE == "unpicklable":
    kept["log"] = [sys.stdout]
if MISTAKE == "checkpoint":
    kept["checkpoint"] = "/proc/checkpoints"
state = edriver.TorchState(**kept, step=0, epoch=0)


def take_step(wrapped: torch.nn.Module, batch: torch.Tensor) -> None:
    if MISTAKE == "raises" and edriver.rank() == 1 and state.step == 3:
        raise KeyError("label")
    if MISTAKE == "exits" and edriver.rank() == 1 and state.step == 3:
        sys.exit(1)
    if MISTAKE == "memory" and edriver.rank() == 1 and state.step == 3:
        torch.empty(2**60)
    if MISTAKE == "sleeps" and edriver.rank() == 1 and state.step == 3:
        time.sleep(3600)
    optimizer.zero_grad()
    wrapped(batch).square().mean().backward()
    optimizer.step()


def train(state: edriver.TorchState) -> None:
    wrapped = DistributedDataParallel(model)
    chosen: Any = DistributedSampler(data) if MISTAKE == "torch-sampler" else sampler
    while state.epoch < EPOCHS:
        if MISTAKE != "same-epoch":
            chosen.set_epoch(state.epoch)
        for index, (batch,) in enumerate(DataLoader(data, BATCH, sampler=chosen)):
            take_step(wrapped, batch)
            state.step += 1
            if state.step == 1:
                print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()} has made a step", flush=True)
            if chosen is sampler and MISTAKE != "not-recorded":
                sampler.record_batch(index, BATCH)
            state.check_host_updates()
            time.sleep(float(os.environ.get("PAUSE", "0.01")))
        state.epoch += 1


async def train_async(state: edriver.TorchState) -> None:
    train(state)


if MISTAKE == "async":
    edriver.run(train_async)(state)
elif MISTAKE == "not-run":
    train(state)
else:
    edriver.run(train)(state)
