"""Checkpoints of a model with tensor parallelism inside its shards: written by a replica, and loaded by others."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from edriver.worker.state.sharded_state import ShardedState
from edriver.worker.state.torch_state import TorchState
from tests.torch.parallel_model import parallel_model, plain_model, tokens_of
from tests.torch.ranks import run_ranks
from tests.torch.sharded_checkpoints import STEPS, Rounds, enter, newest, wait


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def new_state(folder: Path, inside: Mapping[str, int], seed: int = 3) -> ShardedState:
    state = ShardedState(
        partial(parallel_model, seed=seed), adam, replica_mesh=inside, checkpoint=folder, every=STEPS, step=0
    )
    state.bind(Rounds())
    return state


def whole_digest(state: TorchState) -> str:
    """Of the whole parameters, and of all that the optimizer keeps of them."""
    found = hashlib.sha256()
    for parameter in state.model.parameters():
        for tensor in (parameter, *(v for _, v in sorted(state.optimizer.state[parameter].items()))):
            full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            found.update(full.detach().numpy().tobytes())
    return found.hexdigest()


def write(folder: Path, inside: Mapping[str, int], rank: int) -> str:
    enter(rank, 8, math.prod(inside.values()))
    state = new_state(folder, inside)
    state.sync()
    while state.step < STEPS:
        state.optimizer.zero_grad()
        state.model(tokens_of(state.step)).square().sum().backward()
        state.optimizer.step()
        state.step += 1
        state.check_host_updates()
        wait(state)
    return whole_digest(state)


def read(folder: Path, inside: Mapping[str, int], size: int, rank: int) -> str:
    enter(rank, size, math.prod(inside.values()), STEPS)
    state = new_state(folder, inside, seed=rank + 10)
    assert state.newest_checkpoint(look=True) == STEPS
    dist.barrier()  # as in a run, where the round is formed once all have looked: from then on the folder has an owner
    state.sync()
    assert state.step == STEPS
    return whole_digest(state)


def read_whole(folder: Path, rank: int) -> str:
    enter(rank, 1, 1, STEPS)
    model = plain_model(seed=9)
    state = TorchState(model, adam(model), checkpoint=folder, every=STEPS, step=0)
    state.bind(Rounds())
    state.sync()
    return whole_digest(state)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A checkpoint of two replicas of 2 shards x 2, and its digest."""
    folder = tmp_path_factory.mktemp("written")
    digests = run_ranks(partial(write, folder, {"shard": 2, "tensor": 2}), 8)
    assert len(set(digests)) == 1
    return folder, digests[0]


def test_each_element_is_written_once(written: tuple[Path, str]) -> None:
    """What several workers of a replica have is in one part."""
    found = newest(written[0])
    assert found.whole
    assert len(found.manifest.files) == 5, "the metadata, and a part of each position"
    metadata = FileSystemReader(written[0] / found.name).read_metadata().state_dict_metadata
    for name, parameter in plain_model().named_parameters():
        for key in (f"model.{name}", f"optimizer.state.{name}.exp_avg"):
            stored = metadata[key]
            assert isinstance(stored, TensorStorageMetadata)
            assert sum(chunk.sizes.numel() for chunk in stored.chunks) == parameter.numel(), key


@pytest.mark.parametrize(
    ("inside", "size"),
    [
        pytest.param({"shard": 1, "tensor": 2}, 2, id="fewer-shards"),
        pytest.param({"shard": 3, "tensor": 1}, 3, id="three-shards"),
        pytest.param({"tensor": 2, "shard": 2}, 4, id="another-order"),
    ],
)
def test_replicas_of_other_dimensions_load_it(written: tuple[Path, str], inside: dict[str, int], size: int) -> None:
    folder, expected = written
    assert run_ranks(partial(read, folder, inside, size), size) == [expected] * size


def test_a_state_that_is_not_sharded_loads_it(written: tuple[Path, str]) -> None:
    folder, expected = written
    assert run_ranks(partial(read_whole, folder), 1) == [expected]
