"""What a round's first boundary finds: what a training function has made of the state."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from edriver.worker.state.torch_state import TorchState
from tests.torch.bound_state import Rounds


def new_model() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))


def first_weight(model: torch.nn.Sequential) -> torch.Tensor:
    layer = model[0]
    assert isinstance(layer, torch.nn.Linear)
    return layer.weight


def new_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> TorchState:
    """A state at the beginning of a round."""
    state = TorchState(model, optimizer)
    state.bind(Rounds())
    state.keep_small()
    return state


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


SHARDINGS: dict[str, Callable[[torch.nn.Module], object]] = {
    "fsdp1": lambda model: FullyShardedDataParallel(model, device_id=torch.device("cpu")),
    "fully-shard": lambda model: fully_shard(model, mesh=init_device_mesh("cpu", (1,))),
    "tensor-parallel": lambda model: parallelize_module(model, init_device_mesh("cpu", (1,)), {"0": ColwiseParallel()}),
}


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("shard", SHARDINGS.values(), ids=SHARDINGS)
def test_a_model_that_the_function_shards_is_refused(shard: Callable[[torch.nn.Module], object]) -> None:
    model = new_model()
    state = new_state(model, torch.optim.Adam(model.parameters()))
    shard(model)
    with pytest.raises(TypeError, match=r"edriver\.ShardedState.*restart mode, with edriver\.checkpoints in memory"):
        state.first_boundary()


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_optimizer_that_the_function_makes_and_shards_is_refused() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = new_model()
    state = new_state(model, None)
    zero = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam)
    step(model, zero)
    with pytest.raises(TypeError, match="ZeroRedundancyOptimizer shards"):
        state.first_boundary()


def test_parameters_that_no_optimizer_of_the_state_trains_are_named(caplog: pytest.LogCaptureFixture) -> None:
    model = new_model()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    state = new_state(model, optimizer)
    step(model, optimizer)
    state.first_boundary()
    (record,) = caplog.records
    assert record.getMessage().startswith("model.1.weight, model.1.bias get gradients but are in none of the state's ")


def test_an_optimizer_whose_model_the_state_lacks_is_named(caplog: pytest.LogCaptureFixture) -> None:
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = TorchState(optimizer=optimizer, kept={"first": [first_weight(model)]})
    state.bind(Rounds())
    step(model, optimizer)
    state.first_boundary()
    (record,) = caplog.records
    assert record.getMessage().startswith("the state's 'optimizer' trains 3 parameters that the state does not have: ")


def test_a_state_without_a_model_and_an_optimizer_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = TorchState(epoch=0)
    state.bind(Rounds())
    step(model, optimizer)
    state.first_boundary()
    state.first_boundary()
    (record,) = caplog.records
    # an optimizer of another test may still be there
    assert re.match(r"the script trains with .*\bSGD\b.*, but the state has neither a model nor", record.getMessage())


@pytest.mark.parametrize("frozen", [False, True], ids=["all-are-trained", "the-others-are-frozen"])
def test_a_state_that_is_whole_passes_in_silence(caplog: pytest.LogCaptureFixture, frozen: bool) -> None:
    model = new_model()
    model[1].requires_grad_(not frozen)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    state = new_state(model, optimizer)
    step(model, optimizer)
    with caplog.at_level(logging.WARNING):
        state.first_boundary()
    assert not caplog.records


def test_data_that_a_forward_pass_assigns_tears_the_state(caplog: pytest.LogCaptureFixture) -> None:
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = new_state(model, optimizer)

    def assign(_module: torch.nn.Module, _inputs: object) -> None:
        first_weight(model).data = first_weight(model).data * 0.5

    model.register_forward_pre_hook(assign)
    step(model, optimizer)
    state.check_host_updates()
    state.first_boundary()
    assert state.clean
    model(torch.ones(2, 4))
    assert not state.clean
    optimizer.step()
    assert "assigned between a boundary and the optimizer's step" in caplog.text
    state.check_host_updates()
    assert state.clean
    assert state.has_commit


def test_a_model_that_is_moved_once_stays_clean() -> None:
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = new_state(model, optimizer)
    first_weight(model).data = first_weight(model).data.clone()
    for _ in range(2):
        step(model, optimizer)
        state.check_host_updates()
        state.first_boundary()
    model(torch.ones(2, 4)).sum().backward()
    assert state.clean
