"""The speed of a sharded model on 2 replicas x 2 shards, under edriver or in a bare process group: as speed_job.py.

edriver -np 4 --replica-size 2 python -m benchmarks.sharded_speed_job FILE HIDDEN LAYERS BATCH
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import edriver
from benchmarks.sharded_job import sharded
from benchmarks.speed_job import train_on
from benchmarks.workload import FEATURES, make_model

REPLICAS, SHARDS = 2, 2


def build(mesh: DeviceMesh) -> nn.Module:
    """The sharded model."""
    hidden, layers = map(int, sys.argv[2:4])
    return sharded(make_model(hidden, layers), mesh)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Its optimizer."""
    return torch.optim.Adam(model.parameters())


@edriver.run
def train(state: edriver.ShardedState) -> None:
    """The training function."""
    train_on(state.model, state.optimizer, state.check_host_updates, FEATURES, int(sys.argv[4]))


def main() -> None:
    """The whole script."""
    if "EDRIVER_WORKER_ID" in os.environ:
        train(edriver.ShardedState(build, make_optimizer))
    else:
        dist.init_process_group("gloo")
        model = build(init_device_mesh("cpu", (REPLICAS, SHARDS), mesh_dim_names=("replicate", "shard")))
        train_on(model, make_optimizer(model), lambda: None, FEATURES, int(sys.argv[4]))


if __name__ == "__main__":
    main()
