"""The churn workload as torchrun wants it: `torchrun ... -m benchmarks.torchrun_job ...`.

A checkpoint every 10 steps; every start goes on from the last one, within the epoch, as a well-written script does:
what was consumed of the epoch's order is skipped, so after a restart with as many workers no sample is repeated.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from benchmarks.records import Recorder
from benchmarks.workload import Numbered, make_loader, make_model, options, stop_requested, train_step

CHECKPOINT_STEPS = 10


@dataclass(slots=True)
class Progress:
    """How far training has got: steps in all, the epoch, and how many samples of it are consumed by all ranks."""

    step: int = 0
    epoch: int = 0
    consumed: int = 0


def save(path: Path, progress: Progress, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint, whole or not at all."""
    unfinished = path.with_suffix(".unfinished")
    torch.save(
        [progress.step, progress.epoch, progress.consumed, model.state_dict(), optimizer.state_dict()], unfinished
    )
    unfinished.replace(path)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Go on from the checkpoint, if there is one."""
    if not path.exists():
        return Progress()
    step, epoch, consumed, of_model, of_optimizer = torch.load(path, weights_only=True)
    model.load_state_dict(of_model)
    optimizer.load_state_dict(of_optimizer)
    return Progress(step, epoch, consumed)


def train(flags: argparse.Namespace) -> None:
    """Train until the file named stop exists, and record every step."""
    rank, size = dist.get_rank(), dist.get_world_size()
    data = Numbered(flags.samples)
    model = make_model(flags.hidden).to(flags.device)
    optimizer = torch.optim.Adam(model.parameters())
    checkpoint = flags.folder / "checkpoint.pt"
    progress = load(checkpoint, model, optimizer)
    recorder = Recorder(flags.folder / "records")
    recorder.round_start(_round_number(), rank, size, os.environ["GROUP_RANK"], progress.step, "")
    wrapped = DistributedDataParallel(model)
    sampler: DistributedSampler[int] = DistributedSampler(data, size, rank, seed=7)
    loader = make_loader(data, sampler, flags.batch_size)
    while True:
        sampler.set_epoch(progress.epoch)
        consumed_batches = progress.consumed // (flags.batch_size * size)
        for samples, inputs, labels in itertools.islice(loader, consumed_batches, None):
            recorder.batch(progress.epoch, progress.step + 1, tuple(samples.tolist()))
            train_step(wrapped, optimizer, inputs, labels, flags.step_seconds)
            progress.step += 1
            progress.consumed += flags.batch_size * size
            recorder.done(progress.step, "")
            if rank == 0 and progress.step % CHECKPOINT_STEPS == 0:
                save(checkpoint, progress, model, optimizer)
        progress.epoch += 1
        progress.consumed = 0
        if stop_requested(flags.folder):
            return


def _round_number() -> int:
    """A number for this start of all workers, the same on all and larger than that of earlier ones.

    torchrun's restart count does not grow when members come or go.
    """
    number = torch.tensor([time.monotonic_ns()])
    dist.broadcast(number, 0)
    return int(number.item())


def main() -> None:
    """The whole script."""
    flags = options()
    dist.init_process_group("gloo" if flags.device == "cpu" else "cpu:gloo,cuda:nccl")
    train(flags)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
