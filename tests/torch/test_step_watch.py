"""A commit in the middle of a step does not count."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edriver.worker.errors import PeerLostError
from edriver.worker.state.torch_state import TorchState
from tests.torch import bound_state


class Rounds(bound_state.Rounds):
    """Counts boundaries."""

    def __init__(self) -> None:
        self.counted = 0
        self.checked = 0

    def boundary(self, committed: bool) -> None:
        self.counted += 1

    def check(self) -> None:
        self.checked += 1
        if self.checked == 100:
            raise PeerLostError("lost")


def job() -> tuple[torch.nn.Module, torch.optim.Optimizer, TorchState, Rounds]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = TorchState(model, optimizer, batches=0)
    rounds = Rounds()
    state.bind(rounds)
    return model, optimizer, state, rounds


def test_a_boundary_counts_when_the_optimizer_has_stepped() -> None:
    model, optimizer, state, rounds = job()
    for batch in range(1, 9):
        model(torch.ones(2, 3)).sum().backward()
        if batch % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        state.batches += 1
        state.commit() if batch < 5 else state.check_host_updates()
    assert (rounds.counted, rounds.checked) == (2, 6)
    state.restore()
    assert state.batches == 4


def test_restored_gradients_are_gone_and_no_longer_pending() -> None:
    model, _, state, rounds = job()
    state.commit()
    model(torch.ones(2, 3)).sum().backward()
    assert state.half_done()
    state.restore()
    assert not state.half_done()
    assert all(p.grad is None for p in model.parameters())
    state.commit()
    assert rounds.counted == 2


def test_two_optimizers_that_take_turns_are_no_half_step() -> None:
    """As in a GAN: the generator's backward pass also leaves gradients in the discriminator."""
    one, two = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
    first, second = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (one, two))
    state = TorchState(one, first, other=two, other_optimizer=second)
    two(one(torch.ones(1, 3)).detach()).sum().backward()
    second.step()
    two(one(torch.ones(1, 3))).sum().backward()
    first.step()
    assert not state.half_done()


def test_gradients_wait_for_their_own_optimizer() -> None:
    """One optimizer steps with every batch, one with every second: its gradients are part of no boundary in between."""
    one, two = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
    fast, slow = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (one, two))
    state = TorchState(one, fast, other=two, slow=slow)
    rounds = Rounds()
    state.bind(rounds)
    counted = []
    for batch in range(1, 5):
        two(one(torch.ones(1, 3))).sum().backward()
        fast.step()
        fast.zero_grad()
        if batch % 2 == 0:
            slow.step()
            slow.zero_grad()
        state.check_host_updates()
        counted.append(rounds.counted)
    assert counted == [0, 1, 1, 2]


def test_what_one_backward_pass_leaves_in_the_other_optimizer_does_not_last_beyond_the_boundary() -> None:
    one, two = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
    first, second = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (one, two))
    state = TorchState(one, first, other=two, other_optimizer=second)
    rounds = Rounds()
    state.bind(rounds)
    for _ in range(2):
        two(one(torch.ones(1, 3)).detach()).sum().backward()
        second.step()
        two(one(torch.ones(1, 3))).sum().backward()
        first.step()
        state.check_host_updates()
        state.commit()
    assert rounds.counted == 4


def test_gradients_after_the_only_optimizers_step_wait_for_its_next() -> None:
    model, optimizer, state, _ = job()
    for _ in range(2):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    model(torch.ones(2, 3)).sum().backward()
    assert state.half_done()


def test_a_new_optimizer_is_watched_instead_of_the_old_one() -> None:
    model, optimizer, state, _ = job()
    state.optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert state.half_done()
    state.optimizer.step()
    assert not state.half_done()


def test_without_an_optimizer_every_boundary_counts() -> None:
    model = torch.nn.Linear(3, 1)
    state = TorchState(model)
    model(torch.ones(1, 3)).sum().backward()
    assert not state.half_done()


def test_a_frozen_witness_is_replaced() -> None:
    """As in fine-tuning in stages: the layers that were watched stop learning."""
    model, _, state, _ = job()
    for parameter in next(model.children()).parameters():
        parameter.requires_grad_(False)
    state.check_host_updates()
    model(torch.ones(2, 3)).sum().backward()
    assert state.half_done()


def test_parameters_that_are_added_later_are_watched() -> None:
    _, optimizer, state, _ = job()
    head = torch.nn.Linear(2, 1)
    optimizer.add_param_group({"params": head.parameters()})
    state.check_host_updates()
    head(torch.ones(1, 2)).sum().backward()
    assert state.half_done()


@pytest.mark.parametrize("by_name", [False, True], ids=["positional", "by-name"])
def test_a_step_with_a_closure_begins_when_the_closure_has_first_returned(by_name: bool) -> None:
    model, optimizer, state, _ = job()
    state.check_host_updates()
    calls = []

    def closure() -> float:
        calls.append(state.clean)
        loss: torch.Tensor = model(torch.ones(2, 3)).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    optimizer.step(closure=closure) if by_name else optimizer.step(closure)
    assert calls == [True]
    assert not state.clean
    assert not state.half_done()


def test_a_closure_that_raises_has_not_begun_the_step() -> None:
    _, optimizer, state, _ = job()
    state.check_host_updates()

    def closure() -> float:
        raise PeerLostError("lost")

    with pytest.raises(PeerLostError):
        optimizer.step(closure)
    assert state.clean


def test_a_closure_that_is_called_again_finds_a_state_that_is_torn() -> None:
    model = torch.nn.Linear(3, 1)
    state = TorchState(model, torch.optim.LBFGS(model.parameters(), max_iter=3))
    state.bind(Rounds())
    state.check_host_updates()
    clean = []

    def closure() -> torch.Tensor:
        clean.append(state.clean)
        state.optimizer.zero_grad()
        loss: torch.Tensor = model(torch.ones(2, 3)).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    state.optimizer.step(closure)
    assert clean[:2] == [True, False]


class Averaging(torch.optim.SGD):
    """Does more in a step than its parent does."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


@pytest.mark.parametrize("with_closure", [False, True])
def test_a_step_that_calls_its_parents_step_is_one(with_closure: bool) -> None:
    """torch calls hooks for both where an optimizer of the parent's class has been made, too."""
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    model = torch.nn.Linear(3, 4)
    optimizer = Averaging(model.parameters(), lr=0.1)
    hooks: list[int] = []
    optimizer.register_step_pre_hook(lambda *_: hooks.append(1))
    state = TorchState(model, optimizer)
    state.bind(Rounds())

    def closure() -> torch.Tensor:
        loss: torch.Tensor = model(torch.ones(2, 3)).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    if with_closure:
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()
    assert len(hooks) == 2, "torch calls them for both"
    assert state._steps.begun == 1
    state.check_host_updates()
    assert state.clean
