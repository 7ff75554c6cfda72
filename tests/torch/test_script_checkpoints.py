"""`edriver.checkpoints.Checkpoints` over a fake of the servers: what is saved is loaded, by other numbers of ranks."""

from __future__ import annotations

import functools
import logging
import multiprocessing
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import edriver
from edriver.checkpoints import Checkpoints
from edriver.worker import context
from edriver.worker.checkpoints.memory.state_planners import MadePlan, StatePlanner
from tests.torch.fake_memory import digest, join_round, newest_whole, stored_bytes
from tests.torch.optimizer_container import OptimizerContainer
from tests.torch.ranks import run_ranks
from tests.waiting import BOUND

EVERY = 2
Build = Callable[[int], nn.Module]


def _layers(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16), nn.LayerNorm(16))


def fsdp(seed: int) -> nn.Module:
    model = _layers(seed)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model


def ddp(seed: int) -> nn.Module:
    return nn.parallel.DistributedDataParallel(_layers(seed))


def tensor_parallel(seed: int) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(_layers(seed), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def _state(build: Build, seed: int) -> dict[str, Any]:
    model = build(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * seed)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "epoch": seed, "mean": torch.ones(3) * seed}


def _step(state: dict[str, Any], step: int) -> None:
    torch.manual_seed(step)
    state["optimizer"].zero_grad()
    state["model"](torch.randn(4, 16)).square().sum().backward()
    state["optimizer"].step()
    state["scheduler"].step()
    state["epoch"] = step


def _digest(state: dict[str, Any]) -> str:
    values: dict[str, Any] = dict(state["model"].state_dict())
    values = {name.removeprefix("module."): value for name, value in values.items()}
    for number, kept in state["optimizer"].state_dict()["state"].items():
        values |= {f"{number}.{name}": value for name, value in kept.items()}
    values["groups"] = state["optimizer"].state_dict()["param_groups"]
    values["scheduler"] = state["scheduler"].state_dict()
    return digest({**values, "epoch": state["epoch"], "mean": state["mean"]})


def _trained(folder: Path, build: Build, rank: int, *, size: int, n: int, steps: int) -> tuple[int | None, str, str]:
    """The step that was loaded; the state then, and at the end."""
    join_round(folder, rank, size, n, host=f"host{rank % 2}", store=dist.distributed_c10d._get_default_store())
    state = _state(build, 1 if n == 1 else 7)
    checkpoints = Checkpoints(folder / "disk", every_memory=EVERY)
    stepped: list[object] = []
    state["optimizer"].register_step_pre_hook(lambda *given: stepped.append(given))
    first = checkpoints.load(state)
    assert not stepped, "a step with DTensors takes longer than the rest of a load"
    loaded = _digest(state)
    for step in range((first or 0) + 1, steps + 1):
        _step(state, step)
        checkpoints.save(step, state)
    dist.barrier()
    return first, loaded, _digest(state)


@pytest.mark.parametrize("build", [fsdp, ddp, tensor_parallel], ids=lambda build: build.__name__)
def test_what_four_ranks_save_is_loaded_by_two_and_by_four_again(tmp_path: Path, build: Build) -> None:
    train = functools.partial(_trained, tmp_path, build)
    four = run_ranks(functools.partial(train, size=4, n=1, steps=4), 4)
    assert {first for first, *_ in four} == {None}
    two = run_ranks(functools.partial(train, size=2, n=2, steps=6), 2)
    assert {(first, loaded) for first, loaded, _ in two} == {(4, four[0][2])}
    again = run_ranks(functools.partial(train, size=4, n=3, steps=6), 4)
    assert {(first, loaded) for first, loaded, _ in again} == {(6, two[0][2])}


def test_fsdp_on_three_ranks_too(tmp_path: Path) -> None:
    train = functools.partial(_trained, tmp_path, fsdp)
    four = run_ranks(functools.partial(train, size=4, n=1, steps=2), 4)
    three = run_ranks(functools.partial(train, size=3, n=2, steps=2), 3)
    assert {loaded for _, loaded, _ in three} == {four[0][2]}


