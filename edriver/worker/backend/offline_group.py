"""A default process group without peers: a model can be sharded over its mesh before there is a round, and keeps quiet.

Ranks and sizes are those that the process will have in a replica. Whatever communicates raises: torch finds no backend
in the group. A rehearsal has one of torch's own fake groups instead: its collectives send nothing and return at once,
and the memory that they should have filled may hold any values.

Interfaces: a subclass of dist.ProcessGroup and dist.Backend.register_backend, both public; group_name and
_set_group_name, which torch reads and calls of each group; the text of the error of a group without a backend; the
module that registers the backend "fake". Found in torch 2.13. Where one of them has changed, `entered` or `rehearsing`
raises: a state then makes its model in the round, or does not rehearse.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # torch/distributed/__init__.py has it

from edriver.worker.backend import default_group, torch_groups

_NAME: Final = "edriver_offline"
_ERROR: Final = "No backend type associated with device type"


class OfflineGroup(dist.ProcessGroup):
    """A process group with a rank and a size, and no backend."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # as Python subclasses call it
        self._name = ""

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """The name that torch has given it."""
        return self._name


def _made(store: object, rank: int, size: int, timeout: timedelta) -> OfflineGroup:
    del store, timeout
    return OfflineGroup(rank, size)


@contextlib.contextmanager
def entered(position: int, size: int) -> Iterator[None]:
    """Have a default group of one replica.

    Args:
        position: this process's in the replica.
        size: the number of workers in the replica.

    Raises:
        RuntimeError: there is a default group already, or torch makes groups in which something can be sent.
    """
    if not hasattr(dist.Backend, _NAME.upper()):
        dist.Backend.register_backend(_NAME, _made, devices=["cpu", "cuda"])
    with _group(_NAME, position, size):
        _refuse_sends()
        yield


@contextlib.contextmanager
def rehearsing(position: int, size: int) -> Iterator[None]:
    """The same, with a group in which collectives pass; see the module's text.

    Raises:
        ImportError: this torch has no such groups.
        RuntimeError: there is a default group already.
    """
    importlib.import_module("torch.testing._internal.distributed.fake_pg")
    with _group("fake", position, size):
        yield


@contextlib.contextmanager
def _group(backend: str, position: int, size: int) -> Iterator[None]:
    torch_groups.init(backend, HashStore(), position, size, torch_groups.default_timeout())
    try:
        yield
    finally:
        default_group.destroy()


def of(ranks: range) -> dist.ProcessGroup:
    """The group of some of the replica's workers, of which this process is one; the default one of all of them."""
    world = dist.GroupMember.WORLD
    assert world is not None, "inside `entered`"
    return world if len(ranks) == world.size() else dist.new_group(list(ranks), use_local_synchronization=True)


def _refuse_sends() -> None:
    try:
        dist.barrier()
    except RuntimeError as error:
        if not needs_peers(error):
            raise
    else:
        raise RuntimeError(f"a process group of torch {torch.__version__} without a backend lets collectives pass")


def needs_peers(error: BaseException | None) -> bool:
    """Whether an error comes of communicating in such a group."""
    while error is not None:
        if _ERROR in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
