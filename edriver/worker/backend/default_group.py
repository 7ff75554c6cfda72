"""Whose the default process group is: what a script's own calls of init_process_group and destroy_process_group do.

A script that torchrun has started before has both. If the group is edriver's, each does nothing, and logs that once: a
second group would be refused in torch's words, and a group that is destroyed in the midst of a round takes the other
members' collectives with it. Public interfaces of torch.distributed, replaced; what has been imported by name before
`guard` remains torch's.
"""

from __future__ import annotations

import functools
import logging
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from edriver.worker import context

logger = logging.getLogger("edriver.worker")

init = c10d.init_process_group
"""Torch's own,"""

destroy = c10d.destroy_process_group
"""and torch's own."""


class _Claim:
    """Attributes:
    group: refers to edriver's default group, weakly: its last reference ends its threads.
    logged: calls of which it has been logged that they do nothing.
    """

    def __init__(self) -> None:
        self.group: Callable[[], object] = lambda: None
        self.logged: set[str] = set()


def claim() -> None:
    """The default group that is there now is edriver's."""
    guard()
    context.current.part(_Claim).group = weakref.ref(dist.GroupMember.WORLD)


def guard() -> None:
    """Have a script's calls do nothing where the group is edriver's."""
    for module in (dist, c10d):
        module.init_process_group = _init  # type: ignore[attr-defined]
        module.destroy_process_group = _destroy  # type: ignore[attr-defined]


def _is_ours() -> bool:
    return dist.is_initialized() and dist.GroupMember.WORLD is context.current.part(_Claim).group()


@functools.wraps(init)
def _init(*args: Any, **kwargs: Any) -> None:
    if _is_ours():
        _say("init_process_group", "this round already has a group")
        return
    try:
        init(*args, **kwargs)
    except ValueError as error:
        if "EDRIVER_WORKER_ID" not in os.environ or "RANK" in os.environ:
            raise
        raise RuntimeError(
            "init_process_group has no rank to use before edriver.run: edriver makes a process group for each round, "
            "which exists inside the function that edriver.run wraps; remove the call from the script. A script that "
            "never calls edriver.run needs --mode restart"
        ) from error


@functools.wraps(destroy)
def _destroy(group: Any = None) -> None:
    if _is_ours() and group in (None, dist.GroupMember.WORLD):
        _say("destroy_process_group", "edriver ends the group with the round")
        return
    destroy(group)


def _say(name: str, why: str) -> None:
    logged = context.current.part(_Claim).logged
    if name not in logged:
        logged.add(name)
        logger.info("%s does nothing here: %s", name, why)