def _in_parts(folder: Path, rank: int, *, n: int) -> tuple[int | None, int, str]:
    """Part of a model is wrapped by DistributedDataParallel: the step loaded, moments of all, and a digest after it."""
    join_round(folder, rank, 2, n, host=f"host{rank % 2}", store=dist.distributed_c10d._get_default_store())
    first_layer, *others = _layers(n)
    model = nn.Sequential(nn.parallel.DistributedDataParallel(first_layer), *others)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * n)
    checkpoints = Checkpoints(folder / "disk", every_memory=1)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    first = checkpoints.load(state)
    if first is None:
        model(torch.ones(4, 16)).square().sum().backward()
        optimizer.step()
        checkpoints.save(1, state)
        dist.barrier()
    kept = optimizer.state_dict()["state"]
    return first, len(kept), digest({f"{key}.{name}": v for key, kinds in kept.items() for name, v in kinds.items()})


def test_a_model_of_which_parts_are_wrapped_gets_all_moments_back(tmp_path: Path) -> None:
    before = run_ranks(functools.partial(_in_parts, tmp_path, n=1), 2)
    after = run_ranks(functools.partial(_in_parts, tmp_path, n=2), 2)
    assert after == [(1, *kept) for _, *kept in before]


@pytest.mark.usefixtures("group")
def test_what_is_frozen_since_the_save_loads(tmp_path: Path) -> None:
    _alone(tmp_path)
    saved = _state(_layers, 1)
    _step(saved, 1)
    Checkpoints(tmp_path / "disk", every_memory=1).save(1, saved)
    _alone(tmp_path, 2)
    model = _layers(7)
    optimizer = torch.optim.AdamW([*model[2].parameters(), *model[3].parameters()])
    assert Checkpoints(tmp_path / "disk").load({"model": model, "optimizer": optimizer}) == 1
    first, third = (dict(model.named_parameters())[name] for name in ("0.weight", "2.weight"))
    assert torch.equal(first, saved["model"][0].weight)
    moments = saved["optimizer"].state[saved["model"][2].weight]
    assert torch.equal(optimizer.state[third]["exp_avg"], moments["exp_avg"])


def _fully_sharded(folder: Path, rank: int, *, size: int, n: int, flat: bool) -> tuple[int | None, str, str]:
    """FSDP1: the step that was loaded; all parameters and moments then, and after two steps."""
    join_round(folder, rank, size, n, host=f"host{rank % 2}", store=dist.distributed_c10d._get_default_store())
    model = FullyShardedDataParallel(_layers(n), use_orig_params=not flat, device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * n)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    checkpoints = Checkpoints(folder / "disk", every_memory=EVERY)
    first = checkpoints.load(state)
    loaded = _whole(model, state["optimizer"])
    for step in range((first or 0) + 1, (first or 0) + EVERY + 1):
        torch.manual_seed(step)
        state["optimizer"].zero_grad()
        model(torch.randn(4, 16)).square().sum().backward()
        state["optimizer"].step()
        checkpoints.save(step, state)
    dist.barrier()
    return first, loaded, _whole(model, state["optimizer"])


