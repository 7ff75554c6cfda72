"""The round's mesh: its replicas, and the shards of each; `edriver.mesh()`."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
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
"""and its second: those that hold the state once between them."""


class RoundMesh:
    """The mesh of the round that this worker is in, made when it is first asked for."""

    def __init__(self) -> None:
        self._world: Callable[[], object] = lambda: None
        self._mesh: DeviceMesh | None = None

    def of(self, assignment: Assignment) -> DeviceMesh:
        """The mesh of the round whose process group is there. All members of the round call this, except guests, which
        are in no replica.

        Args:
            assignment: this worker's place in it.

        Raises:
            RuntimeError: a peer was lost.
        """
        if self._mesh is None or self._world() is not dist.GroupMember.WORLD:
            self._mesh = None
            self._mesh = _made(assignment.rank, assignment.size // assignment.replica_size, assignment.replica_size)
            self._world = weakref.ref(dist.GroupMember.WORLD)
        return self._mesh


def mesh() -> DeviceMesh:
    """The mesh of this round: of (number of replicas, replica size) workers, its dimensions "replicate" and "shard".

        edriver.mesh()["shard"].get_local_rank()     # this worker's position in its replica

    Rank = replica * replica size + position. The mesh and its process groups live for one round: ask for them inside
    the function that edriver.run wraps, on all workers, and keep neither.

    Raises:
        RuntimeError: this worker is in no round yet; or a peer was lost, if the mesh is made by this call.
    """
    if not dist.is_initialized():
        raise RuntimeError("there is no mesh outside of a round: ask for it inside the function that edriver.run wraps")
    return context.current.part(RoundMesh).of(context.assignment())


def offline_mesh(position: int, replica_size: int) -> contextlib.AbstractContextManager[DeviceMesh]:
    """Have a mesh of one replica, in which nothing can be sent, before this worker's first round.

    Args:
        position: this worker's.
        replica_size: the number of workers.
    """
    return offline_group.entered(position, replica_size, _device(), (REPLICATE, SHARD))


def _device() -> str:
    return "cpu" if nccl_here() is None else "cuda"


def _made(rank: int, replicas: int, replica: int) -> DeviceMesh:
    position, size = rank % replica, replicas * replica
    across = _group(f"edriver/{REPLICATE}/{position}", range(position, size, replica))
    first = rank - position
    within = _group(f"edriver/{SHARD}/{first}", range(first, first + replica))
    places = torch.arange(size, dtype=torch.int, device="cpu").view(-1, replica)
    return DeviceMesh.from_group([across, within], _device(), places, mesh_dim_names=(REPLICATE, SHARD))


def _group(name: str, ranks: range) -> dist.ProcessGroup:
    world = dist.GroupMember.WORLD
    return world if world is not None and len(ranks) == world.size() else torch_groups.named(name, ranks)
