"""hvd.elastic's states and sampler: Horovod's signatures and semantics, without a driver and over a real group."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch

import edriver.horovod as hvd
from edriver.common.ids import RoundId
from edriver.horovod import basics
from edriver.horovod.elastic import state as states
from edriver.horovod.elastic.sampler import ElasticSampler
from edriver.worker import topology
from tests.torch.ranks import run_ranks

SIZE = 2


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts this process in a place of a round, as often as is asked."""
    monkeypatch.setattr(basics.world, "initialized", True)
    rounds = iter(range(1, 100))

    def place(rank: int, size: int) -> None:
        round_id = RoundId(1, next(rounds))
        topology.enter(replace(topology.SINGLE_WORKER, round_id=round_id, rank=rank, size=size))

    place(0, 1)
    yield place
    topology.leave()


def test_the_sampler_has_horovods_attributes(placed: Any) -> None:
    placed(0, 2)
    sampler = ElasticSampler(range(10), shuffle=False)
    assert (sampler.epoch, sampler.seed, sampler.processed_indices) == (0, 0, set())
    assert (sampler.num_replicas, sampler.rank, sampler.num_samples, sampler.total_size) == (2, 0, 5, 10)
    assert (len(sampler), list(sampler)) == (5, [0, 2, 4, 6, 8])
    sampler.record_batch(0, 2)
    assert sampler.processed_indices == {0, 2}
    assert sampler.state_dict() == {"epoch": 0, "processed_indices": {0, 2}}
    assert sampler.remaining_indices == list(range(10))  # what was left when the round began
    placed(0, 1)
    assert sampler.remaining_indices == [4, 5, 6, 7, 8, 9]  # both ranks have recorded as much
    assert list(sampler) == [4, 5, 6, 7, 8, 9]
    sampler.set_epoch(1)
    assert sampler.processed_indices == set()
    assert len(sampler) == 10
    assert sampler.get_indices(1, 4) == [4, 5, 6, 7]


def test_samples_are_recorded_in_any_order(placed: Any) -> None:
    placed(1, 2)
    sampler = ElasticSampler(range(20), seed=3)
    mine = list(sampler)
    sampler.record_indices(reversed(mine[:4]))
    sampler.record_indices({*mine[:4]})
    assert sampler.processed_indices == set(mine[:4])
    sampler.record_indices([mine[6], mine[5], next(i for i in range(20) if i not in mine)])
    assert sampler.processed_indices == {*mine[:4], mine[5], mine[6]}
    assert sampler.compact()["offset"] == 8  # what waits for the one before it is not counted yet
    sampler.record_batch(2, 2)
    assert sampler.compact()["offset"] == 14
    sampler.record_batch(4, 2)
    sampler.record_batch(4, 2)
    sampler.record_batch(3, 2)
    assert sampler.processed_indices == set(mine)
    with pytest.raises(ValueError, match="the dataset has 20 samples"):
        sampler.record_indices([20])


def test_a_state_of_horovods_own_is_taken_over(placed: Any) -> None:
    placed(0, 1)
    sampler = ElasticSampler(range(12), seed=1)
    sampler.load_state_dict({"epoch": 4, "processed_indices": {1, 2, 3, 11}})
    assert (sampler.epoch, len(sampler)) == (4, 8)
    assert sorted(sampler) == [0, 4, 5, 6, 7, 8, 9, 10]
    first = list(sampler)[:3]
    sampler.record_batch(0, 3)
    assert sampler.processed_indices == {1, 2, 3, 11, *first}
    other = ElasticSampler(range(12), seed=1)
    other.load_compact(sampler.compact())
    assert list(other) == list(sampler)[3:]
    other.set_epoch(5)
    assert sorted(other) == list(range(12))


def test_the_epoch_that_is_under_way_goes_on(placed: Any) -> None:
    sampler = ElasticSampler(range(6), shuffle=False)
    sampler.set_epoch(1)
    sampler.record_batch(0, 4)
    sampler.set_epoch(1)
    placed(0, 1)
    assert list(sampler) == [4, 5]


def test_the_sampler_goes_back_with_its_state(placed: Any) -> None:
    sampler = ElasticSampler(range(9), shuffle=False)
    state = hvd.elastic.TorchState(sampler=sampler)
    sampler.record_batch(0, 3)
    state.commit()
    state.keep()
    sampler.record_batch(1, 3)
    state.return_to_boundary()
    assert sampler.processed_indices == {0, 1, 2}
    sampler.record_batch(0, 3)
    state.restore()
    assert sampler.processed_indices == {0, 1, 2}


def test_object_states_take_horovods_arguments() -> None:
    state = hvd.elastic.ObjectState(bcast_object=hvd.broadcast_object, get_rank=hvd.rank, epoch=1)
    state.epoch = 2
    state.save()
    state.epoch = 3
    state.restore()
    assert state.epoch == 2
    assert isinstance(state, hvd.elastic.State)
    assert isinstance(hvd.elastic.TorchState(), hvd.elastic.State)
    state.speed = 1.5
    assert state.digest(committed=False) == ""  # it may differ between members


