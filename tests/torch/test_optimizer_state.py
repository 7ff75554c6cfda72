"""The state that a new optimizer gets before a checkpoint is loaded: what its own first step would have made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.optim import Optimizer

from edriver.worker.checkpoints.memory.optimizer_state import make_state

Make = Callable[[Iterable[nn.Parameter]], Optimizer]

LIKE_PARAMETERS: dict[str, Make] = {
    "adam": lambda params: torch.optim.Adam(params, amsgrad=True),
    "fused": lambda params: torch.optim.AdamW(params, fused=True),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
    "adadelta": torch.optim.Adadelta,
    "asgd": torch.optim.ASGD,
    "rprop": torch.optim.Rprop,
    "rmsprop": lambda params: torch.optim.RMSprop(params, momentum=0.9, centered=True),
}


class Heavy(torch.optim.SGD):
    """An optimizer of a script's own, which may make anything in its first step."""


LEFT: dict[str, Make] = {
    "rows and columns": torch.optim.Adafactor,
    "the script's own": lambda params: Heavy(params, lr=0.1, momentum=0.9),
    "none": lambda params: torch.optim.SGD(params, lr=0.1),
}


def model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def trained(make: Make) -> tuple[nn.Module, Optimizer]:
    module = model()
    optimizer = make(module.parameters())
    module(torch.ones(2, 4)).square().sum().backward()
    optimizer.step()
    return module, optimizer


def metadata_of(module: nn.Module, optimizer: Optimizer, dtype: torch.dtype | None = None) -> Metadata:
    """Of a checkpoint of the state {"optimizer": optimizer}."""
    found = get_optimizer_state_dict(module, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
    stored: dict[str, Any] = {}
    for key, value in found.items():
        stored[f"optimizer.{key}"] = BytesStorageMetadata()
        if isinstance(value, torch.Tensor):
            properties = TensorProperties(dtype=dtype or value.dtype)
            stored[f"optimizer.{key}"] = TensorStorageMetadata(properties, value.shape, [])
    return Metadata(stored)


def kinds(module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    return {
        f"{name}.{key}": (value.shape, value.dtype, value.stride(), value.requires_grad)
        for name, parameter in module.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


@pytest.mark.parametrize("make", LIKE_PARAMETERS.values(), ids=LIKE_PARAMETERS)
def test_it_is_what_a_step_makes(make: Make) -> None:
    module, optimizer = trained(make)
    fresh = model()
    new = make(fresh.parameters())
    make_state("optimizer", new, fresh, metadata_of(module, optimizer))
    assert kinds(fresh, new) == kinds(module, optimizer)
    assert all(not value.any() for kept in new.state.values() for value in kept.values())


def test_of_a_compiled_model_too() -> None:
    module, optimizer = trained(torch.optim.Adam)
    compiled = nn.ModuleDict({"_orig_mod": model()})  # its parameters are called like this
    new = torch.optim.Adam(compiled.parameters())
    make_state("optimizer", new, compiled, metadata_of(module, optimizer))
    assert list(kinds(compiled, new).values()) == list(kinds(module, optimizer).values())


@pytest.mark.parametrize("make", LEFT.values(), ids=LEFT)
def test_what_may_need_more_is_left_to_a_step(make: Make) -> None:
    module, optimizer = trained(make)
    fresh = model()
    new = make(fresh.parameters())
    make_state("optimizer", new, fresh, metadata_of(module, optimizer))
    assert not new.state


@pytest.mark.parametrize("case", ["another dtype", "parameters elsewhere", "it has stepped"])
def test_it_is_left_as_it_is(case: str) -> None:
    module, optimizer = trained(torch.optim.Adam)
    fresh: nn.Module = model()
    new: Optimizer = torch.optim.Adam(fresh.parameters())
    stored = metadata_of(module, optimizer, torch.bfloat16 if case == "another dtype" else None)
    if case == "it has stepped":
        new, fresh = optimizer, module
    before = {parameter: dict(kept) for parameter, kept in new.state.items()}
    make_state("optimizer", new, nn.Linear(4, 3) if case == "parameters elsewhere" else fresh, stored)
    assert {parameter: dict(kept) for parameter, kept in new.state.items()} == before


def test_a_checkpoint_with_state_of_some_parameters_is_left_to_a_step() -> None:
    """With state for some, torch would make none for the others, and theirs would be lost."""
    module, optimizer = trained(torch.optim.Adam)
    stored = metadata_of(module, optimizer)
    some = {key: entry for key, entry in stored.state_dict_metadata.items() if ".2.weight" not in key}
    fresh = model()
    new = torch.optim.Adam(fresh.parameters())
    make_state("optimizer", new, fresh, Metadata(some))
    assert not new.state


def test_parameters_with_other_names_than_the_checkpoints_are_left_to_a_step() -> None:
    """Such as those of a model that is wrapped by DistributedDataParallel in parts."""
    module, optimizer = trained(torch.optim.Adam)
    fresh = model()
    wrapped = nn.Sequential(nn.ModuleDict({"module": fresh[0]}), fresh[1], fresh[2])
    new = torch.optim.Adam(wrapped.parameters())
    make_state("optimizer", new, wrapped, metadata_of(module, optimizer))
    assert not new.state


def test_parameters_that_are_no_longer_optimized_have_no_state() -> None:
    module, optimizer = trained(torch.optim.Adam)
    fresh = model()
    new = torch.optim.Adam([*fresh[1].parameters(), *fresh[2].parameters()])
    make_state("optimizer", new, fresh, metadata_of(module, optimizer))
    assert set(new.state) == {*fresh[1].parameters(), *fresh[2].parameters()}
    assert new.state_dict()["state"]


def test_parameters_without_memory_are_left_as_they_are() -> None:
    module, optimizer = trained(torch.optim.Adam)
    fresh = model()
    fresh.to_empty(device="meta")
    new = torch.optim.Adam(fresh.parameters())
    make_state("optimizer", new, fresh, metadata_of(module, optimizer))
    assert not new.state


def test_a_parameter_of_no_dimension_is_left_to_a_step() -> None:
    """A number and a tensor like it look the same."""
    module = nn.Module()
    module.scale = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.Adam(module.parameters())
    module.scale.grad = torch.ones(())
    optimizer.step()
    new = torch.optim.Adam(module.parameters())
    make_state("optimizer", new, module, metadata_of(module, optimizer))
    assert not new.state