def _whole(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    options = StateDictOptions(full_state_dict=True)
    whole = [dict(part) for part in get_state_dict(model, optimizer, options=options)]
    return digest({"model": whole[0], "optimizer": whole[1]["state"]})


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("flat", [False, True])
def test_fsdp1_is_saved_and_loaded_by_another_number_of_ranks(tmp_path: Path, flat: bool) -> None:
    train = functools.partial(_fully_sharded, tmp_path, flat=flat)
    three = run_ranks(functools.partial(train, size=3, n=1), 3)
    two = run_ranks(functools.partial(train, size=2, n=2), 2)
    assert {(first, loaded) for first, loaded, _ in two} == {(EVERY, three[0][2])}


def _stage(folder: Path, rank: int, *, n: int) -> tuple[int | None, str, str]:
    """A rank that has one of three layers, under its name in the whole model, as in pipeline parallelism."""
    join_round(folder, rank, 3, n, host=f"host{rank % 2}", store=dist.distributed_c10d._get_default_store())
    torch.manual_seed(10 * n + rank)
    model = nn.ModuleDict({f"layer{rank}": nn.Linear(16, 16)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    checkpoints = Checkpoints(folder / "disk", every_memory=1)
    stepped: list[object] = []
    optimizer.register_step_pre_hook(lambda *given: stepped.append(given))
    first = checkpoints.load(state)
    assert not stepped
    loaded = digest(model.state_dict())
    optimizer.zero_grad()
    model[f"layer{rank}"](torch.ones(1, 16)).sum().backward()
    optimizer.step()
    checkpoints.save((first or 0) + 1, state)
    dist.barrier()
    return first, loaded, digest(model.state_dict())


def test_each_stage_of_a_pipeline_gets_its_layers_back(tmp_path: Path) -> None:
    before = run_ranks(functools.partial(_stage, tmp_path, n=1), 3)
    after = run_ranks(functools.partial(_stage, tmp_path, n=2), 3)
    assert [(first, loaded) for first, loaded, _ in after] == [(1, now) for _, _, now in before]
    assert len({now for _, _, now in before}) == 3


def test_what_all_ranks_have_in_common_is_stored_once(tmp_path: Path) -> None:
    run_ranks(functools.partial(_trained, tmp_path, ddp, size=4, n=1, steps=2), 4)
    parameters = sum(parameter.numel() for parameter in _layers(1).parameters())
    assert 12 * parameters < stored_bytes(tmp_path) < 12 * parameters + 100_000


def _alone(folder: Path, n: int = 1) -> None:
    join_round(folder, 0, 1, n, store=HashStore())


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param(lambda state: state.update(extra=torch.ones(2)), "it has no extra, which", id="more"),
        pytest.param(
            lambda state: state.update(mean=torch.ones(4)), r"mean has the shape \(3,\) in it, and \(4,\)", id="shape"
        ),
        pytest.param(lambda state: state.update(mean=1.0), "mean is a tensor in one of the two", id="kind"),
    ],
)
def test_a_script_that_was_edited_is_named_what_does_not_fit(tmp_path: Path, change: Any, text: str) -> None:
    _alone(tmp_path)
    Checkpoints(tmp_path / "disk", every_memory=1).save(1, _state(_layers, 1))
    _alone(tmp_path, 2)
    state = _state(_layers, 7)
    change(state)
    with pytest.raises(edriver.CheckpointError, match=text):
        Checkpoints(tmp_path / "disk").load(state)


@pytest.mark.usefixtures("group")
def test_a_parameter_that_had_no_gradient_begins_anew(tmp_path: Path) -> None:
    _alone(tmp_path)
    state = _state(_layers, 1)
    state["model"][0](torch.ones(16)).sum().backward()
    state["optimizer"].step()
    Checkpoints(tmp_path / "disk", every_memory=1).save(1, state)
    _alone(tmp_path, 2)
    other = _state(_layers, 7)
    assert Checkpoints(tmp_path / "disk").load(other) == 1
    model, kept = other["model"], other["optimizer"].state
    assert float(kept[model[0].weight]["step"]) == 1
    assert float(kept[model[2].weight]["step"]) == 0


@pytest.mark.usefixtures("group")
def test_a_save_before_the_first_step_changes_no_training_here_or_after_a_restart(tmp_path: Path) -> None:
    def built() -> dict[str, Any]:
        model = _layers(1)
        return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), momentum=0.9, dampening=0.5)}

    _alone(tmp_path)
    saved, other = built(), built()
    Checkpoints(tmp_path / "disk", every_memory=1).save(1, saved)
    for state in (saved, other):
        state["model"](torch.ones(16)).sum().backward()
        state["optimizer"].step()
    assert digest(saved["model"].state_dict()) == digest(other["model"].state_dict())
    adam = _state(_layers, 1)
    Checkpoints(tmp_path / "disk", every_memory=1).save(2, adam)
    _alone(tmp_path, 2)
    loaded = _state(_layers, 7)
    assert Checkpoints(tmp_path / "disk").load(loaded) == 2
    assert {float(kept["step"]) for kept in loaded["optimizer"].state.values()} == {0}


