"""Loaders and samplers that would lose samples: refused, or named."""

from __future__ import annotations

import types
from dataclasses import replace
from typing import Any

import pytest
from torch.utils.data import DistributedSampler

from edriver.model.plan import SINGLE_WORKER
from edriver.worker import context
from edriver.worker.sampler import loaders
from edriver.worker.sampler.elastic_sampler import ElasticSampler
from edriver.worker.state.torch_state import TorchState


@pytest.fixture
def in_round() -> None:
    context.current.place.enter(SINGLE_WORKER)
    loaders._warn_not_elastic.cache_clear()


def foreign(module: str, name: str, body: str) -> Any:
    """A class as another package has it, which is not installed here."""
    namespace = types.ModuleType(module)
    exec(f"class {name}:\n{body}", vars(namespace))
    return vars(namespace)[name]


STATEFUL = "    def state_dict(self): return {}\n    def load_state_dict(self, state): pass"
SHARD = "    def __init__(self, inner): self.inner = inner\n    def __iter__(self): yield from self.inner"


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        ("torchdata.stateful_dataloader.stateful_dataloader", "StatefulDataLoader", "use a torch DataLoader with an"),
        ("torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook", "PowerSGDState", "make it inside the function"),
    ],
)
def test_what_belongs_to_one_rank_is_refused_in_a_state(module: str, name: str, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        TorchState(loader=foreign(module, name, STATEFUL)())


def test_a_loader_that_shards_again_is_refused() -> None:
    shard = foreign("accelerate.data_loader", "BatchSamplerShard", SHARD)(ElasticSampler(range(4)))
    with pytest.raises(RuntimeError, match="do not prepare the loader"):
        list(shard)
    assert sorted(foreign("accelerate.data_loader", "Other", SHARD)(ElasticSampler(range(4)))) == [0, 1, 2, 3]


@pytest.mark.usefixtures("in_round")
def test_a_distributed_sampler_is_named_in_a_round_and_once(caplog: pytest.LogCaptureFixture) -> None:
    loaders.watch_distributed_samplers()
    sampler: DistributedSampler[int] = DistributedSampler(range(4), num_replicas=2, rank=0, shuffle=False)  # type: ignore[arg-type]
    for _ in range(2):
        assert list(sampler) == [0, 2]
    (record,) = caplog.records
    assert "use edriver.ElasticSampler" in record.getMessage()


def test_outside_a_round_a_distributed_sampler_passes(caplog: pytest.LogCaptureFixture) -> None:
    loaders.watch_distributed_samplers()
    list(DistributedSampler(range(4), num_replicas=2, rank=0))  # type: ignore[arg-type]
    assert not caplog.records


def epoch_of(sampler: ElasticSampler, batches: int, recorded: int) -> None:
    """Draw so many batches of 3, and record some of them."""
    drawn = iter(sampler)
    for batch in range(batches):
        for _ in range(3):
            next(drawn)
        if batch < recorded:
            sampler.record_batch(batch, 3)


@pytest.mark.parametrize(
    ("batches", "recorded", "words"),
    [
        pytest.param(3, 3, "", id="drop-last"),
        pytest.param(2, 2, "epoch 0 ends with 4 of its 10 samples not done", id="unfinished"),
        pytest.param(3, 0, "all of epoch 0 was iterated and none of it recorded", id="never-recorded"),
        pytest.param(0, 0, "all of epoch 0 was iterated and none", id="abandoned"),
    ],
)
def test_an_epoch_that_is_left_open(caplog: pytest.LogCaptureFixture, batches: int, recorded: int, words: str) -> None:
    sampler = ElasticSampler(range(10))
    epoch_of(sampler, batches, recorded)
    sampler.set_epoch(0)
    assert not caplog.records, "it goes on"
    sampler.set_epoch(1)
    assert len(caplog.records) == bool(words)
    assert words in caplog.text


def test_other_ranks_and_epochs_that_were_not_begun_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    sampler = ElasticSampler(range(10))
    sampler.set_epoch(3)
    context.current.place.enter(replace(SINGLE_WORKER, rank=1, size=2))
    other = ElasticSampler(range(10))
    iter(other)
    other.set_epoch(1)
    assert not caplog.records
