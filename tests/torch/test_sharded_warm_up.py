"""warm_up= with a ShardedState: a newcomer takes steps alone, in a replica whose other members are not there."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import edriver
from edriver.worker.backend import fsdp2
from edriver.worker.state.sharded_state import ShardedState
from tests.torch.bound_state import Rounds
from tests.torch.mesh_rounds import SHARDS, loss_of, new_model, rounds_of
from tests.torch.ranks import run_ranks
from tests.torch.shard_digest import shard_digest

WORKERS = 4


def new_state() -> ShardedState:
    return ShardedState(build=new_model, optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.05), step=0)


def make_step(state: ShardedState) -> None:
    state.optimizer.zero_grad()
    loss_of(state.model, state.step).backward()  # type: ignore[no-untyped-call]
    state.clip_grad_norm_(0.5)
    state.optimizer.step()
    state.step += 1
    state.check_host_updates()


def warm_up(state: ShardedState) -> None:
    """As a training function would, with two steps, a commit and half of a third step."""
    assert edriver.size() == dist.get_world_size() == SHARDS
    assert edriver.rank() == dist.get_rank()
    assert tuple(edriver.mesh().shape) == (1, SHARDS)
    for _ in range(2):
        make_step(state)
    state.commit()
    loss_of(state.model, state.step).backward()  # type: ignore[no-untyped-call]
    state.model(torch.randn(2, 4))
    called.append(state.step)


called: list[int] = []


def refuse_worlds_of_one() -> AbstractContextManager[None]:
    raise AssertionError("a replica is rehearsed in")


def rehearse(state: ShardedState, position: int) -> None:
    """As a worker does that has been started while others train; nothing stays of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDRIVER_POSITION", str(position))
        patch.setenv("EDRIVER_REPLICA_SIZE", str(SHARDS))
        state.prepare()
        before, random = shard_digest(state), torch.get_rng_state()
        state.rehearse(warm_up, refuse_worlds_of_one)
    assert called == [2]
    assert not dist.is_initialized()
    assert shard_digest(state) == before
    assert torch.equal(torch.get_rng_state(), random)
    assert state.step == 0
    assert not any(state.optimizer.state.values())
    assert all(parameter.grad is None for parameter in fsdp2.parameters(state.model))


def join(rehearses: bool, worker: int) -> str:
    """Two replicas, of which one comes later."""
    state = new_state()
    before = partial(rehearse, state, worker % SHARDS) if rehearses and worker >= SHARDS else lambda: None
    for _ in rounds_of(worker, WORKERS, [[0, 1], [0, 1, 2, 3]], before=before):
        state.bind(Rounds())
        state.sync()
        for _ in range(2):
            make_step(state)
            assert state._unsealed == ""
    return shard_digest(state)


def test_newcomers_rehearse_and_train_as_if_they_had_not() -> None:
    rehearsed = run_ranks(partial(join, True), WORKERS)
    assert rehearsed == run_ranks(partial(join, False), WORKERS)
    assert rehearsed[:SHARDS] == rehearsed[SHARDS:]


def test_a_model_that_is_made_in_the_round_is_not_rehearsed_with(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def build(mesh: DeviceMesh) -> torch.nn.Module:
        edriver.rank()
        return new_model(mesh)

    monkeypatch.setenv("EDRIVER_WORKER_ID", "5")
    state = ShardedState(build=build, optimizer=lambda model: torch.optim.SGD(model.parameters()))
    state.rehearse(warm_up, refuse_worlds_of_one)  # a worker of the first round, for which nobody waits
    monkeypatch.setenv("EDRIVER_POSITION", "1")
    monkeypatch.setenv("EDRIVER_REPLICA_SIZE", "2")
    with caplog.at_level(logging.INFO, "edriver.worker"):
        state.rehearse(warm_up, refuse_worlds_of_one)
    assert "`build` is called again in this worker's first round" in caplog.text
    assert state.model is None
    assert called == []
