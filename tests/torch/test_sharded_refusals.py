"""What a ShardedState refuses before the first step, in sentences that name what works."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp import fully_shard as torchs_fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import edriver
from edriver.worker.backend import checks, fsdp2
from edriver.worker.state.sharded_state import ShardedState
from tests.torch.mesh_rounds import make_step, new_model

pytestmark = [
    pytest.mark.usefixtures("group"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"),
]

RESTART_MODE = "train in restart mode, with edriver.checkpoints in memory"


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


def net() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))


def fully_shard(model: torch.nn.Module, **options: Any) -> Any:
    return torchs_fully_shard(model, **options)


def plain(model: Any) -> torch.nn.Module:
    assert isinstance(model, torch.nn.Module)
    return model


def other_mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))


def with_int_reshard(mesh: DeviceMesh) -> torch.nn.Module:
    model: torch.nn.Module = fully_shard(net(), mesh=mesh)
    for group in fsdp2._groups(model):
        group.post_forward_mesh_info = fsdp2._info({}, group.mesh_info, mesh)  # what torch makes of a number
    return model


def tensor_parallel(mesh: DeviceMesh) -> torch.nn.Module:
    model: Any = parallelize_module(net(), mesh["shard"], {"0": ColwiseParallel()})
    fully_shard(model[1], mesh=mesh)
    return plain(model)


def partly_replicated(mesh: DeviceMesh) -> torch.nn.Module:
    return torch.nn.Sequential(DistributedDataParallel(net()), fully_shard(torch.nn.Linear(2, 2), mesh=mesh))


def compiled(mesh: DeviceMesh) -> torch.nn.Module:
    model: torch.nn.Module = fully_shard(net(), mesh=mesh)
    model.compile()
    return model


def with_hook(mesh: DeviceMesh) -> torch.nn.Module:
    model: torch.nn.Module = fully_shard(net(), mesh=mesh)
    for group in fsdp2._groups(model):
        group._all_reduce_hook = lambda _: None
    return model


REFUSED: dict[str, tuple[Callable[[DeviceMesh], Any], str]] = {
    "nothing": (lambda _: net(), "fully_shard has sharded none of its modules"),
    "another-mesh": (lambda _: fully_shard(net(), mesh=other_mesh()), "sharded over another mesh"),
    "one-dimension": (lambda mesh: fully_shard(net(), mesh=mesh["shard"]), "sharded over another mesh"),
    "dimension-1": (
        lambda mesh: fully_shard(net(), mesh=mesh, shard_placement_fn=lambda p: Shard(p.ndim - 1)),
        "sharded along dimension 1: shard along 0",
    ),
    "number": (with_int_reshard, "reshard_after_forward is a number of workers"),
    "fsdp1": (
        lambda _: FullyShardedDataParallel(net(), device_id=torch.device("cpu")),
        "sharded by FullyShardedDataParallel: use fully_shard",
    ),
    "ddp": (partly_replicated, "it is wrapped in DistributedDataParallel"),
    "tensor-parallel": (tensor_parallel, "'0.weight' is a DTensor that fully_shard has not made"),
    "compiled": (compiled, "it is compiled"),
    "hook": (with_hook, "not FSDP2's own"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_model_that_cannot_be_kept_is_refused_before_the_first_step(kind: str) -> None:
    build, reason = REFUSED[kind]
    state = ShardedState(build=build, optimizer=adam)
    with pytest.raises(TypeError, match=f"{re.escape(reason)}.*{RESTART_MODE}"):
        state.sync()


def zero(model: torch.nn.Module) -> torch.optim.Optimizer:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(list(model.parameters()), optimizer_class=torch.optim.Adam)


class OwnLoading(torch.optim.SGD):
    """An optimizer that loads in its own way."""

    def load_state_dict(self, state_dict: Any) -> None:
        raise NotImplementedError


class Delegating(torch.optim.Optimizer):
    """Has another optimizer make its steps."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.base = torch.optim.AdamW(self.param_groups[0]["params"], lr)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.base.step(closure)


OPTIMIZERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "zero": (zero, "ZeroRedundancyOptimizer shards"),
    "own-loading": (lambda model: OwnLoading(model.parameters()), "has a load_state_dict of its own"),
    "delegating": (
        lambda model: Delegating(model.parameters(), lr=0.1),
        "this Delegating steps with another optimizer, AdamW, whose state is not its own",
    ),
    "others": (lambda _: torch.optim.SGD(net().parameters()), "has parameters that are not the model's"),
    "none": (lambda _: None, "`optimizer` has to return one, and has returned a NoneType"),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_that_cannot_be_kept_is_refused_before_the_first_step(kind: str) -> None:
    make, reason = OPTIMIZERS[kind]
    state = ShardedState(build=new_model, optimizer=make)
    with pytest.raises(TypeError, match=re.escape(reason)):
        state.sync()


def test_what_the_function_does_to_the_model_is_refused_at_the_first_boundary() -> None:
    state = ShardedState(build=new_model, optimizer=adam)
    state.sync()
    state.model.get_submodule("0").compile()
    with pytest.raises(TypeError, match="it is compiled"):
        state.first_boundary()


