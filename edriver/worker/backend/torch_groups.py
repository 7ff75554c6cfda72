"""torch.distributed's own book of process groups. Checked with torch 2.11 to 2.15.

Interfaces: torch.distributed.distributed_c10d._world (pg_map, pg_names, pg_group_ranks, group_count),
_new_process_group_helper, _get_default_store, default_pg_timeout; ProcessGroup._get_backend;
Backend._get_sequence_number_for_group, options._timeout.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.distributed_c10d import Store

from edriver.worker.backend import default_group
from edriver.worker.backend.process_modes import without_tensor_modes

_HOST: Final = torch.device("cpu")


def living() -> list[object]:
    """All process groups of this process.

    Interface: _world.pg_map. Without it none is found: a round's groups are destroyed by the training thread and no
    longer in the background (up to 10 ms in each round), and a forked child that ends by sys.exit may cut connections
    that it shares with its parent.
    """
    return list(getattr(_book(), "pg_map", ()))


def by_name() -> dict[str, dist.ProcessGroup]:
    """The default process group and those of each `new_group`, by name. From any thread.

    Interface: _world.pg_names.

    Raises:
        AttributeError: torch keeps no such book: NCCL's communicators cannot be found, so that a worker whose round is
            aborted has to end (nccl.py).
    """
    return {name: group for group, name in list(c10d._world.pg_names.items())}


def part_for(group: dist.ProcessGroup, device: torch.device | str) -> Any:
    """The backend of a group for tensors of a kind of device (such as cuda), or None.

    Interface: ProcessGroup._get_backend, which raises RuntimeError if the group has no such backend.

    Raises:
        AttributeError: torch's groups have no such method. See `by_name`.
    """
    try:
        return group._get_backend(torch.device(device))
    except RuntimeError:
        return None


def collectives_begun() -> int:
    """The number of collectives that this process has begun in the default group; 0 without a group.

    Interface: ProcessGroup's and Backend's _get_sequence_number_for_group. A group with several backends (NCCL for
    tensors on GPUs, Gloo for those on the CPU) returns one backend's number, so the CPU backend's is added; in a group
    with one backend it counts twice. Without the interface nothing is counted: edriver does not notice a collective
    between the optimizer's step and the boundary, so it makes no commit for that.
    """
    group = dist.GroupMember.WORLD
    if group is None or not hasattr(group, "_get_sequence_number_for_group"):
        return 0
    if not hasattr(group, "_get_backend"):  # checks.py reports that its parts are not found
        return begun_in(group)
    hosts_part = part_for(group, _HOST)
    return begun_in(group) + (begun_in(hosts_part) if hosts_part else 0)


def begun_in(group: Any) -> int:
    """The number of collectives that this process has begun in a group, or a part of one; 0: they are not counted.

    Interface: _get_sequence_number_for_group, which raises RuntimeError if a backend counts none, as torch's fake one.
    """
    try:
        return int(group._get_sequence_number_for_group())
    except (AttributeError, RuntimeError):
        return 0


def counts_collectives() -> bool:
    """Whether `collectives_begun` sees one that is run now."""
    before = collectives_begun()
    dist.all_reduce(torch.ones(1))
    return collectives_begun() > before


def counts_names() -> bool:
    """Whether `count_names_anew` has an effect."""
    return isinstance(getattr(_book(), "group_count", None), int)


def count_names_anew() -> None:
    """Have the next group called "0": a build that has failed has used up that name, and ranks have to agree on it.

    Interface: _world.group_count.

    Raises:
        SystemExit: torch counts elsewhere. This process would look for the next round's members under a name that none
            of them has, until the group's timeout: it ends, and a new worker takes its slot.
    """
    if not counts_names():
        raise SystemExit(
            f"a process group could not be built, and with torch {torch.__version__} this process cannot try again "
            "under the same name: it ends, and a new worker takes its slot"
        )
    c10d._world.group_count = 0


def names_groups() -> bool:
    """Whether `named` names its groups."""
    helper = getattr(c10d, "_new_process_group_helper", None)
    if helper is None or not isinstance(getattr(_book(), "pg_group_ranks", None), dict):
        return False
    asked = list(inspect.signature(helper).parameters)
    places = ["group_size", "group_rank", "global_ranks_in_group", "backend", "store", "group_name"]
    return asked[: len(places)] == places and "timeout" in asked


def named(name: str, ranks: Sequence[int]) -> dist.ProcessGroup:
    """A group of some of the default group's ranks, by a name that all of them give.

    Where only some ranks take part, torch's own new_group (use_local_synchronization) takes its name from the number of
    groups that the process has: ranks that are in other groups as well would wait for one another under two names.

    Its collectives have the default group's timeout.

    Interface: _new_process_group_helper; _world.pg_map, pg_group_ranks. Without them new_group is called.

    Args:
        name: which the process has not used while the default group lives.
        ranks: ascending; this process's is one of them.
    """
    if not names_groups():
        plain = dist.new_group(list(ranks), timeout=_timeout(), use_local_synchronization=True)
        assert isinstance(plain, dist.ProcessGroup), "this rank is one of them"
        return plain
    backend, store = c10d._world.pg_map[c10d._get_default_group()]
    place = list(ranks).index(dist.get_rank())
    group, _ = c10d._new_process_group_helper(
        len(ranks), place, list(ranks), c10d.Backend(backend), store, c10d.GroupName(name),
        timeout=_timeout() or c10d._get_default_timeout(c10d.Backend(backend)),
    )  # fmt: skip
    assert isinstance(group, dist.ProcessGroup), "this rank is one of them"
    c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(ranks)}
    return group


@contextlib.contextmanager
def none_made(reason: str) -> Iterator[None]:
    """Have whatever makes a process group in this block fail, before it waits for others that do not make it.

    Interface: _new_process_group_helper, which new_group and meshes call. Without it, they wait for their timeout.

    Args:
        reason: what the TypeError says.
    """
    helper = getattr(c10d, "_new_process_group_helper", None)

    def refuse(*_: object, **__: object) -> None:
        raise TypeError(reason)

    if helper is not None:
        c10d._new_process_group_helper = refuse
    try:
        yield
    finally:
        if helper is not None:
            c10d._new_process_group_helper = helper


def _timeout() -> timedelta | None:
    """That of the default group's collectives.

    Interface: Backend.options._timeout. Without it a group has torch's own, up to half an hour, and a peer that has
    died without closing its connections is found later, by what else shows it.
    """
    backend = part_for(c10d._get_default_group(), _HOST)
    found = getattr(getattr(backend, "options", None), "_timeout", None)
    return found if isinstance(found, timedelta) else None


def default_store() -> Store:
    """The default group's store, under its prefix.

    Interface: _get_default_store. Without it, an AttributeError ends the first sync, and the run: nothing else gives
    access to a key that all members of the group see.
    """
    return c10d._get_default_store()


def default_timeout() -> timedelta:
    """Torch's own timeout of a Gloo group. Interface: default_pg_timeout."""
    return c10d.default_pg_timeout


def init(backend: str, store: Store, rank: int, size: int, timeout: timedelta) -> None:
    """Make edriver's default group: init_process_group, without what that does to sys.excepthook.

    Interface: that it wraps the hook at each call, with a rank that changes from round to round. If it no longer does,
    nothing is undone. A second hook of this kind elsewhere shows as a wrong rank in front of tracebacks.
    """
    hook = sys.excepthook
    try:
        with without_tensor_modes():
            default_group.init(backend, store=store, rank=rank, world_size=size, timeout=timeout)
        default_group.claim()
    finally:
        sys.excepthook = hook


def _book() -> c10d._World | None:
    return getattr(c10d, "_world", None)