class WrappedOptimizer(torch.optim.Optimizer):
    """As Accelerate's: it has what its optimizer has, is none itself, and makes no step between two accumulations."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    def state_dict(self) -> Any:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.optimizer.load_state_dict(state_dict)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        raise AssertionError("it would have made none")


@pytest.mark.usefixtures("group")
def test_a_wrapped_optimizer_is_saved_and_loaded_as_the_one_inside(tmp_path: Path) -> None:
    _alone(tmp_path)
    saved, loaded = _state(_layers, 1), _state(_layers, 7)
    _step(saved, 1)
    Checkpoints(tmp_path / "disk", every_memory=1).save(1, saved | {"optimizer": WrappedOptimizer(saved["optimizer"])})
    _alone(tmp_path, 2)
    wrapped = loaded | {"optimizer": WrappedOptimizer(loaded["optimizer"])}
    assert Checkpoints(tmp_path / "disk").load(wrapped) == 1
    assert isinstance(wrapped["optimizer"], WrappedOptimizer)
    assert _digest(loaded | {"epoch": wrapped["epoch"]}) == _digest(saved)


class WrappedModel(Stateful):
    """As torchtitan's: it gives the state of a model, and is no module."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def state_dict(self) -> dict[str, Any]:
        return self.model.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.model.load_state_dict(state_dict)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("wrap", [WrappedModel, lambda model: model], ids=["stateful", "module"])
def test_a_container_of_optimizers_is_saved_as_its_optimizers(
    tmp_path: Path, wrap: Callable[[nn.Module], object]
) -> None:
    def trained(seed: int) -> dict[str, Any]:
        model = _layers(seed)
        optimizer = OptimizerContainer(model, lr=0.01)
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()
        return {"model": model, "optimizer": optimizer}

    _alone(tmp_path)
    saved, loaded = trained(1), trained(7)
    Checkpoints(tmp_path / "disk", every_memory=1).save(1, saved | {"model": wrap(saved["model"])})
    before = digest(saved["optimizer"].state_dict())
    _alone(tmp_path, 2)
    assert before != digest(loaded["optimizer"].state_dict())
    assert Checkpoints(tmp_path / "disk").load(loaded | {"model": wrap(loaded["model"])}) == 1
    assert digest(loaded["optimizer"].state_dict()) == before == digest(saved["optimizer"].state_dict())
    assert digest(loaded["model"].state_dict()) == digest(saved["model"].state_dict())


def _saves_other_steps(folder: Path, rank: int) -> None:
    join_round(folder, rank, 2, store=dist.distributed_c10d._get_default_store())
    checkpoints = Checkpoints(folder / "disk", every_memory=1)
    for step in (1, 2, 3) if rank == 0 else (1, 12, 13):
        checkpoints.save(step, {"value": torch.ones(3) * step})
    dist.barrier()


def test_a_step_that_only_one_rank_has_is_never_whole(tmp_path: Path) -> None:
    run_ranks(functools.partial(_saves_other_steps, tmp_path), 2)
    assert newest_whole(tmp_path) is None  # that of step 1 has been overwritten by both


def _first_on_disk(folder: Path, rank: int, *, size: int) -> int | None:
    join_round(folder, rank, size, store=dist.distributed_c10d._get_default_store())
    state = {"value": torch.zeros(3)}
    step = Checkpoints(folder / "disk").load(state)
    assert state["value"].tolist() == [5, 5, 5]
    return step


def test_a_run_without_a_checkpoint_in_memory_goes_on_from_disk_on_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "current", context.WorkerContext())
    checkpoints = Checkpoints(tmp_path / "disk", every_disk=5)
    checkpoints.save(5, {"value": torch.ones(3) * 5})
    checkpoints.wait()
    checkpoints._disk._ownership.release()
    assert run_ranks(functools.partial(_first_on_disk, tmp_path, size=2), 2) == [5, 5]


@pytest.mark.usefixtures("group")
def test_nothing_is_built_while_no_save_is_due(tmp_path: Path) -> None:
    _alone(tmp_path)
    checkpoints, built = Checkpoints(tmp_path / "disk", every_memory=3), list[int]()

    def state() -> dict[str, Any]:
        built.append(1)
        return {"value": 1}

    for step in range(1, 8):
        checkpoints.save(step, state)
    assert built == [1, 1]


