"""hvd.elastic's states and sampler: Horovod's signatures and semantics, without a driver and over a real group."""

from __future__ import annotations

import copy
import importlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import edriver
import edriver.horovod as hvd
from edriver.horovod import basics
from edriver.horovod.elastic import state as states
from edriver.horovod.elastic.sampler import ElasticSampler
from edriver.model.ids import RoundId
from edriver.model.plan import NO_ASSIGNMENT, SINGLE_WORKER
from edriver.worker import context
from tests.torch.ranks import run_ranks

SIZE = 2


@pytest.fixture
def placed() -> Any:
    """Puts this process in a place of a round, as often as is asked."""
    basics.world().initialized = True
    rounds = iter(range(1, 100))

    def place(rank: int, size: int) -> None:
        round_id = RoundId(1, next(rounds))
        context.current.place.enter(replace(SINGLE_WORKER, round_id=round_id, rank=rank, size=size))

    place(0, 1)
    return place


def test_the_sampler_has_horovods_attributes(placed: Any) -> None:
    placed(0, 2)
    sampler = ElasticSampler(range(10), shuffle=False)
    assert (sampler.epoch, sampler.seed, sampler.processed_indices) == (0, 0, set())
    assert (sampler.num_replicas, sampler.rank, sampler.num_samples, sampler.total_size) == (2, 0, 5, 10)
    assert (len(sampler), list(sampler)) == (5, [0, 2, 4, 6, 8])
    sampler.record_batch(0, 2)
    assert sampler.processed_indices == {0, 2}
    assert sampler.processed_num == 4
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 4}
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
    assert sampler.processed_num == 8  # what waits for the one before it is not counted yet
    sampler.record_batch(2, 2)  # the next two that are not recorded yet
    assert sampler.processed_num == 16
    sampler.record_indices([mine[8], mine[9]])
    assert sampler.processed_indices == set(mine)
    with pytest.raises(ValueError, match="the dataset has 20 samples"):
        sampler.record_indices([20])


@pytest.mark.parametrize("numbers", [[0, 1, 2], [0, 0, 0], [7, 8, 9]], ids=["in-order", "none", "counted-on"])
def test_a_batchs_number_is_not_looked_at(placed: Any, numbers: list[int]) -> None:
    placed(0, 2)
    sampler = ElasticSampler(range(20), seed=3)
    mine = list(sampler)
    for number, done in zip(numbers, (4, 8, 10), strict=True):
        sampler.record_batch(number, 4)
        assert sampler.processed_indices == set(mine[:done])
        assert sampler.processed_num == 2 * done
    sampler.record_batch(0, 4)  # nothing is left
    assert sampler.processed_num == 20


def test_a_number_of_samples_is_taken_over(placed: Any) -> None:
    placed(0, 2)
    sampler = ElasticSampler(range(10), seed=4)
    order = sampler.remaining_indices
    assert sorted(order) == list(range(10))
    assert list(sampler) == order[::2]
    sampler.load_state_dict({"epoch": 0, "processed_num": 6})
    assert (sampler.processed_num, sampler.remaining_indices, list(sampler)) == (6, order[6:], order[6::2])
    sampler.record_batch(0, 1)
    other = ElasticSampler(range(10), seed=4)
    other.load_state_dict(sampler.state_dict())
    assert other.remaining_indices == order[8:]
    other.processed_num = 2
    assert other.remaining_indices == order[2:]
    other.load_state_dict({"epoch": 3, "processed_num": 96})  # Horovod counts on beyond an epoch's end
    assert (other.epoch, len(other), other.processed_num) == (3, 0, 10)
    with pytest.raises(KeyError, match="processed_num"):
        other.load_state_dict({"epoch": 0})
    assert other.epoch == 3, "nothing has changed"


