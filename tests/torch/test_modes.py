"""What a training function computes in goes back with the boundary: modes of the process and of the state's modules."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from edriver.worker.backend import process_modes
from edriver.worker.state.modes import ALWAYS_NOTED, SHARE, ModelModes, Modes
from edriver.worker.state.object_state import ObjectState
from edriver.worker.state.torch_state import TorchState
from edriver.worker.sync import sync
from tests.torch.bound_state import Rounds, everything, new_state, same, step
from tests.torch.synced_states import sent


@pytest.fixture(autouse=True)
def _modes_of_this_process() -> Iterator[None]:
    before = process_modes.current()
    yield
    process_modes.enter(before)


class LostError(Exception):
    """What leads out of a training function."""


def called(state: TorchState | ObjectState, function: Callable[[Any], object]) -> None:
    """Call a training function, which a loss or a resize ends."""
    with contextlib.suppress(LostError), state.computes_in.in_function():
        function(state)
        raise LostError


def returned(state: TorchState) -> None:
    """What follows a loss: the state goes back to its boundary, and the function is to be called again."""
    assert state.clean
    state.return_to_boundary()
    state.computes_in.go_back()


def entered(dtype: torch.dtype = torch.float32, **objects: Any) -> TorchState:
    state = new_state(**objects)
    state.model.to(dtype)
    state.computes_in.begin()
    state.keep_small()
    return state


def passed_a_step(state: TorchState) -> None:
    step(state)
    state.check_host_updates()


def flags(state: TorchState) -> list[bool]:
    return [part.training for part in state.model.modules()]


def evaluate(state: TorchState) -> None:
    state.model.eval()


def evaluate_a_part(state: TorchState) -> None:
    state.model[1].eval()


def gradients_off(state: TorchState) -> None:
    torch.set_grad_enabled(False)


def doubles(state: TorchState) -> None:
    torch.set_default_dtype(torch.float64)


def without_memory(state: TorchState) -> None:
    torch.set_default_device("meta")


def autocast_on(state: TorchState) -> None:
    torch.set_autocast_enabled("cpu", True)


def deterministic(state: TorchState) -> None:
    torch.use_deterministic_algorithms(True)


CHANGES = [evaluate, evaluate_a_part, gradients_off, doubles, without_memory, autocast_on, deterministic]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("steps", [0, 1])
def test_what_a_validation_changes_is_undone_by_a_loss(change: Callable[[TorchState], None], steps: int) -> None:
    state = entered()
    before = process_modes.current()

    def train(state: TorchState) -> None:
        for _ in range(steps):
            passed_a_step(state)
        change(state)

    called(state, train)
    returned(state)
    assert process_modes.current() == before
    assert all(flags(state))


@pytest.mark.parametrize("change", CHANGES)
def test_a_resize_at_a_boundary_amid_a_validation_leads_back_to_what_training_computes_in(
    change: Callable[[TorchState], None],
) -> None:
    state = entered()
    before = process_modes.current()

    def train(state: TorchState) -> None:
        passed_a_step(state)
        change(state)
        state.check_host_updates()

    called(state, train)
    state.computes_in.go_back()  # all stop at a boundary: nothing else goes back
    assert process_modes.current() == before
    assert all(flags(state))


@pytest.mark.parametrize("change", [evaluate_a_part, doubles, deterministic])
def test_what_training_changes_for_good_is_kept_and_reaches_newcomers(change: Callable[[TorchState], None]) -> None:
    dtype = torch.float64 if change is doubles else torch.float32
    state, newcomer = entered(dtype), entered(dtype)

    def train(state: TorchState) -> None:
        change(state)
        passed_a_step(state)

    called(state, train)
    changed, parts = process_modes.current(), flags(state)
    evaluate(state)
    gradients_off(state)
    returned(state)
    assert process_modes.current() == changed
    assert flags(state) == parts
    sent = state._capture(), state.computes_in.sent()
    called(state, evaluate)
    process_modes.enter(changed._replace(dtype=torch.float32, deterministic=(False, False)))
    newcomer._load(sent[0])
    newcomer.computes_in.take(sent[1])
    assert process_modes.current() == changed
    assert flags(newcomer) == parts


@pytest.mark.parametrize(
    "around",
    [torch.no_grad, lambda: torch.autocast("cpu"), lambda: torch.device("meta"), torch.inference_mode],
    ids=["no_grad", "autocast", "device", "inference_mode"],
)
def test_a_context_manager_around_a_boundary_does_not_reach_the_next_call(around: Callable[[], Any]) -> None:
    state = ObjectState(step=0)  # of which it is not known whether a boundary ends a step
    state.bind(Rounds())
    state.computes_in.begin()
    before = process_modes.current()

    def train(state: ObjectState) -> None:
        with around():
            state.check_host_updates()
            raise LostError

    called(state, train)
    state.return_to_boundary()
    state.computes_in.go_back()
    assert process_modes.current() == before
    assert not torch.is_inference_mode_enabled()


def test_a_commit_has_the_modes_of_its_step_and_not_those_of_a_later_validation() -> None:
    state = entered()

    def train(state: TorchState) -> None:
        step(state)
        state.commit()
        passed_a_step(state)
        evaluate(state)
        gradients_off(state)
        state.commit()  # amid the validation
        torch.set_grad_enabled(True)
        step(state)

    called(state, train)
    assert not state.clean
    gradients_off(state)
    state.restore()
    assert torch.is_grad_enabled()
    assert all(flags(state))


def test_an_inference_mode_that_was_left_on_does_not_reach_the_next_call() -> None:
    state = entered()
    mode = torch.inference_mode()
    called(state, lambda _: mode.__enter__())
    try:
        returned(state)
        with state.computes_in.in_function():
            step(state)
    finally:
        mode.__exit__(None, None, None)


def test_what_a_script_warms_up_with_leaves_no_modes() -> None:
    state = new_state()
    before = process_modes.current()
    with state.rehearsal():
        evaluate(state)
        gradients_off(state)
    assert process_modes.current() == before
    assert all(flags(state))


def test_modules_that_the_function_adds_go_back_from_its_first_boundary_on() -> None:
    state = entered()

    def train(state: TorchState) -> None:
        state.model.append(torch.nn.Dropout())
        passed_a_step(state)
        state.first_boundary()
        evaluate(state)

    called(state, train)
    returned(state)
    assert all(flags(state))


def test_modes_are_told_as_text() -> None:
    state = entered(torch.float64, other=torch.nn.Linear(1, 1))
    assert state.computes_in.text() == "gradients on"
    state.other.eval()
    evaluate_a_part(state)
    doubles(state)
    passed_a_step(state)
    assert state.computes_in.text() == "gradients on, default dtype float64; in eval mode: model.1, other"


def test_a_large_model_is_looked_at_now_and_then_and_at_once_if_all_of_it_changes() -> None:
    model = torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(ALWAYS_NOTED)))
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0  # each look takes a second
        return now[0]

    modes = Modes(clock)
    noted = ModelModes(model)
    modes.watch({"model": noted})
    modes.begin()
    model[3].eval()
    modes.passed()
    assert noted.evaluating() == []
    modes.passed(commits=True)
    assert noted.evaluating() == ["3"]
    model[4].eval()
    now[0] += 1.1 / SHARE
    modes.passed()
    assert noted.evaluating() == ["3", "4"]
    model.eval()
    modes.passed()
    assert len(noted.evaluating()) == len(model) + 1


@pytest.mark.parametrize("change", [gradients_off, doubles, without_memory, autocast_on])
def test_what_edriver_copies_and_sends_is_the_same_in_all_modes(change: Callable[[TorchState], None]) -> None:
    state = entered(note=torch.ones(3), large=torch.ones(5000))
    passed_a_step(state)
    before = everything(state)
    change(state)
    state.commit()
    stream, record = sent(state._capture())
    tree = sync._unpacked(stream, record)
    with torch.no_grad():
        state.model[0].weight.add_(1)
        state.note.add_(1)
    state.restore()
    process_modes.enter(process_modes.current()._replace(device=None))
    assert same(everything(state), before)
    assert torch.equal(tree["model"][1]["state"]["0.weight"], state.model[0].weight)


def test_a_commit_and_a_boundary_in_inference_mode_hinder_no_later_ones() -> None:
    state = entered(note=torch.ones(3), large=torch.ones(5000))
    with torch.inference_mode():
        state.commit()
        state.note, state.large = torch.zeros(3), torch.zeros(5000)
        state.check_host_updates()
    state.note, state.large = torch.ones(3), torch.ones(5000)
    passed_a_step(state)
    state.commit()
    before = everything(state)
    step(state)
    state.restore()
    assert same(everything(state), before)


def test_a_tensor_that_was_made_in_inference_mode_is_kept_by_commits() -> None:
    state = entered(large=torch.zeros(1))
    with torch.inference_mode():
        state.large = torch.ones(5000)
    passed_a_step(state)
    assert not state.clean
    state.commit()
    state.large = torch.zeros(5000)
    state.restore()
    assert state.large.sum() == 5000