def _odd_state(seed: int) -> dict[str, Any]:
    """Dicts with keys that are no strings, in a scheduler and in plain values; and lazy views."""
    model = _layers(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(seed))
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [seed, 100 * seed])
    complex_numbers = torch.full((3,), complex(seed, seed))
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "best": {1: 0.5 * seed, "later": [{2: seed}]},
        "means": OrderedDict(of={3: torch.ones(2) * seed, 4: {"count": seed}}),
        "conjugate": complex_numbers.conj(),
        "negative": complex_numbers.conj().imag,
    }


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("where", ["memory", "disk"])
def test_dicts_with_other_keys_than_strings_and_lazy_views_come_back_as_they_were(tmp_path: Path, where: str) -> None:
    restart = functools.partial(join_round, tmp_path, 0, 1, store=HashStore()) if where == "memory" else lambda n: None
    restart(n=1)
    saved = _odd_state(2)
    checkpoints = Checkpoints(tmp_path / "disk", every_memory=1, every_disk=1)
    for step in (1, 2):
        checkpoints.save(step, saved)
        checkpoints.wait()
    context.current = context.WorkerContext()
    restart(n=2)
    loaded = _odd_state(3)
    checkpoints = Checkpoints(tmp_path / "disk", every_memory=1, every_disk=1)
    assert checkpoints.load(loaded) == 2
    assert loaded["scheduler"].state_dict() == saved["scheduler"].state_dict()
    assert loaded["best"] == {1: 1.0, "later": [{2: 2}]}
    assert digest(loaded["means"]) == digest(saved["means"])
    assert type(loaded["means"]) is OrderedDict
    assert torch.equal(loaded["conjugate"], saved["conjugate"])
    assert torch.equal(loaded["negative"], saved["negative"])
    checkpoints.save(3, loaded)
    checkpoints.wait()


@pytest.mark.usefixtures("group")
def test_a_load_that_converts_a_dtype_names_what_it_converts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = Checkpoints(tmp_path / "disk", every_disk=1)
    checkpoints.save(np.int64(1), {"mean": torch.full((2,), 1.5), "same": torch.ones(1)})  # type: ignore[arg-type]
    checkpoints.wait()
    loaded = {"mean": torch.zeros(2, dtype=torch.int64), "same": torch.zeros(1)}
    assert Checkpoints(tmp_path / "disk").load(loaded) == 1
    (text,) = [record.getMessage() for record in caplog.records if record.name == "edriver.worker"]
    converted = "mean (torch.float32 in it, torch.int64 in the state)"
    assert text == f"the checkpoint is converted where the state has another dtype: {converted}"


def test_an_interval_that_is_none_is_refused_without_edriver_too(tmp_path: Path) -> None:
    for wrong in (0, True, 10.5):
        with pytest.raises(ValueError, match="a positive number of steps or a time"):
            Checkpoints(tmp_path / "disk", every_memory=wrong)  # type: ignore[arg-type]


@pytest.mark.usefixtures("group")
def test_a_module_in_place_of_a_state_is_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "disk", every_disk=1)
    with pytest.raises(TypeError, match="the state is a Sequential: give a dict that has a name for each thing"):
        checkpoints.save(1, _layers(1))


@pytest.mark.usefixtures("group")
def test_two_objects_that_save_into_memory_in_turns_are_refused_and_one_that_is_made_anew_is_not(
    tmp_path: Path,
) -> None:
    join_round(tmp_path, 0, 1, 1, store=HashStore())
    first, second = (Checkpoints(tmp_path / name, every_memory=1) for name in ("a", "b"))
    first.save(1, {"epoch": 1})
    second.save(1, {"epoch": 2})
    second.save(2, {"epoch": 2})
    with pytest.raises(edriver.CheckpointError, match="two Checkpoints of this process save in turns"):
        first.save(2, {"epoch": 1})