def test_a_state_of_horovods_own_is_taken_over(placed: Any) -> None:
    placed(0, 1)
    sampler = ElasticSampler(range(12), seed=1)
    sampler.load_state_dict({"epoch": 4, "processed_indices": {1, 2, 3, 11}})
    assert (sampler.epoch, len(sampler)) == (4, 8)
    assert sorted(sampler) == [0, 4, 5, 6, 7, 8, 9, 10]
    first = list(sampler)[:3]
    sampler.record_batch(0, 3)
    assert sampler.processed_indices == {1, 2, 3, 11, *first}
    assert sampler.state_dict() == {"epoch": 4, "processed_num": 7, "processed_indices": {1, 2, 3, 11, *first}}
    again = ElasticSampler(range(12), seed=1)
    again.load_state_dict(sampler.state_dict())
    assert sorted(again) == sorted({*range(12)} - again.processed_indices) == sorted(list(sampler)[3:])
    again.load_state_dict({"epoch": 4, "processed_num": 2})
    assert again.state_dict() == {"epoch": 4, "processed_num": 2}
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
    state.keep_small()
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


@pytest.fixture
def registry() -> Any:
    """The handler registry, which is afterwards what it was."""
    before = states.get_handler_registry()
    yield before
    states.set_handler_registry(before)


def test_users_values_may_have_the_names_of_edrivers_options() -> None:
    values: dict[str, Any] = {"keep": 5, "every": "step", "checkpoint": "newest", "from_rank_0": [1]}
    state = hvd.elastic.TorchState(torch.nn.Linear(1, 1), **values)
    state.keep += 1
    state.save()
    state.keep, state.checkpoint, state.every, state.from_rank_0 = 0, "none", "", [2]
    state.restore()
    assert {name: getattr(state, name) for name in values} == {**values, "keep": 6}
    other = hvd.elastic.ObjectState(None, None, **values)
    assert {name: getattr(other, name) for name in values} == values


@pytest.mark.parametrize("name", ["commit", "sync", "_rank"])
def test_a_states_own_names_are_refused(registry: Any, name: str) -> None:
    states.set_handler_registry([(Box, BoxHandler)])
    for values in ({name: 1}, {name: Box(1)}):
        with pytest.raises(ValueError, match=f"cannot have an attribute named '{name}'"):
            hvd.elastic.TorchState(None, None, **values)


def test_a_subclass_finds_what_it_has_given_its_base() -> None:
    class Named(hvd.elastic.ObjectState):
        def describe(self) -> str:
            return f"{self._rank()}: {self._bcast_object('news')}"

    assert Named(bcast_object=str.upper, get_rank=lambda: 3, epoch=0).describe() == "3: NEWS"
    counter = Counter()
    assert (counter._bcast_object, counter._rank) == (hvd.broadcast_object, hvd.rank)
    for state in (hvd.elastic.TorchState(), hvd.elastic.ObjectState()):
        assert (state._bcast_object, state._rank) == (hvd.broadcast_object, hvd.rank)


@pytest.mark.parametrize("base", [hvd.elastic.TorchState, hvd.elastic.ObjectState])
def test_a_subclasss_sync_need_not_say_whether_it_committed(placed: Any, base: Any) -> None:
    """As Horovod's does not. A worker that holds the state keeps the commit that it has, which is older."""

    class Noted(base):  # type: ignore[misc]
        calls = True

        def sync(self) -> None:
            if self.calls:
                super().sync()

    state: Any = Noted(step=0)
    assert state.sync() is True, "there was none"
    state.step = 1
    assert state.sync() is False
    state.restore()
    assert state.step == 0
    Noted.calls, state.step = False, 2
    assert state.sync() is True
    state.restore()
    assert state.step == 2, "what it has done by itself is saved"


class OwnModelHandler(states.ModelStateHandler):
    """A model's handler of a script's own."""


class OwnOptimizerHandler(states.OptimizerStateHandler):
    """An optimizer's."""


