"""init and shutdown, and HOROVOD_RANK and the like in a worker's environment."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist

from edriver.horovod import basics, devices, distributed_samplers
from edriver.horovod.collectives import handles
from edriver.horovod.process_sets import ProcessSet, add_process_set, forget_all, global_process_set
from edriver.worker import context


def init(comm: Any = None, process_sets: object = None) -> None:
    """Join the others; nothing happens where this has been done.

    Args:
        comm: not supported: use process sets.
        process_sets: ProcessSet objects that are to exist from the start; "dynamic" is what holds anyway.

    Raises:
        NotImplementedError: an MPI communicator, or a list of ranks as one, was given.
        RuntimeError: this process was started by the worker, as a data loader's is.
        ValueError: the process sets are neither ProcessSet objects nor "dynamic".
    """
    if comm is not None and comm != [] and comm != 0:  # [] and 0 are Horovod's words for all ranks
        raise NotImplementedError(
            "init(comm=...) is not supported, because edriver does not use MPI; use hvd.add_process_set(ranks)"
        )
    if basics.enter():
        global_process_set.prepare()
    if "EDRIVER_WORKER_ID" in os.environ:
        context.current.place.listen(_tell_environment)
        _tell_environment()
    devices.take_local_ranks(os.environ)
    distributed_samplers.follow_rounds(os.environ)
    if process_sets is not None and process_sets != "dynamic":
        _register(process_sets)


def shutdown() -> None:
    """Leave; nothing happens before `init`. Handles and process sets are void after it.

    The group of a world that never changes is destroyed: members that are in a collective with this one raise
    HorovodInternalError. The group of a round is the run's, and stays.
    """
    world = basics.world()
    if not world.initialized:
        return
    handles.forget_all()
    forget_all()
    if world.made_group and dist.is_initialized():
        dist.destroy_process_group()
    elif world.own_group is not None and dist.is_initialized():
        dist.destroy_process_group(world.own_group)
    if world.fixed:
        context.current.place.leave()
    world.own_group = None
    world.initialized = world.fixed = world.made_group = False


def _register(given: object) -> None:
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise ValueError('init(process_sets=...) takes ProcessSet objects, or "dynamic"')
    for one in given:
        if not isinstance(one, ProcessSet):
            raise ValueError(f"init(process_sets=...) takes ProcessSet objects, not a {type(one).__name__}")
        if one.process_set_id is None:
            add_process_set(one)


def _tell_environment() -> None:
    """Set the variables of rank, size and the like in os.environ, now and in each later round.

    horovodrun sets them once, when it starts a process. A worker of edriver has no rank before its first round, and
    its rank may change in a later one.
    """
    if not basics.is_initialized():
        return
    place = basics.place()
    os.environ["HOROVOD_RANK"] = str(place.rank)
    os.environ["HOROVOD_SIZE"] = str(place.size)
    os.environ["HOROVOD_LOCAL_RANK"] = str(place.local_rank)
    os.environ["HOROVOD_LOCAL_SIZE"] = str(place.local_size)
    os.environ["HOROVOD_CROSS_RANK"] = str(place.cross_rank)
    os.environ["HOROVOD_CROSS_SIZE"] = str(place.cross_size)
    os.environ["HOROVOD_HOSTNAME"] = os.environ["EDRIVER_HOST"]
