"""One replica of all workers, from round to round: cut anew, a model and its optimizer keep their bits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from edriver.worker import context
from edriver.worker.backend import fsdp2
from edriver.worker.copies.side_stream import SideStream
from edriver.worker.state import resharding
from edriver.worker.state.elastic_shards import ElasticShards
from tests.torch.fingerprint import tree_fingerprint
from tests.torch.mesh_rounds import KINDS, interrupt_backward, loss_of, new_model, rounds_of
from tests.torch.ranks import run_ranks

WORKERS = 6

RESIZED = [[0, 1, 2, 3], [0, 1, 2], [4, 1, 0, 2], [2, 4], [4], [4, 5, 0]]
"""One of four is lost, and replaced by another; two are; one of two is; two join."""

POWERS = [[0, 1, 2, 3], [0, 3], [4, 3, 0, 5]]
"""Sizes at which the mean of equal gradients is each of them, bit for bit."""

STEPS = 3
"""In each round."""


class Trained:
    """A worker's model and its optimizer, with what a ShardedState does for them."""

    def __init__(self, kind: str) -> None:
        self.kind = KINDS[kind]
        self.model: Any = None
        self.optimizer: Any = None
        self.shards = ElasticShards(SideStream())

    def enter(self, mesh: Any, binds: bool = True) -> None:
        if self.model is None:
            self.make(mesh)
        self.shards.cut(self.model, self.optimizer, context.assignment(), self.outline, self.take)
        if not binds:
            outline = self.outline()
            self.make(mesh)
            self.take(outline)
        self.shards.enter(self.model, self.optimizer, mesh, binds)

    def make(self, mesh: Any) -> None:
        fsdp2.forget_meshes()
        self.model = new_model(mesh, self.kind.dtype)
        self.optimizer = self.kind.optimizer(self.model.parameters())

    def outline(self) -> Any:
        state = self.optimizer.state
        return [{k: v for k, v in state[p].items() if not isinstance(v, DTensor)} for p in fsdp2.sharded(self.model)]

    def take(self, outline: Any) -> None:
        for p, values in zip(fsdp2.sharded(self.model), outline, strict=True):
            if values:
                self.optimizer.state[p] = {key: value.clone() for key, value in values.items()}

    def step(self, step: int) -> None:
        self.optimizer.zero_grad()
        loss_of(self.model, step).backward()  # type: ignore[no-untyped-call]
        if self.kind.clips:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.shards.exchange_gradients()
        dist.barrier()
        self.shards.sealed()
        self.optimizer.step()
        self.shards.stepped()

    def whole(self) -> str:
        """The bits of the whole parameters, and of what the optimizer keeps of them."""
        return tree_fingerprint(
            [
                [whole_of(p), {key: whole_of(value) for key, value in self.optimizer.state[p].items()}]
                for p in fsdp2.sharded(self.model)
            ]
        )

    def check_shadows(self) -> None:
        """Each shadow has the bits of the shard."""
        held = self.shards.held()[0]
        here = self.shards._held(held.sharding, self.model, self.optimizer)
        found = {position: tree_fingerprint(shard) for position, shard in here.items()}
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, found)
        for position in range(held.sharding.size):
            holders = [of[position] for of in everyone if position in of]
            assert len(holders) == min(2, held.sharding.size)
            assert len(set(holders)) == 1


def whole_of(value: Any) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def resized(kind: str, binds: bool, apart: int, stages: bool, worker: int) -> None:
    resharding.APART_BYTES = apart  # type: ignore[misc]
    if stages:
        resharding.lies_ready = lambda parts: False
    trained, last = Trained(kind), ""
    for number, mesh in rounds_of(worker, WORKERS, RESIZED, one_replica=True):
        if worker not in RESIZED[number - 1]:
            trained = Trained(kind)  # a process of its own
        identities = [id(p) for p in fsdp2.parameters(trained.model)] if trained.model else []
        trained.enter(mesh, binds)
        if identities and binds:
            assert [id(p) for p in fsdp2.parameters(trained.model)] == identities
        found = trained.whole()
        assert found == last or not number or not identities
        trained.check_shadows()
        everyone: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(everyone, found)
        assert len(set(everyone)) == 1
        for step in range(number * STEPS, (number + 1) * STEPS):
            trained.step(step)
        last = trained.whole()
        assert last != found
        trained.check_shadows()
        if dist.get_world_size() > 1:
            interrupt_backward(trained.model, number)


@pytest.mark.parametrize(
    ("kind", "binds", "apart", "stages"),
    [
        pytest.param("adam", True, 1, False, id="adam-sent-from-where-it-lies"),
        pytest.param("adam", False, resharding.APART_BYTES, False, id="adam-made-anew"),
        pytest.param("adamw-fused", True, 64, False, id="adamw-fused-some-rows-packed"),
        pytest.param("momentum", True, 64, True, id="momentum-as-on-gpus"),
        pytest.param("bf16", True, resharding.APART_BYTES, False, id="bf16"),
    ],
)
def test_shards_that_are_cut_anew_make_up_the_same(kind: str, binds: bool, apart: int, stages: bool) -> None:
    """Whether rows are packed, or travel through memory of their own, or neither."""
    run_ranks(partial(resized, kind, binds, apart, stages), WORKERS)


def trained_in(rounds: Sequence[Sequence[int]], worker: int) -> str:
    trained, last = Trained("adam"), ""
    for number, mesh in rounds_of(worker, WORKERS, rounds, one_replica=True):
        trained.enter(mesh)
        for step in range(number * STEPS, (number + 1) * STEPS):
            trained.step(step)
        last = trained.whole()
    return last


@pytest.mark.long
def test_training_ends_with_the_bits_of_a_quiet_run() -> None:
    expected = run_ranks(partial(trained_in, [[0, 1, 2, 3]] * 3), WORKERS)[0]
    found = run_ranks(partial(trained_in, POWERS), WORKERS)
    assert [found[worker] for worker in POWERS[-1]] == [expected] * 4