@pytest.mark.usefixtures("group")
def test_an_optimizer_without_its_module_is_refused_by_name(tmp_path: Path) -> None:
    _alone(tmp_path)
    state = _state(_layers, 1)
    del state["model"]
    with pytest.raises(edriver.CheckpointError, match="'optimizer' optimizes parameters that no module"):
        Checkpoints(tmp_path / "disk", every_memory=1).save(1, state)
    with pytest.raises(edriver.CheckpointError, match="'models' has modules or optimizers inside a list"):
        Checkpoints(tmp_path / "disk", every_memory=1).save(1, {"models": [_layers(1)]})


def _with_a_value_of_each_rank(folder: Path, rank: int, *, name: str) -> list[str]:
    join_round(folder, rank, 3, store=dist.distributed_c10d._get_default_store())
    warned: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("edriver.worker").addHandler(handler)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    model(torch.full((2, 4), float(rank)))  # the running mean of each rank differs
    kinds: dict[str, Any] = {
        "tensor": torch.full((5,), rank // 2),
        "value": {"position": rank // 2},
        "parameter": nn.Linear(2, 2, bias=False).requires_grad_(False),
        "nothing": 1,
        "name": 1,
    }
    kinds["parameter"].weight.fill_(rank // 2)
    key = f"own{rank}" if name == "name" else "own"
    state = {"model": model, key: kinds[name]}
    checkpoints = Checkpoints(folder / "disk", every_memory=1)
    for step in (1, 2, 3):
        checkpoints.save(step, state)
    dist.barrier()
    return warned


@pytest.mark.parametrize(("name", "key"), [("tensor", "own"), ("value", "own.position"), ("parameter", "own.weight")])
def test_what_is_kept_once_and_ranks_have_differently_is_named(tmp_path: Path, name: str, key: str) -> None:
    warned, *others = run_ranks(functools.partial(_with_a_value_of_each_rank, tmp_path, name=name), 3)
    assert others == [[], []]
    (line,) = warned
    assert line.startswith(
        f"the state's {key} is not the same on ranks 0 and 2, and checkpoints keep rank 0's, for all"
    )


@pytest.mark.parametrize("name", ["nothing", "name"])
def test_what_is_the_same_or_has_a_name_for_each_rank_is_not(tmp_path: Path, name: str) -> None:
    assert run_ranks(functools.partial(_with_a_value_of_each_rank, tmp_path, name=name), 3) == [[], [], []]


@pytest.mark.usefixtures("group")
def test_a_plan_is_made_once_for_each_structure() -> None:
    mesh = init_device_mesh("cpu", (1,))
    rows = distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)])
    state: dict[str, Any] = {"rows": rows, "plain": torch.ones(2), "epoch": 1, "nested": {"step": torch.ones(1)}}

    def planned(changed: dict[str, Any], made: MadePlan | None) -> MadePlan:
        planner = StatePlanner(made)
        planner.set_up_planner({**state, **changed}, is_coordinator=True)
        plan = planner.create_local_plan()
        assert planner.made is not None
        assert planner.made.plan is plan
        fresh = StatePlanner()
        fresh.set_up_planner({**state, **changed}, is_coordinator=True)
        assert plan == fresh.create_local_plan(), "it is that of another structure"
        return planner.made

    first = planned({}, None)
    again = {"rows": distribute_tensor(torch.zeros(4, 3), mesh, [Shard(0)]), "plain": torch.zeros(2), "epoch": "two"}
    assert planned(again, first).plan is first.plan
    for changed in (
        {"rows": distribute_tensor(torch.ones(4, 3), mesh, [Shard(1)])},
        {"rows": distribute_tensor(torch.ones(5, 3), mesh, [Shard(0)])},
        {"rows": torch.ones(4, 3)},
        {"plain": torch.ones(2, dtype=torch.bfloat16)},
        {"plain": torch.ones(2, requires_grad=True)},
        {"epoch": torch.ones(1)},
        {"more": 1},
        {"nested": {}, "nested.step": torch.ones(1)},
    ):
        assert planned(changed, first).plan is not first.plan


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "edriver.worker"]
    caplog.clear()
    return found


