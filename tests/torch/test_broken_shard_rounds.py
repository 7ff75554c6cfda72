"""One replica of all workers, in rounds that break as its shards are cut: nothing of what was there is lost by it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import edriver
from edriver.model.ids import RoundId
from edriver.model.plan import Assignment
from edriver.model.shards import NO_SHARDING, Sharding
from edriver.worker import context
from edriver.worker.backend import fsdp2
from edriver.worker.errors import PeerLostError
from tests.torch.bound_state import Rounds
from tests.torch.mesh_rounds import loss_of, new_model, rounds_of
from tests.torch.ranks import run_ranks

WORKERS = 3


def new_state() -> edriver.ShardedState:
    state = edriver.ShardedState(
        build=new_model, optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.05), step=0
    )
    state.bind(Rounds())  # so steps are sealed: what a worker sends is received before it leaves
    return state


def make_step(state: edriver.ShardedState) -> None:
    state.optimizer.zero_grad()
    loss_of(state.model, state.step).backward()  # type: ignore[no-untyped-call]
    state.optimizer.step()
    state.step += 1
    state.check_host_updates()


def broken(*_: object) -> Any:
    raise RuntimeError("Connection closed by peer")


def cut_in_vain(state: edriver.ShardedState) -> None:
    """A round breaks once what is common has been sent, and shards are yet to be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edriver.worker.state.elastic_shards.reshard", broken)
        with pytest.raises(RuntimeError, match="closed"):
            state.sync()
    dist.barrier()  # all have what is common


def begins_again(worker: int) -> None:
    """The first round breaks, and the next one has fewer workers: each makes its shard anew."""
    state = new_state()
    for number, _ in rounds_of(worker, WORKERS, [[0, 1, 2], [0, 2]], one_replica=True):
        assignment = context.assignment()
        if number == 0:
            cut_in_vain(state)
            assert state.shards_held(committed=False) == ()
            continue
        context.current.place.enter(nothing_held(assignment))
        state.sync()
        rows = [fsdp2.local(parameter).shape[0] for parameter in fsdp2.sharded(state.model)]
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, rows)
        whole = [parameter.shape[0] for parameter in fsdp2.sharded(state.model)]
        assert [sum(of) for of in zip(*everyone, strict=True)] == whole
        make_step(state)


def nothing_held(assignment: Assignment) -> Assignment:
    receivers = tuple(range(1, assignment.size))
    return dataclasses.replace(assignment, sharding=NO_SHARDING, first_sync=True, receivers=receivers)


def keeps_its_optimizer_state(worker: int) -> None:
    """The first round of a later `run` call breaks: what is common comes from one worker, and all keep their shards."""
    state = new_state()
    for number, _ in rounds_of(worker, WORKERS, [[0, 1, 2], [0, 1, 2], [0, 1, 2]], one_replica=True):
        if number:
            sharding = Sharding(RoundId(1, 1), WORKERS)
            context.current.place.enter(dataclasses.replace(context.assignment(), first_sync=True, sharding=sharding))
        if number == 1:
            before = kept(state)
            cut_in_vain(state)
            assert kept(state) == before, f"{kept(state)} instead of {before}"
            continue
        state.sync()
        make_step(state)


def kept(state: edriver.ShardedState) -> list[list[str]]:
    return [sorted(state.optimizer.state[parameter]) for parameter in fsdp2.sharded(state.model)]


def lacks_a_position(worker: int) -> None:
    """Workers lack what they have offered: each says that a peer is lost, and none waits for rows."""
    state = new_state()
    for number, _ in rounds_of(worker, WORKERS, [[0, 1, 2], [0]], one_replica=True):
        if number == 0:
            state.sync()
            make_step(state)
            continue
        with pytest.raises(PeerLostError, match="position"):
            state.sync()


@pytest.mark.parametrize("script", [begins_again, keeps_its_optimizer_state, lacks_a_position])
def test_a_round_that_breaks(script: Callable[[int], None]) -> None:
    run_ranks(script, WORKERS)
