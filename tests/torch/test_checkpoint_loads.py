"""What a load of a checkpoint changes: optimizers of all kinds, a plain script's, values that the script has set."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import Optimizer

from edriver.checkpoint_folder.folder import CheckpointFolder
from edriver.worker.state.torch_state import TorchState
from tests.torch.checkpointed_states import new_state, train
from tests.torch.fingerprint import fingerprint

pytestmark = pytest.mark.usefixtures("written_at_once")

PLAIN = """
import sys

sys.modules["edriver.worker"] = None  # it cannot be imported
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.AdamW([{"params": model[0].parameters()}, {"params": model[3].parameters(), "lr": 0.2}])
weights, moments = get_state_dict(model, optimizer)
saved = {"model": weights, "optimizer": moments}
dcp.load(saved, checkpoint_id=sys.argv[1])
set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
moment = optimizer.state[model[0].weight]["exp_avg"]
print(model[0].weight.sum().item(), moment.sum().item(), optimizer.param_groups[1]["lr"])
"""


def test_a_plain_script_loads_model_and_optimizer(tmp_path: Path) -> None:
    state = new_state(tmp_path / "c")
    train(state, 3)
    folder = CheckpointFolder(str(tmp_path / "c"))
    newest = folder.newest()
    assert newest is not None
    command = [sys.executable, "-W", "ignore", "-c", PLAIN, folder.place(newest.name)]
    printed = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True).stdout
    weight = state.model[0].weight
    moment = state.optimizer.state[weight]["exp_avg"]
    rate = state.optimizer.param_groups[1]["lr"]
    assert printed.split() == [str(weight.sum().item()), str(moment.sum().item()), str(rate)]


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
    "tensor-lr": lambda params: torch.optim.Adam(params, lr=torch.tensor(0.1), foreach=False),
    "lbfgs": lambda params: torch.optim.LBFGS(params, lr=0.1),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers_of_other_kinds(tmp_path: Path, kind: str) -> None:
    def made(seed: int) -> TorchState:
        torch.manual_seed(seed)
        model = torch.nn.Linear(4, 1)
        return TorchState(model, OPTIMIZERS[kind](model.parameters()), checkpoint=tmp_path, every=1)

    def closure() -> torch.Tensor:
        old.optimizer.zero_grad()
        loss = torch.as_tensor(old.model(torch.ones(2, 4)).square().sum())
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    old = made(1)
    for _ in range(2):
        old.optimizer.step(closure)
        old.commit()
    fresh = made(2)
    fresh.load_checkpoint()
    assert fingerprint(fresh) == fingerprint(old)


def test_an_optimizer_of_two_models_and_tied_weights(tmp_path: Path) -> None:
    def made(seed: int) -> TorchState:
        torch.manual_seed(seed)
        one, two = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        two.weight = one.weight
        optimizer = torch.optim.SGD({p: None for m in (one, two) for p in m.parameters()}, lr=0.1, momentum=0.5)
        return TorchState(one, optimizer, two=two, checkpoint=tmp_path, every=1)

    old = made(1)
    old.two(old.model(torch.ones(1, 3))).sum().backward()
    old.optimizer.step()
    old.commit()
    fresh = made(2)
    fresh.load_checkpoint()
    assert fingerprint(fresh) == fingerprint(old)
    assert fresh.two.weight is fresh.model.weight


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "edriver.worker"]


def test_a_checkpoint_that_brings_other_hyperparameters_names_them_in_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(new_state(tmp_path), 3)  # StepLR has halved and more what the script has set
    unchanged = new_state(tmp_path)
    unchanged.load_checkpoint()
    assert said(caplog) == []
    edited = new_state(tmp_path)
    first, second = edited.optimizer.param_groups
    first["weight_decay"] = 0.5
    second["initial_lr"] = second["lr"] = 0.7
    edited.scheduler.step_size = 5
    edited.load_checkpoint()
    (line,) = said(caplog)
    assert (
        "the checkpoint of step 3 has values that differ from those that the script has set, and replaces them: "
        in line
    )
    assert "optimizer group 0 weight_decay 0.01 (the script: 0.5)" in line
    assert "optimizer group 1 lr 0.2 (the script: 0.7)" in line
    assert "scheduler step_size 2 (the script: 5)" in line
    assert first["weight_decay"] == 0.01


def test_an_lr_that_no_scheduler_of_the_state_has_changed_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def bare(lr: float) -> TorchState:
        model = torch.nn.Linear(2, 1)
        return TorchState(model, torch.optim.SGD(model.parameters(), lr=lr), checkpoint=tmp_path, every=1)

    bare(0.1).commit()
    bare(0.02).load_checkpoint()
    (line,) = said(caplog)
    assert "optimizer lr 0.1 (the script: 0.02)" in line


def test_a_cycle_of_lr_and_momentum_is_no_difference(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def cycling(total: int) -> TorchState:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=total)
        return TorchState(model, optimizer, scheduler=scheduler, checkpoint=tmp_path, every=1)

    old = cycling(10)
    for _ in range(4):
        old.optimizer.step()
        old.scheduler.step()
        old.commit()
    cycling(10).load_checkpoint()
    assert said(caplog) == []
    cycling(20).load_checkpoint()
    (line,) = said(caplog)
    assert "scheduler total_steps 10 (the script: 20)" in line


def test_a_function_that_has_nothing_left_to_do_after_a_load_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(new_state(tmp_path), 2)
    complete, open_end, fresh = new_state(tmp_path), new_state(tmp_path), new_state(tmp_path / "other")
    for state in (complete, open_end):
        state.load_checkpoint()
    train(open_end, 1)
    for state in (open_end, fresh):
        state.function_returned()
    assert said(caplog) == []
    complete.function_returned()
    (line,) = said(caplog)
    assert (
        "there was nothing left to do: the training function returned without a step, from the checkpoint of step 2"
        in line
    )
