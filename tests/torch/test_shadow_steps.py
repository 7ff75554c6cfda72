"""The copy of a shard makes the steps of the shard, whatever the script's optimizer and its hooks do in a step."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from edriver.worker.backend import fsdp2
from edriver.worker.state import shadow
from edriver.worker.state.shadow import Written
from edriver.worker.state.sharded_state import ShardedState
from tests.torch.bound_state import Rounds
from tests.torch.fingerprint import tree_fingerprint
from tests.torch.mesh_rounds import make_step, new_model, rounds_of
from tests.torch.ranks import run_ranks

STEPS = 4


class Counting(Optimizer):
    """Counts its steps in its groups, and in a tensor of its own, as optimizers without schedules do."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "k": 0, "in_a_tensor": torch.zeros(())})
        self.own = torch.zeros(())

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        self.own += 1
        for group in self.param_groups:
            group["k"] += 1
            group["in_a_tensor"] += 1
            counted = group["k"] + 2 * float(group["in_a_tensor"]) + 4 * float(self.own)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"] / counted)


def sgd(model: torch.nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def clamps(model: torch.nn.Module) -> Optimizer:
    """Its parameters are clamped in a hook, after each step."""
    optimizer = sgd(model)

    @torch.no_grad()
    def clamp(*_: object) -> None:
        for parameter in model.parameters():
            fsdp2.local(parameter).clamp_(-0.05, 0.05)

    optimizer.register_step_post_hook(clamp)
    return optimizer


def of_some(model: torch.nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.get_submodule("0").parameters(), lr=0.05)


def nothing(state: ShardedState) -> None:
    """Adds nothing to a state that trains."""


def sign_gradients(state: ShardedState) -> None:
    """Registers a hook that changes gradients, after edriver has registered its own."""

    def sign(*_: object) -> None:
        for parameter in state.model.parameters():
            assert parameter.grad is not None
            fsdp2.local(parameter.grad).sign_()

    state.optimizer.register_step_pre_hook(sign)


def add_the_rest(state: ShardedState) -> None:
    """Trains more parameters from now on."""
    make_step(state.model, state.optimizer, 0, clips=False)
    state.check_host_updates()
    state.optimizer.add_param_group({"params": [*state.model.get_submodule("2").parameters()], "lr": 0.01})


def begin_anew(state: ShardedState) -> None:
    """Has the optimizer forget what it has of the parameters, between two steps."""
    make_step(state.model, state.optimizer, 0, clips=False)
    state.check_host_updates()
    state.optimizer.state.clear()


def slow_down(state: ShardedState) -> None:
    """Loads what the optimizer has of the parameters, with other values."""
    make_step(state.model, state.optimizer, 0, clips=False)
    state.check_host_updates()
    found = state.optimizer.state_dict()
    kept = {at: {"momentum_buffer": of["momentum_buffer"] * 0.5} for at, of in found["state"].items()}
    state.optimizer.load_state_dict({**found, "state": kept})


KINDS: dict[str, tuple[Callable[[torch.nn.Module], Optimizer], Callable[[ShardedState], None]]] = {
    "counts": (lambda model: Counting(model.parameters(), lr=0.01), nothing),
    "hook-before-the-step": (sgd, sign_gradients),
    "hook-after-the-step": (clamps, nothing),
    "group-that-is-added": (of_some, add_the_rest),
    "state-that-is-gone": (sgd, begin_anew),
    "state-that-is-loaded": (sgd, slow_down),
}


def trained(kind: str, worker: int) -> list[dict[int, str]]:
    """The bits of what each of two workers holds, by position, once what is written has been brought."""
    make, then = KINDS[kind]
    state = ShardedState(build=new_model, optimizer=make)
    state.bind(Rounds())
    found: list[Any] = [None, None]
    for _ in rounds_of(worker, 2, [[0, 1]], one_replica=True):
        state.sync()
        then(state)
        for step in range(STEPS):
            make_step(state.model, state.optimizer, step, clips=False)
            state.check_host_updates()
        state.complete_shadows()
        shards = state._shards
        assert shards is not None
        sharding = shards.held()[0].sharding
        held = shards._held(sharding, state.model, state.optimizer)
        dist.all_gather_object(found, {position: tree_fingerprint(shard) for position, shard in held.items()})
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_shadow_makes_the_steps_of_its_shard(kind: str) -> None:
    for first, second in run_ranks(partial(trained, kind), 2):
        assert first.keys() == second.keys() == {0, 1}
        assert first == second
        assert first[0] != first[1], "each position has rows of its own"


def interrupted(worker: int) -> bool:
    """Whether a worker's shadow is as it was after an exchange of the optimizer's values that has broken."""
    state = ShardedState(build=new_model, optimizer=sgd)
    module: Any = shadow
    state.bind(Rounds())
    for _ in rounds_of(worker, 2, [[0, 1]], one_replica=True):
        state.sync()
        make_step(state.model, state.optimizer, 0, clips=False)
        assert state._shards is not None
        kept = state._shards._shadow
        assert kept is not None
        before = tree_fingerprint(kept.shard)
        real, module.exchange = module.exchange, broken
        try:
            kept.exchange_rows(1 - worker, Written.STATE)
        except RuntimeError:
            return tree_fingerprint(kept.shard) == before
        finally:
            module.exchange = real
    return False


def broken(*_: object) -> None:
    raise RuntimeError("a peer was lost")


def test_an_exchange_that_breaks_leaves_the_shadow_as_it_was() -> None:
    assert run_ranks(interrupted, 2) == [True, True]


class Refers(torch.optim.SGD):
    """Has its parameters in an attribute, too."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.slow = {parameter: 0 for group in self.param_groups for parameter in group["params"]}


class OfRows(Optimizer):
    """Keeps a plain tensor of a value for each row of its shard."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["rows"] = torch.zeros(len(fsdp2.local(parameter)))


class ForDTensors(Optimizer):
    """Takes all parameters for DTensors."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.to_local().sub_(parameter.grad.to_local(), alpha=group["lr"])


REFUSED: dict[str, tuple[type[Any], str]] = {
    "refers": (Refers, r"Refers refers to its parameters in its attribute 'slow', too"),
    "of-rows": (OfRows, r"OfRows keeps 'rows' in another shape than that of its parameter"),
    "for-dtensors": (ForDTensors, r"ForDTensors takes all parameters for DTensors.*test for DTensors with isinstance"),
}


def refused(kind: str, worker: int) -> str:
    make, _ = REFUSED[kind]
    state = ShardedState(build=new_model, optimizer=lambda model: make(model.parameters(), lr=0.1))
    state.bind(Rounds())
    for _ in rounds_of(worker, 2, [[0, 1]], one_replica=True):
        try:
            state.sync()
            make_step(state.model, state.optimizer, 0, clips=False)
            state.check_host_updates()
            state.first_boundary()
        except TypeError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("kind", REFUSED)
def test_an_optimizer_whose_shadow_would_make_other_steps_is_refused_in_the_first_one(kind: str) -> None:
    for said in run_ranks(partial(refused, kind), 2):
        assert re.match(REFUSED[kind][1], said), said


def grown(worker: int) -> None:
    """Two workers train, and two join whose model takes process groups of its own, as the mesh has four shards."""

    def build(mesh: DeviceMesh) -> torch.nn.Module:
        model = torch.nn.Linear(8, 8)
        fully_shard(model, mesh=mesh, reshard_after_forward=2)
        return model

    state = ShardedState(build=build, optimizer=sgd)
    state.bind(Rounds())
    for _ in rounds_of(worker, 4, [[0, 1], [0, 1, 2, 3]], one_replica=True):
        if state.model is not None:
            state.on_reset()
        state.sync()


def test_a_newcomer_whose_model_takes_groups_of_its_own_says_so_and_holds_up_nobody() -> None:
    with pytest.raises(AssertionError, match="TypeError: `build` or `optimizer` makes process groups, and a worker"):
        run_ranks(grown, 4)