def test_model_and_optimizer_may_have_handlers_of_the_scripts_own(placed: Any, registry: Any) -> None:
    own = [(torch.nn.Linear, OwnModelHandler), (torch.optim.SGD, OwnOptimizerHandler)]
    states.set_handler_registry([*own, *registry])
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    state = hvd.elastic.TorchState(model, optimizer, critic=torch.nn.ReLU(), epoch=0)
    assert {name: type(one) for name, one in state._foreign.items()} == {
        "model": OwnModelHandler,
        "optimizer": OwnOptimizerHandler,
    }
    assert (state.model, state.optimizer) == (model, optimizer)
    before = model.weight.tolist()
    state.save()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state.epoch = 7
    state.restore()
    assert (model.weight.tolist(), optimizer.state_dict()["state"], state.epoch) == (before, {}, 0)
    state.model = another = torch.nn.Linear(2, 1)
    assert state.model is state._foreign["model"].value is another
    assert not state.clean, "what a handler of the script's own keeps, a boundary does not"
    # Horovod takes the first that fits: here its own, for which edriver has one of its own.
    states.set_handler_registry([*registry, *own])
    assert hvd.elastic.TorchState(model, optimizer)._foreign == {}


def test_a_state_of_edrivers_own_writes_checkpoints(alone: None, placed: Any, tmp_path: Path) -> None:
    placed(0, 1)
    sampler = ElasticSampler(range(8))
    state = edriver.TorchState(torch.nn.Linear(1, 1), sampler=sampler, checkpoint=tmp_path, every=1, keep=1)

    @hvd.elastic.run
    def train(state: edriver.TorchState) -> int:
        sampler.record_batch(0, 4)
        state.commit()
        return int(state.steps_made)

    assert train(state) == 1
    assert [*tmp_path.iterdir()]


@pytest.mark.parametrize("handler", [states.ModelStateHandler, states.SamplerStateHandler])
def test_a_handler_restores_what_it_began_with(placed: Any, handler: type[states.StateHandler]) -> None:
    value: Any = torch.nn.Linear(1, 1) if handler is states.ModelStateHandler else ElasticSampler(range(4))
    before, own = copy.deepcopy(value.state_dict()), handler(value)
    if isinstance(value, ElasticSampler):
        value.record_batch(0, 2)
    else:
        torch.nn.init.zeros_(value.weight)
    assert value.state_dict() != before
    own.restore()
    assert value.state_dict() == before


def test_handlers_have_horovods_names() -> None:
    known = dict(states.get_handler_registry())
    assert known[torch.nn.Module] is states.ModelStateHandler
    assert known[torch.optim.Optimizer] is states.OptimizerStateHandler
    assert known[ElasticSampler] is states.SamplerStateHandler
    assert all(issubclass(handler, states.StateHandler) for handler in known.values())


def test_errors_are_what_scripts_for_horovod_catch() -> None:
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
    assert issubclass(hvd.HostsUpdatedInterrupt, RuntimeError)
    assert not hvd.HostsUpdatedInterrupt().skip_sync
    assert hvd.HostsUpdatedInterrupt(True).skip_sync


PATHS = {
    "torch": ["init", "rank", "elastic", "DistributedOptimizer", "Compression", "allreduce_async_"],
    "torch.mpi_ops": ["init", "shutdown", "size", "Sum", "synchronize", "allgather_async", "reducescatter"],
    "torch.functions": ["broadcast_object", "allgather_object", "broadcast_parameters", "broadcast_optimizer_state"],
    "torch.compression": ["Compression"],
    "torch.optimizer": ["DistributedOptimizer"],
    "torch.sync_batch_norm": ["SyncBatchNorm"],
    "torch.elastic": ["run", "TorchState", "ElasticSampler"],
    "torch.elastic.sampler": ["ElasticSampler"],
    "torch.elastic.state": ["TorchState", "ModelStateHandler", "get_handler_registry", "set_handler_registry"],
    "common.elastic": ["State", "ObjectState", "run_fn", "HostUpdateResult"],
    "common.exceptions": ["HorovodInternalError", "HostsUpdatedInterrupt"],
    "common.process_sets": ["ProcessSet", "global_process_set", "add_process_set", "remove_process_set"],
    "common.util": ["env", "split_list", "gpu_available", "nccl_built", "mpi_built", "extension_available"],
}


