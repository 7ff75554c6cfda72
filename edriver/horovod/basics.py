"""rank, size and their kin: where this process stands.

`init` needs members to answer for. It finds them in one of three ways:

* the environment has RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun and edriver's restart mode set them, or
  the script has built a default process group without a driver: those are the members. This world never changes.
* the process is a worker of an elastic run: it takes part in a separate round, which ends at once. Its group stays,
  so that the script's code up to `elastic.run` knows its rank and may call collectives, as under Horovod. A worker
  that is started later finds that round over. It learns its rank in the first round that it takes part in; until
  then `rank()` answers 1 and `size()` 2, so that it neither believes to be the first nor alone.
* otherwise it is a world of one.

In a world that never changes, each `init` builds its own group, under its own keys in a store that lives as
long as the process, and `shutdown` destroys it: a member that is still in a collective with one that has left raises.
Where the script has built torch's default group itself, that is a second group beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from edriver.calls import worker_process
from edriver.model.ids import RoundId
from edriver.model.plan import NO_ASSIGNMENT, Assignment
from edriver.model.store_address import StoreAddress
from edriver.worker import context
from edriver.worker.backend import torch_groups
from edriver.worker.rounds.run import run
from edriver.worker.state.object_state import ObjectState

_FIXED_WORLD_VARIABLES: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_LATE: Final = Assignment(
    round_id=RoundId(0, 0),
    rank=1,
    size=2,
    local_rank=0,
    local_size=1,
    cross_rank=1,
    cross_size=2,
    store=StoreAddress("", 0),
    sources=(0,),
    receivers=(),
)
"""What a worker that was started later answers until its first round."""


class World:
    """This process's world.

    Attributes:
        initialized: whether init has been called, and shutdown not since.
        fixed: whether it is one that never changes.
        made_group: whether init has built the default process group.
        own_group: what init has built where the script itself has built the default one; None: nothing.
        generation: how often this process has joined a world that never changes.
        store: where its members find each other, for the life of the process: the one that serves it must not be gone
            while others look for those of the next `init`.
        follows_samplers: whether torch's DistributedSamplers are split again in each round.
        takes_local_ranks: whether torch.cuda.set_device takes any number for this process's one GPU.
    """

    def __init__(self) -> None:
        self.initialized = False
        self.fixed = False
        self.made_group = False
        self.own_group: dist.ProcessGroup | None = None
        self.generation = 0
        self.store: Store | None = None
        self.follows_samplers = False
        self.takes_local_ranks = False


def world() -> World:
    """This process's world."""
    return context.current.part(World)


def enter() -> bool:
    """Find the others; nothing happens where this has been done. Returns whether all of them were met here."""
    here = world()
    if here.initialized:
        return False
    worker_process.refuse_child("hvd.init")
    under_driver = "EDRIVER_WORKER_ID" in os.environ
    if is_fixed_world(os.environ) or (dist.is_initialized() and not under_driver):
        _join_fixed_world(os.environ)
    elif not under_driver or not _has_place():
        run(_answer_for_init)(ObjectState())
    else:
        here.initialized = True
        return False
    here.initialized = True
    return not is_late()


def is_fixed_world(environ: Mapping[str, str]) -> bool:
    """Whether an environment names a world that never changes, as torchrun's does.

    What a worker of an elastic run finds of that is left over from another launcher.
    """
    if "EDRIVER_WORKER_ID" in environ and environ.get("EDRIVER_MODE") != "restart":
        return False
    return all(environ.get(name) for name in _FIXED_WORLD_VARIABLES)


def is_initialized() -> bool:
    """Whether `init` has been called, and `shutdown` not since."""
    return world().initialized


def place() -> Assignment:
    """This worker's place.

    Raises:
        ValueError: init has not been called.
    """
    if not world().initialized:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    current = context.assignment()
    return _LATE if current is NO_ASSIGNMENT else current


def is_late() -> bool:
    """Whether this worker was started later and has not joined a round yet, so that it has no group."""
    return place() is _LATE


def require_group() -> None:
    """Ensure that a group for collectives exists.

    Raises:
        ValueError: init has not been called.
        RuntimeError: this worker has no group yet, or no longer has one.
    """
    if is_late():
        raise RuntimeError(
            "this worker was started during the run, when the others had already passed this part of the script: they "
            "would never take part in this collective. Call collectives inside the function that hvd.elastic.run "
            "wraps, and put what a late worker needs into the state"
        )
    if not dist.is_initialized():
        raise RuntimeError("there is no process group: it was destroyed, or hvd.shutdown() was called")


def group() -> dist.ProcessGroup:
    """The group of all members, once `require_group` has passed."""
    found = world().own_group or dist.group.WORLD
    assert found is not None, "there is one: see require_group"
    return found


def rank() -> int:
    """This worker's rank, 0 to size() - 1. Raises ValueError before `init`."""
    return place().rank