@pytest.mark.usefixtures("group")
def test_a_restart_that_finds_no_checkpoint_says_that_it_starts_from_the_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for n in (1, 2):
        _alone(tmp_path, n)
        assert Checkpoints(tmp_path / "disk", every_memory=1).load({"epoch": 1}) is None
        said = f"neither in memory nor in {tmp_path / 'disk'}: training starts again from the beginning"
        assert _said(caplog) == ([f"there is no checkpoint, {said}"] if n > 1 else [])


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("loads", ["nothing", "load", "reader"])
def test_a_script_that_saves_and_never_loads_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loads: str
) -> None:
    _alone(tmp_path)
    Checkpoints(tmp_path / "disk", every_memory=1).save(7, {"epoch": 1})
    assert _said(caplog) == [], "there was nothing to load"
    _alone(tmp_path, 2)
    checkpoints = Checkpoints(tmp_path / "disk", every_memory=1)
    if loads == "load":
        checkpoints.load({"epoch": 1})
    elif loads == "reader":
        edriver.checkpoints.MemoryReader()
    for step in (1, 2):
        checkpoints.save(step, {"epoch": 1})
    text = "the script saves checkpoints and does not load them: the one of step 7 in memory was not used. Call load"
    assert _said(caplog) == ([f"{text} before the first step"] if loads == "nothing" else [])


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("act", ["save", "load", "make"])
def test_a_forked_process_that_saves_or_loads_gets_a_sentence(tmp_path: Path, act: str) -> None:
    _alone(tmp_path)
    checkpoints = Checkpoints(tmp_path / "disk", every_memory=1)
    acts: dict[str, Callable[[], object]] = {
        "save": lambda: checkpoints.save(1, {"epoch": 1}),
        "load": lambda: checkpoints.load({"epoch": 1}),
        "make": lambda: Checkpoints(tmp_path / "disk"),
    }
    processes = multiprocessing.get_context("fork")
    said, says = processes.Pipe(duplex=False)

    def child() -> None:
        try:
            acts[act]()
            says.send("nothing was said")
        except edriver.CheckpointError as error:
            says.send(str(error))

    process = processes.Process(target=child)
    process.start()
    says.close()
    assert said.poll(BOUND)
    assert "was forked from the one that trains" in said.recv()
    process.join()


OWN = {f"own{number}": 5 for number in range(15)} | {"large": 300_000}


def _own_values(folder: Path, rank: int, *, n: int, where: str) -> tuple[list[int], list[str]]:
    """What a rank has after a load, of tensors of which each had its own at the save before; and what was said."""
    if where == "memory":
        join_round(folder, rank, 3, n, store=dist.distributed_c10d._get_default_store())
    warned: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("edriver.worker").addHandler(handler)
    state: dict[str, Any] = {name: torch.full((size,), 10 * n + rank) for name, size in OWN.items()}
    state["same"] = torch.ones(5)
    checkpoints = Checkpoints(folder / "disk", every_memory=1, every_disk=1)
    if n == 2:
        assert checkpoints.load(state) == 1
    else:
        checkpoints.save(1, state)
        checkpoints.wait()
    dist.barrier()
    return [int(state[name][0]) for name in OWN], warned


def test_what_ranks_have_differently_comes_back_as_rank_0_had_it_and_a_few_are_named(tmp_path: Path) -> None:
    (_, (line,)), *_ = run_ranks(functools.partial(_own_values, tmp_path, n=1, where="memory"), 3)
    assert line.startswith(
        "the state's own0, own1, own2, own3, own4 and 11 more are not the same on ranks 0 and 1, and"
    )
    after = run_ranks(functools.partial(_own_values, tmp_path, n=2, where="memory"), 3)
    assert [values for values, _ in after] == [[10] * len(OWN)] * 3


def test_small_tensors_that_ranks_have_differently_come_from_rank_0_without_edriver_too(tmp_path: Path) -> None:
    run_ranks(functools.partial(_own_values, tmp_path, n=1, where="disk"), 3)
    after = run_ranks(functools.partial(_own_values, tmp_path, n=2, where="disk"), 3)
    assert [values[:-1] for values, _ in after] == [[10] * (len(OWN) - 1)] * 3


