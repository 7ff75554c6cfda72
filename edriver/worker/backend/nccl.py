"""NCCL in a round: which communicators there are, and how they are ended together, within a bound.

A collective that waits for a lost peer is a kernel that spins on the device, and ProcessGroupNCCL.abort() ends it. The
training thread, which waits for the device and not for a peer, continues with garbage in its tensors, and is stopped by
the next collective (DistBackendError) or boundary. Read in the source of torch 2.13, and run with torch 2.11 and NCCL
2.28.9 on one GPU (docs/benchmarks/gpu.md).

From torch 2.15 on, "nccl" is another class by default, ProcessGroupNCCL2, which builds its communicator as it is
constructed, on a device that it chooses by LOCAL_RANK or rank. ProcessGroupNCCL is there still, and is what rounds use:
see `nccl_here`. A user may choose the other one, and a script may ask for it by name. Read in torch 2.15's source, and
never run: its abort() ends the communicator as well, and the next collective raises a RuntimeError.

 - All communicators are aborted at once, each from a separate thread: one abort may wait for a kernel that
   another communicator's kernel keeps from running (pytorch/pytorch issue 119797).
 - An abort may itself hang, in the driver or on a lock of torch's. It has ABORT_TIMEOUT seconds; then the process ends
   itself, and its slot is filled again. That also gives its device memory back: a slot's next worker is started once
   the last one has been reaped.

If torch no longer lists its groups, or what of them is NCCL's (torch_groups.py), or if a part of a group that works for
tensors of a GPU has a name that is not known here, a worker whose round is aborted ends itself at once. It announces
that at its start (checks.py), but for groups that the script makes.

A round's group is `cpu:gloo,cuda:nccl`. The device is not bound to the group: a communicator is built by the first
collective that needs it, and the store that it asks is the round's. ProcessGroupNCCL2 takes tensors of its own device
only, so edriver sets TORCH_DIST_USE_NCCL2=0, unless the user has set it: "nccl" is then the ProcessGroupNCCL that has
been run, in the script's own groups, too. With TORCH_DIST_USE_NCCL2=1, or where a script asks for `nccl2` or
`nccl-lazy` by name, those communicators are aborted as well, and no member begins to build one before all have come
(except by splitting the default group's, which is how `new_group` makes one then). A slot sees one GPU, so the device
that is chosen is the slot's.

A communicator that is being built cannot be aborted: torch does not list it yet, and ncclCommInitRank has no timeout
(TORCH_NCCL_USE_COMM_NONBLOCKING=1 changes nothing about that; with the listening sockets shut down under it, it
returns, and leaves a damaged heap). So no member begins to build one before all have come: rank 0 leaves the
ncclUniqueId in the round's store, the others get it there, and neither call returns before the last (group/store.py).
Severing ends that wait.

At an agreed end, and before it says that it is done, a worker lets its device finish. One that left, or aborted its
communicators, while NCCL's own thread was still sending would leave the others with a collective that never ends. Once
all wait for the next round, nothing is on its way, and the communicators are aborted as well: torch's shutdown of them
may wait for peers.

An error of the device itself (illegal access, a launch that failed) cannot be mended in the process. It surfaces at the
latest when the group is torn down, is reported as the worker's own, and ends it.

A group whose part for tensors of a GPU has a name that is not known here (a plugin's, say) fails the check `groups` at
a worker's start, with a sentence. If a script makes such a group later, its worker ends itself when the round is
aborted, and says why: what waits in that part may wait for ever.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from edriver.worker.backend import torch_groups

logger = logging.getLogger("edriver.worker")

_UNIQUE_ID_KEY: Final = re.compile(r"/(?P<group>[^/]+)//cuda//\d+$")
_NCCL2_KEY: Final = re.compile(r"/(?P<group>[^/]+)//cuda//(?P=group)/nccl_storekey_\d+(_0)?$")

_CHOICE_VARIABLE: Final = "TORCH_DIST_USE_NCCL2"
_EAGER_CLASSES: Final = ("ProcessGroupNCCL2", "ProcessGroupNCCLLazy")

_ABORTED_PARTS: Final = frozenset({"nccl", "nccl2", "nccl-lazy"})
"""The names of what abort() ends,"""

_OTHER_PARTS: Final = frozenset({"gloo", "fake"})
"""and of what no abort is needed for: connections that are severed, and a group that sends nothing."""

ABORT_TIMEOUT = 5.0
"""Seconds that the communicators of a process may take to abort."""


class Communicator(Protocol):
    """What one process group has of NCCL: a ProcessGroupNCCL, or a ProcessGroupNCCL2."""

    def abort(self) -> None:
        """End what runs on it, and refuse all that is asked of it later. May hang."""


class UnknownPartError(Exception):
    """A group's part for tensors of a GPU has a name that is not known here: what waits in it may not be ended."""


