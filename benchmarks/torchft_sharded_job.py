"""The churn workload as torchft wants HSDP: a replica group of the workers that a model is sharded over (FSDP2).

As torchtitan uses it: the mesh has one dimension, and each module's all-reduce hook averages the reduced gradients over
the replicas, through the manager.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torchft import Manager

from benchmarks.records import Recorder
from benchmarks.sharded_job import sharded
from benchmarks.torchft_job import COLLECTIVE_TIMEOUT, TIMEOUT, GlooQuorums, train
from benchmarks.workload import make_model, options


def main() -> None:
    """The whole script."""
    flags = options()
    recorder = Recorder(flags.folder / "records")
    recorder.boot()
    dist.init_process_group("gloo")
    rank, width = dist.get_rank(), dist.get_world_size()
    model = sharded(make_model(flags.hidden, flags.layers), init_device_mesh("cpu", (width,)))
    group = GlooQuorums(timeout=COLLECTIVE_TIMEOUT)
    manager = Manager(
        pg=group,
        load_state_dict=None,
        state_dict=None,
        min_replica_size=1,
        timeout=TIMEOUT,
        quorum_timeout=TIMEOUT,
        rank=rank,
        world_size=width,
        replica_id=f"churn_{os.environ['REPLICA']}",
        hostname="127.0.0.1",
        init_sync=False,  # in its favour: all replicas begin with the same parameters
    )

    def average(reduced: torch.Tensor) -> None:
        manager.allreduce(reduced).wait()

    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_all_reduce_hook(average)
    train(flags, recorder, model, model, manager, group, rank, width)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
