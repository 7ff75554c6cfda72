"""FSDP2 from one round to the next: a module and its optimizer are bound to another mesh, and keep every tensor.

fully_shard takes its mesh once, and torch has no public way to change it. A new round has new process groups, and
another number of replicas, but the same shards: so nothing is moved, and what refers to the mesh refers to the new one
afterwards. That takes some milliseconds, where sharding the module anew takes tenths of a second and its parameters
twice. Where the round has another number of shards, the shards are new tensors (`empty_shards`), and the module and
its parameters stay the same objects.

Interfaces, by the versions of torch in whose source they were found; the tests of sharded models pass with each, bound
and made anew:

    ======================================================================================  ====  ====  ====  ====  ====
    name                                                                                    2.11  2.12  2.13  2.14  2.15
    ======================================================================================  ====  ====  ====  ====  ====
    FSDPModule._get_fsdp_state                                                              yes   yes   yes   yes   yes
    FSDPState._fsdp_param_groups                                                            no    yes   yes   yes   yes
    FSDPState._fsdp_param_group                                                             yes
    FSDPState._state_ctx, _comm_ctx, _training_state, _modules_to_run_forward               yes   yes   yes   yes   yes
    _state_ctx.manual_backward_finalization_active, gradient_reduction_pending              no    no    no    no    yes
    _comm_ctx.all_gather_state, post_forward_order                                          yes   yes   yes   yes   yes
    _comm_ctx.reduce_scatter_states; in 2.11 reduce_scatter_state                           no    yes   yes   yes   yes
    _comm_ctx._last_post_reduce_events                                                      no    no    yes   yes   yes
    _comm_ctx.active_gradient_reduction                                                     no    no    no    no    yes
    FSDPParamGroup.mesh_info, post_forward_mesh_info, fsdp_params, _training_state          yes   yes   yes   yes   yes
    FSDPParamGroup._to_sharded, _post_forward_indices, and those of _OF_A_STEP but the last yes   yes   yes   yes   yes
    FSDPParamGroup._post_backward_pending, _partial_reduce_output_layout                    no    no    no    no    yes
    FSDPParamGroup._set_unsharded_grad_dtypes                                               no    no    no    no    yes
    FSDPParamGroup._all_gather_comm, _reduce_scatter_comm, _all_reduce_hook                 yes   yes   yes   yes   yes
    FSDPParam.mesh_info, post_forward_mesh_info, sharded_param, _module_info                yes   yes   yes   yes   yes
    FSDPParam._spmd_mesh, _sharding_spec, _unsharded_param                                  yes   yes   yes   yes   yes
    FSDPParam._unsharded_dtensor_spec; in 2.11 _tp_spec                                     no    yes   yes   yes   yes
    FSDPParam._sharding_spec_by_dtype, made of _sharding_spec and kept                      no    no    no    no    yes
    FSDPParam.unsharded_accumulated_grad; from 2.15 on it can only be read                  yes   yes   yes   yes   yes
    FSDPParam._shard_mesh                                                                   no    yes   yes   yes   yes
    FSDPParam._sharded_param_data, sharded_size, padded_sharded_param_size                  yes   yes   yes   yes   yes
    FSDPParam.contiguous_sharded_stride, all_gather_outputs, sharded_post_forward_size      yes   yes   yes   yes   yes
    HSDPMeshInfo(mesh, shard_mesh_dim, replicate_mesh_dim)                                  yes   yes   yes   yes   yes
    DTensor._spec, DTensorSpec(mesh, placements, tensor_meta); DTensor._local_tensor        yes   yes   yes   yes   yes
    torch.distributed.tensor.debug._clear_sharding_prop_cache                               yes   yes   yes   yes   yes
    ======================================================================================  ====  ====  ====  ====  ====

`trouble` finds out whether those are there that all versions have. Where they are not, a state builds its module anew
in each round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, debug
from torch.optim import Optimizer

from edriver.worker.backend.mesh_objects import MeshObjects

PIPELINE: Final = ("pipeline", "pp")
"""Names of a dimension whose workers have different layers; without a dimension of the mesh, workers have the same."""

_OF_STATE: Final = ("_state_ctx", "_comm_ctx", "_training_state", "_modules_to_run_forward")
_OF_GROUP: Final = (
    "mesh_info",
    "post_forward_mesh_info",
    "fsdp_params",
    "_training_state",
    "_to_sharded",
    "_post_forward_indices",
)
_OF_PARAMETER: Final = (
    "mesh_info",
    "post_forward_mesh_info",
    "sharded_param",
    "is_dtensor",
    "_spmd_mesh",
    "_sharding_spec",
    "unsharded_accumulated_grad",
)

_OF_SHARDS: Final = ("_sharded_param_data", "sharded_size", "padded_sharded_param_size", "contiguous_sharded_stride")

_NAME_OF_SPEC: Final = "_unsharded_dtensor_spec"
_EARLIER_NAME_OF_SPEC: Final = "_tp_spec"
"""What a parameter keeps of the DTensor that it was before fully_shard."""

_OF_A_STEP: Final = {
    "_all_gather_result": None,
    "_post_reduce_event": None,
    "_reshard_after_forward_event": None,
    "_partial_reduce_output": None,
    "_all_reduce_state": None,
    "_post_backward_pending": False,
}
"""What a group keeps of a step under way. It is never waited for: the round of its collectives may be severed."""

_OF_A_BACKWARD_PASS: Final = {
    "post_backward_final_callback_queued": False,
    "manual_backward_finalization_active": None,
    "gradient_reduction_pending": False,
}
"""What all that one forward pass has called keep together of the backward pass."""


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
    """The same of one that is made on the first two dimensions of a mesh, as if they were replicas and shards."""
    model = torch.nn.Linear(1, 1, device="meta")  # which draws no random numbers
    names = mesh.mesh_dim_names
    fully_shard(model, mesh=mesh if names is None or mesh.ndim == 2 else mesh[names[:2]])
    return trouble(model)


def before_modules(model: torch.nn.Module, call: Callable[[], object]) -> None:
    """Call a function whenever the forward pass of a sharded module begins, before it gathers its parameters."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # FSDP2's own hooks are not compiled either
    def hook(_module: torch.nn.Module, _args: Any) -> None:
        call()

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.register_forward_pre_hook(hook, prepend=True)


