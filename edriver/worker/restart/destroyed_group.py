"""Keeping the process group that a script has destroyed, until its process ends or the script destroys another.

A script ends with destroy_process_group, and then lets go of its DistributedDataParallel, whose C++ half may hold the
group's last reference (torch 2.13, torch/csrc/distributed/c10d/reducer.cpp). It is destroyed with the interpreter's
lock held, and waits for the group's thread. That thread may still be letting go of the last collective's tensors, for
which it waits for the lock: the script has ended, and its process never does. Where Python has a reference too, nothing
is destroyed at that point.
"""

from __future__ import annotations

import atexit
import functools
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from edriver.worker.backend.interpreter import never_destroy

_kept: list[object] = []


def keep() -> None:
    """Have destroy_process_group keep the default group. To be called once, before the script imports it by name."""
    destroy = c10d.destroy_process_group

    @functools.wraps(destroy)
    def destroy_and_keep(group: Any = None) -> None:
        world = dist.GroupMember.WORLD
        if world is not None and group in (None, world):
            _kept[:] = [world]
        destroy(group)

    for module in (dist, c10d):
        module.destroy_process_group = destroy_and_keep  # type: ignore[attr-defined]
    atexit.register(_outlive_interpreter)


def _outlive_interpreter() -> None:
    for group in _kept:
        never_destroy(group)
