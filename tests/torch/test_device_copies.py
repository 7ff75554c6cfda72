"""Checkpoints of what lies on a GPU, which is played by what copies later than it is asked to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from edriver.worker import context
from edriver.worker.checkpoints.memory.device_copies import DeviceCopies
from edriver.worker.checkpoints.memory.place import CurrentMemory, MemoryPlace
from edriver.worker.checkpoints.memory.saver import MemorySaver
from edriver.worker.checkpoints.memory.script_state import load_into, optimizers_of, state_dict_of, target_of
from tests.torch.fake_memory import join_round, newest_whole
from tests.torch.late_copies import LateCopies
from tests.torch.optimizer_container import OptimizerContainer


class Device(LateCopies):
    """Is done when a test says so: until then no shard may be committed."""

    def __init__(self) -> None:
        super().__init__()
        self.done = threading.Event()

    def completion(self) -> Callable[[], None]:
        def complete() -> None:
            self.done.wait()
            self.hold()

        return complete


def _place(folder: Path, n: int) -> MemoryPlace:
    join_round(folder, 0, 1, n)
    place = context.current.part(CurrentMemory).place()
    assert place is not None
    return place


def _adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.1)


def _container(model: torch.nn.Module) -> torch.optim.Optimizer:
    return OptimizerContainer(model, lr=0.1)


def _state(optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer]) -> dict[str, Any]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4, momentum=0.5))
    return {"model": model, "optimizer": optimizer(model), "seen": torch.zeros(2)}


def _forward(state: dict[str, Any]) -> torch.Tensor:
    loss: torch.Tensor = state["model"](torch.randn(8, 4)).square().sum()
    state["seen"] += 1
    return loss


def _step(state: dict[str, Any]) -> None:
    torch.autograd.backward(_forward(state))
    state["optimizer"].step()
    state["optimizer"].zero_grad()


def _changed_by_optimizers(state: dict[str, Any]) -> list[torch.Tensor]:
    moments = [of_one for each in optimizers_of(state) for of_one in each.state.values()]
    return [*state["model"].parameters(), *(t for of_one in moments for t in of_one.values())]


def _tensors(state: dict[str, Any]) -> list[torch.Tensor]:
    found = (*_changed_by_optimizers(state), *state["model"].buffers(), state["seen"])
    return [tensor.detach().clone() for tensor in found]


@pytest.fixture
def device() -> Iterator[Device]:
    made = Device()
    yield made
    made.done.set()  # else a failing test would leave a thread that waits


@pytest.mark.parametrize("optimizer", [_adam, _container])
def test_a_checkpoint_is_of_its_step_whatever_the_next_one_changes_and_is_committed_behind_it(
    tmp_path: Path,
    device: Device,
    monkeypatch: pytest.MonkeyPatch,
    optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer],
) -> None:
    pinned: list[int] = []

    def pin(_address: int, nbytes: int) -> None:
        pinned.append(nbytes)

    state, place = _state(optimizer), _place(tmp_path, 1)
    commit, was_done = place.memory.commit, list[bool]()

    def noted(*arguments: Any) -> None:
        was_done.append(device.done.is_set())
        commit(*arguments)

    monkeypatch.setattr(place.memory, "commit", noted)
    saver = MemorySaver(place, HashStore(), 1, device=DeviceCopies(device, pin))
    _step(state)
    before = _tensors(state)
    saver.watch(state)
    assert saver.save(1, lambda: state_dict_of(state))
    theirs = [tensor for tensor in _changed_by_optimizers(state) if device.covers(tensor)]
    assert len(device.late) == len(theirs), "what the optimizer alone changes is not copied yet"
    _forward(state)  # changes the running means, and `seen`
    _step(state)
    assert not device.late, "the optimizer has waited for it"
    device.done.set()
    saver.wait()
    assert was_done == [True]
    assert len(pinned) == 1

    whole = newest_whole(tmp_path)
    assert whole is not None
    assert whole.checkpoint.step == 1
    again = _state(optimizer)
    _step(again)
    loader = MemorySaver(_place(tmp_path, 2), HashStore(), 1)
    target = loader.load(partial(target_of, again))
    load_into(again, target)
    assert all(map(torch.equal, _tensors(again), before))