class Nccl:
    """NCCL and this process's device.

    Attributes:
        backend: what to make a process group with, in torch's words: tensors of the host go over Gloo. The device is
            not bound to the group, so that a communicator is built by the first collective that needs it.
    """

    backend = "cpu:gloo,cuda:nccl"

    def communicators(self) -> dict[str, Communicator]:
        """Those of the default process group and of each `new_group`, by the group's name. From any thread.

        Interface: Backend.name(), which is "nccl" for a ProcessGroupNCCL and "nccl2" for a ProcessGroupNCCL2.

        Raises:
            UnknownPartError: a part has another name.
            AttributeError: torch's groups, or their parts, cannot be found.
        """
        found: dict[str, Communicator] = {}
        for name, group in torch_groups.by_name().items():
            part = torch_groups.part_for(group, "cuda")  # None: a group of the script's own, for the host only
            if part is None or (kind := part.name()) in _OTHER_PARTS:
                continue
            if kind not in _ABORTED_PARTS:
                raise UnknownPartError(
                    f"process group {name!r} uses {kind!r} for tensors of a GPU (torch {torch.__version__}), and "
                    f"edriver can end a collective that hangs in {', '.join(sorted(_ABORTED_PARTS))} only"
                )
            found[name] = part
        return found

    def members_of(self, key: str, together: bool) -> int | None:
        """The number of members that build the communicator that a key of the store introduces.

        Returns None if the key does not introduce a communicator.

        Args:
            key: the key.
            together: whether one request asks for it and for others (Store.multi_get), rather than setting it or
                asking for it alone.

        Interface: the key under which rank 0 of a group leaves a communicator's ncclUniqueId, which each other rank
        gets before it joins (ProcessGroupNCCL::broadcastUniqueNCCLID; distributed_c10d.py has the prefixes). All ranks
        of a ProcessGroupNCCL2 ask for theirs together (nccl2/NCCLBootstrap.cpp), of which there are several in a group
        of more than 128: the first one counts. Without it StoreClient does not wait for all members, and a thread that
        builds a communicator with a member that has died before it joined hangs until its worker is replaced.
        """
        found = (_NCCL2_KEY if together else _UNIQUE_ID_KEY).search(key)
        if found is None:
            return None
        if together and _building.size is not None:  # torch lists the group once it is there
            return _building.size
        try:
            group = torch_groups.by_name().get(found["group"])
        except AttributeError:  # torch keeps no such book
            return None
        return None if group is None else group.size()

    def finish(self) -> None:
        """Wait until the device has completed all of its work.

        Raises:
            RuntimeError: the device, or this process's use of it, is broken; this process cannot recover from that.
        """
        torch.cuda.synchronize()

    def give_up(self) -> None:
        """End this process at once."""
        logger.error("NCCL's communicators were not aborted within %g s, or cannot be: this worker ends", ABORT_TIMEOUT)
        os.kill(os.getpid(), signal.SIGKILL)


class _Building(threading.local):
    """The group that this thread is constructing.

    Attributes:
        size: its number of ranks; None: it constructs none of those that build a communicator meanwhile.
    """

    size: int | None = None


_building: Final = _Building()


def nccl_here() -> Nccl | None:
    """NCCL, where torch has it and a GPU.

    Unless the user has chosen, "nccl" is a ProcessGroupNCCL in this process from now on, with any torch. Interface:
    TORCH_DIST_USE_NCCL2, which torch 2.15 reads as it makes the first such group, and older ones do not know. Without
    it a ProcessGroupNCCL2 is made.
    """
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        return None
    os.environ.setdefault(_CHOICE_VARIABLE, "0")
    note_sizes(getattr(c10d, name, None) for name in _EAGER_CLASSES)
    return Nccl()


def note_sizes(kinds: Iterable[Any]) -> None:
    """Make a group's number of ranks known while it is being constructed; may be called again.

    Interface: that the constructors take a store, a rank and a size in this order, and use the store in the thread that
    constructs. Without it members do not wait for one another before they build such a communicator.

    Args:
        kinds: the classes whose constructors build a communicator; None for one that this torch does not have.
    """
    for kind in kinds:
        if kind is not None and not hasattr(kind.__init__, "__wrapped__"):
            kind.__init__ = _noting_size(kind.__init__)


def _noting_size(make: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make)
    def make_noted(self: Any, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> None:
        _building.size = size
        try:
            make(self, store, rank, size, *args, **kwargs)
        finally:
            _building.size = None

    return make_noted


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
