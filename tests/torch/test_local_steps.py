"""A step on shards comes to the same, bit for bit, as one through DTensor, and asks DTensor for nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from edriver.worker.backend import fsdp2
from edriver.worker.backend.local_steps import REPLACED, step_on_shards
from edriver.worker.group.warm_up import group_alone
from edriver.worker.state import shadow
from edriver.worker.state.sharded_state import ShardedState
from tests.torch.bound_state import Rounds
from tests.torch.fingerprint import tree_fingerprint
from tests.torch.mesh_rounds import loss_of, new_model, rounds_of
from tests.torch.ranks import run_ranks

WORKERS = 4
ROUNDS = [[0, 1], [0, 1, 2, 3]]

KNOWN: dict[str, Callable[[Any], Optimizer]] = {
    "adam": partial(torch.optim.Adam, lr=0.05),
    "amsgrad": partial(torch.optim.Adam, lr=0.05, amsgrad=True, weight_decay=0.1, maximize=True),
    "adamw": partial(torch.optim.AdamW, lr=0.05, weight_decay=0.1),
    "adamw-foreach": partial(torch.optim.AdamW, lr=0.05, foreach=True),
    "adamw-fused": partial(torch.optim.AdamW, lr=0.05, fused=True),
    "tensor-lr": partial(torch.optim.Adam, lr=torch.tensor(0.05)),
}
OTHERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.9),
}


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts those of DTensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += any(issubclass(kind, DTensor) for kind in types)
        return func(*args, **(kwargs or {}))


def make_step(model: torch.nn.Module, optimizer: Optimizer, step: int) -> int:
    """Returns how many operations on DTensors the optimizer's step took."""
    optimizer.zero_grad()
    loss_of(model, step).backward()  # type: ignore[no-untyped-call]
    found = Operations()
    with found:
        optimizer.step()
    return found.count


def bits(model: torch.nn.Module, optimizer: Optimizer) -> str:
    kinds = [{key: type(value).__name__ for key, value in of.items()} for of in optimizer.state.values()]
    state = [{key: fsdp2.local(value) for key, value in of.items()} for of in optimizer.state.values()]
    return tree_fingerprint([[fsdp2.local(p) for p in fsdp2.parameters(model)], state, kinds])


def train_both_ways(worker: int) -> dict[str, list[tuple[bool, int, int]]]:
    """For each optimizer, after each step: equal bits?; and how many operations it took on shards, and as it is."""
    made: dict[str, list[tuple[torch.nn.Module, Optimizer]]] = {}
    found: dict[str, list[tuple[bool, int, int]]] = {name: [] for name in KNOWN | OTHERS}
    for number, mesh in rounds_of(worker, WORKERS, ROUNDS):
        for name, maker in (KNOWN | OTHERS).items():
            if name not in made:
                made[name] = []
                for on_shards in (True, False):
                    model: torch.nn.Module = new_model(mesh)
                    optimizer = maker(model.parameters())
                    if on_shards:
                        step_on_shards(optimizer)
                    made[name].append((model, optimizer))
            else:
                for model, optimizer in made[name]:
                    fsdp2.bind(model, optimizer, mesh)
        for name, pair in made.items():
            for step in range(2):
                counts = [make_step(model, optimizer, 2 * number + step) for model, optimizer in pair]
                found[name].append((len({bits(*one) for one in pair}) == 1, *counts))  # type: ignore[arg-type]
    return found


def test_a_step_on_shards_comes_to_the_same() -> None:
    for found in run_ranks(train_both_ways, WORKERS):
        for name, steps in found.items():
            assert steps
            for number, (equal, on_shards, as_it_is) in enumerate(steps):
                assert equal, name
                assert as_it_is > 0, name
                if name in OTHERS:
                    assert on_shards == as_it_is, name
                elif number:  # in the very first step the optimizer makes what it keeps
                    assert on_shards == 0, name


def train_in_a_state(worker: int) -> list[int]:
    state = ShardedState(build=new_model, optimizer=lambda model: torch.optim.AdamW(model.parameters()), step=0)
    counts = []
    for _ in rounds_of(worker, 2, [[0, 1], [0, 1]]):
        state.bind(Rounds())
        state.sync()
        for _ in range(2):
            counts.append(make_step(state.model, state.optimizer, state.step))
            state.step += 1
            state.check_host_updates()
    return counts[1:]


def test_a_sharded_state_steps_on_shards() -> None:
    assert run_ranks(train_in_a_state, 2) == [[0, 0, 0]] * 2


