"""A step through every course of up to two losses: in the reduced gradient each micro-batch counts exactly once.

Each worker's part is the real step, without a group: what members tell one another is passed on by hand, and so is the
mean of their gradients. Distinct states are few, so that all of them can be visited: what each member has of the step.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import nn

from edriver.model.ids import RoundId, Version
from edriver.model.plan import SINGLE_WORKER
from edriver.worker import context
from edriver.worker.accumulation.global_batch import Step, Work
from edriver.worker.accumulation.gradients import Gradients
from edriver.worker.accumulation.running_statistics import RunningStatistics
from edriver.worker.accumulation.speed import Speed
from edriver.worker.accumulation.unfinished import NOTHING_DONE, Resumption, Unfinished, UnfinishedSteps
from edriver.worker.errors import PeerLostError
from edriver.worker.sampler.micro_batches import FILLER, deal

CPU = torch.device("cpu")
MAX_WORKERS, MAX_LOSSES = 4, 2
SIZES = [4, 2, 4, 3, 1, 4]
"""Samples of the micro-batches, of different numbers so that they do not count alike."""

STATES = {1: 4, 2: 4, 3: 8, 4: 16, 5: 38, 6: 94}
"""How many there are at least with so many micro-batches, so that the search is known to visit some."""

Has = tuple[int, ...]
"""The micro-batches that a member has."""


class Source:
    """The samples of one member."""

    def samples_done(self) -> int:
        return 0


class Rounds:
    """Those of a member that learns of a loss in a check; there is one before and one after each micro-batch."""

    version = Version(RoundId(1, 1), 3)

    def __init__(self, checks: int) -> None:
        self._checks = checks

    def check(self) -> None:
        self._checks -= 1
        if self._checks < 0:
            raise PeerLostError("another worker is lost")


class Counts(nn.Module):
    """The gradient of a mean loss by `counts` tells how much each micro-batch counts."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(len(SIZES), dtype=torch.float64))


@dataclasses.dataclass
class Member:
    """One of a round.

    Attributes:
        rank: its rank.
        share: what it is to compute.
        own: what it has from earlier rounds.
        has: the same of all members.
    """

    rank: int
    share: list[int]
    own: Unfinished | None
    has: Sequence[Has]

    def computes(self, sizes: Sequence[int], before_loss: int) -> tuple[Unfinished | None, torch.Tensor | None]:
        """Compute micro-batches until a loss.

        Args:
            sizes: samples of each micro-batch of the step.
            before_loss: the number of micro-batches before it; all of the share: there is none.

        Returns:
            what it keeps, and the gradient with which it ends the step.
        """
        model, source, unfinished = Counts(), Source(), context.current.part(UnfinishedSteps)
        context.current.rounds = Rounds(2 * before_loss)  # type: ignore[assignment]  # what a step needs of them
        gradients = Gradients([model], with_others=False)
        work = Work(0, source, sizes, deal_out(self.has, len(sizes)), iter(self.share), lambda: None)
        step = Step(
            work,
            Resumption(copy.deepcopy(self.own), self.has),
            gradients,
            RunningStatistics([]),
            bitwise=False,
            place=dataclasses.replace(SINGLE_WORKER, rank=self.rank, size=len(self.has)),
            speed=Speed(1, 0, CPU, lambda *_: 0.0),
        )
        try:
            for number in step:
                torch.autograd.backward(step.scale(model.counts[number if number != FILLER else 0]))
        except PeerLostError:
            return unfinished.taken_up(source, len(sizes), gradients).own, None
        return None, model.counts.grad


def dropped(model: nn.Module) -> None:
    model.zero_grad()


def set_to_zero(model: nn.Module) -> None:
    model.zero_grad(set_to_none=False)


def left(model: nn.Module) -> None:
    pass


