"""Data loaders whose batches are the same on several ranks: what is compared, and what is not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset, WeightedRandomSampler

import edriver
from edriver.model.plan import SINGLE_WORKER
from edriver.v1 import notification_pb2 as pb
from edriver.worker import context
from edriver.worker.sampler.equal_batches import MAX_STEPS, TrainingBatches, WatchedIterator, watch_loaders
from edriver.worker.watch.script_reports import ScriptReports

SAMPLES = 64
DATA = TensorDataset(torch.arange(4.0 * SAMPLES).view(SAMPLES, 4), torch.arange(SAMPLES) % 10)


class Rank:
    """One of three ranks, in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rank: int, size: int = 3) -> None:
        monkeypatch.setattr(context, "current", context.WorkerContext())
        watch_loaders()
        self.sent: list[pb.ScriptWarning] = []
        place = replace(SINGLE_WORKER, rank=rank, size=size)
        context.current.place.enter(place)
        context.current.part(ScriptReports).connect(
            lambda report: self.sent.append(report.script_warning), lambda: (place.round_id, 1)
        )

    def train(self, batches: Iterable[Any], every: int = 1) -> None:
        for number, _ in enumerate(batches, start=1):
            if number % every == 0:
                self.step()

    def step(self) -> None:
        context.current.part(TrainingBatches).step_begins()

    @property
    def digests(self) -> list[tuple[str, bytes]]:
        return [(warning.batches_drawn.source, warning.batches_drawn.digest) for warning in self.sent]


def seeded(**arguments: Any) -> DataLoader[Any]:
    """A loader of a script that seeds each rank alike."""
    torch.manual_seed(0)
    return DataLoader(**{"dataset": DATA, "batch_size": 8, **arguments})


def drawn_by(monkeypatch: pytest.MonkeyPatch, rank: int, **arguments: Any) -> list[tuple[str, bytes]]:
    worker = Rank(monkeypatch, rank)
    worker.train(seeded(**arguments))
    return worker.digests


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(range(SAMPLES))


def weighted() -> WeightedRandomSampler:
    return WeightedRandomSampler([1.0] * SAMPLES, SAMPLES, generator=torch.Generator().manual_seed(0))


def test_a_loader_without_a_sampler_is_the_same_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for shuffle, source in ((True, "RandomSampler"), (False, "SequentialSampler")):
        first, second = (drawn_by(monkeypatch, rank, shuffle=shuffle) for rank in (0, 1))
        assert [each for each, _ in first] == [source]
        assert first == second
        assert drawn_by(monkeypatch, 2, shuffle=shuffle) == [], "two ranks are enough"
        assert len(drawn_by(monkeypatch, 0, shuffle=shuffle, batch_size=SAMPLES // 2)) == 1


def test_so_is_a_weighted_sampler_whose_generator_is_seeded_alike_and_a_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for source, arguments in (
        ("WeightedRandomSampler", lambda: {"sampler": weighted()}),
        ("IterableDataset", lambda: {"dataset": Stream()}),
    ):
        first, second = (drawn_by(monkeypatch, rank, **arguments()) for rank in (0, 1))
        assert [each for each, _ in first] == [source]
        assert first == second


def test_the_line_is_that_which_iterates_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Rank(monkeypatch, 0)
    for _ in seeded():
        worker.step()
    here = test_the_line_is_that_which_iterates_the_loader.__code__
    assert worker.sent[0].place == f"test_equal_batches.py:{here.co_firstlineno + 2} ({here.co_name})"


def test_shares_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_sampler(rank: int) -> Any:
        return {"sampler": DistributedSampler(DATA, num_replicas=3, rank=rank)}

    def of_elastic_sampler(_rank: int) -> Any:
        return {"sampler": edriver.ElasticSampler(DATA)}

    def of_data_set(rank: int) -> Any:
        return {"dataset": torch.utils.data.Subset(DATA, range(rank, SAMPLES, 3))}

    for share in (of_sampler, of_elastic_sampler, of_data_set):
        found = []
        for rank in (0, 1):
            worker = Rank(monkeypatch, rank)
            worker.train(seeded(**share(rank)))
            found += worker.digests
        assert len(found) == 2
        assert found[0] != found[1], share


def test_an_evaluation_on_all_ranks_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Rank(monkeypatch, 0)
    elastic = DataLoader(DATA, batch_size=8, sampler=edriver.ElasticSampler(DATA))
    for number, _ in enumerate(elastic):
        worker.step()
        for _ in seeded():  # after each step, with gradients enabled
            pass
        if number == 0:
            for _ in seeded():
                break
    assert [source for source, _ in worker.digests] == ["ElasticSampler"]
    worker = Rank(monkeypatch, 0)
    for _ in range(5):  # epochs of batches that come from no loader, each after a validation
        for _ in seeded():
            pass
        worker.step()
        worker.step()
    assert worker.digests == []
    kept = iter(seeded())
    for _ in range(5):  # batches that come from no loader, and a look at the validation's between
        worker.step()
        with torch.no_grad():
            next(kept)
    assert worker.digests == []


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"batch_size": SAMPLES}, id="one-batch"),
        pytest.param({"dataset": TensorDataset(torch.arange(12.0))}, id="few-samples"),
        pytest.param({"dataset": TensorDataset(torch.ones(SAMPLES, 4))}, id="constant"),
        pytest.param({"collate_fn": lambda _: object()}, id="of-a-type-that-is-not-known"),
    ],
)
def test_what_says_nothing_is_not_compared(monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]) -> None:
    assert drawn_by(monkeypatch, 0, **arguments) == []


def test_batches_of_any_shape_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_mapping(items: list[Any]) -> dict[str, Any]:
        return {"x": torch.stack([x for x, _ in items]).to(torch.bfloat16).t(), "ids": [str(y) for _, y in items]}

    first, second = (drawn_by(monkeypatch, rank, collate_fn=as_mapping) for rank in (0, 1))
    assert len(first) == 1
    assert first == second
    assert drawn_by(monkeypatch, 1, collate_fn=as_mapping, shuffle=True) != first


def test_accumulated_gradients_and_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Rank(monkeypatch, 0)
    worker.train(seeded(batch_size=1), every=4)
    assert len(worker.digests) == 1


def test_alone_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Rank(monkeypatch, 0, size=1)
    assert not isinstance(iter(seeded()), WatchedIterator)
    worker.train(seeded())
    assert worker.digests == []


def test_after_the_first_steps_loaders_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Rank(monkeypatch, 0)
    first = iter(seeded())
    assert isinstance(first, WatchedIterator)
    assert len(first) == SAMPLES // 8
    for _ in range(MAX_STEPS):
        worker.step()
    assert not isinstance(iter(seeded()), WatchedIterator)
    worker.train(first)
    assert worker.digests == []


def test_a_state_has_its_optimizers_steps_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Rank(monkeypatch, 0)
    model = torch.nn.Linear(4, 1)
    state = edriver.TorchState(model, torch.optim.SGD(model.parameters(), lr=0.0))
    for x, _ in seeded():
        model(x).sum().backward()
        state.optimizer.step()
    assert len(worker.digests) == 1
