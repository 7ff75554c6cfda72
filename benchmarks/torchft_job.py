"""The churn workload as torchft wants it: one replica group of one worker, which heals from the others.

As in torchft's own train_ddp.py: its DistributedDataParallel, optimizer and sampler around ours. Its quorum, which is
what edriver calls a round, may change in any step, so a step is written down when it is finished.
"""

import argparse
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket, TCPStore
from torchft import (
    DistributedDataParallel,
    DistributedSampler,
    Manager,
    Optimizer,
    ProcessGroupGloo,
    ProcessGroupNCCL,
)

from benchmarks.records import Recorder
from benchmarks.workload import Loaded, Numbered, make_loader, make_model, options, train_step

COLLECTIVE_TIMEOUT = timedelta(seconds=5)
TIMEOUT = timedelta(seconds=10)
PLACES = 4


class Parallel(DistributedDataParallel):  # type: ignore[misc]  # without types
    """torchft's DistributedDataParallel, without a fault of its hook in 0.2.0.

    That one asserts that the collective came to its end; where a peer is killed in the middle of it the assertion
    fails, and the replica ends with it. torch reads the hook's annotations, so this file has none as strings.
    """

    @staticmethod
    def _comm_hook(state: Manager, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        state.allreduce(bucket.buffer()).wait()  # an error is the manager's: it gives the step up
        finished: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        finished.set_result(bucket.buffer())
        return finished


class Remembering:
    """Of a process group of torchft's: it also remembers the place that it was last built for.

    Attributes:
        quorum: the quorum's number,
        rank: this replica's rank in it,
        members: how many replicas it has.
    """

    quorum, rank, members = 0, 0, 0

    def configure(self, store_addr: str, replica_id: str, rank: int, world_size: int, *rest: Any) -> None:
        """Build the group of a quorum."""
        super().configure(store_addr, replica_id, rank, world_size, *rest)  # type: ignore[misc]
        assert rest, "torchft tells the number of the quorum"
        self.quorum, self.rank, self.members = rest[0], rank, world_size


class GlooQuorums(Remembering, ProcessGroupGloo):  # type: ignore[misc]
    """For tensors of the host."""


class NcclQuorums(Remembering, ProcessGroupNCCL):  # type: ignore[misc]
    """For tensors of a GPU."""


def train(
    flags: argparse.Namespace,
    recorder: Recorder,
    model: nn.Module,
    wrapped: nn.Module,
    manager: Manager,
    group: Remembering,
    position: int = 0,
    width: int = 1,
) -> None:
    """Train until the step that the file named stop tells, writing down every step.

    Args:
        flags: the workload's.
        recorder: writes the steps down.
        model: holds the parameters.
        wrapped: the model as it is called.
        manager: this replica's.
        group: that of the replicas.
        position: this worker's place in its replica,
        width: and how many workers a replica has.
    """
    optimizer = Optimizer(manager, torch.optim.Adam(model.parameters()))

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def save() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    manager.register_state_dict_fn("job", load, save)
    data = Numbered(flags.samples)
    place = int(os.environ["REPLICA"])
    sampler = DistributedSampler(
        data, replica_rank=place, num_replica_groups=PLACES // width, group_rank=position, num_replicas=width
    )
    quorum = 0
    for samples, inputs, labels in _batches(make_loader(data, sampler, flags.batch_size), sampler):
        before = manager.current_step()
        train_step(wrapped, optimizer, inputs, labels, flags.step_seconds)
        step = manager.current_step()
        if step > before:  # else the step was given up, and the next one takes its place
            if group.quorum != quorum:
                quorum = group.quorum
                rank, size = group.rank * width + position, group.members * width
                recorder.round_start(quorum, rank, size, str(place), step - 1, "")
            recorder.batch(0, step, tuple(samples.tolist()))
            recorder.done(step, "")
        if step >= _last_step(flags.folder):
            return


def _batches(loader: Loaded, sampler: DistributedSampler) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def _last_step(folder: Path) -> float:
    try:
        return int((folder / "stop").read_text())
    except FileNotFoundError:
        return float("inf")


def main() -> None:
    """The whole script."""
    flags = options()
    model = make_model(flags.hidden).to(flags.device)
    recorder = Recorder(flags.folder / "records")
    recorder.boot()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = (GlooQuorums if flags.device == "cpu" else NcclQuorums)(timeout=COLLECTIVE_TIMEOUT)
    manager = Manager(
        pg=group,
        load_state_dict=None,
        state_dict=None,
        min_replica_size=1,
        timeout=TIMEOUT,
        quorum_timeout=TIMEOUT,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=f"churn_{os.environ['REPLICA']}",
        hostname="127.0.0.1",
        init_sync=False,  # in its favour: all replicas begin with the same parameters
    )
    train(flags, recorder, model, Parallel(manager, model), manager, group)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
