"""What the optimizer's part of a step takes in a round with another mesh: `python -m benchmarks.first_step_speed`.

A model that fully_shard has sharded, in one process of a group whose collectives do nothing, is bound to one mesh after
the other. Prints one JSON object for each way of stepping, through DTensor and on shards: the median of the
processor's time in seconds, of the first step after a change of meshes and of the next one.
"""

from __future__ import annotations

import json
import time
from statistics import median

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.sharded_job import sharded
from benchmarks.workload import FEATURES, make_model
from edriver.worker.backend import fsdp2
from edriver.worker.backend.local_steps import step_on_shards

HIDDEN, LAYERS = 64, 6
ROUNDS = 7


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    for on_shards in (False, True):
        print(json.dumps({"on shards": on_shards, **_measured(on_shards)}), flush=True)


def _new_mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def _measured(on_shards: bool) -> dict[str, float]:
    model = sharded(make_model(HIDDEN, LAYERS), _new_mesh())
    optimizer = torch.optim.Adam(model.parameters())
    if on_shards:
        step_on_shards(optimizer)

    def step() -> float:
        torch.autograd.backward(model(torch.ones(8, FEATURES)).sum())
        began = time.process_time()
        optimizer.step()
        took = time.process_time() - began
        optimizer.zero_grad()
        return took

    step()
    first, next_one = [], []
    for _ in range(ROUNDS):
        fsdp2.bind(model, optimizer, _new_mesh())
        first.append(step())
        next_one.append(step())
    return {"first step": round(median(first), 4), "next step": round(median(next_one), 4)}


if __name__ == "__main__":
    main()
