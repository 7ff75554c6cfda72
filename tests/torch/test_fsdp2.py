"""FSDP2 from round to round: bound to another mesh, a module and its optimizer train on to the bits of a quiet run."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from edriver.worker.backend import fsdp2
from tests.torch.fingerprint import tree_fingerprint
from tests.torch.mesh_rounds import KINDS, LIMIT, interrupt_backward, loss_of, make_step, new_model, rounds_of
from tests.torch.ranks import run_ranks

WORKERS = 6
ROUNDS = [[0, 1, 2, 3], [2, 1], [2, 1, 4, 5], [4, 1, 2, 5]]
"""2 x 2, then a survivor of each position, then two newcomers, then the same workers in another order."""

STEPS = 3
"""In each round."""


def bits(model: torch.nn.Module, optimizer: Optimizer) -> str:
    """Of this rank's shards, and of its optimizer's state of them."""
    parameters = [fsdp2.local(p) for p in fsdp2.parameters(model)]
    state = [{key: fsdp2.local(v) for key, v in of.items()} for of in optimizer.state.values()]
    return tree_fingerprint([parameters, state])


def quiet(kind: str, worker: int) -> str:
    found = ""
    for _, mesh in rounds_of(worker, 2, [[0, 1]]):
        model = new_model(mesh, KINDS[kind].dtype)
        optimizer = KINDS[kind].optimizer(model.parameters())
        for step in range(len(ROUNDS) * STEPS):
            make_step(model, optimizer, step, KINDS[kind].clips)
        found = bits(model, optimizer)
    return found


def disturbed(kind: str, worker: int) -> str:
    model: Any = None
    optimizer: Any = None
    identities: list[int] = []
    for number, mesh in rounds_of(worker, WORKERS, ROUNDS):
        if model is None:
            model = new_model(mesh, KINDS[kind].dtype, seed=3 if number == 0 else worker)
            optimizer = KINDS[kind].optimizer(model.parameters())
            identities = identities_of(model, optimizer)
        else:
            fsdp2.bind(model, optimizer, mesh)
            assert identities_of(model, optimizer) == identities
        if number == 2:
            receive(model, optimizer, mesh, newcomer=worker >= 4)
        for step in range(number * STEPS, (number + 1) * STEPS):
            make_step(model, optimizer, step, KINDS[kind].clips)
        if number == 0:
            interrupt_backward(model, STEPS)
        elif number == 1:
            with torch.no_grad():
                loss_of(model, 0)  # leaves the root module unsharded
            interrupt_backward(model, STEPS + 1)
        elif number == 2:
            loss_of(model, 0)
    return bits(model, optimizer)


def identities_of(model: torch.nn.Module, optimizer: Optimizer) -> list[int]:
    return [id(p) for p in (*fsdp2.parameters(model), *optimizer.param_groups[0]["params"])]


def receive(model: torch.nn.Module, optimizer: Optimizer, mesh: DeviceMesh, newcomer: bool) -> None:
    """Those of the second replica receive from the first, position by position."""
    if newcomer:  # its optimizer gets its state from a step
        make_states(model, optimizer)
    group = mesh.get_group("replicate")
    source = dist.get_rank() % 2
    with torch.no_grad():
        for p in fsdp2.parameters(model):
            dist.broadcast(fsdp2.local(p), source, group=group)
            for value in optimizer.state[p].values():
                dist.broadcast(fsdp2.local(value), source, group=group)


def make_states(model: torch.nn.Module, optimizer: Optimizer) -> None:
    for p in fsdp2.parameters(model):
        p.grad = torch.zeros_like(p)
    optimizer.step()


@pytest.mark.long_except("adamw-foreach")
@pytest.mark.parametrize("kind", KINDS)
def test_rounds_of_other_sizes_and_members_end_with_the_bits_of_a_quiet_run(kind: str) -> None:
    expected = run_ranks(partial(quiet, kind), 2)
    found = run_ranks(partial(disturbed, kind), WORKERS)
    assert len(set(expected)) == 2, "a position's shards are its own"
    by_position = [[found[worker] for worker in ROUNDS[-1][position::2]] for position in range(2)]
    assert by_position == [[bits_of] * 2 for bits_of in expected]


def timeouts(worker: int) -> list[timedelta]:
    """Of the groups of a round's mesh."""
    found: list[timedelta] = []
    for _, mesh in rounds_of(worker, 4, [[0, 1, 2, 3]]):
        found = [group._get_backend(torch.device("cpu")).options._timeout for group in mesh.get_all_groups()]
    return found


def test_groups_of_a_mesh_have_the_rounds_timeout() -> None:
    assert run_ranks(timeouts, 4) == [[LIMIT] * 2] * 4