def bind(
    model: torch.nn.Module,
    optimizer: Optimizer | None,
    mesh: DeviceMesh,
    shards: Sequence[torch.Tensor] | None = None,
    objects: MeshObjects | None = None,
) -> None:
    """Have a module and its optimizer train on another mesh, of another round.

    Whatever was left of a step is forgotten: unsharded parameters, gradients that were not reduced yet. The gradients
    of the sharded parameters stay, if the shards do.

    Args:
        model: with modules that fully_shard has sharded over a mesh of two dimensions.
        optimizer: of its sharded parameters; None: it has none. What it has of parameters with new shards it keeps,
            bound to the mesh before: the caller replaces that.
        mesh: of two dimensions, replicas and shards; with `objects` of any number, of which the first are the replicas.
        shards: this process's shards in the new mesh, as `empty_shards` makes them, for each of `sharded(model)`. They
            are not copied. None: the mesh has as many shards as the one before, with this process at the same place
            among them, and the parameters keep theirs.
        objects: those of the mesh before, which are moved to this one. None: the mesh has two dimensions, and nothing
            but FSDP2 and DTensors refers to it.

    Raises:
        ValueError: `shards` is None, and this process has another shard in the new mesh.
    """
    forget_step(model)
    if objects is not None:
        objects.move(mesh)

    def new_mesh(before: DeviceMesh) -> DeviceMesh:
        return mesh if objects is None else before  # which has been moved

    infos: dict[int, Any] = {}
    new = iter(shards or ())
    for group in _groups(model):
        if shards is None and objects is None:
            _check(group.mesh_info, mesh)
        before, after = group.mesh_info, _info(infos, group.mesh_info, new_mesh(group.mesh_info.mesh))
        group.mesh_info = after
        if group.post_forward_mesh_info is before:
            group.post_forward_mesh_info = after
        for parameter in group.fsdp_params:
            _bind_parameter(parameter, before, after, new_mesh)
            if shards is not None:
                _give_shard(parameter, next(new), after)
    for tensor in _tensors(model, optimizer if shards is None else None):
        if isinstance(tensor, DTensor):
            tensor._spec = _spec_on(tensor._spec, new_mesh(tensor._spec.mesh))
    forget_meshes()


