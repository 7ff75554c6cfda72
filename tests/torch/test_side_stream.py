"""Commits that go on beside the computation. A GPU is played by what it does later than it is asked to."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edriver.worker.copies.side_stream import SideCopies
from edriver.worker.copies.snapshot import belongs_to
from edriver.worker.state.torch_state import TorchState
from tests.torch.bound_state import Rounds
from tests.torch.late_copies import LateCopies


class LateState(TorchState):
    def _side(self) -> SideCopies:
        return LateCopies()


def new_state() -> TorchState:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4, momentum=0.5))
    state = LateState(model, torch.optim.Adam(model.parameters(), lr=0.1), seen=torch.zeros(2), step=0)
    state.bind(Rounds())
    return state


def forward(state: TorchState) -> torch.Tensor:
    loss: torch.Tensor = state.model(torch.randn(8, 4)).square().sum()
    state.seen += 1
    return loss


def step(state: TorchState) -> None:
    torch.autograd.backward(forward(state))
    state.optimizer.step()
    state.optimizer.zero_grad()


def tensors(state: TorchState) -> list[torch.Tensor]:
    moments = [t for of_one in state.optimizer.state.values() for t in of_one.values()]
    return [t.detach().clone() for t in (*state.model.parameters(), *state.model.buffers(), *moments, state.seen)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("steps", [1, 3])
def test_a_commit_is_of_its_boundary_whatever_the_next_steps_change(steps: int) -> None:
    state = new_state()
    for _ in range(steps):
        step(state)
        state.commit()
    before = tensors(state)
    forward(state)
    assert not torch.equal(state.seen, before[-1])
    step(state)
    state.restore()
    assert same(tensors(state), before)


def test_a_commit_that_nothing_has_waited_for_can_be_gone_back_to() -> None:
    state = new_state()
    step(state)
    state.commit()
    before = tensors(state)
    forward(state)
    state.restore()
    assert same(tensors(state), before)


def test_what_arrives_does_not_get_into_a_commit_that_is_under_way() -> None:
    state, other = new_state(), new_state()
    step(state)
    step(other)
    step(other)
    state.commit()
    before = tensors(state)
    state._load(other._capture())
    assert same(tensors(state), tensors(other))
    state.restore()
    assert same(tensors(state), before)


def test_buffers_are_made_once() -> None:
    state = new_state()
    step(state)
    state.commit()
    first: Any = [id(buffer) for buffer in state._buffers._buffers]
    step(state)
    state.commit()
    assert [id(buffer) for buffer in state._buffers._buffers] == first


def test_a_tensor_without_a_place_in_the_optimizer_returns_to_its_device() -> None:
    state = new_state()
    step(state)
    tree = state._capture()
    moment = next(iter(tree["optimizer"][1]["state"].values()))["exp_avg"]
    belongs_to(moment, "meta")
    state.optimizer.state.clear()
    state._load(tree)
    restored = next(iter(state.optimizer.state.values()))
    assert restored["exp_avg"].is_meta
    assert not restored["exp_avg_sq"].is_meta
