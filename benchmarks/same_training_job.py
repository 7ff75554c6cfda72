"""SAME: what trains in benchmarks.same_training: `edriver ... python -m benchmarks.same_training_job PART FOLDER JSON`.

PART is a function of this module, FOLDER is where it writes, and JSON has its other arguments. `quiet` has the same
steps by hand and by GlobalBatch in turns, `loss` loses a worker in a step when it is ordered to, `sizes` trains for a
number of steps and writes the parameters down, and `curve` writes down the loss of each step, for the picture.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import edriver
from edriver.worker.accumulation.unfinished import Source, Unfinished, UnfinishedSteps
from edriver.worker.sampler.elastic_sampler import ElasticSampler
from examples.charlm.train import GPT, Windows, read_text

CLASSES = 10


def perceptron(width: int) -> nn.Module:
    """What is trained: the same weights in each process."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)
    )


def made_up(samples: int, width: int) -> TensorDataset:
    """Samples whose labels can be learned."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, width, generator=generator)
    return TensorDataset(inputs, inputs[:, :CLASSES].argmax(1))


def quiet(folder: Path, width: int, micro_batch: int, micro_batches: int, steps: int, turns: int) -> None:
    """Take turns of some steps each. Rank 0 adds a line for each: the way, its seconds, processor seconds of all ranks.

    Args:
        folder: for the file `turns`.
        width: of the model.
        micro_batch: samples in one.
        micro_batches: in a step, a multiple of the number of workers.
        steps: in a turn.
        turns: of each way; one more, the first, does not count.
    """
    size = micro_batch * micro_batches
    data = made_up(steps * size, width)
    model = perceptron(width)
    optimizer = torch.optim.Adam(model.parameters())
    state = edriver.TorchState(model, optimizer, sampler=ElasticSampler(data), epoch=0)

    @edriver.run
    def train(state: edriver.TorchState) -> None:
        wrapped = DistributedDataParallel(model, init_sync=False)
        loader = DataLoader(data, micro_batch, sampler=state.sampler)
        share = micro_batches // edriver.size()

        def by_hand() -> None:
            for index, (inputs, labels) in enumerate(loader):
                last = index % share == share - 1
                with contextlib.nullcontext() if last else wrapped.no_sync():
                    loss = nn.functional.cross_entropy(wrapped(inputs), labels) / share
                    torch.autograd.backward(loss)
                state.sampler.record_batch(index, micro_batch)
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
                    state.check_host_updates()

        def by_global_batch(bitwise: bool) -> None:
            for step in edriver.GlobalBatch(loader, wrapped, size, bitwise=bitwise):
                for inputs, labels in step:
                    torch.autograd.backward(step.scale(nn.functional.cross_entropy(wrapped(inputs), labels)))
                optimizer.step()
                optimizer.zero_grad()
                state.check_host_updates()

        ways: dict[str, Callable[[], None]] = {
            "by hand": by_hand,
            "GlobalBatch": lambda: by_global_batch(False),
            "bitwise": lambda: by_global_batch(True),
        }
        for turn in range(turns + 1):
            for name in random.Random(turn).sample(list(ways), len(ways)):  # in the same order on all workers
                state.sampler.set_epoch(state.epoch)
                state.sampler.reset()  # forgets what GlobalBatch has dealt out
                dist.barrier()
                began, used = time.perf_counter(), time.process_time()
                ways[name]()
                processor = torch.tensor(time.process_time() - used, dtype=torch.float64)
                dist.all_reduce(processor)
                if edriver.rank() == 0 and turn:
                    note(folder / "turns", way=name, seconds=time.perf_counter() - began, processor=processor.item())
                state.epoch += 1

    train(state)


def loss(folder: Path, micro_batches: int, seconds: float) -> None:
    """Train until the file `end` is there, with sleep as the computation, and note in the file `steps` what happens.

    The rank that the file `order` names kills itself in the middle of the micro-batch that it names. While the file
    `anew` is there, workers keep nothing of a step that is cut. While the file `closed` is there, newcomers wait.

    Args:
        folder: for these files.
        micro_batches: in a step.
        seconds: that a micro-batch takes.
    """
    while (folder / "closed").exists():
        time.sleep(0.02)
    keep = UnfinishedSteps.keep

    def keep_unless_anew(self: UnfinishedSteps, source: Source, unfinished: Unfinished) -> None:
        if not (folder / "anew").exists():
            keep(self, source, unfinished)

    UnfinishedSteps.keep = keep_unless_anew  # type: ignore[method-assign]
    data = made_up(micro_batches * 1000, CLASSES)
    model = perceptron(CLASSES)
    optimizer = torch.optim.Adam(model.parameters())
    state = edriver.TorchState(model, optimizer, sampler=ElasticSampler(data), epoch=0, step=0, ends=False)

    @edriver.run
    def train(state: edriver.TorchState) -> None:
        wrapped = DistributedDataParallel(model, init_sync=False)
        rank, size, steps = edriver.rank(), edriver.size(), folder / "steps"
        state.sampler.set_epoch(state.epoch)
        for step in edriver.GlobalBatch(DataLoader(data, 1, sampler=state.sampler), wrapped, micro_batches):
            order = folder / "order"
            victim, dies_at = json.loads(order.read_text()) if order.exists() else (-1, 0)
            note(steps, event="begin", step=state.step, size=size, rank=rank)
            optimizer.zero_grad()
            for at, (inputs, labels) in enumerate(step):
                if rank == victim and at == dies_at:
                    time.sleep(seconds / 2)
                    note(steps, event="kill", step=state.step, size=size, rank=rank)
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(seconds)
                torch.autograd.backward(step.scale(nn.functional.cross_entropy(wrapped(inputs), labels)))
            ends = torch.tensor(float((folder / "end").exists()))
            dist.all_reduce(ends)
            optimizer.step()
            note(steps, event="end", step=state.step, size=size, rank=rank, computed=at + 1)
            state.step += 1
            if ends:
                return
            state.check_host_updates()

    train(state)


def sizes(folder: Path, at: dict[str, int], steps: int, bitwise: bool) -> None:
    """Train for some steps; rank 0 then writes the parameters to the file `parameters`.

    Args:
        folder: for this file.
        at: in front of these steps wait until there are so many workers.
        steps: how many.
        bitwise: see GlobalBatch.
    """
    width, micro_batch, micro_batches = 64, 8, 10  # 3 and 4 workers do not share 10 evenly
    data = made_up(2000, width)
    model = perceptron(width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    state = edriver.TorchState(model, optimizer, sampler=ElasticSampler(data), epoch=0, step=0)

    @edriver.run
    def train(state: edriver.TorchState) -> None:
        wrapped = DistributedDataParallel(model, init_sync=False)
        loader = DataLoader(data, micro_batch, sampler=state.sampler)
        while True:
            state.sampler.set_epoch(state.epoch)
            for step in edriver.GlobalBatch(loader, wrapped, micro_batch * micro_batches, bitwise=bitwise):
                if state.step == steps:
                    return
                size = at.get(str(state.step), edriver.size())
                if size != edriver.size():
                    print(f"step {state.step} wants {size} workers", flush=True)
                while size != edriver.size():
                    time.sleep(0.02)
                    state.check_host_updates()
                optimizer.zero_grad()
                for inputs, labels in step:
                    torch.autograd.backward(step.scale(nn.functional.cross_entropy(wrapped(inputs), labels)))
                optimizer.step()
                state.step += 1
                state.check_host_updates()
            state.epoch += 1

    train(state)
    if edriver.rank() == 0:
        torch.save([parameter.detach() for parameter in model.parameters()], folder / "parameters")


def curve(folder: Path, steps: int) -> None:
    """Train a small GPT on the text of examples/charlm; rank 0 notes each step in the file `curve`.

    Args:
        folder: for this file.
        steps: how many.
    """
    micro_batch, micro_batches = 4, 12
    data = Windows(read_text())
    torch.manual_seed(0)
    model = GPT(layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    state = edriver.TorchState(model, optimizer, sampler=ElasticSampler(data), epoch=0, step=0)

    @edriver.run
    def train(state: edriver.TorchState) -> None:
        print(f"rank {edriver.rank()} of {edriver.size()} pid {os.getpid()}", flush=True)
        wrapped = DistributedDataParallel(model, init_sync=False)
        loader = DataLoader(data, micro_batch, sampler=state.sampler)
        while True:
            state.sampler.set_epoch(state.epoch)
            for step in edriver.GlobalBatch(loader, wrapped, micro_batch * micro_batches):
                if state.step == steps:
                    return
                optimizer.zero_grad()
                for windows in step:
                    scores = wrapped(windows[:, :-1]).flatten(0, 1)
                    loss = nn.functional.cross_entropy(scores, windows[:, 1:].flatten())
                    torch.autograd.backward(step.scale(loss))
                mean = step.loss()
                optimizer.step()
                state.step += 1
                if edriver.rank() == 0:
                    samples = state.step * step.samples
                    note(folder / "curve", step=state.step, samples=samples, loss=mean, workers=edriver.size())
                state.check_host_updates()
            state.epoch += 1

    train(state)


def note(path: Path, **line: object) -> None:
    """Add a line, with the time, which all processes of a machine share."""
    with path.open("a") as file:
        file.write(json.dumps({"at": time.monotonic(), **line}) + "\n")


def main() -> None:
    """The whole script."""
    part, folder, others = sys.argv[1:]
    parts: dict[str, Callable[..., None]] = {"quiet": quiet, "loss": loss, "sizes": sizes, "curve": curve}
    parts[part](Path(folder), **json.loads(others))


if __name__ == "__main__":
    main()
