"""Checkpoints of what lies on a GPU, which is played by what copies later than it is asked to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from edriver.worker import context
from edriver.worker.checkpoints.memory.device_copies import DeviceCopies
from edriver.worker.checkpoints.memory.place import CurrentMemory, MemoryPlace
from edriver.worker.checkpoints.memory.saver import MemorySaver
from edriver.worker.checkpoints.memory.script_state import load_into, state_dict_of
from tests.torch.fake_memory import join_round, newest_whole
from tests.torch.late_copies import LateCopies


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


def _state() -> dict[str, Any]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4, momentum=0.5))
    return {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=0.1), "seen": torch.zeros(2)}


def _forward(state: dict[str, Any]) -> torch.Tensor:
    loss: torch.Tensor = state["model"](torch.randn(8, 4)).square().sum()
    state["seen"] += 1
    return loss


def _step(state: dict[str, Any]) -> None:
    torch.autograd.backward(_forward(state))
    state["optimizer"].step()
    state["optimizer"].zero_grad()


def _tensors(state: dict[str, Any]) -> list[torch.Tensor]:
    model, moments = state["model"], state["optimizer"].state.values()
    found = (*model.parameters(), *model.buffers(), *(t for of_one in moments for t in of_one.values()), state["seen"])
    return [tensor.detach().clone() for tensor in found]


@pytest.fixture
def device() -> Iterator[Device]:
    made = Device()
    yield made
    made.done.set()  # else a failing test would leave a thread that waits


def test_a_checkpoint_is_of_its_step_whatever_the_next_one_changes_and_is_committed_behind_it(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: list[int] = []

    def pin(_address: int, nbytes: int) -> None:
        pinned.append(nbytes)

    state, place = _state(), _place(tmp_path, 1)
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
    assert device.late, "what the optimizer alone changes is not copied yet"
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
    again = _state()
    _step(again)
    loader = MemorySaver(_place(tmp_path, 2), HashStore(), 1)
    target = state_dict_of(again)
    loader.load(target)
    load_into(again, target)
    assert all(map(torch.equal, _tensors(again), before))
