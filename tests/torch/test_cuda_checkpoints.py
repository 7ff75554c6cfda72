"""Checkpoints in memory of what lies on a GPU: the training goes on while they are copied."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from edriver.worker import context
from edriver.worker.checkpoints.memory.place import CurrentMemory, MemoryPlace
from edriver.worker.checkpoints.memory.saver import MemorySaver
from edriver.worker.checkpoints.memory.script_state import load_into, state_dict_of, target_of
from tests import needs
from tests.torch.fake_memory import join_round, newest_whole

pytestmark = pytest.mark.needs(needs.GPU)

WIDTH = 2048


def _place(folder: Path, n: int) -> MemoryPlace:
    join_round(folder, 0, 1, n)
    place = context.current.part(CurrentMemory).place()
    assert place is not None
    return place


def _state() -> dict[str, Any]:
    torch.manual_seed(1)
    layers = [module for _ in range(8) for module in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH))]
    model = torch.nn.Sequential(*layers).cuda()
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01)}


def _step(state: dict[str, Any], number: int) -> None:
    generator = torch.Generator("cuda").manual_seed(number)
    loss = state["model"](torch.randn(64, WIDTH, device="cuda", generator=generator)).square().mean()
    state["optimizer"].zero_grad()
    torch.autograd.backward(loss)
    state["optimizer"].step()


def _tensors(state: dict[str, Any]) -> list[torch.Tensor]:
    model, moments = state["model"], state["optimizer"].state.values()
    found = (*model.parameters(), *model.buffers(), *(t for of_one in moments for t in of_one.values()))
    return [tensor.detach().cpu().clone() for tensor in found]


def test_a_checkpoint_is_of_its_step_whatever_the_next_steps_change(tmp_path: Path) -> None:
    state = _state()
    saver = MemorySaver(_place(tmp_path, 1), HashStore(), 1)
    for step in range(1, 4):
        _step(state, step)
        saver.watch(state)
        if step < 3:  # the third is into warmed memory
            assert saver.save(step, lambda: state_dict_of(state))
            saver.wait()
    before = _tensors(state)
    torch.cuda.synchronize()
    began = time.perf_counter()
    assert saver.save(3, lambda: state_dict_of(state))
    in_loop = time.perf_counter() - began
    for step in range(4, 10):
        _step(state, step)
    saver.wait()
    print(f"in the loop {in_loop:.4f} s, for {sum(t.nbytes for t in before) / 2**30:.2f} GiB")

    whole = newest_whole(tmp_path)
    assert whole is not None
    assert whole.checkpoint.step == 3
    again = _state()
    _step(again, 1)
    loader = MemorySaver(_place(tmp_path, 2), HashStore(), 1)
    target = loader.load(partial(target_of, again))
    load_into(again, target)
    assert all(map(torch.equal, _tensors(again), before))
    for step in range(4, 10):
        _step(again, step)
    assert all(map(torch.equal, _tensors(again), _tensors(state))), "training goes on to the same bits"