# ---- what is left to DTensor


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with group_alone():
        yield init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))


def gathered(optimizer: Optimizer) -> set[type]:
    """Of which types the tensors are on which a step works."""
    lists: list[list[torch.Tensor]] = [[] for _ in range(6)]
    getattr(optimizer, REPLACED)(optimizer.param_groups[0], *lists)
    return {type(tensor) for tensors in lists for tensor in tensors if tensor.ndim}


def parameter_on(
    mesh: DeviceMesh, device: str = "cpu", gradient: tuple[Placement, Placement] = (Replicate(), Shard(0))
) -> torch.nn.Parameter:
    def of(placements: tuple[Placement, Placement]) -> DTensor:
        return DTensor.from_local(torch.ones(4, 2, device=device), mesh, placements, run_check=False)

    parameter = torch.nn.Parameter(of((Replicate(), Shard(0))))
    parameter.grad = of(gradient)
    return parameter


@pytest.mark.parametrize(
    ("options", "device", "gradient", "expected"),
    [
        pytest.param({}, "cpu", (Replicate(), Shard(0)), torch.Tensor, id="known"),
        pytest.param({}, "cpu", (Replicate(), Replicate()), DTensor, id="gradients-that-are-sharded-otherwise"),
        pytest.param({"differentiable": True}, "cpu", (Replicate(), Shard(0)), DTensor, id="differentiable"),
        pytest.param({}, "meta", (Replicate(), Shard(0)), DTensor, id="another-rounding-by-default-on-a-device"),
        pytest.param({"foreach": True}, "meta", (Replicate(), Shard(0)), torch.Tensor, id="the-same-as-chosen"),
    ],
)
def test_steps_that_may_come_to_something_else_are_left_to_dtensor(
    mesh: DeviceMesh, options: dict[str, Any], device: str, gradient: tuple[Placement, Placement], expected: type
) -> None:
    optimizer = torch.optim.Adam([parameter_on(mesh, device, gradient)], **options)
    step_on_shards(optimizer)
    assert gathered(optimizer) == {expected}


def test_a_shadows_optimizer_keeps_its_own_state(mesh: DeviceMesh) -> None:
    parameter, mine = parameter_on(mesh), torch.nn.Parameter(torch.ones(4, 2))
    optimizer = torch.optim.Adam([parameter])
    step_on_shards(optimizer)
    twin = shadow._twin(optimizer, {parameter: mine})
    mine.grad = torch.ones(4, 2)
    twin.step()
    assert list(twin.state) == [mine]
    assert not optimizer.state


def test_what_an_optimizer_keeps_in_another_way_is_left_to_dtensor(mesh: DeviceMesh) -> None:
    parameter = parameter_on(mesh)
    optimizer = torch.optim.Adam([parameter])
    optimizer.step()
    kept = optimizer.state[parameter]
    kept["exp_avg"] = kept["exp_avg"].redistribute(mesh, [Replicate(), Replicate()])
    step_on_shards(optimizer)
    assert gathered(optimizer) == {DTensor}


def test_autograd_notices_a_step_between_a_loss_and_its_way_back(mesh: DeviceMesh) -> None:
    parameter = parameter_on(mesh)
    optimizer = torch.optim.Adam([parameter])
    step_on_shards(optimizer)
    penalty = (parameter**3).sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        penalty.backward()  # type: ignore[no-untyped-call]


class Own(torch.optim.Adam):
    """A script's."""


def test_an_optimizer_of_the_scripts_own_is_left_alone(mesh: DeviceMesh) -> None:
    optimizer = Own([parameter_on(mesh)])
    step_on_shards(optimizer)
    assert gathered(optimizer) == {DTensor}
    assert REPLACED not in vars(optimizer)


def test_what_is_called_in_another_way_is_left_to_dtensor(mesh: DeviceMesh) -> None:
    optimizer = torch.optim.Adam([parameter_on(mesh)])
    step_on_shards(optimizer)
    names = ["params_with_grad", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps"]
    lists: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    getattr(optimizer, REPLACED)(optimizer.param_groups[0], **lists)
    assert [type(tensor) for tensor in lists["exp_avgs"]] == [DTensor]


def test_what_torch_no_longer_has_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim.Adam, REPLACED)
    monkeypatch.delattr(Optimizer, REPLACED, raising=False)
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    step_on_shards(optimizer)
    assert REPLACED not in vars(optimizer)