@pytest.mark.parametrize("path", PATHS)
def test_each_import_of_a_script_is_changed_in_the_same_way(path: str) -> None:
    module = importlib.import_module(f"edriver.horovod.{path}")
    public = {**vars(hvd), **(vars(hvd.elastic) if "elastic" in path else {})}
    for name in PATHS[path]:
        given = getattr(module, name)
        assert given is public.get(name, given) or path == "common.util", name


def test_what_is_kept_of_horovods_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    from edriver.horovod.common import util

    assert [util.split_list(list(range(7)), 3), util.split_list([1], 2)] == [[[0, 1, 2], [3, 4], [5, 6]], [[1], []]]
    monkeypatch.setenv("SET", "before")
    monkeypatch.delenv("UNSET", raising=False)
    with util.env(SET="1", UNSET=2, LEFT=None):
        assert (os.environ["SET"], os.environ["UNSET"], "LEFT" in os.environ) == ("1", "2", False)
    assert (os.environ["SET"], "UNSET" in os.environ) == ("before", False)
    assert (util.extension_available("torch"), util.extension_available("mxnet")) == (True, False)
    assert (util.mpi_built(), util.gloo_built(), util.gpu_available("tensorflow")) == (False, True, False)


def test_a_run_function_of_horovods_frameworks_does_without_a_reset(alone: None, placed: Any) -> None:
    from edriver.horovod.common.elastic import run_fn

    state = hvd.elastic.ObjectState(epoch=2)
    placed(0, 1)
    assert run_fn(lambda state, more: state.epoch + more, fail)(state, 3) == 5


def fail() -> None:
    raise AssertionError


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
    context.current.place.enter(replace(context.assignment(), round_id=RoundId(0, 2), receivers=()))
    mixed.on_reset()
    mixed.sync()
    assert sampler.compact()["offset"] == 2, "what all have counted"
    assert mixed.digest(committed=False) == ""
    context.current.place.enter(replace(context.assignment(), receivers=(1,)))
    handled_by_a_script(rank)
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


def handled_by_a_script(rank: int) -> None:
    """Handlers of a script's own bring all members to rank 0's model, optimizer and sampler."""
    before = states.get_handler_registry()
    own = [(torch.nn.Bilinear, OwnModelHandler), (torch.optim.Adagrad, OwnOptimizerHandler)]
    states.set_handler_registry([*own, (ElasticSampler, OwnSamplerHandler), *before])
    model = torch.nn.Bilinear(2, 2, 1)  # another one on each rank
    optimizer = torch.optim.Adagrad(model.parameters(), lr=1.0 + rank)
    sampler = ElasticSampler(range(20))
    sampler.load_state_dict({"epoch": rank, "processed_num": 4 * rank + 4})
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler)
    states.set_handler_registry(before)
    state.on_reset()
    state.sync()
    assert all(each == model.weight.tolist() for each in hvd.allgather_object(model.weight.tolist()))
    assert (optimizer.param_groups[0]["lr"], sampler.state_dict()) == (1.0, {"epoch": 0, "processed_num": 4})


class OwnSamplerHandler(states.SamplerStateHandler):
    """A sampler's."""


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


def test_a_function_that_runs_nothing_is_refused_in_a_world_that_never_changes_too(group: None, placed: Any) -> None:
    basics.world().fixed = True

    def hidden(state: Any) -> Any:
        return (yield state)

    train = hvd.elastic.run(lambda state: hidden(state))
    with pytest.raises(TypeError, match=r"hvd\.elastic\.run called .*, but nothing ran: .* a generator"):
        train(hvd.elastic.ObjectState(epoch=0))


def test_a_late_worker_is_neither_first_nor_alone(placed: Any) -> None:
    context.current.place.enter(NO_ASSIGNMENT)
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (1, 2, 0, 1)
    assert len(ElasticSampler(range(10))) == 5
    with pytest.raises(RuntimeError, match="was started during the run"):
        hvd.barrier()
