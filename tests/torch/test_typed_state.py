"""A state whose attributes are declared. The type checker reads this file, too (make types): where it is to find
something, the comment that expects it would be refused if it did not.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, assert_type

import pytest
import torch

import edriver

ROOT = Path(__file__).parents[2]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)


class Training(edriver.TypedState):
    from_rank_0 = ("best",)
    limit: ClassVar[int] = 3
    model: Net
    optimizer: torch.optim.SGD
    epoch: int = 0
    best: float = 1e9
    seen: list[int] = dataclasses.field(default_factory=list)


class WithAverage(Training):
    average: Net
    epoch: int = 5


def training() -> Training:
    model = Net()
    return Training(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


@edriver.run
def train(state: Training, steps: int) -> int:
    for _ in range(steps):
        state.epoch += 1
        state.commit()
    return state.epoch


def test_its_attributes_are_typed_saved_and_restored() -> None:
    state = training()
    assert_type(state.model, Net)
    assert_type(state.optimizer, torch.optim.SGD)
    assert_type(state.epoch, int)
    assert isinstance(state, edriver.TorchState)
    assert (state.epoch, state.best, state.seen, state.limit) == (0, 1e9, [], 3)
    state.commit()
    with torch.no_grad():
        state.model.layer.weight.fill_(7.0)
    state.epoch, kept = 4, state.seen
    kept.append(1)
    state.restore()
    assert (state.epoch, state.seen) == (0, [])
    assert not (state.model.layer.weight == 7.0).any()


def test_it_goes_through_a_run() -> None:
    """In a process of its own: the process group stays for what the script does afterwards."""
    program = f"from {__name__} import train, training; print(train(training(), 3))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    if TYPE_CHECKING:
        assert_type(train(training(), 3), "int | None")


def test_a_default_is_each_ones_own() -> None:
    first, second = training(), training()
    first.seen.append(1)
    assert second.seen == []


def test_a_class_of_it_adds_to_it() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = WithAverage(model=model, optimizer=optimizer, average=Net())
    assert_type(state.average, Net)
    assert (state.epoch, training().epoch) == (5, 0)


def test_what_is_not_declared_is_refused() -> None:
    state = training()
    with pytest.raises(AttributeError, match="check_host_updatez"):
        state.check_host_updatez()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="epcoh"):
        state.epcoh += 1  # type: ignore[attr-defined]
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="Training declares no attribute 'epoc'"):
        Training(model=model, optimizer=optimizer, epoc=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Training needs a value for 'optimizer', which it declares without a default"):
        Training(model=model)  # type: ignore[call-arg]


def test_a_name_of_the_states_own_is_refused() -> None:
    class Wrong(edriver.TypedState):
        commit: int = 0  # type: ignore[assignment]

    with pytest.raises(ValueError, match="a state cannot have an attribute named 'commit'"):
        Wrong()
