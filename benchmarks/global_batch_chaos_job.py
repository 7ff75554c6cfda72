"""The script that global_batch_chaos.py disturbs: steps of GlobalBatch, of which every rank writes down the samples.

A parameter of the model counts samples: the gradient of the step's mean loss by its element i is, times the number of
samples in the step, how often sample i has counted in that step. `Undisturbed` computes the same steps by hand.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import edriver
from benchmarks.notebook import notebook

SAMPLES: Final = 100
SIZE: Final = 24
MICRO_BATCH: Final = 2
"""Four steps of an epoch have 12 micro-batches, the fifth has 2: fewer than workers."""

SEED: Final = 5
PAUSE: Final = 0.02
"""Seconds that a worker sleeps in each micro-batch: most disturbances come inside a step."""


class Numbered(Dataset[tuple[int, Tensor, Tensor]]):
    """Made-up samples, each with its number."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
        self.labels = torch.randint(0, 3, (SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, Tensor, Tensor]:
        return index, self.inputs[index], self.labels[index]


def new_classifier() -> torch.nn.Module:
    """The same in every process."""
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).double()


def new_optimizer(classifier: torch.nn.Module) -> torch.optim.Optimizer:
    """The same here and there."""
    return torch.optim.Adam(classifier.parameters(), lr=0.001)


def projection(classifier: torch.nn.Module) -> float:
    """A number that tells models apart."""
    vector = torch.cat([parameter.detach().flatten() for parameter in classifier.parameters()])
    return float(vector @ torch.randn(len(vector), generator=torch.Generator().manual_seed(2), dtype=torch.float64))


class Counting(torch.nn.Module):
    """A small classifier whose loss also tells which samples it is of."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = new_classifier()
        self.counts = torch.nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))

    def forward(self, numbers: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(self.classifier(inputs), labels) + self.counts[numbers].mean()


class Undisturbed:
    """The same training in one process, without GlobalBatch."""

    def __init__(self) -> None:
        self._steps = self._train()
        self._made: list[tuple[list[int], float]] = []

    def after(self, step: int) -> tuple[list[int], float]:
        """The samples of a step, from 1, ascending, and the projection of the model after it."""
        while len(self._made) < step:
            self._made.append(next(self._steps))
        return self._made[step - 1]

    def _train(self) -> Iterator[tuple[list[int], float]]:
        data, sampler, classifier = Numbered(), edriver.ElasticSampler(range(SAMPLES), seed=SEED), new_classifier()
        optimizer, epoch = new_optimizer(classifier), 0
        while True:
            sampler.set_epoch(epoch)
            order = list(sampler)
            for first in range(0, SAMPLES, SIZE):
                numbers = order[first : first + SIZE]
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(classifier(data.inputs[numbers]), data.labels[numbers])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                sampler.record_indices(numbers)
                yield sorted(numbers), projection(classifier)
            epoch += 1


def main() -> None:
    """Train until this is killed."""
    model = Counting()
    optimizer = new_optimizer(model.classifier)
    sampler = edriver.ElasticSampler(range(SAMPLES), seed=SEED)
    state = edriver.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0)
    note = notebook(Path(sys.argv[1]), state)

    @edriver.run
    def train(state: edriver.TorchState) -> None:
        note("begins")
        wrapped = DistributedDataParallel(model, init_sync=False)
        loader = DataLoader(Numbered(), MICRO_BATCH, sampler=sampler)
        while True:
            sampler.set_epoch(state.epoch)
            for step in edriver.GlobalBatch(loader, wrapped, size=SIZE):
                model.zero_grad()
                for micro_batch in step:
                    time.sleep(PAUSE)
                    step.scale(wrapped(*micro_batch)).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                state.step += 1
                state.check_host_updates()
                assert model.counts.grad is not None
                counted = (model.counts.grad * step.samples).tolist()
                numbers = [number for number, times in enumerate(counted) if times]
                worst = max(abs(counted[number] - 1) for number in numbers)
                note("notes", numbers=numbers, worst=worst, projection=projection(model.classifier))
            state.epoch += 1
            state.check_host_updates()

    train(state)


if __name__ == "__main__":
    main()