class Counter(hvd.elastic.State):
    def __init__(self) -> None:
        super().__init__(bcast_object=None, get_rank=None)
        self.value = self.saved = 0
        self.told: list[str] = []

    def save(self) -> None:
        self.saved = self.value

    def restore(self) -> None:
        self.value = self.saved

    def sync(self) -> None:
        self.value = hvd.broadcast_object(self.value)

    def reset(self) -> None:
        self.told.append("reset")


class Box:
    def __init__(self, content: int) -> None:
        self.content = content


class BoxHandler(states.StateHandler):
    saved = -1

    def save(self) -> None:
        self.saved = self.value.content

    def restore(self) -> None:
        self.value.content = self.saved

    def sync(self) -> None:
        self.value.content = hvd.broadcast_object(self.value.content)


def in_a_fixed_world(rank: int) -> None:
    """What torchrun starts: one round, with rank 0's state."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(SIZE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(SIZE)}
    hvd.init()
    assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (rank, SIZE, 0, 1)
    second = hvd.add_process_set([1])
    torch.manual_seed(rank)
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1 + rank), model.named_parameters())
    states.set_handler_registry([(Box, BoxHandler), *states.get_handler_registry()])
    state = hvd.elastic.TorchState(model, optimizer, box=Box(rank + 5), speeds=[rank], epoch=rank)

    @hvd.elastic.run
    def train(state: Any, factor: int) -> int:
        assert (state.speeds, state.epoch, state.box.content) == ([0], 0, 5)
        if second.included():
            assert hvd.allreduce(torch.tensor([1]), op=hvd.Sum, process_set=second).tolist() == [1]
        assert all(each == model.weight.tolist() for each in hvd.allgather_object(model.weight.tolist()))
        assert optimizer.param_groups[0]["lr"] == 0.1
        state.box.content = 7
        state.commit()
        state.box = Box(8)
        state.box.content = 9
        state.restore()
        assert state.box.content == 8
        return factor * hvd.size()

    assert train(state, 3) == 6
    sampler = ElasticSampler(range(20), shuffle=False)
    mixed = hvd.elastic.TorchState(sampler=sampler)
    sampler.record_indices([4, 2, 0] if rank == 0 else [1, 5])
    assert sampler.compact()["offset"] == (6 if rank == 0 else 2)
    topology.enter(replace(topology.current(), round_id=RoundId(0, 2), receivers=()))
    mixed.on_reset()
    mixed.sync()
    assert sampler.compact()["offset"] == 2, "what all have counted"
    assert mixed.digest(committed=False) == ""
    topology.enter(replace(topology.current(), receivers=(1,)))
    counter = Counter()
    counter.value = rank + 1

    @hvd.elastic.run
    def count(state: Counter) -> int:
        assert state is counter
        state.value += 1
        state.commit()
        state.value += 1
        state.check_host_updates()
        state.restore()
        return state.value

    assert count(counter) == 2
    with pytest.raises(TypeError, match="must be an edriver"):
        hvd.elastic.run(lambda state: state)(None)


def test_in_a_world_that_torchrun_has_made_the_function_is_called_once() -> None:
    run_ranks(in_a_fixed_world, SIZE)


@pytest.mark.parametrize(
    ("edrivers_own", "fixed"),
    [
        pytest.param({}, True, id="torchrun"),
        pytest.param({"EDRIVER_WORKER_ID": "1", "EDRIVER_MODE": "restart"}, True, id="restart-mode"),
        pytest.param({"EDRIVER_WORKER_ID": "1"}, False, id="left-over-in-elastic-mode"),
    ],
)
def test_a_world_is_fixed_where_its_launcher_says_so(edrivers_own: dict[str, str], fixed: bool) -> None:
    said = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    assert basics.is_fixed_world({**said, **edrivers_own}) is fixed


def test_news_and_resets_reach_a_state_that_knows_nothing_of_rounds() -> None:
    counter = Counter()
    counter.register_reset_callbacks([lambda: counter.told.append("callback")])
    carried = states.ForeignState(counter)
    carried.on_reset()
    carried.on_hosts_updated(1.0, int(hvd.elastic.HostUpdateResult.mixed))
    assert counter.told == ["reset", "callback"]
    assert carried.last_hosts_update == (1.0, 3)
    assert carried.has_commit
    assert not carried.clean


def test_resets_are_told_from_the_second_round_on(placed: Any) -> None:
    """`init` has had a round before the state's first one."""
    told: list[int] = []
    state = hvd.elastic.TorchState(epoch=0)
    state.register_reset_callbacks([lambda: told.append(hvd.size())])
    state.on_reset()
    state.sync()
    assert told == []
    placed(0, 1)
    state.on_reset()
    assert told == [1]


def test_a_late_worker_is_neither_first_nor_alone(placed: Any) -> None:
    topology.enter(topology.NO_ASSIGNMENT)
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (1, 2, 0, 1)
    assert len(ElasticSampler(range(10))) == 5
    with pytest.raises(RuntimeError, match="was started when the run was under way"):
        hvd.barrier()
