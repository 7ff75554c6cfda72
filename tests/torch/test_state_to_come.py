"""What an optimizer will keep is known before its first step, without a trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import Optimizer, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from edriver.worker.state.handlers import OptimizerHandler
from edriver.worker.state.state_to_come import kept_dtypes

OPTIMIZERS: list[Any] = [
    pytest.param("Adadelta", {}, id="Adadelta"),
    pytest.param("Adagrad", {}, id="Adagrad"),
    pytest.param("Adam", {}, id="Adam"),
    pytest.param("Adam", {"amsgrad": True}, id="Adam-amsgrad"),
    pytest.param("Adam", {"fused": True}, id="Adam-fused"),
    pytest.param("AdamW", {"foreach": True}, id="AdamW-foreach"),
    pytest.param("Adamax", {}, id="Adamax"),
    pytest.param("ASGD", {}, id="ASGD"),
    pytest.param("NAdam", {}, id="NAdam"),
    pytest.param("RAdam", {}, id="RAdam"),
    pytest.param("RMSprop", {"momentum": 0.9, "centered": True}, id="RMSprop"),
    pytest.param("Rprop", {}, id="Rprop"),
    pytest.param("SGD", {}, id="SGD"),
    pytest.param("SGD", {"momentum": 0.9}, id="SGD-momentum"),
]


def met(*_: Any) -> None:
    raise AssertionError("a hook of the script's has been called")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_it_is_what_there_is_after_a_step(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    parameter = torch.nn.Parameter(torch.ones(3, 5, dtype=dtype))
    optimizer: Optimizer = getattr(torch.optim, name)([parameter], lr=0.1, **options)
    expected = kept_dtypes(optimizer, optimizer.param_groups[0], dtype)
    assert torch.equal(parameter, torch.ones_like(parameter))
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    kept = [v.dtype for v in optimizer.state[parameter].values() if torch.is_tensor(v) and v.shape == parameter.shape]
    assert expected == kept


def test_options_are_those_of_the_group() -> None:
    one, two = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    groups: list[dict[str, Any]] = [{"params": [one], "momentum": 0.9}, {"params": [two]}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    found = [kept_dtypes(optimizer, group, torch.float32) for group in optimizer.param_groups]
    assert found == [[torch.float32], []]


def test_one_for_a_cuda_graph_is_known_without_a_gpu() -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))], capturable=True)
    assert len(kept_dtypes(optimizer, optimizer.param_groups[0], torch.float32)) == 2
    assert optimizer.param_groups[0]["capturable"]


def test_the_script_does_not_notice() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([parameter], lr=torch.tensor(0.5))
    scheduler = lr_scheduler.StepLR(optimizer, step_size=1)
    optimizer.register_step_pre_hook(met)
    optimizer.register_step_post_hook(met)
    handle = register_optimizer_step_pre_hook(met)
    before = optimizer.state_dict(), scheduler.state_dict()
    try:
        with torch.inference_mode(), torch.device("meta"):
            assert len(kept_dtypes(optimizer, optimizer.param_groups[0], torch.float32)) == 2
    finally:
        handle.remove()
    assert (optimizer.state_dict(), scheduler.state_dict()) == before
    assert not optimizer.state
    assert parameter.grad is None


class Own(torch.optim.SGD):
    """A script's, which may do anything in its step."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        Own.steps += 1
        return super().step(closure)


def test_what_a_script_has_written_is_not_called() -> None:
    optimizer = Own([torch.nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
    assert kept_dtypes(optimizer, optimizer.param_groups[0], torch.float32) == []
    assert Own.steps == 0


@pytest.mark.parametrize("name", ["LBFGS", "SparseAdam"])
def test_of_those_that_need_more_than_a_gradient_nothing_is_known(name: str) -> None:
    optimizer = getattr(torch.optim, name)([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    assert kept_dtypes(optimizer, optimizer.param_groups[0], torch.float32) == []


def test_nothing_is_made_ready_for_a_single_number() -> None:
    """The count of its steps has its shape and type, and belongs elsewhere."""
    number, matrix = torch.nn.Parameter(torch.tensor(1.0)), torch.nn.Parameter(torch.ones(2, 3))
    made = OptimizerHandler(torch.optim.Adam([number, matrix])).make_ready()
    assert [tensor.shape for tensor in made] == [matrix.shape] * 2
