"""How torch makes Gloo groups, and what of theirs torch.distributed does not pass on. Checked with torch 2.11 to 2.15.

Interfaces: ProcessGroupGloo's constructor, through which all of a process's Gloo groups come (the default one, those of
`new_group` and DeviceMesh, and the helper that TORCH_DISTRIBUTED_DEBUG=DETAIL adds), and which is wrapped, once; its
alltoall_base; how the error of a Work that was not done in time begins; that the constructor takes a store, a rank, a
size, and a timeout or options. `split_group` makes its groups in C++, past the
constructor: it asks the store for a clone, which edriver's refuses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist

from edriver.worker.backend.gloo import guarded_devices
from edriver.worker.backend.gloo.guarded_devices import GuardedDevice

_TIMEOUT_PREFIX: Final = "Operation timed out"


class Backend(Protocol):
    """What is asked of a group: torch's ProcessGroupGloo has it."""

    def rank(self) -> int:
        """This process's rank in the group."""

    def size(self) -> int:
        """The number of ranks in the group."""

    def alltoall_base(
        self, into: torch.Tensor, out_of: torch.Tensor, into_sizes: list[int], out_of_sizes: list[int], /
    ) -> dist.Work:
        """Begin to exchange equal parts, each over the connection of its two ranks."""


class _Made:
    """The hooks for new groups.

    Attributes:
        devices: called before a group of more than one rank is created; returns its devices, or None for torch's.
        then: called with each new group.
        count: the number of groups created since the constructor was wrapped.
    """

    devices: Callable[[], Collection[GuardedDevice] | None] | None = None
    then: Callable[[Backend], object] | None = None
    count = 0


def when_made(
    then: Callable[[Backend], object] | None, devices: Callable[[], Collection[GuardedDevice] | None] | None = None
) -> None:
    """Have each Gloo group that this process makes passed on before its maker gets it; None: no longer.

    Args:
        then: takes the group.
        devices: called before a group of more than one rank is made: the devices that it is to have; None: torch's own.

    If torch no longer makes groups by this constructor, nothing is ever passed on. `made` shows that: a round whose
    group has not come this way is refused, because its connections are not proven.
    """
    _wrap()
    _Made.then, _Made.devices = then, devices


def made() -> int:
    """The number of groups created since the first call of `when_made`."""
    return _Made.count


def exchange(group: Backend, sent: torch.Tensor, received: torch.Tensor, bound: timedelta) -> None:
    """Send the nth of equal parts to rank n, and receive one from each, over each connection of the group.

    One collective rather than a send and a receive for each pair: those take three times as long.

    Raises:
        RuntimeError: a connection broke, or it took longer than the bound: see `ran_out_of_time`.
    """
    group.alltoall_base(received, sent, [], []).wait(bound)


def name_in(key: str) -> str:
    """The name of the group that has set this key of its round's store, the same for all its ranks.

    Interface: that a group's constructor sets its keys under a prefix that is the group's own, ending in a slash. Were
    that prefix the same for two groups, the second is refused: one name is proven once.
    """
    return key.rpartition("/")[0]


def ran_out_of_time(error: RuntimeError) -> bool:
    """Whether `exchange` raised this because its bound was over: Gloo's own errors begin otherwise.

    With another text the reason that is given for an unproven connection is torch's whole sentence.
    """
    return str(error).startswith(_TIMEOUT_PREFIX)


@functools.cache
def _wrap() -> None:
    make = dist.ProcessGroupGloo.__init__

    @functools.wraps(make)
    def make_known(self: Any, *args: Any, **kwargs: Any) -> None:
        given = dict(zip(("store", "rank", "size", "timeout"), args, strict=False)) | kwargs
        if _Made.devices is not None and given["size"] > 1 and (devices := _Made.devices()):
            limit = given.get("options", given.get("timeout"))
            limit = getattr(limit, "_timeout", limit)  # of options, if it is these
            make(self, given["store"], given["rank"], given["size"], guarded_devices.options(devices, limit))
        else:
            make(self, *args, **kwargs)
        _Made.count += 1
        if _Made.then is not None:
            _Made.then(self)

    dist.ProcessGroupGloo.__init__ = make_known  # type: ignore[method-assign]