def size() -> int:
    """How many workers there are. Raises ValueError before `init`."""
    return place().size


def local_rank() -> int:
    """This worker's rank among those on its host. Raises ValueError before `init`."""
    return place().local_rank


def local_size() -> int:
    """How many workers this host has. Raises ValueError before `init`."""
    return place().local_size


def cross_rank() -> int:
    """This host's place among those that have a worker of this local rank. Raises ValueError before `init`."""
    return place().cross_rank


def cross_size() -> int:
    """How many hosts have a worker of this local rank. Raises ValueError before `init`."""
    return place().cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have equally many workers, as far as this one can tell. Raises ValueError before `init`."""
    return place().size == place().local_size * place().cross_size


def mpi_threads_supported() -> bool:
    """Return False: MPI is not supported."""
    return False


def mpi_enabled() -> bool:
    """Return False: MPI is not supported."""
    return False


def mpi_built() -> bool:
    """Return False: MPI is not supported."""
    return False


def gloo_enabled() -> bool:
    """True: tensors of the host are reduced by Gloo."""
    return True


def gloo_built() -> bool:
    """True: torch brings Gloo."""
    return True


def nccl_built() -> int:
    """Return NCCL's version in Horovod's form (21806 for 2.18.6); 0 without NCCL or without a GPU."""
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        return 0
    major, minor, patch = torch.cuda.nccl.version()[:3]  # type: ignore[no-untyped-call]
    return int(major) * 10000 + int(minor) * 100 + int(patch)


def ddl_built() -> bool:
    """Return False: IBM DDL is not supported."""
    return False


def ccl_built() -> bool:
    """Return False: oneCCL is not supported."""
    return False


def cuda_built() -> bool:
    """Whether torch was built for CUDA."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Whether torch was built for ROCm."""
    return torch.version.hip is not None


def start_timeline(file_path: str, mark_cycles: bool = False) -> NoReturn:
    """Not supported. Raises NotImplementedError."""
    raise NotImplementedError(
        f"hvd.start_timeline({file_path!r}, {mark_cycles}) is not supported: record with torch.profiler, and use "
        "`edriver report` to see what the run did"
    )


def stop_timeline() -> NoReturn:
    """Not supported. Raises NotImplementedError."""
    raise NotImplementedError("hvd.stop_timeline() is not supported: record with torch.profiler")


def _answer_for_init(_state: ObjectState) -> None:
    """A round in which nothing is done but to meet."""


def _has_place() -> bool:
    """Whether this worker has been in a round: `init` may be called inside one, or between two."""
    try:
        context.assignment()
    except RuntimeError:
        return False
    return True


def _join_fixed_world(environ: Mapping[str, str]) -> None:
    """Join the others, who do so as often as this process. What `shutdown` is to end is built here, again each time."""
    here = world()
    here.generation += 1
    if dist.is_initialized():
        here.own_group = torch_groups.named(f"edriver/init/{here.generation}", range(dist.get_world_size()))
    else:
        _build_group(here)
        here.made_group = True
    here.fixed = True
    context.current.place.enter(fixed_place(environ, dist.get_rank(), dist.get_world_size(), here.generation))


def _build_group(here: World) -> None:
    """Build the default group under new keys: those of an earlier group lead to addresses that no longer exist.

    No member returns before all have arrived, because others may still read the store that a member serves.
    """
    if here.store is None:
        here.store, _, _ = next(iter(dist.rendezvous("env://")))  # type: ignore[attr-defined]
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if nccl_built() else "gloo",
        store=dist.PrefixStore(f"edriver/init/{here.generation}", here.store),  # type: ignore[attr-defined]
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    dist.all_reduce(torch.zeros(1, device="cpu"))


def fixed_place(environ: Mapping[str, str], rank: int, size: int, generation: int = 1) -> Assignment:
    """The place of a rank in a world that never changes; rank 0's state is everyone's.

    Args:
        environ: LOCAL_RANK, LOCAL_WORLD_SIZE and GROUP_RANK, where they are set, as torchrun sets them.
        rank: of this process.
        size: of the world.
        generation: how often this process has joined it: what one `init` has agreed on is void after the next.
    """
    number: Callable[[str, int], int] = lambda name, default: int(environ.get(name) or default)  # noqa: E731
    local_size = number("LOCAL_WORLD_SIZE", 1)
    return Assignment(
        round_id=RoundId(0, generation),
        rank=rank,
        size=size,
        local_rank=number("LOCAL_RANK", rank % local_size),
        local_size=local_size,
        cross_rank=number("GROUP_RANK", rank // local_size),
        cross_size=number("GROUP_WORLD_SIZE", -(-size // local_size)),
        store=StoreAddress("", 0),
        sources=(0,),
        receivers=tuple(range(1, size)),
    )
