"""Scripts for Horovod, in the shape of its synthetic benchmark and of its ImageNet example; one line is edriver's.

Steps are timed by timeit, their rates are kept in the state though each rank has its own, commits are rare, metrics are
averaged between the backward pass and the step, and an epoch's state is saved by rank 0.
"""

from __future__ import annotations

from tests.quick_start import end_quickly, start_quickly

# isort: split
import os
import time
import timeit
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import edriver.horovod as hvd

start_quickly()

WORKERS = int(os.environ["WORKERS"])
PAUSE = 0.02  # after each step: leave the processor to processes that start
BATCHES_PER_COMMIT = 10
BATCHES_PER_ALLREDUCE = 2

CUDA = torch.cuda.is_available()
hvd.init()
if CUDA:
    torch.cuda.set_device(hvd.local_rank())
torch.manual_seed(7 + hvd.rank())
resume_from_epoch = 0
if hvd.rank() == 0 and Path("checkpoint").exists():
    resume_from_epoch = int(Path("checkpoint").read_text())
log = print if hvd.rank() == 0 else lambda *_args, **_kwargs: None
log(f"{hvd.size()} workers", flush=True)

train_dataset = TensorDataset(torch.randn(320, 16), torch.arange(320) % 4)
train_sampler = hvd.elastic.ElasticSampler(train_dataset)
train_loader = DataLoader(train_dataset, batch_size=4 * BATCHES_PER_ALLREDUCE, sampler=train_sampler)
val_sampler = hvd.elastic.ElasticSampler(train_dataset)
val_loader = DataLoader(train_dataset, batch_size=32, sampler=val_sampler)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
if CUDA:
    model.cuda()
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4),
    named_parameters=model.named_parameters(),
    compression=hvd.Compression.fp16,
    backward_passes_per_step=BATCHES_PER_ALLREDUCE,
)


class Metric:
    """An average over batches and ranks."""

    def __init__(self, name: str) -> None:
        self.name, self.sum, self.n = name, torch.tensor(0.0), 0

    def update(self, value: torch.Tensor) -> None:
        self.sum += hvd.allreduce(value.detach().cpu(), name=self.name)
        self.n += 1


def train(state: hvd.elastic.TorchState) -> None:
    model.train()
    metric, offset = Metric("train_loss"), state.batch
    for index, (data, target) in enumerate(train_loader):
        state.batch = offset + index
        if state.batch % BATCHES_PER_COMMIT == 0:
            state.commit()
        else:
            state.check_host_updates()
        if CUDA:
            data, target = data.cuda(), target.cuda()
        optimizer.zero_grad()
        for part in range(0, len(data), 4):
            loss: Any = functional.cross_entropy(model(data[part : part + 4]), target[part : part + 4])
            metric.update(loss)
            (loss / BATCHES_PER_ALLREDUCE).backward()
        state.train_sampler.record_batch(index, 4 * BATCHES_PER_ALLREDUCE)
        optimizer.step()
        state.steps += 1
        time.sleep(PAUSE)
    state.losses.append(float(metric.sum / max(1, metric.n)))


def validate() -> float:
    model.eval()
    metric = Metric("val_loss")
    with torch.no_grad():
        for data, target in val_loader:
            if CUDA:
                data, target = data.cuda(), target.cuda()
            metric.update(functional.cross_entropy(model(data), target))
    return float(metric.sum / metric.n)


@hvd.elastic.run
def full_train(state: hvd.elastic.TorchState) -> None:
    if CUDA:
        gpu = f"GPU {os.environ['CUDA_VISIBLE_DEVICES']} as {torch.cuda.current_device()}"
        print(f"pid {os.getpid()} has {gpu}, local rank {os.environ['HOROVOD_LOCAL_RANK']}", flush=True)
    print(f"rank {hvd.rank()} of {hvd.size()} pid {os.getpid()} at step {state.steps}", flush=True)
    state.was_fewer = state.was_fewer or hvd.size() < WORKERS  # here, as fewer may not be there for a whole epoch
    while not state.ended:
        state.rates.append(1 / timeit.timeit(lambda: train(state), number=1))
        loss = validate()
        if hvd.rank() == 0:
            Path("checkpoint").write_text(str(state.epoch))
        state.epoch += 1
        state.batch = 0
        state.train_sampler.set_epoch(state.epoch)
        state.ended = state.was_fewer and hvd.size() == WORKERS
        state.commit()
        print(f"rank {hvd.rank()} passed epoch {state.epoch}, loss {loss:.3f}", flush=True)


state = hvd.elastic.TorchState(
    model=model,
    optimizer=optimizer,
    train_sampler=train_sampler,
    val_sampler=val_sampler,
    epoch=resume_from_epoch,
    batch=0,
    steps=0,
    rates=[],
    losses=[],
    was_fewer=False,
    ended=False,
)
full_train(state)
weights = hvd.allgather_object([parameter.tolist() for parameter in model.parameters()])
assert all(each == weights[0] for each in weights), "the ranks have different models"
print(f"rank {hvd.rank()} of {hvd.size()} is done: {state.epoch} epochs, {max(state.rates):.1f} a second", flush=True)
end_quickly()
