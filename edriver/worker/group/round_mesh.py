"""The round's mesh: its replicas, and the shards of each; `edriver.mesh()`."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from edriver.model.plan import Assignment
from edriver.worker import context
from edriver.worker.backend import offline_group, torch_groups
from edriver.worker.backend.nccl import nccl_here

REPLICATE: Final = "replicate"
"""The mesh's first dimension: workers with the same shard,"""

SHARD: Final = "shard"
"""and its second: those that hold the state once between them; one of several where a ShardedState says so."""

_PREFIX: Final = "edriver/"
"""Of the names of a mesh's groups: that of the dimension and the first rank follow."""


class RoundMesh:
    """The mesh of the round that this worker is in, made when it is first asked for."""

    def __init__(self) -> None:
        self._world: Callable[[], object] = lambda: None
        self._mesh: DeviceMesh | None = None
        self._inside: Mapping[str, int] | None = None

    def of(self, assignment: Assignment, inside: Mapping[str, int] | None = None) -> DeviceMesh:
        """The mesh of the round whose process group is there. All members of the round call this, except guests, which
        are in no replica.

        Args:
            assignment: this worker's place in it.
            inside: the dimensions of a replica, outermost first: their names and sizes. None: those that were given
                before, or one, "shard". The first call of a round makes its mesh.

        Raises:
            RuntimeError: a peer was lost.
            ValueError: the sizes do not make up a replica.
        """
        if self._mesh is None or self._world() is not dist.GroupMember.WORLD:
            self._mesh = None
            self._inside = inside or self._inside
            self._mesh = _made(assignment, self._inside or {SHARD: assignment.replica_size})
            self._world = weakref.ref(dist.GroupMember.WORLD)
        return self._mesh


def mesh() -> DeviceMesh:
    """The mesh of this round: of (number of replicas, replica size) workers, its dimensions "replicate" and "shard".

        edriver.mesh()["shard"].get_local_rank()     # this worker's position in its replica

    With a ShardedState that has a `replica_mesh`, the dimensions of that take the place of "shard". Rank = replica *
    replica size + position, and positions count through those dimensions, the last one fastest. The mesh and its
    process groups live for one round: ask for them inside the function that edriver.run wraps, on all workers, and keep
    neither.

    Raises:
        RuntimeError: this worker is in no round yet; or a peer was lost, if the mesh is made by this call.
    """
    if not dist.is_initialized():
        raise RuntimeError("there is no mesh outside of a round: ask for it inside the function that edriver.run wraps")
    return context.current.part(RoundMesh).of(context.assignment())


@contextlib.contextmanager
def offline_mesh(position: int, replica_size: int, inside: Mapping[str, int] | None = None) -> Iterator[DeviceMesh]:
    """Have a mesh of one replica, in which nothing can be sent, before this worker's first round.

    Args:
        position: this worker's.
        replica_size: the number of workers.
        inside: the dimensions of a replica; None: one, "shard".

    Raises:
        ValueError: the dimensions do not make up a replica.
    """
    names, sizes = _dimensions(1, replica_size, inside or {SHARD: replica_size})
    with offline_group.entered(position, replica_size):
        yield _mesh(position, names, sizes, lambda _name, ranks: offline_group.of(ranks))


def _made(assignment: Assignment, inside: Mapping[str, int]) -> DeviceMesh:
    names, sizes = _dimensions(assignment.replicas, assignment.replica_size, inside)
    return _mesh(assignment.rank, names, sizes, _group)


def _dimensions(replicas: int, replica_size: int, inside: Mapping[str, int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The names and sizes of a mesh's dimensions."""
    if math.prod(inside.values()) != replica_size:
        dimensions, needed = " x ".join(f"{name} {size}" for name, size in inside.items()), math.prod(inside.values())
        raise ValueError(
            f"the replica_mesh of {dimensions} is of {needed} workers, and a replica has {replica_size}: start the run "
            f"with --replica-size {needed}"
        )
    return (REPLICATE, *inside), (replicas, *inside.values())


def _mesh(
    rank: int, names: tuple[str, ...], sizes: tuple[int, ...], group: Callable[[str, range], dist.ProcessGroup]
) -> DeviceMesh:
    members = math.prod(sizes)
    places = torch.arange(members, dtype=torch.int, device="cpu").view(sizes)
    groups, stride = [], members
    for name, size in zip(names, sizes, strict=True):
        stride //= size
        first = rank - rank // stride % size * stride
        groups.append(group(f"{_PREFIX}{name}/{first}", range(first, first + size * stride, stride)))
    device = "cpu" if nccl_here() is None else "cuda"
    return DeviceMesh.from_group(groups, device, places, mesh_dim_names=names)


def is_within_replica(name: str) -> bool:
    """Whether this is the name, in the round's store, of a group of workers of one replica that a mesh has made."""
    return f"/{_PREFIX}" in name and f"/{_PREFIX}{REPLICATE}/" not in name


def _group(name: str, ranks: range) -> dist.ProcessGroup:
    world = dist.GroupMember.WORLD
    return world if world is not None and len(ranks) == world.size() else torch_groups.named(name, ranks)
