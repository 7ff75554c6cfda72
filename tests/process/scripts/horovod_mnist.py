"""A script for Horovod, in the shape of its elastic examples; one line of it is edriver's.

It asks for rank and size before `elastic.run`, takes the GPU of its local rank where there is one, wraps its optimizer
there, keeps values that differ between ranks in its state, averages metrics between the backward pass and the step, and
tests after `elastic.run` has returned, on data that a DistributedSampler of torch's has split.
"""

from __future__ import annotations

from tests.quick_start import end_quickly, start_quickly

# isort: split
import os
import time
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import edriver.horovod as hvd

start_quickly()

EPOCHS = int(os.environ.get("EPOCHS", "3"))
SAMPLES = int(os.environ.get("SAMPLES", "256"))
WORKERS = int(os.environ.get("WORKERS", "0"))
PAUSE = 0.02 if EPOCHS > 3 else 0.0
"""After each step of a training that the test ends: leave the processor to processes that start."""

BATCH = 8
BASE_LR = 0.01

CUDA = torch.cuda.is_available()
hvd.init()
torch.manual_seed(42)
if CUDA:
    torch.cuda.set_device(hvd.local_rank())
    torch.cuda.manual_seed(42)
torch.set_num_threads(1)
loading: Any = {"num_workers": 1, "pin_memory": True} if CUDA else {}
print(f"starting as rank {hvd.rank()} of {hvd.size()}", flush=True)

generator = torch.Generator().manual_seed(0)
images, labels = torch.randn(SAMPLES, 1, 12, 12, generator=generator), torch.arange(SAMPLES) % 10
train_dataset = TensorDataset(images, labels, torch.arange(SAMPLES))
train_sampler = hvd.elastic.ElasticSampler(train_dataset, shuffle=True)
train_loader = DataLoader(train_dataset, batch_size=BATCH, sampler=train_sampler, **loading)
test_sampler: Any = DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
test_loader = DataLoader(train_dataset, batch_size=100, sampler=test_sampler, **loading)
assert len(train_loader) > 0

model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(400, 32), torch.nn.Linear(32, 10)
)
if CUDA:
    model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=BASE_LR * hvd.size(), momentum=0.5)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.none, op=hvd.Average
)


def average(value: float, name: str) -> float:
    return float(hvd.allreduce(torch.tensor(value), name=name))


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> int:
    if CUDA:
        torch.cuda.set_device(hvd.local_rank())
        gpu = f"GPU {os.environ['CUDA_VISIBLE_DEVICES']} as {torch.cuda.current_device()}"
        print(f"pid {os.getpid()} has {gpu}, local rank {os.environ['HOROVOD_LOCAL_RANK']}", flush=True)
    print(f"rank {hvd.rank()} of {hvd.size()} pid {os.getpid()} at step {state.step}", flush=True)
    for state.epoch in range(state.epoch, EPOCHS):  # noqa: B020  as Horovod's examples have it
        state.model.train()
        for index, (data, target, which) in enumerate(train_loader):
            if CUDA:
                data, target = data.cuda(), target.cuda()
            state.optimizer.zero_grad()
            loss: Any = functional.cross_entropy(state.model(data), target)
            loss.backward()
            mean = average(loss.item(), "train loss")
            state.optimizer.step()
            state.train_sampler.record_batch(index, BATCH)
            state.step += 1
            state.speeds = [*state.speeds[-4:], time.perf_counter()]  # each rank's own
            state.commit()
            if "SHOW" in os.environ:
                print(f"epoch {state.epoch} took {which.tolist()}", flush=True)
            if state.step == 5 or state.step % 20 == 0:
                print(f"rank {hvd.rank()} passed step {state.step}, loss {mean:.3f}", flush=True)
            time.sleep(PAUSE)
        state.train_sampler.set_epoch(state.epoch + 1)
        if hvd.size() < WORKERS:
            state.was_fewer = True
        elif state.was_fewer:  # and all are back
            break
    return int(state.step)


def on_state_reset() -> None:
    for group in optimizer.param_groups:
        group["lr"] = BASE_LR * hvd.size()


state = hvd.elastic.TorchState(
    model, optimizer, train_sampler=train_sampler, epoch=0, step=0, speeds=[hvd.rank()], was_fewer=False
)
state.register_reset_callbacks([on_state_reset])
steps = train(state)
model.eval()
with torch.no_grad():
    losses = [functional.cross_entropy(model(data), target, reduction="sum").item() for data, target, _ in test_loader]
    loss = average(sum(losses) / len(test_sampler), "test loss")
weights = hvd.allgather_object([parameter.tolist() for parameter in model.parameters()])
assert all(each == weights[0] for each in weights), "the ranks have different models"
assert optimizer.param_groups[0]["lr"] == BASE_LR * hvd.size()
print(f"rank {hvd.rank()} of {hvd.size()} is done: {steps} steps, test loss {loss:.3f}", flush=True)
end_quickly()
