"""The churn workload with its model sharded over the workers of a replica: churn_job.py but for how the state is made.

edriver --replica-size 2 ... python -m benchmarks.sharded_job ...
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import edriver
from benchmarks.churn_job import train
from benchmarks.records import Recorder
from benchmarks.workload import Numbered, make_model, options, train_step


def sharded(model: nn.Sequential, mesh: DeviceMesh) -> nn.Sequential:
    """The model with each of its layers sharded over a mesh."""
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def main() -> None:
    """The whole script."""
    flags = options()
    data = Numbered(flags.samples)
    state = edriver.ShardedState(
        build=lambda mesh: sharded(make_model(flags.hidden, flags.layers), mesh),
        optimizer=lambda model: torch.optim.Adam(model.parameters()),
        sampler=edriver.ElasticSampler(data, seed=7),
        epoch=0,
        step=0,
    )
    recorder = Recorder(flags.folder / "records")
    recorder.boot()

    def warm_up(state: edriver.ShardedState) -> None:
        batch = torch.stack([data[0][1]] * flags.batch_size)
        for _ in range(2):
            train_step(state.model, state.optimizer, batch, torch.zeros(len(batch), dtype=torch.long), 0.0)

    edriver.run(warm_up=warm_up)(train)(state, data, flags, recorder, lambda model: model)


if __name__ == "__main__":
    main()
