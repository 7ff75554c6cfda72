"""The churn workload with trouble at a certain place of one step: `edriver ... python -m benchmarks.gpu.job ...`.

    TROUBLE: where, one of PLACES; the first worker that comes there as VICTIM of four at step AT makes it
    FLAVOUR: how it trains, one of FLAVOURS

It trains until SIZE workers have trained STEPS steps, or LIMIT of them. Each member writes down what it ended with.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import edriver
from benchmarks.records import Recorder
from benchmarks.workload import Numbered, digest_of, make_loader, make_model, options
from edriver.worker import context

AT, STEPS, LIMIT, SIZE = 20, 60, 100_000, 4
PLACES = ("none", "all-reduce", "broadcast", "build", "pending", "stop", "device error")
FLAVOURS = ("plain", "fp16", "bf16 fused", "compiled")
VICTIM = {"broadcast": 0}


class Trouble:
    """What happens to one worker, once in a run.

    Args:
        place: where.
        folder: the run's.
    """

    def __init__(self, place: str, folder: Path) -> None:
        self._place = place
        self._fired = folder / "fired"

    def at(self, place: str, step: int) -> None:
        """This worker is at a place of a step."""
        if place == self._place and self._is_mine(step):
            self._happen()

    def _is_mine(self, step: int) -> bool:
        mine = edriver.rank() == VICTIM.get(self._place, 2) and edriver.size() == SIZE and step >= AT
        if not mine:
            return False
        with contextlib.suppress(FileExistsError):
            self._fired.touch(exist_ok=False)
            return True
        return False

    def _happen(self) -> None:
        if self._place == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self._place == "device error":
            outside = torch.full((1,), 1 << 20, device="cuda", dtype=torch.int64)
            nn.functional.embedding(outside, torch.ones(2, 2, device="cuda"))
            torch.cuda.synchronize()
        else:
            os.kill(os.getpid(), signal.SIGKILL)


@edriver.run
def train(
    state: edriver.TorchState, data: Numbered, flags: argparse.Namespace, recorder: Recorder, trouble: Trouble
) -> None:
    """Train STEPS steps."""
    flavour = os.environ.get("FLAVOUR", "plain")
    place = context.assignment()
    recorder.round_start(
        place.round_id.n, place.rank, place.size, os.environ.get("EDRIVER_HOST", "localhost"), state.step, ""
    )
    ddp = DistributedDataParallel(state.model, init_sync=False)
    model: Any = torch.compile(ddp) if flavour == "compiled" else ddp
    loader = make_loader(data, state.sampler, flags.batch_size)
    other = None
    while not enough(state):
        state.sampler.set_epoch(state.epoch)
        for batch_idx, (samples, inputs, labels) in enumerate(loader):
            recorder.batch(state.epoch, state.step + 1, tuple(samples.tolist()))
            if state.step >= AT and other is None:
                other = dist.new_group()
                trouble.at("build", state.step)
                dist.all_reduce(torch.ones(1, device=flags.device), group=other)
            trouble.at("all-reduce", state.step)
            trouble.at("stop", state.step)
            trouble.at("device error", state.step)
            _step(model, state, inputs.to(flags.device), labels.to(flags.device), flavour)
            trouble.at("broadcast", state.step)
            news = torch.full((1,), float(edriver.rank()), device=flags.device)
            dist.broadcast(news, 0)
            if flags.device == "cuda" and os.environ.get("TROUBLE") == "pending":
                torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]  # the host runs ahead by a tenth of a second a step
            trouble.at("pending", state.step)
            state.sampler.record_batch(batch_idx, flags.batch_size)
            state.step += 1
            recorder.done(state.step, "")
            if state.step % 10 == 0:
                state.commit()
            else:
                state.check_host_updates()
            if enough(state):
                return
        state.epoch += 1


def enough(state: edriver.TorchState) -> bool:
    """Whether all has been trained."""
    return bool(state.step >= LIMIT or (state.step >= STEPS and edriver.size() == SIZE))


def _step(model: Any, state: edriver.TorchState, inputs: torch.Tensor, labels: torch.Tensor, flavour: str) -> None:
    state.optimizer.zero_grad()
    dtype = {"fp16": torch.float16, "bf16 fused": torch.bfloat16}.get(flavour)
    with torch.autocast(inputs.device.type, dtype) if dtype else contextlib.nullcontext():
        loss = nn.functional.cross_entropy(model(inputs), labels)
    if flavour == "fp16":
        state.scaler.scale(loss).backward()
        state.scaler.step(state.optimizer)
        state.scaler.update()
    else:
        torch.autograd.backward(loss)
        state.optimizer.step()


def main() -> None:
    """The whole script."""
    flags = options()
    began_with = free_memory(flags.device)
    data = Numbered(flags.samples)
    model = nn.Sequential(make_model(flags.hidden), nn.BatchNorm1d(10), nn.Dropout(0.1)).to(flags.device)
    flavour = os.environ.get("FLAVOUR", "plain")
    optimizer = torch.optim.Adam(model.parameters(), fused=flavour == "bf16 fused")
    scaler = torch.amp.GradScaler(flags.device, init_scale=2.0**10)
    state = edriver.TorchState(
        model=model,
        optimizer=optimizer,
        scaler=scaler,
        sampler=edriver.ElasticSampler(data, seed=7),
        epoch=0,
        step=0,
    )
    recorder = Recorder(flags.folder / "records")
    recorder.boot()
    train(state, data, flags, recorder, Trouble(os.environ.get("TROUBLE", "none"), flags.folder))
    # Without buffers: running means are of each rank's own batches until the next forward pass.
    digest = digest_of(state.model, state.optimizer, (state.step, state.scaler.state_dict()))
    result = {"step": state.step, "digest": digest, "free at its start": began_with, "pid": os.getpid()}
    (flags.folder / f"result-{os.getpid()}.json").write_text(json.dumps(result))


def free_memory(device: str) -> int:
    """Bytes of the device's memory that are free before this process has taken any."""
    return torch.cuda.mem_get_info()[0] if device == "cuda" else 0


if __name__ == "__main__":
    main()