@pytest.mark.parametrize(("catches", "keeps"), [(left, (0, 1)), (dropped, ()), (set_to_zero, ())])
def test_a_script_that_catches_the_error_may_drop_gradients(
    monkeypatch: pytest.MonkeyPatch, catches: Callable[[nn.Module], None], keeps: Has
) -> None:
    """A loss breaks off a forward pass: what is kept is what is there when the script has been left."""
    monkeypatch.setattr(context.current, "rounds", Rounds(100))
    model, source = Counts(), Source()
    gradients = Gradients([model], with_others=False)
    gradients.sharded = True  # its forward passes communicate
    shares = [list(range(len(SIZES)))]
    step = Step(
        Work(0, source, SIZES, shares, iter(shares[0]), lambda: None),
        NOTHING_DONE,
        gradients,
        RunningStatistics([]),
        bitwise=False,
        place=SINGLE_WORKER,
        speed=Speed(1, 0, CPU, lambda *_: 0.0),
    )
    try:
        for number in step:
            if number == 2:
                raise PeerLostError("another worker is lost")
            torch.autograd.backward(step.scale(model.counts[number]))
    except PeerLostError:
        catches(model)
    context.current.micro_batch.interrupted()
    own = context.current.part(UnfinishedSteps).taken_up(source, len(SIZES), gradients).own
    assert has_of(own) == keeps


def deal_out(has: Sequence[Has], micro_batches: int) -> list[list[int]]:
    done = Resumption(None, has).numbers
    return deal([number for number in range(micro_batches) if number not in done], len(has))


def losses(kept: Sequence[Sequence[Unfinished | None]]) -> Iterator[list[Unfinished | None]]:
    """What the members of the next round have, for each set of members that are lost, each place at which each of the
    others was, and each number of newcomers.

    Args:
        kept: for each member what it keeps after each number of micro-batches; None: nothing.
    """
    members = range(len(kept))
    for size in range(1, len(kept)):
        for survivors in itertools.combinations(members, size):
            for places in itertools.product(*(range(len(kept[rank])) for rank in survivors)):
                found = [kept[rank][place] for rank, place in zip(survivors, places, strict=True)]
                for newcomers in range(MAX_WORKERS - size + 1):
                    yield [*found, *[None] * newcomers]


def has_of(own: Unfinished | None) -> Has:
    return () if own is None else tuple(sorted(own.micro_batches))


@pytest.mark.parametrize("micro_batches", STATES)
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_each_micro_batch_counts_once_whatever_is_lost(
    monkeypatch: pytest.MonkeyPatch, workers: int, micro_batches: int
) -> None:
    monkeypatch.setattr(context.current, "rounds", None)
    sizes = SIZES[:micro_batches]
    expected = torch.zeros(len(SIZES), dtype=torch.float64)
    expected[:micro_batches] = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    states: dict[tuple[Has, ...], list[Unfinished | None]] = {((),) * workers: [None] * workers}
    seen = set(states)
    for _ in range(MAX_LOSSES + 1):
        after: dict[tuple[Has, ...], list[Unfinished | None]] = {}
        for has, owned in states.items():
            shares = deal_out(has, micro_batches)
            members = [Member(rank, shares[rank], own, has) for rank, own in enumerate(owned)]
            gradients = [one.computes(sizes, len(one.share))[1] for one in members]
            reduced = sum(g for g in gradients if g is not None) / len(members)
            torch.testing.assert_close(reduced, expected, rtol=1e-12, atol=0, msg=f"{has}: {reduced}")
            kept = [
                # One that has computed all is in the reduction, after which it keeps nothing.
                [*(one.computes(sizes, place)[0] for place in range(len(one.share))), None]
                for one in members
            ]
            for found in losses(kept):
                after.setdefault(tuple(map(has_of, found)), found)
        states = {has: owned for has, owned in after.items() if has not in seen}
        seen |= states.keys()
    assert len(seen) >= (STATES[micro_batches] if workers > 1 else 1)
