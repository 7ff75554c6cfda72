"""FSDP2 from one round to the next: a module and its optimizer are bound to another mesh, and keep every tensor.

fully_shard takes its mesh once, and torch has no public way to change it. A new round has new process groups, and
another number of replicas, but the same shards: so nothing is moved, and what refers to the mesh refers to the new one
afterwards. That takes some milliseconds, where sharding the module anew takes tenths of a second and its parameters
twice. Where the round has another number of shards, the shards are new tensors (`empty_shards`), and the module and
its parameters stay the same objects.

Interfaces, by the versions of torch in whose source they were found:

    =====================================================================================  =====  =====  ======
    name                                                                                   2.11   2.13   2.14.1
    =====================================================================================  =====  =====  ======
    FSDPModule._get_fsdp_state                                                             yes    yes    yes
    FSDPState._fsdp_param_groups                                                           no     yes    yes
    FSDPState._fsdp_param_group                                                            yes
    FSDPState._state_ctx, _comm_ctx, _training_state, _modules_to_run_forward              yes    yes    yes
    FSDPParamGroup.mesh_info, post_forward_mesh_info, fsdp_params, _training_state         yes    yes    yes
    FSDPParamGroup._to_sharded, _post_forward_indices, what holds a step's collectives     yes    yes    yes
    FSDPParamGroup._all_gather_comm, _reduce_scatter_comm, _all_reduce_hook                yes    yes    yes
    FSDPParam.mesh_info, post_forward_mesh_info, sharded_param, _module_info               yes    yes    yes
    FSDPParam._spmd_mesh, _sharding_spec, _unsharded_param, unsharded_accumulated_grad     yes    yes    yes
    FSDPParam._shard_mesh                                                                  no     yes    yes
    FSDPParam._sharded_param_data, sharded_size, padded_sharded_param_size                 ?      yes    ?
    FSDPParam.contiguous_sharded_stride, all_gather_outputs, sharded_post_forward_size     ?      yes    ?
    HSDPMeshInfo(mesh, shard_mesh_dim, replicate_mesh_dim)                                 yes    yes    yes
    DTensor._spec, DTensorSpec(mesh, placements, tensor_meta); DTensor._local_tensor       yes    yes    yes
    torch.distributed.tensor.debug._clear_sharding_prop_cache                              yes    yes    yes
    =====================================================================================  =====  =====  ======

(?: not looked up.) `trouble` finds out whether they are there. Where they are not, a state builds its module anew in
each round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, debug
from torch.optim import Optimizer

_OF_STATE: Final = ("_state_ctx", "_comm_ctx", "_training_state", "_modules_to_run_forward")
_OF_GROUP: Final = ("mesh_info", "post_forward_mesh_info", "fsdp_params", "_training_state", "_to_sharded")
_OF_PARAMETER: Final = ("mesh_info", "sharded_param", "_spmd_mesh", "_sharding_spec", "unsharded_accumulated_grad")

_OF_SHARDS: Final = ("_sharded_param_data", "sharded_size", "padded_sharded_param_size", "contiguous_sharded_stride")

_OF_A_STEP: Final = {
    "_all_gather_result": None,
    "_post_reduce_event": None,
    "_reshard_after_forward_event": None,
    "_partial_reduce_output": None,
    "_all_reduce_state": None,
}
"""What a group keeps of a step under way. It is never waited for: the round of its collectives may be severed."""


def trouble(model: torch.nn.Module) -> str:
    """Why `bind` does not know this module: what it does not find; empty: it knows it."""
    try:
        missing = sorted(set(_missing(model)))
    except (AttributeError, ImportError) as error:
        return str(error)
    return f"FSDP2 of torch {torch.__version__} lacks {', '.join(missing)}" if missing else ""


def trouble_here() -> str:
    """The same of a module that is made here. Needs a default process group of one."""
    return trouble_on(init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard")))


def trouble_on(mesh: DeviceMesh) -> str:
    """The same of one that is made on a mesh of two dimensions, replicas and shards."""
    model = torch.nn.Linear(1, 1, device="meta")  # which draws no random numbers
    fully_shard(model, mesh=mesh)
    return trouble(model)


def bind(
    model: torch.nn.Module,
    optimizer: Optimizer | None,
    mesh: DeviceMesh,
    shards: Sequence[torch.Tensor] | None = None,
) -> None:
    """Have a module and its optimizer train on another mesh, of another round.

    Whatever was left of a step is forgotten: unsharded parameters, gradients that were not reduced yet. The gradients
    of the sharded parameters stay, if the shards do.

    Args:
        model: with modules that fully_shard has sharded over a mesh of two dimensions.
        optimizer: of its sharded parameters; None: it has none. What it has of parameters with new shards it keeps,
            bound to the mesh before: the caller replaces that.
        mesh: of two dimensions, replicas and shards.
        shards: this process's shards in the new mesh, as `empty_shards` makes them, for each of `sharded(model)`. They
            are not copied. None: the mesh has as many shards as the one before, with this process at the same place
            among them, and the parameters keep theirs.

    Raises:
        ValueError: `shards` is None, and this process has another shard in the new mesh.
    """
    forget_step(model)
    infos: dict[int, Any] = {}
    new = iter(shards or ())
    for group in _groups(model):
        if shards is None:
            _check(group.mesh_info, mesh)
        before, after = group.mesh_info, _info(infos, group.mesh_info, mesh)
        group.mesh_info = after
        if group.post_forward_mesh_info is before:
            group.post_forward_mesh_info = after
        for parameter in group.fsdp_params:
            _bind_parameter(parameter, before, after)
            if shards is not None:
                _give_shard(parameter, next(new), after)
    for tensor in _tensors(model, optimizer if shards is None else None):
        if isinstance(tensor, DTensor):
            tensor._spec = _spec_on(tensor._spec, mesh)
    forget_meshes()


def sharded(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that fully_shard has sharded, in the same order on all workers: DTensors of the whole shapes."""
    return [parameter.sharded_param for group in _groups(model) for parameter in group.fsdp_params]


