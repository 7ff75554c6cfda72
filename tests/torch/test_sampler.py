"""ElasticSampler: shares, shuffles, records, and goes on where a commit stood."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader

from edriver.model.ids import RoundId
from edriver.model.plan import SINGLE_WORKER
from edriver.worker import context
from edriver.worker.sampler.elastic_sampler import CHUNK_INDICES, ElasticSampler
from edriver.worker.state.torch_state import TorchState

Loader = DataLoader[torch.Tensor]


def enter(n: int, rank: int, size: int) -> None:
    context.current.place.enter(replace(SINGLE_WORKER, round_id=RoundId(1, n), rank=rank, size=size))


def sampler_at(rank: int, size: int, length: int, shuffle: bool = True, seed: int = 0) -> ElasticSampler:
    enter(1, rank, size)
    sampler = ElasticSampler(range(length), shuffle=shuffle, seed=seed)
    sampler.reset()
    return sampler


def test_ranks_share_an_epoch_evenly() -> None:
    shares = [list(sampler_at(rank, 3, 3 * CHUNK_INDICES + 7)) for rank in range(3)]
    assert {len(share) for share in shares} == {CHUNK_INDICES + 3}
    assert set().union(*shares) == set(range(3 * CHUNK_INDICES + 7))


def test_without_shuffle_the_order_is_the_datasets() -> None:
    assert list(sampler_at(0, 1, 5, shuffle=False)) == [0, 1, 2, 3, 4]
    assert list(sampler_at(1, 2, 5, shuffle=False)) == [1, 3, 0]


def test_orders_differ_by_seed_and_by_epoch_and_repeat() -> None:
    orders = {}
    for seed in (0, 1):
        for epoch in (0, 1):
            sampler = sampler_at(0, 1, 50, seed=seed)
            list(sampler)
            sampler.set_epoch(epoch)
            orders[seed, epoch] = tuple(sampler)
            assert sorted(sampler) == list(range(50))
            assert tuple(sampler) == orders[seed, epoch]
    assert len(set(orders.values())) == 4


def test_the_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    list(sampler_at(0, 1, 50))
    assert torch.equal(torch.get_rng_state(), before)


def test_peeking_changes_nothing() -> None:
    sampler = sampler_at(0, 2, 40)
    loader: Loader = DataLoader(range(40), batch_size=4, sampler=sampler)  # type: ignore[arg-type]  # a sequence will do
    state = sampler.state_dict()
    first = next(iter(loader)).tolist()
    assert sampler.state_dict() == state
    for batch_idx, _ in enumerate(loader):
        next(iter(loader))
        sampler.record_batch(batch_idx, 4)
    assert sampler.state_dict() == {"epoch": 0, "seed": 0, "offset": 40}
    assert sampler.get_indices(0, 4) == first


def test_indices_are_recorded_in_order_only() -> None:
    sampler = sampler_at(0, 1, 10)
    indices = list(sampler)
    sampler.record_indices(indices[:3])
    with pytest.raises(
        ValueError, match=f"index {indices[4]} cannot be recorded.*{indices[3]} comes next, and was skipped"
    ):
        sampler.record_indices(indices[4:6])
    with pytest.raises(ValueError, match=f"index {indices[0]} cannot be recorded"):
        sampler.record_indices(indices[:3])
    sampler.record_indices(torch.tensor(indices[3:]).tolist())
    with pytest.raises(ValueError, match="nothing is left"):
        sampler.record_indices(indices[:1])
    assert sampler.state_dict()["offset"] == 10


def test_a_batch_recorded_twice_is_refused() -> None:
    sampler = sampler_at(0, 1, 10)
    sampler.record_batch(0, 4)
    with pytest.raises(ValueError, match="batch 0 of size 4 is not the next one"):
        sampler.record_batch(0, 4)


@pytest.mark.parametrize("drop_last", [False, True])
def test_epochs_follow_each_other_with_short_or_dropped_tails(drop_last: bool) -> None:
    sampler = sampler_at(0, 1, 10)
    loader: Loader = DataLoader(range(10), batch_size=4, sampler=sampler, drop_last=drop_last)  # type: ignore[arg-type]
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = 0
        for batch_idx, _ in enumerate(loader):
            sampler.record_batch(batch_idx, 4)
            batches += 1
        assert batches == (2 if drop_last else 3)


@pytest.mark.parametrize("seed", range(20))
def test_an_epoch_is_visited_once_through_resizes_and_losses(seed: int) -> None:
    rng = random.Random(seed)
    length, batch_size = rng.randint(1, 120), rng.randint(1, 5)
    committed = ElasticSampler(range(length)).state_dict()
    done: list[int] = []
    n = 0
    while committed["offset"] < length:
        n, size = n + 1, rng.randint(1, 5)
        samplers = []
        for rank in range(size):
            enter(n, rank, size)
            sampler = ElasticSampler(range(length))
            sampler.load_state_dict(committed)
            sampler.reset()
            samplers.append(sampler)
        for batch_idx in range(rng.randint(0, 4)):
            batches = [sampler.get_indices(batch_idx, batch_size) for sampler in samplers]
            if not batches[0] or rng.random() < 0.1:
                break
            for sampler in samplers:
                sampler.record_batch(batch_idx, batch_size)
            done += [index for row in zip(*batches, strict=True) for index in row]
            assert all(sampler.state_dict() == samplers[0].state_dict() for sampler in samplers)
            committed = samplers[0].state_dict()
    assert sorted(done[:length]) == list(range(length))


def test_a_finished_epoch_yields_nothing_after_a_reset() -> None:
    sampler = sampler_at(0, 2, 10)
    sampler.record_batch(0, 5)
    enter(2, 0, 3)
    sampler.reset()
    assert len(sampler) == 0
    assert list(sampler) == []
    sampler.set_epoch(0)
    assert len(sampler) == 0, "it is the same epoch"
    sampler.set_epoch(1)
    assert len(sampler) == 4


def test_a_loaded_state_is_split_among_this_rounds_workers() -> None:
    sampler = sampler_at(0, 2, 10, shuffle=False)
    sampler.record_batch(0, 1)
    enter(2, 1, 3)
    sampler.load_state_dict({"epoch": 1, "seed": 5, "offset": 6})
    assert sampler.state_dict() == {"epoch": 1, "seed": 5, "offset": 6}
    assert list(sampler) == [7, 6]
    assert (sampler.epoch, sampler.seed) == (1, 5)


def test_an_iterator_of_an_earlier_round_keeps_its_share() -> None:
    sampler = sampler_at(0, 2, 10, shuffle=False)
    old = iter(sampler)
    assert next(old) == 0
    sampler.record_batch(0, 2)
    enter(2, 0, 1)
    sampler.reset()
    assert list(old) == [2, 4, 6, 8]
    assert list(sampler) == [4, 5, 6, 7, 8, 9]


def test_the_state_goes_back_to_the_commit_and_splits_anew() -> None:
    sampler = sampler_at(0, 2, 12, shuffle=False)
    state = TorchState(sampler=sampler, batch=0)
    sampler.record_batch(0, 2)
    state.commit()
    sampler.record_batch(1, 2)
    state.restore()
    enter(2, 0, 4)
    state.on_reset()
    assert list(sampler) == [4, 8]
    assert sampler.state_dict()["offset"] == 4
    assert "sampler={'epoch': 0, 'offset': 4, 'seed': 0}" in state.digest(committed=False)


def test_without_restore_a_reset_goes_on_from_the_live_state() -> None:
    sampler = sampler_at(0, 2, 12, shuffle=False)
    state = TorchState(sampler=sampler)
    state.commit()
    sampler.record_batch(0, 2)
    enter(2, 0, 4)
    state.on_reset()
    assert list(sampler) == [4, 8]


def test_a_sampler_made_before_the_first_round_waits_for_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDRIVER_WORKER_ID", "w1")
    sampler = ElasticSampler(range(4), shuffle=False)
    with pytest.raises(RuntimeError, match="no rank yet"):
        len(sampler)
    enter(1, 1, 2)
    assert list(sampler) == [1, 3]


def test_a_sampler_outside_the_state_raises_in_the_next_round() -> None:
    sampler = sampler_at(0, 2, 10)
    enter(2, 0, 3)
    with pytest.raises(RuntimeError, match=r"split for round 1\.1, which is over.*give it to the state"):
        iter(sampler)


def test_a_dataset_that_changes_its_length_is_refused() -> None:
    data = [1, 2, 3]
    sampler = ElasticSampler(data)
    data.append(4)
    with pytest.raises(ValueError, match="had 3 samples when the sampler was made and has 4 now"):
        sampler.reset()


def test_a_state_of_a_longer_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="5 samples done, and the dataset has 3"):
        ElasticSampler(range(3)).load_state_dict({"epoch": 0, "seed": 0, "offset": 5})
