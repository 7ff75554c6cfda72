"""The churn workload under edriver: `edriver ... python -m benchmarks.churn_job ...`. A boundary each step.

It trains epoch after epoch, until a file named stop is in its folder at the end of one.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import edriver
from benchmarks.records import Recorder
from benchmarks.workload import Numbered, digest_of, make_loader, make_model, options, stop_requested, train_step
from edriver.worker import context


def train(
    state: edriver.TorchState,
    data: Numbered,
    flags: argparse.Namespace,
    recorder: Recorder,
    parallel: Callable[[nn.Module], nn.Module],
) -> None:
    """Train until the file named stop exists, and record every step.

    Args:
        state: model, optimizer, sampler, step and epoch.
        data: what is trained on.
        flags: the workload's.
        recorder: writes the steps down.
        parallel: makes of the state's model, in each round, the one that is called.
    """

    def digest() -> str:
        rest = (state.step, state.epoch, state.sampler.state_dict())
        return digest_of(state.model, state.optimizer, rest) if flags.digest else ""

    place = context.assignment()
    host = os.environ.get("EDRIVER_HOST", "localhost")
    recorder.round_start(place.round_id.n, place.rank, place.size, host, state.step, digest())
    model = parallel(state.model)
    loader = make_loader(data, state.sampler, flags.batch_size)
    while True:
        state.sampler.set_epoch(state.epoch)
        for batch_idx, (samples, inputs, labels) in enumerate(loader):
            recorder.batch(state.epoch, state.step + 1, tuple(samples.tolist()))
            train_step(model, state.optimizer, inputs, labels, flags.step_seconds)
            state.sampler.record_batch(batch_idx, flags.batch_size)
            state.step += 1
            recorder.done(state.step, digest())
            if flags.commit_steps and state.step % flags.commit_steps == 0:
                state.commit()
            else:
                state.check_host_updates()
        state.epoch += 1
        if stop_requested(flags.folder):
            return


def main() -> None:
    """The whole script."""
    flags = options()
    time.sleep(flags.boot_seconds)
    data = Numbered(flags.samples)
    model = make_model(flags.hidden, flags.layers).to(flags.device)
    optimizer = torch.optim.Adam(model.parameters())
    sampler = edriver.ElasticSampler(data, seed=7)
    state = edriver.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, step=0)
    recorder = Recorder(flags.folder / "records")
    recorder.boot()
    edriver.run(train)(state, data, flags, recorder, partial(DistributedDataParallel, init_sync=False))


if __name__ == "__main__":
    main()
