"""A sharded model that is made before its worker's first round, on a mesh without peers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import edriver
from edriver.worker.backend import checks, fsdp2
from edriver.worker.state.sharded_state import ShardedState
from tests.torch.mesh_rounds import new_model

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def prepared(
    monkeypatch: pytest.MonkeyPatch, build: Callable[[DeviceMesh], torch.nn.Module], position: int = 1
) -> ShardedState:
    """A state as a worker that has been started while others train has it when it is ready."""
    place = {"EDRIVER_WORKER_ID": "5", "EDRIVER_POSITION": str(position), "EDRIVER_REPLICA_SIZE": "2"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    state = ShardedState(build=build, optimizer=lambda model: torch.optim.Adam(model.parameters()), step=0)
    try:
        state.prepare()
    finally:
        assert not dist.is_initialized()
    return state


@pytest.mark.parametrize(("position", "rows"), [(0, [4, 4, 3, 3, 2, 2]), (1, [3, 3, 2, 2, 1, 1])])
def test_a_model_has_the_shards_of_its_position(
    monkeypatch: pytest.MonkeyPatch, position: int, rows: list[int]
) -> None:
    state = prepared(monkeypatch, new_model, position)
    assert [fsdp2.local(parameter).shape[0] for parameter in fsdp2.parameters(state.model)] == rows
    made = state.model, state.optimizer
    state.prepare()  # as a second `run` does
    assert (state.model, state.optimizer) == made


@pytest.mark.parametrize(
    "communicate",
    [
        pytest.param(lambda mesh: dist.all_reduce(torch.ones(1), group=mesh.get_group("shard")), id="collective"),
        pytest.param(lambda _: dist.recv(torch.ones(1), 0), id="receive"),
    ],
)
def test_what_communicates_is_refused(
    monkeypatch: pytest.MonkeyPatch, communicate: Callable[[DeviceMesh], object]
) -> None:
    """In the first round of a run it is, too."""

    def build(mesh: DeviceMesh) -> torch.nn.Module:
        communicate(mesh)
        return new_model(mesh)

    with pytest.raises(TypeError, match="`build` or `optimizer` communicates"):
        prepared(monkeypatch, build)


def test_what_asks_for_a_rank_is_made_in_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the random numbers that it would have had without the attempt."""
    torch.manual_seed(5)
    before = torch.get_rng_state()

    def build(mesh: DeviceMesh) -> torch.nn.Module:
        torch.rand(3)
        edriver.rank()
        return new_model(mesh)

    state = prepared(monkeypatch, build)
    assert state.model is None
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("error", [ValueError("no such file"), RuntimeError("out of memory")])
def test_what_cannot_be_made_is_an_error(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def build(mesh: DeviceMesh) -> torch.nn.Module:
        raise error

    with pytest.raises(type(error), match=str(error)):
        prepared(monkeypatch, build)


def test_a_model_that_cannot_be_bound_is_made_in_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have to be made anew there."""
    monkeypatch.setattr(fsdp2, "_OF_GROUP", (*fsdp2._OF_GROUP, "_gone"))
    assert prepared(monkeypatch, new_model).model is None


def test_the_first_workers_of_a_run_make_their_models_in_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for them, and nothing that they train with differs from the same script alone."""
    monkeypatch.setenv("EDRIVER_WORKER_ID", "1")
    state = ShardedState(build=new_model, optimizer=lambda model: torch.optim.Adam(model.parameters()))
    state.prepare()
    assert state.model is None


def test_a_torch_whose_groups_let_collectives_pass_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = checks.found_by([checks.AHEAD_CHECK])
    assert not found.trouble
    monkeypatch.setattr(dist, "barrier", lambda: None)
    (found,) = checks.found_by([checks.AHEAD_CHECK])
    assert "lets collectives pass" in found.trouble
    assert prepared(monkeypatch, new_model).model is None
