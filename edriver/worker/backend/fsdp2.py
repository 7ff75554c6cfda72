"""FSDP2 from one round to the next: a module and its optimizer are bound to another mesh, and keep every tensor.

fully_shard takes its mesh once, and torch has no public way to change it. A new round has new process groups, and
another number of replicas, but the same shards: so nothing is moved, and what refers to the mesh refers to the new one
afterwards. That takes some milliseconds, where sharding the module anew takes tenths of a second and its parameters
twice.

Interfaces, by the versions of torch in whose source they were found:

    =====================================================================================  =======  =======
    name                                                                                   2.11     2.13
    =====================================================================================  =======  =======
    FSDPModule._get_fsdp_state                                                             yes      yes
    FSDPState._fsdp_param_groups                                                           no       yes
    FSDPState._fsdp_param_group                                                            yes      one only
    FSDPState._state_ctx, _comm_ctx, _training_state, _modules_to_run_forward              yes      yes
    FSDPParamGroup.mesh_info, post_forward_mesh_info, fsdp_params, _training_state         yes      yes
    FSDPParamGroup._to_sharded, _post_forward_indices and what holds a step's collectives  yes      yes
    FSDPParam.mesh_info, post_forward_mesh_info, sharded_param                             yes      yes
    FSDPParam._spmd_mesh, _sharding_spec, _unsharded_param, unsharded_accumulated_grad     yes      yes
    FSDPParam._shard_mesh                                                                  no       yes
    HSDPMeshInfo(mesh, shard_mesh_dim, replicate_mesh_dim)                                 yes      yes
    DTensor._spec, DTensorSpec(mesh, placements, tensor_meta)                              yes      yes
    torch.distributed.tensor.debug._clear_sharding_prop_cache                              yes      yes
    =====================================================================================  =======  =======

`trouble` finds out whether they are there. Where they are not, a state builds its module anew in each round.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, debug
from torch.optim import Optimizer

_OF_STATE: Final = ("_state_ctx", "_comm_ctx", "_training_state", "_modules_to_run_forward")
_OF_GROUP: Final = ("mesh_info", "post_forward_mesh_info", "fsdp_params", "_training_state", "_to_sharded")
_OF_PARAMETER: Final = ("mesh_info", "sharded_param", "_spmd_mesh", "_sharding_spec", "unsharded_accumulated_grad")

_OF_A_STEP: Final = {
    "_all_gather_result": None,
    "_post_reduce_event": None,
    "_reshard_after_forward_event": None,
    "_partial_reduce_output": None,
    "_all_reduce_state": None,
}
"""What a group keeps of a step under way. Never waited for: the collectives may be those of a round that was severed."""


def trouble(model: torch.nn.Module) -> str:
    """Why `bind` does not know this module: what it does not find; empty: it knows it."""
    try:
        missing = sorted(set(_missing(model)))
    except (AttributeError, ImportError) as error:
        return str(error)
    return f"FSDP2 of torch {torch.__version__} lacks {', '.join(missing)}" if missing else ""


def bind(model: torch.nn.Module, optimizer: Optimizer | None, mesh: DeviceMesh) -> None:
    """Have a module and its optimizer train on another mesh, of another round.

    Whatever was left of a step is forgotten: unsharded parameters, gradients that were not reduced yet. The gradients
    of the sharded parameters stay.

    Args:
        model: with modules that fully_shard has sharded over a mesh of two dimensions.
        optimizer: of its sharded parameters; None: it has none.
        mesh: of two dimensions, replicas and shards, with as many shards as the one before, and this process at the
            same place among them.

    Raises:
        ValueError: this process has another shard in the new mesh.
    """
    forget_step(model)
    infos: dict[int, Any] = {}
    for group in _groups(model):
        _check(group.mesh_info, mesh)
        before, after = group.mesh_info, _info(infos, group.mesh_info, mesh)
        group.mesh_info = after
        if group.post_forward_mesh_info is before:
            group.post_forward_mesh_info = after
        for parameter in group.fsdp_params:
            _bind_parameter(parameter, before, after)
    for tensor in _tensors(model, optimizer):
        if isinstance(tensor, DTensor):
            tensor._spec = _spec_on(tensor._spec, mesh)
    # Equal meshes are one to DTensor's caches, which remember the process groups of the first.
    debug._clear_sharding_prop_cache()


def forget_step(model: torch.nn.Module) -> None:
    """Bring a module back to what it is between two steps, whatever interrupted the last one.

    FSDPModule.reset_iter_state (from torch 2.13 on) waits for collectives, and keeps gradients that were not reduced.
    """
    for state in _states(model):
        state._training_state = type(state._training_state).IDLE
        state._modules_to_run_forward.clear()
        state._state_ctx.iter_forward_root = None
        state._state_ctx.post_backward_final_callback_queued = False
        _forget_collectives(state._comm_ctx)
    for group in _groups(model):
        for name, empty in _OF_A_STEP.items():
            if hasattr(group, name):
                setattr(group, name, empty)
        group._post_forward_indices.clear()
        group._training_state = type(group._training_state).IDLE
        group._to_sharded()
        for parameter in group.fsdp_params:
            parameter.unsharded_accumulated_grad = None
            unsharded = getattr(parameter, "_unsharded_param", None)
            if unsharded is not None:
                unsharded.grad = None


def sharded_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The module's sharded parameters by name, also while others stand in their places for a forward pass."""
    sharded = {
        (id(info.module), info.param_name): parameter.sharded_param
        for group in _groups(model)
        for parameter in group.fsdp_params
        for info in (parameter._module_info,)
    }
    found = {}
    for path, module in model.named_modules():
        for name, _ in module.named_parameters(recurse=False):
            if (kept := sharded.get((id(module), name))) is not None:
                found[f"{path}.{name}" if path else name] = kept
    return found


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor: the memory itself."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def parts_of_steps(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """For each group of parameters its name, and the mesh information that it trains with."""
    for group in _groups(model):
        yield group._module_fqn or "the model", group


def _missing(model: torch.nn.Module) -> Iterator[str]:
    for state in _states(model):
        yield from (name for name in _OF_STATE if not hasattr(state, name))
        if not hasattr(state, "_fsdp_param_groups") and not hasattr(state, "_fsdp_param_group"):
            yield "_fsdp_param_groups"
            return
    for group in _groups(model):
        yield from (name for name in _OF_GROUP if not hasattr(group, name))
        for parameter in getattr(group, "fsdp_params", ()):
            yield from (name for name in _OF_PARAMETER if not hasattr(parameter, name))
            if not hasattr(getattr(parameter, "sharded_param", None), "_spec"):
                yield "_spec"
    if not hasattr(debug, "_clear_sharding_prop_cache"):
        yield "_clear_sharding_prop_cache"


def _states(model: torch.nn.Module) -> list[Any]:
    """What fully_shard keeps, once for each of its calls."""
    found = [m._get_fsdp_state() for m in model.modules() if isinstance(m, FSDPModule)]
    return list({id(state): state for state in found}.values())


def _groups(model: torch.nn.Module) -> list[Any]:
    """The groups of parameters whose collectives go together."""
    found: list[Any] = []
    for state in _states(model):
        several = getattr(state, "_fsdp_param_groups", None)
        found.extend([state._fsdp_param_group] if several is None else several)
    return [group for group in found if group is not None]


def _check(info: Any, mesh: DeviceMesh) -> None:
    now = mesh.get_local_rank(mesh.ndim - 1), mesh.size(mesh.ndim - 1)
    if (info.shard_mesh_rank, info.shard_mesh_size) != now:
        raise ValueError(
            f"this process holds shard {info.shard_mesh_rank} of {info.shard_mesh_size}, and is shard {now[0]} of "
            f"{now[1]} in the mesh to bind it to"
        )


def _info(made: dict[int, Any], before: Any, mesh: DeviceMesh) -> Any:
    """What FSDP2 keeps of a mesh: one object for all groups that shared one."""
    if id(before) not in made:
        made[id(before)] = type(before)(mesh, shard_mesh_dim=1, replicate_mesh_dim=0)
    return made[id(before)]


def _bind_parameter(parameter: Any, before: Any, after: Any) -> None:
    mesh = after.mesh
    parameter.mesh_info = after
    if parameter.post_forward_mesh_info is before:
        parameter.post_forward_mesh_info = after
    parameter._spmd_mesh = mesh
    if hasattr(parameter, "_shard_mesh"):
        parameter._shard_mesh = mesh[mesh.mesh_dim_names[-1]]
    parameter._sharding_spec = _spec_on(parameter._sharding_spec, mesh)
    parameter.sharded_param._spec = parameter._sharding_spec


def _spec_on(spec: Any, mesh: DeviceMesh) -> Any:
    return type(spec)(mesh, spec.placements, tensor_meta=spec.tensor_meta)


def _tensors(model: torch.nn.Module, optimizer: Optimizer | None) -> Iterator[torch.Tensor]:
    """The gradients, and all that the optimizer has of its parameters."""
    parameters = [p.sharded_param for group in _groups(model) for p in group.fsdp_params]
    yield from (p.grad for p in parameters if p.grad is not None)
    if optimizer is not None:
        yield from _tensors_in(list(optimizer.state.values()))


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors_in(part)


def _forget_collectives(shared: Any) -> None:
    """Of all groups together."""
    if not hasattr(shared, "all_gather_state"):
        return  # no forward pass has been made yet
    shared.all_gather_state = None
    shared.post_forward_order.clear()
    if hasattr(shared, "reduce_scatter_states"):
        shared.reduce_scatter_states.clear()
        shared._last_post_reduce_events.clear()
    else:
        shared.reduce_scatter_state = None
