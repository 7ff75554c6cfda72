"""A commit in the middle of a step does not count."""

from __future__ import annotations

import torch

from edriver.worker.errors import PeerLostError
from edriver.worker.state.torch_state import TorchState


class Rounds:
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
