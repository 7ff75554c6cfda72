"""Which workers of a round train on the same samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from edriver.model.ids import RoundId
from edriver.model.plan import SINGLE_WORKER
from edriver.worker import context
from edriver.worker.sampler.elastic_sampler import ElasticSampler
from edriver.worker.sampler.equal_batches import TrainingBatches
from edriver.worker.sampler.sample_share import SampleDimensions, SampleShare, sample_share


def shares(inside: Mapping[str, int], over: str, size: int) -> list[SampleShare]:
    dimensions = SampleDimensions()
    dimensions.set(inside, {over})
    return [dimensions.share(rank, size) for rank in range(size)]


def test_each_worker_has_its_own_unless_a_replica_has_dimensions() -> None:
    assert [SampleDimensions().share(rank, 3) for rank in range(3)] == [
        SampleShare(0, 3, True),
        SampleShare(1, 3, True),
        SampleShare(2, 3, True),
    ]


@pytest.mark.parametrize(
    ("inside", "ranks", "first"),
    [
        ({"shard": 2, "tensor": 2}, [0, 0, 1, 1, 2, 2, 3, 3], [0, 2, 4, 6]),
        ({"tensor": 2, "shard": 2}, [0, 1, 0, 1, 2, 3, 2, 3], [0, 1, 4, 5]),
        ({"pipeline": 2, "shard": 1, "tensor": 2}, [0, 0, 0, 0, 1, 1, 1, 1], [0, 4]),
        ({"shard": 4}, [0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_those_that_differ_along_other_dimensions_alone_have_the_same(
    inside: Mapping[str, int], ranks: list[int], first: list[int]
) -> None:
    found = shares(inside, "shard", 8)
    assert [share.rank for share in found] == ranks
    assert {share.size for share in found} == {max(ranks) + 1}
    assert [rank for rank, share in enumerate(found) if share.is_first] == first


def test_a_sampler_gives_them_the_same_samples_and_counts_each_once() -> None:
    context.current.part(SampleDimensions).set({"shard": 2, "tensor": 2}, {"shard"})
    batches, done = [], []
    for rank in range(4):
        context.current.place.enter(replace(SINGLE_WORKER, round_id=RoundId(1, 1), rank=rank, size=4))
        sampler = ElasticSampler(range(8), shuffle=False)
        batches.append(sampler.get_indices(0, 2))
        sampler.record_batch(0, 2)
        done.append(sampler.progress())
        assert len(sampler) == 4
        assert sample_share().rank == rank // 2
    assert batches == [[0, 2], [0, 2], [1, 3], [1, 3]]
    assert done == [(4, 8)] * 4


def test_those_whose_batches_are_compared_need_other_samples() -> None:
    context.current.part(SampleDimensions).set({"shard": 2, "tensor": 2}, {"shard"})
    looking = []
    for rank in range(4):
        context.current.place.enter(replace(SINGLE_WORKER, round_id=RoundId(1, 1), rank=rank, size=4))
        looking.append(TrainingBatches().looks)
    assert looking == [True, False, True, False]
