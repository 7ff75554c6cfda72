"""Workers that train a sharded model in one round after the other, each with members and process groups of its own.

All ranks have the same data, and sizes are powers of two, so that the mean of all gradients is each rank's own, bit for
bit: what a position ends with does not depend on the rounds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim import Optimizer

from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.plan import SINGLE_WORKER, Assignment
from edriver.model.shards import NO_SHARDING, Sharding
from edriver.worker import context
from edriver.worker.backend import default_group, torch_groups
from edriver.worker.group.round_mesh import RoundMesh

SHARDS = 2
"""The replica size."""

LIMIT = timedelta(seconds=120)


@dataclass(frozen=True)
class Kind:
    """A kind of training.

    Attributes:
        optimizer: of the model's parameters.
        clips: whether the gradients' norm is clipped.
        dtype: what is computed and reduced in.
    """

    optimizer: Callable[[Any], Optimizer]
    clips: bool = False
    dtype: torch.dtype = torch.float32


KINDS = {
    "adam": Kind(lambda params: torch.optim.Adam(params, lr=0.05, foreach=True), clips=True),
    "adamw-fused": Kind(lambda params: torch.optim.AdamW(params, lr=0.05, fused=True)),
    "adamw-foreach": Kind(lambda params: torch.optim.AdamW(params, lr=0.05, foreach=True), clips=True),
    "momentum": Kind(lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9), clips=True),
    "bf16": Kind(lambda params: torch.optim.AdamW(params, lr=0.05), clips=True, dtype=torch.bfloat16),
}


def new_model(
    mesh: DeviceMesh, dtype: torch.dtype = torch.float32, seed: int = 3, width: int = 7
) -> torch.nn.Sequential:
    """Parameters that no number of shards divides evenly, and modules of which each is sharded on its own."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 5), torch.nn.Linear(5, 3)
    )
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
    for part in (model[0], model[2]):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def batch_of(step: int) -> torch.Tensor:
    """The same on every rank."""
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(step))


def loss_of(model: torch.nn.Module, step: int) -> torch.Tensor:
    return torch.as_tensor(model(batch_of(step)).float().square().sum())


def make_step(model: torch.nn.Module, optimizer: Optimizer, step: int, clips: bool) -> None:
    """One step of training."""
    optimizer.zero_grad()
    loss_of(model, step).backward()  # type: ignore[no-untyped-call]
    if clips:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()


class InterruptedStepError(Exception):
    """What interrupts a step."""


def interrupt_backward(model: Any, step: int) -> None:
    """A step that ends in its backward pass: some gradients are reduced, some are not, modules are unsharded."""

    def fail(_grad: torch.Tensor) -> None:
        raise InterruptedStepError

    def watch(_module: torch.nn.Module, _args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        output.register_hook(fail)  # type: ignore[no-untyped-call]

    with model[2 * (step % 2)].register_forward_hook(watch):
        loss = loss_of(model, step)
    try:
        loss.backward()  # type: ignore[no-untyped-call]
    except InterruptedStepError:
        return
    raise AssertionError("the backward pass was not interrupted")


def rounds_of(
    worker: int,
    workers: int,
    rounds: Sequence[Sequence[int]],
    one_replica: bool = False,
    inside: Mapping[str, int] | None = None,
    before: Callable[[], object] = lambda: None,
) -> Iterator[tuple[int, DeviceMesh]]:
    """Take a worker's part in these rounds: yields the round's number, and its mesh. Newcomers are the receivers.

    Args:
        worker: a rank of the group that is there.
        workers: that group's size.
        rounds: for each the members, by rank.
        one_replica: whether all members of a round are one replica, whatever their number.
        inside: the dimensions inside a replica; None: one, of two shards.
        before: called before the first round, where there is no process group.
    """
    replica = math.prod(inside.values()) if inside else SHARDS
    store = c10d._get_default_store()
    _leave()
    before()
    for number, members in enumerate(rounds):
        if worker in members:
            _join(store, f"round {number}", members.index(worker), len(members))
            assigned = _of_one_replica if one_replica else partial(_assignment, replica)
            context.current.place.enter(assigned(number, members.index(worker), rounds))
            yield number, context.current.part(RoundMesh).of(context.assignment(), inside)
            # One that closes its connections takes back what it has sent, if it has not read all that was sent to it.
            store.set(f"ended {number} {worker}", "")
            store.wait([f"ended {number} {member}" for member in members])
            _leave()
    _join(store, "end", worker, workers)


def _assignment(replica: int, number: int, rank: int, rounds: Sequence[Sequence[int]]) -> Assignment:
    members = rounds[number]
    before = {worker for earlier in rounds[:number] for worker in earlier}
    held = [[r for r in range(p, len(members), replica) if members[r] in before] or [p] for p in range(replica)]
    sources = tuple(of[0] for of in held)
    return dataclasses.replace(
        SINGLE_WORKER,
        round_id=RoundId(1, number + 1),
        rank=rank,
        size=len(members),
        sources=sources,
        receivers=tuple(r for r in range(len(members)) if members[r] not in before and r not in sources),
        replica_size=replica,
        version=Version(RoundId(1, number), 1) if number else NO_VERSION,
        first_sync=not number,
    )


def _of_one_replica(number: int, rank: int, rounds: Sequence[Sequence[int]]) -> Assignment:
    members, before = rounds[number], rounds[number - 1] if number else ()
    return dataclasses.replace(
        SINGLE_WORKER,
        round_id=RoundId(1, number + 1),
        rank=rank,
        size=len(members),
        receivers=tuple(r for r, member in enumerate(members) if number and member not in before),
        replica_size=len(members),
        version=Version(RoundId(1, number), 1) if number else NO_VERSION,
        first_sync=not number,
        sharding=Sharding(RoundId(1, number), len(before)) if number else NO_SHARDING,
    )


def _join(store: Store, name: str, rank: int, size: int) -> None:
    torch_groups.init("gloo", PrefixStore(name, store), rank, size, LIMIT)


def _leave() -> None:
    dist.barrier()  # one that leaves early breaks the connections of those that still make theirs
    default_group.destroy()
