"""NCCL in a round: which communicators there are, and how they are ended together, within a bound.

A collective that waits for a lost peer is a kernel that spins on the device, and ProcessGroupNCCL.abort() ends it. The
training thread, which waits for the device and not for a peer, continues with garbage in its tensors, and is stopped by
the next collective (DistBackendError) or boundary. Read in the source of torch 2.13, and run with torch 2.11 and NCCL
2.28.9 on one GPU (docs/benchmarks/gpu.md).

 - All communicators are aborted at once, each from a thread of its own: one abort may wait for a kernel that
   another communicator's kernel keeps from running (pytorch/pytorch issue 119797).
 - An abort may itself hang, in the driver or on a lock of torch's. It has ABORT_TIMEOUT seconds; then the process ends
   itself, and its slot is filled anew. That also gives its device memory back: a slot's next worker is started once the
   last one has been reaped.

If torch no longer lists its groups, or what of them is NCCL's (torch_groups.py), a worker whose round is aborted ends
itself at once, and announces that at its start (checks.py).
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Collection
from typing import Final, Protocol

import torch
import torch.distributed as dist

from edriver.worker.backend import torch_groups

logger = logging.getLogger("edriver.worker")

_UNIQUE_ID_KEY: Final = re.compile(r"/(?P<group>[^/]+)//cuda//\d+$")

ABORT_TIMEOUT = 5.0
"""Seconds that the communicators of a process may take to abort."""


class Communicator(Protocol):
    """What one process group has of NCCL: a ProcessGroupNCCL."""

    def abort(self) -> None:
        """End what runs on it, and refuse all that is asked of it later. May hang."""


class Nccl:
    """NCCL and this process's device.

    Attributes:
        backend: what to make a process group with, in torch's words: tensors of the host go over Gloo. The device is
            not bound to the group, so that a communicator is built by the first collective that needs it.
    """

    backend = "cpu:gloo,cuda:nccl"

    def communicators(self) -> dict[str, Communicator]:
        """Those of the default process group and of each `new_group`, by the group's name. From any thread."""
        found: dict[str, Communicator] = {}
        for name, group in torch_groups.by_name().items():
            backend = torch_groups.part_for(group, "cuda")  # None: a group of the script's own, for the host only
            if backend is not None and backend.name() == "nccl":
                found[name] = backend
        return found

    def members_of(self, key: str) -> int | None:
        """How many members build the communicator that a key of the store introduces; None: it introduces none.

        Interface: the key under which rank 0 of a group leaves a communicator's ncclUniqueId, which each other rank
        gets before it joins (ProcessGroupNCCL::broadcastUniqueNCCLID; distributed_c10d.py has the prefixes). Without it
        StoreClient does not wait for all members, and a thread that builds a communicator with a member that has died
        before it joined hangs until its worker is replaced.
        """
        found = _UNIQUE_ID_KEY.search(key)
        if found is None:
            return None
        try:
            group = torch_groups.by_name().get(found["group"])
        except AttributeError:  # torch keeps no such book
            return None
        return None if group is None else group.size()

    def finish(self) -> None:
        """Wait for all that was asked of the device.

        Raises:
            RuntimeError: the device, or this process's use of it, is broken. That cannot be mended in this process.
        """
        torch.cuda.synchronize()

    def give_up(self) -> None:
        """End this process at once."""
        logger.error("NCCL's communicators were not aborted within %g s, or cannot be: this worker ends", ABORT_TIMEOUT)
        os.kill(os.getpid(), signal.SIGKILL)


def nccl_here() -> Nccl | None:
    """NCCL, where torch has it and a GPU."""
    return Nccl() if torch.cuda.is_available() and dist.is_nccl_available() else None


def abort_together(
    communicators: Collection[Communicator], give_up: Callable[[], None], bound: float = ABORT_TIMEOUT
) -> threading.Thread:
    """Abort these communicators at the same time, in the background.

    Args:
        communicators: which.
        give_up: called if one has not been aborted in time, or could not be.
        bound: seconds that they have.

    Returns:
        A thread that ends when all have been aborted, or when it has given up.
    """
    # Not daemons: a thread that comes out of C++ while the interpreter is shutting down aborts the process.
    watch = threading.Thread(target=_abort_all, args=(communicators, give_up, bound), name="edriver-nccl-abort")
    watch.start()
    return watch


def _abort_all(communicators: Collection[Communicator], give_up: Callable[[], None], bound: float) -> None:
    deadline = time.monotonic() + bound
    aborted = [threading.Event() for _ in communicators]
    for communicator, event in zip(communicators, aborted, strict=True):
        threading.Thread(target=_abort, args=(communicator, event), name="edriver-nccl-abort").start()
    if not all(event.wait(max(deadline - time.monotonic(), 0)) for event in aborted):
        give_up()


def _abort(communicator: Communicator, aborted: threading.Event) -> None:
    try:
        communicator.abort()
    except Exception:
        logger.exception("a communicator cannot be aborted")
    else:
        aborted.set()
