"""States with checkpoints for tests: sharded, and the same one not sharded."""

from __future__ import annotations

import dataclasses
import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.optim.lr_scheduler import StepLR

from edriver.checkpoint_folder.folder import CheckpointFolder
from edriver.model.ids import RoundId
from edriver.model.plan import SINGLE_WORKER
from edriver.worker import context
from edriver.worker.errors import CheckpointError
from edriver.worker.sampler.elastic_sampler import ElasticSampler
from edriver.worker.state.sharded_state import ShardedState
from edriver.worker.state.torch_state import TorchState
from tests.torch import bound_state
from tests.torch.mesh_rounds import loss_of, new_model

STEPS = 3


MORE = 2


class Rounds(bound_state.Rounds):
    """Takes every boundary, and notes which were commits."""

    def __init__(self) -> None:
        self.commits: list[bool] = []

    def boundary(self, committed: bool) -> None:
        self.commits.append(committed)


def with_noise(mesh: DeviceMesh, seed: int) -> torch.nn.Sequential:
    """A model with a buffer that nothing shards."""
    model = new_model(mesh, seed=seed)
    model.register_buffer("noise", torch.full((3,), float(seed)))
    return model


def sharded(
    folder: Path, seed: int = 3, every: int = STEPS, keep: int = 3, every_memory: int | None = None
) -> ShardedState:
    state = ShardedState(
        build=partial(with_noise, seed=seed),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.05),
        scheduler=lambda optimizer: StepLR(optimizer, 2, 0.5),
        checkpoint=folder,
        every=every,
        every_memory=every_memory,
        keep=keep,
        sampler=ElasticSampler(range(64)),
        step=0,
    )
    state.bind(Rounds())
    return state


def whole(folder: Path, seed: int = 3, every: int = STEPS) -> TorchState:
    """The same model, not sharded."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 7), torch.nn.ReLU(), torch.nn.Linear(7, 5), torch.nn.Linear(5, 3))
    model.register_buffer("noise", torch.full((3,), float(seed)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    state = TorchState(
        model,
        optimizer,
        checkpoint=folder,
        every=every,
        scheduler=StepLR(optimizer, 2, 0.5),
        sampler=ElasticSampler(range(64)),
        step=0,
    )
    state.bind(Rounds())
    return state


def train(state: TorchState, steps: int) -> None:
    for _ in range(steps):
        state.optimizer.zero_grad()
        loss_of(state.model, state.step).backward()  # type: ignore[no-untyped-call]
        state.optimizer.step()
        state.scheduler.step()
        state.step += 1
        state.check_host_updates()
        wait(state)


def wait(state: TorchState) -> None:
    """Have all of this rank's part written: else its next one may be due while it still is."""
    state._disk.checkpoints.wait()  # type: ignore[union-attr]
    if dist.is_initialized():
        dist.barrier()


def enter(rank: int, size: int, replica: int, checkpoint: int = 0, number: int = 1) -> None:
    """Be a member of a round that begins from that checkpoint, or from nothing."""
    place = dataclasses.replace(
        SINGLE_WORKER,
        round_id=RoundId(1, number),
        rank=rank,
        size=size,
        sources=tuple(range(replica)),
        receivers=tuple(range(replica, size)),
        replica_size=replica,
        first_sync=True,
        checkpoint=checkpoint,
    )
    context.current.place.enter(place)


def digest(state: TorchState) -> str:
    """Of whole tensors, and of what is not sharded."""
    found = hashlib.sha256()
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
    kept = [v for p in parameters for _, v in sorted(state.optimizer.state[p].items())]
    for tensor in [*parameters, *kept, state.model.get_buffer("noise")]:
        full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        found.update(f"{full.dtype}{tuple(full.shape)}".encode())
        found.update(full.detach().numpy().tobytes())
    found.update(
        repr((state.step, state.steps_made, state.scheduler.state_dict(), state.sampler.state_dict())).encode()
    )
    return found.hexdigest()


def newest(folder: Path) -> Any:
    found = CheckpointFolder(str(folder)).newest()
    assert found is not None
    return found


def another_model(mesh: DeviceMesh) -> torch.nn.Module:
    """Its shards are as large as those of a part of the other's."""
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 5), torch.nn.Linear(5, 3))
    model.register_buffer("noise", torch.zeros(3))
    fully_shard(model, mesh=mesh)
    return model


def refused(folder: Path) -> str:
    """What a worker says whose model is another one than the checkpoint's."""
    state = ShardedState(
        build=another_model,
        optimizer=lambda model: torch.optim.AdamW(model.parameters()),
        scheduler=lambda optimizer: StepLR(optimizer, 2, 0.5),
        checkpoint=folder,
        sampler=ElasticSampler(range(64)),
        step=0,
    )
    with pytest.raises(CheckpointError) as raised:
        state.sync()
    return str(raised.value)
