"""Which workers of a round train on the same samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from edriver.model.ids import RoundId
from edriver.model.plan import SINGLE_WORKER
from edriver.worker import context
from edriver.worker.accumulation.shares import accumulation_weights
from edriver.worker.sampler.elastic_sampler import ElasticSampler
from edriver.worker.sampler.equal_batches import TrainingBatches
from edriver.worker.sampler.sample_share import SampleDimensions, SampleShare, sample_share
from edriver.worker.state.object_state import ObjectState


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
        assert sample_share(context.assignment()).rank == rank // 2
    assert batches == [[0, 2], [0, 2], [1, 3], [1, 3]]
    assert done == [(4, 8)] * 4


def test_one_that_is_in_no_whole_replica_has_a_share_all_the_same() -> None:
    """It hands its state over, and trains on nothing: its sampler is split like the others."""
    context.current.part(SampleDimensions).set({"shard": 2, "tensor": 2}, {"shard"})
    guest = replace(SINGLE_WORKER, round_id=RoundId(1, 1), rank=4, size=5)
    assert sample_share(guest) == SampleShare(0, 2, False)
    context.current.place.enter(guest)
    ElasticSampler(range(8)).reset()
    assert sample_share(SINGLE_WORKER) == SampleShare(0, 1, False), "a rehearsal in a world of its own"


def test_the_dimensions_are_those_of_the_state_that_is_trained() -> None:
    context.current.part(SampleDimensions).set({"shard": 2, "tensor": 2}, {"shard"})
    ObjectState(epoch=0).bind(None)
    assert sample_share(replace(SINGLE_WORKER, rank=3, size=4)) == SampleShare(3, 4, True)


def test_micro_batches_are_dealt_to_shares() -> None:
    context.current.part(SampleDimensions).set({"shard": 2, "tensor": 2}, {"shard"})
    context.current.place.enter(replace(SINGLE_WORKER, round_id=RoundId(1, 1), rank=3, size=4))
    assert accumulation_weights(8, 2) == [0.5, 0.5]


def test_the_leader_is_the_first_of_those_that_compute_the_same() -> None:
    dimensions = SampleDimensions()
    dimensions.set({"pipeline": 2, "shard": 2, "tensor": 2}, {"shard"}, {"pipeline", "pp"})
    assert [dimensions.leader(rank) for rank in range(16)] == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14]
    dimensions.set({"tensor": 2, "shard": 2}, {"shard"})
    assert [dimensions.leader(rank) for rank in range(8)] == [0, 1, 0, 1, 4, 5, 4, 5]


def test_those_whose_batches_are_compared_need_other_samples() -> None:
    context.current.part(SampleDimensions).set({"shard": 2, "tensor": 2}, {"shard"})
    looking = []
    for rank in range(4):
        context.current.place.enter(replace(SINGLE_WORKER, round_id=RoundId(1, 1), rank=rank, size=4))
        looking.append(TrainingBatches().looks)
    assert looking == [True, False, True, False]