def empty_shards(model: torch.nn.Module, size: int) -> list[torch.Tensor]:
    """Zeros for a shard of each of `sharded(model)`, as one of `size` workers keeps them.

    FSDP2 gives all workers as many rows, ceil(rows / size); rows that are beyond the parameter's end stay zero.
    """
    shapes = ((-(-p.shape[0] // size), *p.shape[1:]) for p in sharded(model))
    return [local(p).new_zeros(shape) for p, shape in zip(sharded(model), shapes, strict=True)]


def forget_meshes() -> None:
    """Have DTensor forget what it knows of meshes.

    Two meshes of the same ranks are one to its caches, which remember the process groups of the first, and this
    process's place in it. A collective would look for groups that are gone, or hang.

    Raises:
        AttributeError: torch has no such function. The first round raises it, and the run fails.
    """
    debug._clear_sharding_prop_cache()  # type: ignore[no-untyped-call]


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
            if (whole := _unsharded(parameter)) is not None:
                whole.grad = None


def parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The module's parameters, those of FSDP2 sharded, also while others stand in their places for a forward pass."""
    in_place = {
        place: parameter.sharded_param
        for group in _groups(model)
        for parameter in group.fsdp_params
        for place in _places_of(parameter._module_info)
    }
    found: dict[torch.nn.Parameter, None] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            found[in_place.get((id(module), name), parameter)] = None
    return list(found)


def _places_of(info: Any) -> Iterator[tuple[int, str]]:
    """Where a parameter stands: several places, if it is shared."""
    yield id(info.module), info.param_name
    yield from zip(map(id, info.shared_modules), info.shared_param_names, strict=True)


def gradients(model: torch.nn.Module) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The gradients: this rank's shards, and those that each worker has in full."""
    found = [parameter.grad for parameter in parameters(model) if parameter.grad is not None]
    return (
        [local(gradient) for gradient in found if isinstance(gradient, DTensor)],
        [gradient for gradient in found if not isinstance(gradient, DTensor)],
    )


def scale(tensors: list[torch.Tensor], factor: float) -> None:
    """Multiply tensors in place, in few kernels.

    Interface: torch._foreach_mul_, with which torch's own clipping and GradScaler do that.
    """
    if tensors:
        torch._foreach_mul_(tensors, factor)


def unsharded(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and persistent buffers that each worker has in full, by name."""
    return {k: v for k, v in model.state_dict().items() if isinstance(v, torch.Tensor) and not isinstance(v, DTensor)}


def holds_unreduced(model: torch.nn.Module) -> bool:
    """Whether gradients have been accumulated that are not, or not wholly, reduced yet."""
    return any(
        getattr(group, "_partial_reduce_output", None) is not None
        or any(
            p.unsharded_accumulated_grad is not None or getattr(_unsharded(p), "grad", None) is not None
            for p in group.fsdp_params
        )
        for group in _groups(model)
    )


def reshard(model: torch.nn.Module) -> None:
    """Have the sharded parameters stand in their places: after a forward pass alone, some do not."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor: the memory itself."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def place_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The shape of a whole tensor, that of this rank's shard, and where in the whole the shard begins.

    Args:
        tensor: sharded along dimension 0, over the last dimension of its mesh: see `obstacle`.
    """
    assert isinstance(tensor, DTensor), "it is sharded"
    mesh, rows = tensor.device_mesh, tensor.shape[0]
    first = min(rows, -(-rows // mesh.size(mesh.ndim - 1)) * mesh.get_local_rank(mesh.ndim - 1))
    return tuple(tensor.shape), tuple(local(tensor).shape), (first, *[0] * (tensor.ndim - 1))


def obstacle(model: torch.nn.Module, mesh: DeviceMesh) -> str:
    """Why a module cannot go on in another round's mesh, as a clause; empty: it can.

    Args:
        model: which may have been sharded by anyone.
        mesh: the round's, over which it has to be sharded.
    """
    groups = _groups(model)
    if not groups:
        return "fully_shard has sharded none of its modules"
    if type(model).__name__ == "OptimizedModule" or any(m._compiled_call_impl for m in model.modules()):
        return "it is compiled, and compiled code may keep a round's process groups"
    for group in groups:
        if reason := _obstacle_in(group, mesh):
            return reason
    own = set(sharded(model))
    others = [name for name, p in model.named_parameters() if isinstance(p, DTensor) and p not in own]
    others += [name for name, b in model.named_buffers() if isinstance(b, DTensor)]
    return f"{others[0]!r} is a DTensor that fully_shard has not made" if others else ""


def _obstacle_in(group: Any, mesh: DeviceMesh) -> str:
    if group.mesh_info.mesh is not mesh or type(group.mesh_info).__name__ != "HSDPMeshInfo":
        return "it is sharded over another mesh than the one that `build` is given: pass that to fully_shard as it is"
    if group.post_forward_mesh_info is not None and group.post_forward_mesh_info is not group.mesh_info:
        return "reshard_after_forward is a number of workers, for which torch makes another mesh: give True or False"
    comms = (type(group._all_gather_comm).__name__, type(group._reduce_scatter_comm).__name__)
    separate = getattr(group.mesh_info, "reduce_scatter_process_group", None)
    if comms != ("DefaultAllGather", "DefaultReduceScatter") or group._all_reduce_hook or separate:
        return "it has collectives or process groups that are not FSDP2's own, which edriver cannot renew"
    for parameter in group.fsdp_params:
        if parameter.is_dtensor:
            return "a parameter was a DTensor before fully_shard sharded it: there is one dimension within a replica"
        if parameter.fsdp_placement.dim != 0:
            return f"a parameter is sharded along dimension {parameter.fsdp_placement.dim}: shard along 0"
    return ""


def _unsharded(parameter: Any) -> torch.Tensor | None:
    """What stands in a parameter's place in a forward pass; None: there has been none."""
    found: torch.Tensor | None = getattr(parameter, "_unsharded_param", None)
    return found


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
            yield from (name for name in _OF_SHARDS if not hasattr(parameter, name))
            if not hasattr(getattr(parameter, "sharded_param", None), "_spec"):
                yield "_spec"


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


def _give_shard(parameter: Any, padded: torch.Tensor, info: Any) -> None:
    """Have a parameter keep a shard of another size. What a forward pass unshards is made anew for it."""
    rows = parameter.sharded_param.shape[0]
    first = min(rows, info.shard_mesh_rank * padded.shape[0])
    part = padded[: min(padded.shape[0], rows - first)].detach()
    parameter.padded_sharded_param_size = padded.shape
    parameter.sharded_size = part.shape
    parameter.contiguous_sharded_stride = part.stride()
    if parameter.post_forward_mesh_info is not None:
        parameter.sharded_post_forward_size = part.shape
        parameter.contiguous_sharded_post_forward_stride = part.stride()
    parameter._sharded_param_data = padded.view(-1)
    parameter.sharded_param.grad = None
    parameter.sharded_param._local_tensor = part
    parameter.all_gather_outputs = []
    if _unsharded(parameter) is not None:
        del parameter._unsharded_param


def _spec_on(spec: Any, mesh: DeviceMesh) -> Any:
    return type(spec)(mesh, spec.placements, tensor_meta=spec.tensor_meta)


def _tensors(model: torch.nn.Module, optimizer: Optimizer | None) -> Iterator[torch.Tensor]:
    """The gradients, and all that the optimizer has of its parameters."""
    yield from (p.grad for p in sharded(model) if p.grad is not None)
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