class _Unpicklable:
    def __reduce__(self) -> str:
        raise TypeError("a handle")


def _with_sparse_buffer() -> nn.Module:
    module = nn.Linear(2, 2)
    module.register_buffer("mask", torch.eye(2).to_sparse())
    return module


def _with_lbfgs() -> dict[str, Any]:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.LBFGS(model.parameters())

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        found: torch.Tensor = model(torch.ones(2)).square().sum()
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return {"model": model, "optimizer": optimizer}


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize(
    ("make", "text"),
    [
        pytest.param(
            lambda: {"a": {"b": [_Unpicklable()]}}, r"state's a\.b.* cannot be pickled \(a handle\)", id="pickle"
        ),
        pytest.param(lambda: {"f": lambda: 1}, "the state's f cannot be pickled", id="function"),
        pytest.param(lambda: {"s": [torch.eye(2).to_sparse()]}, r"s\.0 is a sparse tensor.*to_dense", id="sparse"),
        pytest.param(lambda: {"m": _with_sparse_buffer()}, r"m\.mask is a sparse tensor.*to_dense", id="buffer"),
        pytest.param(
            lambda: {"m": nn.Linear(2, 2, device="meta")}, r"m\.weight is on the meta device.*to_empty", id="meta"
        ),
        pytest.param(_with_lbfgs, "'optimizer' is a LBFGS.*leave it out of the state", id="lbfgs"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_name_wherever_checkpoints_go(
    tmp_path: Path, where: str, make: Callable[[], dict[str, Any]], text: str
) -> None:
    if where == "memory":
        _alone(tmp_path)
    checkpoints = Checkpoints(tmp_path / "disk", every_memory=1, every_disk=1)
    with pytest.raises(edriver.CheckpointError, match=text):
        checkpoints.save(1, make())


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("restarted", [[], [torch.ones(1), torch.ones(1)]], ids=["empty", "longer"])
def test_a_list_of_tensors_that_has_another_length_is_named_with_the_way_out(
    tmp_path: Path, restarted: list[torch.Tensor]
) -> None:
    _alone(tmp_path)
    Checkpoints(tmp_path / "disk", every_memory=1).save(1, {"losses": [torch.ones(1)]})
    _alone(tmp_path, 2)
    with pytest.raises(edriver.CheckpointError, match=r"it has no losses(\.1)?, which .* make it as long before load"):
        Checkpoints(tmp_path / "disk", every_memory=1).load({"losses": restarted})


@pytest.mark.usefixtures("group")
def test_plain_values_of_a_function_that_makes_a_new_dict_are_named_when_they_are_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _alone(tmp_path)
    tensor = torch.ones(1)
    Checkpoints(tmp_path / "disk", every_memory=1).save(1, {"epoch": 3, "tensor": tensor})
    _said(caplog)
    _alone(tmp_path, 2)
    checkpoints = Checkpoints(tmp_path / "disk", every_memory=1)
    kept: dict[str, Any] = {"epoch": 0, "tensor": tensor}
    assert checkpoints.load(lambda: kept) == 1
    assert (kept["epoch"], _said(caplog)) == (3, [])
    checkpoints.load(lambda: {"epoch": 0, "tensor": tensor})
    (said,) = _said(caplog)
    assert said.startswith("load cannot give back the state's epoch: the function makes a new dict")


@pytest.mark.usefixtures("group")
def test_equal_values_that_can_change_are_loaded_as_objects_of_their_own(tmp_path: Path) -> None:
    saved: dict[str, Any] = {"options": {"one": {1: [0]}, "two": {1: [0]}, "three": 0.1, "four": 0.1}}
    _alone(tmp_path)
    Checkpoints(tmp_path / "disk", every_memory=1).save(1, saved)
    _alone(tmp_path, 2)
    state: dict[str, Any] = {"options": {"one": {1: []}, "two": {1: []}, "three": 0, "four": 0}}
    Checkpoints(tmp_path / "disk").load(state)
    assert state == saved
    assert state["options"]["one"] is not state["options"]["two"]
