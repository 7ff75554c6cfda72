"""A boundary without a commit: a clean state goes back to it, without a copy of its parameters; a torn one cannot."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from edriver.model.plan import SINGLE_WORKER
from edriver.worker import context
from edriver.worker.errors import PeerLostError
from edriver.worker.sampler.elastic_sampler import ElasticSampler
from edriver.worker.state.device_mark import DeviceMark
from edriver.worker.state.torch_state import TorchState
from tests.torch.bound_state import Rounds, everything, half_step, new_state, same, step


def test_an_interrupted_step_is_undone_and_draws_the_same_again() -> None:
    state = new_state(step=0, seen=[1])
    for _ in range(3):
        step(state)
        state.step += 1
        state.check_host_updates()
    before = everything(state)
    first = half_step(state)
    state.step += 1
    state.seen.append(2)
    assert not same(everything(state), before), "the forward pass changes nothing: the test is void"
    assert state.clean
    state.return_to_boundary()
    assert same(everything(state), before)
    assert all(p.grad is None for p in state.model.parameters())
    assert torch.equal(half_step(state), first)
    state.return_to_boundary()
    assert torch.equal(step(state), first), "a second loss before the next boundary"


def test_no_parameter_is_copied() -> None:
    state = new_state()
    step(state)
    state.check_host_updates()
    kept = {t.data_ptr() for t in state.model.parameters()}
    state.return_to_boundary()
    assert {t.data_ptr() for t in state.model.parameters()} == kept
    assert not state.has_commit


def set_attribute(state: TorchState) -> None:
    state.optimizer = torch.optim.SGD(state.model.parameters(), lr=0.1)


def explode_inside_the_step(state: TorchState) -> None:
    def hook(*_: Any) -> None:
        raise RuntimeError

    state.optimizer.register_step_pre_hook(hook)
    with pytest.raises(RuntimeError):
        state.optimizer.step()


def write_in_place(state: TorchState) -> None:
    with torch.no_grad():
        state.model[0].weight.mul_(1)


@pytest.mark.parametrize("tear", [step, explode_inside_the_step, write_in_place, set_attribute])
def test_what_changes_parameters_or_their_optimizer_tears(tear: Callable[[TorchState], Any]) -> None:
    state = new_state()
    step(state)
    state.check_host_updates()
    assert state.clean
    tear(state)
    assert not state.clean
    state.check_host_updates()
    assert state.clean


def test_a_torn_state_goes_back_to_its_commit_and_is_clean_there() -> None:
    state = new_state()
    step(state)
    state.commit()
    before = everything(state)
    first = step(state)
    state.check_host_updates()
    step(state)
    assert not state.clean
    state.restore()
    assert same(everything(state), before)
    assert state.clean
    assert torch.equal(half_step(state), first), "the generators go back to the commit, too"


def test_before_any_boundary_nothing_is_clean() -> None:
    assert not new_state().clean


def test_a_second_optimizer_tears_as_well() -> None:
    other = torch.nn.Linear(2, 2)
    state = new_state(other=other, other_optimizer=torch.optim.SGD(other.parameters(), lr=0.1))
    state.check_host_updates()
    state.other_optimizer.step()
    assert not state.clean


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.StepLR(o, 1),
        lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [1, 2, 3]),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, 10),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o, [torch.optim.lr_scheduler.ConstantLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)], [1]
        ),
    ],
    ids=["step", "multistep", "onecycle", "cosine", "sequential"],
)
def test_schedulers_go_back(make: Callable[[torch.optim.Optimizer], Any]) -> None:
    """A scheduler that steps each epoch does so between a boundary and the next optimizer step."""
    state = new_state()
    state.scheduler = make(state.optimizer)
    state = TorchState(state.model, state.optimizer, scheduler=state.scheduler)
    state.bind(Rounds())
    step(state)
    state.check_host_updates()
    before = copy.deepcopy((state.scheduler.state_dict(), state.optimizer.state_dict()))
    state.scheduler.step()
    assert state.clean
    state.return_to_boundary()
    assert same((state.scheduler.state_dict(), state.optimizer.state_dict()), before)
    state.scheduler.step()


def test_a_grad_scaler_goes_back_and_unscales_again() -> None:
    state = new_state(scaler=torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1))

    def scaled_half_step(fail: bool) -> None:
        loss = state.model(torch.ones(8, 4)).square().mean()
        state.scaler.scale(loss * (float("inf") if fail else 1)).backward()
        state.scaler.unscale_(state.optimizer)

    scaled_half_step(fail=False)
    state.scaler.step(state.optimizer)
    state.scaler.update()
    state.optimizer.zero_grad()
    state.check_host_updates()
    assert state.scaler.get_scale() == 8.0
    scaled_half_step(fail=False)
    assert state.clean
    state.return_to_boundary()
    scaled_half_step(fail=True)
    state.scaler.step(state.optimizer)
    state.scaler.update()
    assert state.scaler.get_scale() == 4.0
    assert state.half_done(), "a skipped step counts with the next"
    assert state.clean
    state.return_to_boundary()
    assert state.scaler.get_scale() == 8.0


def test_with_gradient_accumulation_all_batches_of_the_step_are_done_again() -> None:
    sampler = ElasticSampler(range(64), shuffle=False)
    state = new_state(sampler=sampler)

    def batch(number: int) -> None:
        half_step(state)
        if number % 4 == 3:
            state.optimizer.step()
            state.optimizer.zero_grad()
        state.sampler.record_batch(number, 4)
        state.check_host_updates()

    for number in range(6):
        batch(number)
    assert state.clean
    state.return_to_boundary()
    assert state.sampler.state_dict()["offset"] == 16
    assert not state.half_done()


def test_groups_added_after_the_boundary_go_again() -> None:
    state = new_state()
    step(state)
    state.check_host_updates()
    state.optimizer.add_param_group({"params": torch.nn.Linear(2, 2).parameters()})
    state.optimizer.param_groups[0]["lr"] = 7.0
    assert state.clean
    state.return_to_boundary()
    assert [group["lr"] for group in state.optimizer.param_groups] == [0.1]


def test_parameters_added_before_the_boundary_tear_like_others() -> None:
    state = new_state()
    head = torch.nn.Linear(2, 2)
    state.optimizer.add_param_group({"params": head.parameters()})
    state.check_host_updates()
    with torch.no_grad():
        head.weight.zero_()
    assert not state.clean


def test_frozen_layers_are_frozen_again_after_a_restore() -> None:
    state = new_state()
    state.model[0].requires_grad_(False)
    state.commit()
    state.model[0].requires_grad_(True)
    state.restore()
    assert [p.requires_grad for p in state.model[0].parameters()] == [False, False]
    assert state.model[3].weight.requires_grad


def test_buffers_that_are_replaced_or_strided_go_back() -> None:
    state = new_state()
    module = state.model[0]
    module.register_buffer("replaced", torch.zeros(3))
    module.register_buffer("strided", torch.zeros(4, 4).t()[::2])
    module.register_buffer("fleeting", torch.zeros(2), persistent=False)
    module.register_buffer("none", None)
    state.on_reset()
    step(state)
    module.replaced = torch.full((3,), 5.0)
    module.strided.fill_(6)
    module.fleeting.fill_(7)
    state.check_host_updates()
    module.replaced = torch.zeros(3)
    module.strided.fill_(0)
    module.fleeting.fill_(0)
    assert state.clean
    state.return_to_boundary()
    assert [float(b.unique()) for b in (module.replaced, module.strided, module.fleeting)] == [5, 6, 7]


def test_buffers_that_lie_side_by_side_are_copied_as_one() -> None:
    state = new_state()
    flat = torch.zeros(8)
    norm = state.model[1]
    norm.running_mean, norm.running_var = flat[:4], flat[4:]
    norm.running_var.fill_(1)
    step(state)
    state.check_host_updates()
    before = flat.clone()
    half_step(state)
    assert not torch.equal(flat, before)
    state.return_to_boundary()
    assert torch.equal(flat, before)
    assert norm.running_mean.data_ptr() == flat.data_ptr()


def test_a_state_too_large_to_keep_leads_back_to_the_commit_and_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = new_state(history=[])
    state.check_host_updates()
    assert state.clean
    state.history += range(10_000)
    for _ in range(3):
        state.check_host_updates()
    assert not state.clean
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith(
        "the state's 'history' is only kept by commits: it is larger than 4 KB; until it is smaller"
    )
    state.history = []
    state.commit()
    assert state.clean, "a commit looks again"


def test_tensors_among_the_attributes() -> None:
    state = new_state(small=torch.zeros(3), large=torch.zeros(4096))
    state.small += 1
    state.check_host_updates()
    small, large = state.small, state.large
    state.small += 1
    assert state.clean
    state.return_to_boundary()
    assert state.small is small
    assert float(small.sum()) == 3
    state.large = torch.ones(4096)
    assert state.clean, "the boundary's tensor is still what it was"
    state.return_to_boundary()
    assert float(state.large.sum()) == 0
    state.check_host_updates()
    large = state.large
    large += 1
    assert not state.clean


def test_what_is_kept_is_not_shared_with_the_script() -> None:
    state = new_state(log={"losses": [1.0]})
    state.check_host_updates()
    state.log["losses"].append(2.0)
    state.return_to_boundary()
    assert state.log == {"losses": [1.0]}
    state.log["losses"].append(3.0)
    state.return_to_boundary()
    assert state.log == {"losses": [1.0]}


def test_the_digest_is_of_the_boundary() -> None:
    one, other = new_state(step=1), new_state(step=1)
    one.check_host_updates()
    other.check_host_updates()
    other.step = 2
    assert one.digest(committed=False) == other.digest(committed=False)
    other.check_host_updates()
    assert one.digest(committed=False) != other.digest(committed=False)


def test_wrapping_the_model_anew_does_not_tear() -> None:
    state = new_state()
    step(state)
    state.check_host_updates()
    state.model = state.model
    assert state.clean


@pytest.mark.parametrize("option", [0.5, [0.5, 1.0]], ids=["a number", "a list"])
def test_an_optimizers_options_are_those_of_the_last_boundary(option: Any) -> None:
    state = new_state()
    group = state.optimizer.param_groups[0]
    group["option"] = copy.copy(option)
    state.check_host_updates()
    state.check_host_updates()
    if isinstance(option, list):
        group["option"].append(7.0)
    else:
        group["option"] = 7.0
    state.return_to_boundary()
    assert group["option"] == option
    group["option"] = "another"
    state.check_host_updates()
    group["option"] = option
    state.return_to_boundary()
    assert group["option"] == "another"


def test_a_group_that_was_added_since_is_dropped() -> None:
    state = new_state()
    state.check_host_updates()
    state.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    state.return_to_boundary()
    assert len(state.optimizer.param_groups) == 1


class Pending:
    """An event on a device that the test waits for."""

    def __init__(self, waited: list[str]) -> None:
        self._waited = waited

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self._waited.append("for the gradients")


class LostPeer(Rounds):
    abort_cause = None

    def check(self) -> None:
        raise PeerLostError("worker 2 died")

    def clipped(self, norm: float) -> None:
        pass

    def seal_broken(self, error: Exception) -> None:
        raise error


@pytest.fixture
def beside_another() -> None:
    context.current.place.enter(dataclasses.replace(SINGLE_WORKER, size=2))


def test_no_step_begins_with_gradients_that_an_abort_may_have_left(beside_another: None) -> None:
    state, waited = new_state(), list[str]()
    state._mark = DeviceMark(lambda: Pending(waited))
    step(state)
    state.check_host_updates()
    kept = everything(state)
    half_step(state)
    state.bind(LostPeer())
    with pytest.raises(PeerLostError):
        state.optimizer.step()
    assert waited == ["for the gradients"] * 2
    assert state.clean
    state.return_to_boundary()
    assert same(everything(state), kept)


def test_alone_no_step_waits_for_the_device() -> None:
    state, waited = new_state(), list[str]()
    state._mark = DeviceMark(lambda: Pending(waited))
    step(state)
    assert waited == []