def sharded(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that fully_shard has sharded, in the same order on all workers: DTensors of the whole shapes."""
    return [parameter.sharded_param for group in _groups(model) for parameter in group.fsdp_params]


def sharded_over(model: torch.nn.Module) -> set[str]:
    """The names of the dimensions inside a replica that fully_shard has sharded modules over."""
    return {name for group in _groups(model) for name in (group.mesh_info.mesh.mesh_dim_names or ())[1:2]}


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
        _empty(state._state_ctx, _OF_A_BACKWARD_PASS)
        _forget_collectives(state._comm_ctx)
    for group in _groups(model):
        _empty(group, _OF_A_STEP)
        group._post_forward_indices.clear()
        if hasattr(group, "_partial_reduce_output_layout"):
            group._partial_reduce_output_layout.clear()
        group._training_state = type(group._training_state).IDLE
        group._to_sharded()
        for parameter in group.fsdp_params:
            if "unsharded_accumulated_grad" in vars(parameter):  # else it is the gradient of the unsharded parameter
                parameter.unsharded_accumulated_grad = None
            if (whole := _unsharded(parameter)) is not None:
                whole.grad = None
        if hasattr(group, "_set_unsharded_grad_dtypes"):
            group._set_unsharded_grad_dtypes(defer_upcast=False)


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


def gradients(model: torch.nn.Module, mesh: DeviceMesh) -> tuple[dict[int, list[torch.Tensor]], list[torch.Tensor]]:
    """The gradients: this rank's shards, by how many workers of a replica have each, and those that all have in full.

    Args:
        model: sharded over the mesh.
        mesh: the round's.
    """
    shards: dict[int, list[torch.Tensor]] = {}
    others: list[torch.Tensor] = []
    for gradient in (p.grad for p in parameters(model) if p.grad is not None):
        if isinstance(gradient, DTensor):
            shards.setdefault(copies(gradient, mesh), []).append(local(gradient))
        else:
            others.append(gradient)
    return shards, others


def unsharded(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and persistent buffers that each worker has in full, by name."""
    return {k: v for k, v in model.state_dict().items() if isinstance(v, torch.Tensor) and not isinstance(v, DTensor)}


def divisors(model: torch.nn.Module) -> set[float]:
    """What the script has its gradients divided by (set_gradient_divide_factor), where it has chosen that."""
    found = (getattr(group, "gradient_divide_factor", None) for group in _groups(model))
    return {factor for factor in found if factor is not None}


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


def places_of_unreduced(model: torch.nn.Module) -> list[tuple[object, str]]:
    """The attributes in which gradients accumulate that are not reduced yet: objects, and names.

    These are this worker's alone, of whole parameters, and refer to no mesh. A parameter has two: the other one is for
    gradients that are kept in another data type. None in place of an object: no forward pass has made it yet.
    """
    found: list[tuple[object, str]] = []
    for parameter in (parameter for group in _groups(model) for parameter in group.fsdp_params):
        found.append((_unsharded(parameter), "grad"))
        if "unsharded_accumulated_grad" in vars(parameter):  # else it is the same attribute
            found.append((parameter, "unsharded_accumulated_grad"))
    return found


def sharded_modules(model: torch.nn.Module) -> list[FSDPModule]:
    """The modules that fully_shard has sharded."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def reshard(model: torch.nn.Module) -> None:
    """Have the sharded parameters stand in their places: after a forward pass alone, some do not."""
    for module in sharded_modules(model):
        module.reshard()


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether a tensor is spread over a mesh, in whatever way."""
    return isinstance(tensor, DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor: the memory itself."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def copies(tensor: torch.Tensor, mesh: DeviceMesh) -> int:
    """How many workers of a replica have the same shard.

    Args:
        tensor: a DTensor over slices of the mesh.
        mesh: the round's, of which the first dimension is that of the replicas.
    """
    return math.prod(mesh.size(at) for at, _ in _spread(tensor, mesh))


def is_first(tensor: torch.Tensor, mesh: DeviceMesh) -> bool:
    """Whether this worker is the first of those in its replica that have the same shard."""
    place = mesh.get_coordinate()
    assert place is not None, "a worker of the round"
    return not any(place[at] for at, _ in _spread(tensor, mesh))


def make_copies_equal(model: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Have all workers of a replica that have the same shard start with that of the first. All members call this.

    Args:
        model: sharded over slices of the mesh.
        mesh: the round's.

    Raises:
        RuntimeError: a peer was lost.
    """
    with torch.no_grad():
        for parameter in sharded(model):
            for _, name in _spread(parameter, mesh):
                dist.broadcast(local(parameter), group=mesh.get_group(name), group_src=0)


def _spread(tensor: torch.Tensor, mesh: DeviceMesh) -> Iterator[tuple[int, str]]:
    """The dimensions inside a replica along which workers have the same shard: their numbers, and their names."""
    assert isinstance(tensor, DTensor), "it is sharded"
    own = dict(zip(tensor.device_mesh.mesh_dim_names or (), tensor.placements, strict=True))
    for at, name in enumerate(mesh.mesh_dim_names or ()):
        if at and (isinstance(own[name], Replicate) if name in own else name not in PIPELINE):
            yield at, name


def place_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The shape of a whole tensor, that of this rank's shard, and where in the whole the shard begins.

    Args:
        tensor: of which fully_shard has sharded, over the second dimension of its mesh, what others gave each worker.
    """
    assert isinstance(tensor, DTensor), "it is sharded"
    mesh, sizes, first = tensor.device_mesh, list(tensor.shape), [0] * tensor.ndim
    for at in (*range(2, mesh.ndim), 1):
        if isinstance(tensor.placements[at], Replicate):
            continue
        dim = tensor.placements[at].dim
        each = -(-sizes[dim] // mesh.size(at))
        before = min(sizes[dim], each * mesh.get_local_rank(at))
        first[dim], sizes[dim] = first[dim] + before, min(each, sizes[dim] - before)
    return tuple(tensor.shape), tuple(sizes), tuple(first)


def obstacle(model: torch.nn.Module, mesh: DeviceMesh) -> str:
    """Why a module cannot go on in another round's mesh, as a clause; empty: it can.

    Args:
        model: which may have been sharded by anyone.
        mesh: the round's, over which it has to be sharded. If that has more than two dimensions, fully_shard has to
            have got the first and one other of them, and DTensors that were there before can have the rest.
    """
    groups = _groups(model)
    if not groups:
        return "fully_shard has sharded none of its modules"
    if type(model).__name__ == "OptimizedModule" or any(m._compiled_call_impl for m in model.modules()):
        return "it is compiled, and compiled code may keep a round's process groups"
    for group in groups:
        if reason := _obstacle_in(group, mesh):
            return reason
    if len(over := sorted(sharded_over(model))) > 1:
        return (
            f"its modules are sharded over several dimensions, {' and '.join(over)}, and fully_shard averages the "
            "gradients of each over its own alone: shard all of them over the same"
        )
    own = set(sharded(model))
    others = [name for name, p in model.named_parameters() if isinstance(p, DTensor) and p not in own]
    others += [name for name, b in model.named_buffers() if isinstance(b, DTensor)]
    return f"{others[0]!r} is a DTensor that fully_shard has not made" if others else ""


def _obstacle_in(group: Any, mesh: DeviceMesh) -> str:
    if type(group.mesh_info).__name__ != "HSDPMeshInfo" or not _shards_over(group.mesh_info.mesh, mesh):
        give = "pass that to fully_shard as it is" if mesh.ndim == 2 else f"pass fully_shard mesh{_dims_of(mesh)}"
        return f"it is sharded over another mesh than the one that `build` is given: {give}"
    if group.post_forward_mesh_info is not None and group.post_forward_mesh_info is not group.mesh_info:
        return "reshard_after_forward is a number of workers, for which torch makes another mesh: give True or False"
    comms = (type(group._all_gather_comm).__name__, type(group._reduce_scatter_comm).__name__)
    separate = getattr(group.mesh_info, "reduce_scatter_process_group", None)
    if comms != ("DefaultAllGather", "DefaultReduceScatter") or group._all_reduce_hook or separate:
        return "it has collectives or process groups that are not FSDP2's own, which edriver cannot renew"
    for parameter in group.fsdp_params:
        if parameter.is_dtensor and not _is_slice_of(_spec_before(parameter).mesh, mesh):
            return (
                "a parameter was a DTensor before fully_shard sharded it, of no dimension within a replica: name the "
                "dimensions with replica_mesh=, and take slices of the mesh that `build` is given"
            )
        if parameter.fsdp_placement.dim != 0:
            return f"a parameter is sharded along dimension {parameter.fsdp_placement.dim}: shard along 0"
    return ""


def _shards_over(over: DeviceMesh, mesh: DeviceMesh) -> bool:
    if mesh.ndim == 2:
        return over is mesh
    names, all_names = over.mesh_dim_names or (), mesh.mesh_dim_names or ()
    return len(names) == 2 and names[0] == all_names[0] and _is_slice_of(over, mesh)


def _is_slice_of(part: DeviceMesh, mesh: DeviceMesh) -> bool:
    own = part._get_root_mesh() is mesh  # an equal one has process groups of its own
    return mesh.ndim > 2 and own and set(part.mesh_dim_names or ()) < set(mesh.mesh_dim_names or ())


def _dims_of(mesh: DeviceMesh) -> list[str]:
    """Those that fully_shard takes: the replicas, and one other."""
    names = mesh.mesh_dim_names or ()
    return [names[0], "shard" if "shard" in names else names[1]]


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
            names = _NAME_OF_SPEC, _EARLIER_NAME_OF_SPEC
            if getattr(parameter, "is_dtensor", False) and not any(hasattr(parameter, name) for name in names):
                yield _NAME_OF_SPEC


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


def _bind_parameter(parameter: Any, before: Any, after: Any, new_mesh: Callable[[DeviceMesh], DeviceMesh]) -> None:
    parameter.mesh_info = after
    if parameter.post_forward_mesh_info is before:
        parameter.post_forward_mesh_info = after
    parameter._spmd_mesh = new_mesh(parameter._spmd_mesh)
    if hasattr(parameter, "_shard_mesh"):
        parameter._shard_mesh = after.mesh[after.mesh.mesh_dim_names[-1]]
    parameter._sharding_spec = _spec_on(parameter._sharding_spec, parameter._spmd_mesh)
    if hasattr(parameter, "_sharding_spec_by_dtype"):
        parameter._sharding_spec_by_dtype.clear()
    parameter.sharded_param._spec = parameter._sharding_spec
    if parameter.is_dtensor:
        name = _NAME_OF_SPEC if hasattr(parameter, _NAME_OF_SPEC) else _EARLIER_NAME_OF_SPEC
        spec = _spec_on(_spec_before(parameter), new_mesh(_spec_before(parameter).mesh))
        setattr(parameter, name, spec)
        if (whole := _unsharded(parameter)) is not None:
            whole._spec = spec  # type: ignore[attr-defined]


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


def _spec_before(parameter: Any) -> Any:
    """That of a parameter which was a DTensor before fully_shard."""
    found = getattr(parameter, _NAME_OF_SPEC, None)
    return getattr(parameter, _EARLIER_NAME_OF_SPEC) if found is None else found


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
    if not hasattr(shared, "post_forward_order"):
        return  # no forward pass has been made yet
    shared.all_gather_state = None
    shared.post_forward_order.clear()
    if hasattr(shared, "reduce_scatter_states"):
        shared.reduce_scatter_states.clear()
    else:
        shared.reduce_scatter_state = None
    if hasattr(shared, "_last_post_reduce_events"):
        shared._last_post_reduce_events.clear()
    if hasattr(shared, "active_gradient_reduction"):
        shared.active_gradient_reduction = None


def _empty(holder: Any, attributes: Mapping[str, object]) -> None:
    """Give attributes these values, as far as this version of torch has them."""
    for name, empty in attributes.items():
        if hasattr(holder, name):
            setattr(holder, name, empty)
