"""What the tests of libraries with steps of the same samples train, and what has to come out: without the libraries."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import edriver
from edriver.model.ids import RoundId
from edriver.worker import context
from edriver.worker.rounds.worker_rounds import WorkerRounds
from tests.torch.elastic_world import Fate
from tests.torch.global_batch_training import MICRO_BATCH, SAMPLES, SIZE, STEPS, Numbered
from tests.waiting import until

MICRO_BATCHES = SIZE // MICRO_BATCH

OVERFLOWING = 7
"""The sample whose loss is infinite in the first epoch, where one is to be."""

TOKENS = 6
"""In a sequence."""


def wait_for_the_loss() -> None:
    """Until this worker knows that another one is lost."""
    rounds = context.current.rounds
    assert isinstance(rounds, WorkerRounds)
    until(functools.partial(getattr, rounds, "abort_cause"), every=0.01)


class Losing:
    """Where workers wait for a loss: of the first round in a step, after a number of micro-batches."""

    def __init__(self, fate: Fate, lost_at: tuple[int, int] | None) -> None:
        self._fate, self._lost_at = fate, lost_at

    def computes(self, step: int, at: int) -> None:
        """A micro-batch is under way."""
        self._fate.meets(step, f"micro-batch {at}")
        dies = self._fate.is_to_meet(step, f"micro-batch {at + 1}")
        if self._lost_at == (step, at) and not dies and context.assignment().round_id == RoundId(1, 1):
            wait_for_the_loss()


@dataclasses.dataclass(frozen=True)
class Accelerated:
    """A loop of Accelerate's.

    Attributes:
        adam: whether the optimizer is Adam, else SGD with momentum.
        ignored: whether every third label does not count.
        clipped: whether gradients are clipped.
        scaled: whether there is a GradScaler, and one loss is infinite.
        drop_last: of the loader.
        zero_first: whether the loop calls `zero_grad` before the backward pass, else after the step.
        lost_at: see Losing.
    """

    adam: bool = True
    ignored: bool = False
    clipped: bool = False
    scaled: bool = False
    drop_last: bool = False
    zero_first: bool = False
    lost_at: tuple[int, int] | None = None

    def model(self) -> nn.Module:
        """As it begins."""
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Of it."""
        if self.adam:
            return torch.optim.Adam(model.parameters(), lr=0.01)
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss(self, epoch: int, numbers: Tensor, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The mean over labels that count, and their number."""
        if self.ignored:
            labels = torch.where(numbers % 3 == 0, -100, labels)
        count = (labels != -100).sum()
        loss = nn.functional.cross_entropy(scores, labels, reduction="sum") / count.clamp(min=1)
        infinite = self.scaled and epoch == 0 and OVERFLOWING in numbers
        return loss * (torch.inf if infinite else 1.0), count

    def by_hand(self) -> list[float]:
        """The same by a process that takes each step with all samples at once."""
        model = self.model()
        optimizer = self.optimizer(model)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        sampler = edriver.ElasticSampler(range(SAMPLES), seed=5)
        loader: Any = DataLoader(Numbered(), SIZE, sampler=sampler, drop_last=self.drop_last)
        epoch = steps = 0
        while steps < STEPS:
            sampler.set_epoch(epoch)
            for numbers, inputs, labels in loader:
                steps += 1
                optimizer.zero_grad()
                loss, _ = self.loss(epoch, numbers, model(inputs), labels)
                if not loss.isfinite():  # as GradScaler does
                    continue
                torch.autograd.backward(loss)
                if self.clipped:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                scheduler.step()
            epoch += 1
        return [scheduler._step_count, *values_of(model, optimizer)]


def values_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """The parameters and the optimizer's state, in one vector."""
    values = [p.detach() for p in model.parameters()]
    values += [v for of_one in optimizer.state.values() for v in of_one.values() if isinstance(v, Tensor)]
    return [float(x) for value in values for x in value.flatten().double()]


class Sequences(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Made-up sequences, of which different numbers of tokens count: every fifth has none."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (torch.arange(TOKENS) * (index % 11 + 1) + index) % 8
        counting = torch.arange(TOKENS) < (index * 7) % 5 + (index % 5 > 0)
        return {
            "input_ids": tokens,
            "attention_mask": counting.long(),
            "labels": torch.where(counting, (tokens * 3 + 1) % 8, -100),
            "index": torch.tensor(index),
        }


class Tagger(nn.Module):
    """Predicts a label for each token."""

    def __init__(self, losing: Losing | None, accepts_loss_kwargs: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Embedding(8, 6), nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8)).double()
        self.accepts_loss_kwargs = accepts_loss_kwargs
        self.computed: list[tuple[int, list[int]]] = []
        self.step = self.at = 0
        self._losing = losing

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor,
        index: Tensor,
        attention_mask: Tensor | None = None,
        num_items_in_batch: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The loss and the scores."""
        scores = self.layers(input_ids)
        sums = nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum")
        count = (labels != -100).sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
        if self.training and self._losing is not None:
            self.computed.append((self.step, index.tolist()))
            self._losing.computes(self.step, self.at)
            self.at += 1
        return {"loss": sums / count, "logits": scores}

    def num_parameters(self, exclude_embeddings: bool) -> int:
        """For Trainer's count of operations."""
        return 10


@dataclasses.dataclass(frozen=True)
class TrainedByTrainer:
    """What a worker ends with.

    Attributes:
        parameters, computed: see Trained.
        rates: after each step that this worker has made.
        logs: the log: of each entry its step, epoch, and what there is of loss, gradient norm and tokens.
        steps: those made, and those to be made.
        operations: floating-point operations, by Trainer's count.
    """

    parameters: list[float]
    computed: list[tuple[int, list[int]]]
    rates: dict[int, float]
    logs: list[tuple[float, ...]]
    steps: tuple[int, int]
    operations: float


def trainer_by_hand() -> tuple[list[float], list[float]]:
    """What `trainer` does with SGD and without clipping, by all samples of a step at once; the losses, too."""
    model = Tagger(None, True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    sampler = edriver.ElasticSampler(range(SAMPLES), seed=42)
    loader = DataLoader(Sequences(), SIZE, sampler=sampler)
    losses: list[float] = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            loss = model(**batch)["loss"]
            losses.append(loss.item())
            loss.backward()
            optimizer.param_groups[0]["lr"] = 0.02 * (STEPS + 1 - len(losses)) / STEPS
            optimizer.step()
    return [float(x) for p in model.parameters() for x in p.detach().flatten()], losses
