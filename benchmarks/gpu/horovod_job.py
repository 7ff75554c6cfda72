"""A script for Horovod, with its lines about GPUs, and trouble as in job.py: it takes the GPU of its local rank."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

import torch
from torch import nn

import edriver.horovod as hvd
from benchmarks.gpu.job import Trouble, enough, free_memory
from benchmarks.records import Recorder
from benchmarks.workload import Numbered, digest_of, make_loader, make_model, options
from edriver.worker import context


@hvd.elastic.run
def train(state: Any, data: Numbered, flags: argparse.Namespace, recorder: Recorder, trouble: Trouble) -> None:
    """Train STEPS steps."""
    place = context.assignment()
    recorder.round_start(
        place.round_id.n, hvd.rank(), hvd.size(), os.environ.get("HOROVOD_HOSTNAME", "localhost"), state.step, ""
    )
    loader = make_loader(data, state.sampler, flags.batch_size)
    while not enough(state):
        for batch_idx, (samples, inputs, labels) in enumerate(loader):
            recorder.batch(state.epoch, state.step + 1, tuple(samples.tolist()))
            if flags.device == "cuda":
                inputs, labels = inputs.cuda(), labels.cuda()
            state.optimizer.zero_grad()
            trouble.at("all-reduce", state.step)
            torch.autograd.backward(nn.functional.cross_entropy(state.model(inputs), labels))
            state.optimizer.step()
            state.sampler.record_batch(batch_idx, flags.batch_size)
            state.step += 1
            recorder.done(state.step, "")
            state.commit()
            if enough(state):
                return
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)


def main() -> None:
    """The whole script."""
    flags = options()
    began_with = free_memory(flags.device)
    hvd.init()
    torch.manual_seed(7)
    if flags.device == "cuda":
        torch.cuda.set_device(hvd.local_rank())
        torch.cuda.manual_seed(7)
    data = Numbered(flags.samples)
    model = make_model(flags.hidden)
    if flags.device == "cuda":
        model.cuda()
    optimizer: Any = torch.optim.Adam(model.parameters())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(data, seed=7)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0)
    recorder = Recorder(flags.folder / "records")
    recorder.boot()
    train(state, data, flags, recorder, Trouble(os.environ.get("TROUBLE", "none"), flags.folder))
    assert {parameter.device.index for parameter in model.parameters()} <= {0, None}, "it left the GPU of its slot"
    digest = digest_of(model, optimizer, state.step)
    result = {"step": state.step, "digest": digest, "free at its start": began_with, "pid": os.getpid()}
    (flags.folder / f"result-{os.getpid()}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
