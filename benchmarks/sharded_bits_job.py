"""A sharded model whose training does not depend on the number of replicas, bit for bit: see sharded.equal_bits.

Both replicas train on the same samples, which depend on the step and on the position alone. The mean of two equal
gradients is each of them, without rounding. It trains until the step that the file named stop has, and records a hash
of its shards then.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn

import edriver
from benchmarks.records import Recorder
from benchmarks.sharded_job import sharded
from benchmarks.workload import CLASSES, FEATURES, digest_of, make_model, options
from edriver.worker import context


@edriver.run
def train(state: edriver.ShardedState, flags: argparse.Namespace, recorder: Recorder) -> None:
    """Train until the step that the file named stop has, which every worker finds long before it."""
    place = context.assignment()
    host = os.environ.get("EDRIVER_HOST", "localhost")
    recorder.round_start(place.round_id.n, place.rank, place.size, host, state.step, "")
    while state.step < (last := last_step(flags.folder)):
        generator = torch.Generator().manual_seed(2 * state.step + edriver.mesh()["shard"].get_local_rank())
        inputs = torch.randn(flags.batch_size, FEATURES, generator=generator)
        labels = torch.randint(CLASSES, (flags.batch_size,), generator=generator)
        recorder.batch(0, state.step + 1, ())
        state.optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(state.model(inputs), labels))
        state.optimizer.step()
        state.step += 1
        recorder.done(state.step, digest_of(state.model, state.optimizer, "") if state.step == last else "")
        state.check_host_updates()


def last_step(folder: Path) -> float:
    """The step to stop at; infinite: it is not known yet."""
    try:
        return int((folder / "stop").read_text())
    except FileNotFoundError:
        return float("inf")


def main() -> None:
    """The whole script."""
    flags = options()
    state = edriver.ShardedState(
        build=lambda mesh: sharded(make_model(flags.hidden, flags.layers), mesh),
        optimizer=lambda model: torch.optim.Adam(model.parameters()),
        step=0,
    )
    recorder = Recorder(flags.folder / "records")
    recorder.boot()
    train(state, flags, recorder)


if __name__ == "__main__":
    main()