class OwnMomentum(torch.optim.SGD):
    """Keeps its momentum in an attribute of its own."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        self.momentum = {p: p.grad.clone() for p in self.param_groups[0]["params"] if p.grad is not None}


class OneForEach(torch.optim.SGD):
    """Has each parameter make its step in the backward pass, with an optimizer of its own."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.0)
        for parameter in self.param_groups[0]["params"]:
            own = torch.optim.Adam([parameter])
            parameter.register_post_accumulate_grad_hook(lambda _, step=own.step: step())


TRAINERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "own-momentum": (lambda params: OwnMomentum(params), "keeps a DTensor in its attribute 'momentum', and not in"),
    "one-for-each": (OneForEach, "another optimizer, Adam, trains the parameters of the state's OneForEach"),
}


@pytest.mark.parametrize("kind", TRAINERS)
def test_what_steps_keep_outside_of_the_state_is_refused_at_the_first_boundary(kind: str) -> None:
    make, reason = TRAINERS[kind]
    state = ShardedState(build=new_model, optimizer=lambda model: make(model.parameters()))
    state.sync()
    make_step(state.model, state.optimizer, 0, clips=False)
    with pytest.raises(TypeError, match=re.escape(reason)):
        state.first_boundary()


def test_an_optimizer_that_the_script_has_dropped_is_no_other_one() -> None:
    state = ShardedState(build=new_model, optimizer=adam)
    state.sync()
    search = torch.optim.SGD(state.model.parameters(), lr=0.0, momentum=0.9)
    search.scheduler = torch.optim.lr_scheduler.StepLR(search, 1)  # type: ignore[attr-defined]  # they refer to each other
    make_step(state.model, search, 0, clips=False)
    del search
    make_step(state.model, state.optimizer, 0, clips=False)
    state.first_boundary()


class Wrapper(torch.optim.SGD):
    """Has another optimizer in an attribute, whose state it shared until that was loaded."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        super().__init__(base.param_groups[0]["params"], lr=0.0)
        self.base, self.state = base, base.state


def test_what_wraps_the_optimizer_is_no_other_one() -> None:
    state = ShardedState(build=new_model, optimizer=adam)
    state.sync()
    wrapper = Wrapper(state.optimizer)
    make_step(state.model, state.optimizer, 0, clips=False)
    state.optimizer.load_state_dict(state.optimizer.state_dict())
    assert wrapper.state is not state.optimizer.state
    state.first_boundary()


def test_attributes_may_contain_themselves() -> None:
    def make(model: torch.nn.Module) -> torch.optim.Optimizer:
        optimizer = adam(model)
        optimizer.notes = {"lock": threading.Lock()}  # type: ignore[attr-defined]
        optimizer.notes["all"] = optimizer.notes  # type: ignore[attr-defined]
        return optimizer

    ShardedState(build=new_model, optimizer=make).sync()


def test_what_was_made_is_not_replaced() -> None:
    state = ShardedState(build=new_model, optimizer=adam)
    state.sync()
    state.model, state.optimizer = state.model, state.optimizer
    with pytest.raises(TypeError, match=r"state\.optimizer is what `optimizer` makes, here as in newcomers"):
        state.optimizer = torch.optim.SGD(state.model.parameters())
    with pytest.raises(TypeError, match=r"state\.model is what `build` makes"):
        state.model = net()


def test_a_dict_of_sharded_tensors_is_refused_at_the_first_boundary() -> None:
    state = ShardedState(build=new_model, optimizer=adam, average=None)
    state.sync()
    state.average = {name: p.detach().clone() for name, p in state.model.named_parameters()}
    with pytest.raises(
        TypeError, match=r"'average' cannot be kept: it has DTensors\..*can be a frozen part of the model"
    ):
        state.first_boundary()


def test_what_is_no_function_or_a_second_model_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="build= takes a function, and was given a Linear"):
        ShardedState(build=torch.nn.Linear(1, 1), optimizer=adam)
    with pytest.raises(TypeError, match="optimizer= takes a function, and was given a SGD"):
        ShardedState(build=new_model, optimizer=torch.optim.SGD(net().parameters()))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"it is a Sequential.*has one model and one optimizer.*frozen part"):
        ShardedState(build=new_model, optimizer=adam, critic=net())
    with pytest.raises(ValueError, match="every= takes a positive number of steps"):
        ShardedState(build=new_model, optimizer=adam, checkpoint="folder", every=0)


def test_the_mesh_has_replicas_of_shards() -> None:
    mesh = edriver.mesh()
    assert mesh.mesh_dim_names == ("replicate", "shard")
    assert tuple(mesh.shape) == (1, 1)
    assert edriver.mesh() is mesh


def test_there_is_no_mesh_outside_of_a_round() -> None:
    dist.destroy_process_group()
    with pytest.raises(RuntimeError, match=r"inside the function that edriver\.run wraps"):
        edriver.mesh()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)


def test_names_that_torch_lacks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = checks.found_by([checks.SHARDED_CHECK])
    assert not found.trouble
    monkeypatch.setattr(fsdp2, "_OF_GROUP", (*fsdp2._OF_GROUP, "_gone"))
    (found,) = checks.found_by([checks.SHARDED_CHECK])
    assert re.match(r"FSDP2 of torch .* lacks _gone", found.trouble)
