"""Trains a little, and does what a file named after its rank orders: `benchmarks.page_questions` writes those.

An order is a word and a number: `die 9`, `nan 0` (as a loss), `hang SECONDS`, `slow SECONDS` (each step from now on,
while it loads data).
LOADING: seconds that it takes anyway to load the data of a step.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

import edriver

ORDERS = Path(os.environ["ORDERS"])
SAMPLES, BATCH = 400_000, 4
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
sampler = edriver.ElasticSampler(range(SAMPLES))
state = edriver.TorchState(model=model, optimizer=optimizer, sampler=sampler, steps=0)


class Source(IterableDataset[torch.Tensor]):
    """Data without an end.

    Attributes:
        seconds: that it takes to load those of a step.
    """

    def __init__(self) -> None:
        self.seconds = float(os.environ.get("LOADING", "0.05"))

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in itertools.count():
            if number % BATCH == 0:
                time.sleep(self.seconds)
            yield torch.randn(8)


def obey(rank: int) -> float:
    """Do what is ordered, once; returns how much longer each step is to take from now on."""
    order = ORDERS / str(rank)
    try:
        verb, number = order.read_text().split()
    except (FileNotFoundError, ValueError):
        return 0.0
    order.unlink()
    if verb == "die":
        print("CUDA error 719: unspecified launch failure; giving up", file=sys.stderr, flush=True)
        os._exit(int(number))
    if verb == "nan":
        state.report(loss=float("nan"))
    if verb == "hang":
        time.sleep(float(number))
    return float(number) if verb == "slow" else 0.0


@edriver.run
def train(state: edriver.TorchState) -> None:
    """Train until the run is stopped."""
    source = Source()
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    for index, inputs in enumerate(DataLoader(source, batch_size=BATCH)):
        source.seconds += obey(dist.get_rank())
        optimizer.zero_grad()
        loss = ddp(inputs).square().mean()
        loss.backward()
        optimizer.step()
        sampler.record_batch(index, BATCH)
        state.steps += 1
        state.report(loss=loss.item())
        if state.steps % 20 == 0:
            print(f"step {state.steps}: loss {loss.item():.4f}", flush=True)
        state.commit()


train(state)
