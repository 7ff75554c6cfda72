"""A script for Horovod, in the shape of its elastic ImageNet example; one line of it is edriver's.

It resumes from the newest checkpoint of an epoch, sums gradients of several batches, sends them in half precision,
commits every few batches and checks for hosts in between, warms its learning rate up by the number of workers, keeps
averages by allreduce, validates after each epoch, and saves from rank 0.
"""

from __future__ import annotations

from tests.quick_start import end_quickly, start_quickly

# isort: split
import hashlib
import math
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import edriver.horovod as hvd

start_quickly()

EPOCHS = int(os.environ.get("EPOCHS", "4"))
BATCH, BATCHES_PER_ALLREDUCE, BATCHES_PER_COMMIT, BATCHES_PER_CHECK = 4, 2, 6, 2
ALLREDUCE_BATCH = BATCH * BATCHES_PER_ALLREDUCE
BASE_LR, WARM_UP_EPOCHS = 0.0125, 2.0
CHECKPOINT = "checkpoint-{epoch}.pt"


class Block(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.first_norm, self.second_norm = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = functional.relu(self.first_norm(self.first(images)))
        return functional.relu(images + self.second_norm(self.second(inner)))


class Metric:
    """An average over batches and ranks."""

    def __init__(self, name: str) -> None:
        self.name, self.sum, self.n = name, torch.tensor(0.0), torch.tensor(0.0)

    def update(self, value: torch.Tensor) -> None:
        self.sum += hvd.allreduce(value.detach().cpu(), name=self.name)
        self.n += 1

    @property
    def avg(self) -> float:
        return float(self.sum / self.n)


CUDA = torch.cuda.is_available()
hvd.init()
if CUDA:
    torch.cuda.set_device(hvd.local_rank())
torch.manual_seed(42)
resume_from_epoch = next((e for e in range(EPOCHS, 0, -1) if Path(CHECKPOINT.format(epoch=e)).exists()), 0)

generator = torch.Generator().manual_seed(0)
images, labels = torch.randn(160, 3, 8, 8, generator=generator), torch.arange(160) % 10
train_dataset, val_dataset = TensorDataset(images, labels), TensorDataset(images[:40], labels[:40])
train_sampler = hvd.elastic.ElasticSampler(train_dataset)
train_loader = DataLoader(train_dataset, batch_size=ALLREDUCE_BATCH, sampler=train_sampler)
val_loader = DataLoader(val_dataset, batch_size=BATCH, sampler=hvd.elastic.ElasticSampler(val_dataset))

model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), Block(8), Block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
)
if CUDA:
    model.cuda()
lr_scaler = BATCHES_PER_ALLREDUCE * hvd.size()
optimizer: Any = torch.optim.SGD(model.parameters(), lr=BASE_LR * lr_scaler, momentum=0.9, weight_decay=5e-5)
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=hvd.Compression.fp16,
    backward_passes_per_step=BATCHES_PER_ALLREDUCE,
    op=hvd.Average,
    gradient_predivide_factor=1.0,
)
if resume_from_epoch > 0 and hvd.rank() == 0:
    saved = torch.load(CHECKPOINT.format(epoch=resume_from_epoch), weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])


def adjust_learning_rate(epoch: int, batch: int) -> None:
    if epoch < WARM_UP_EPOCHS:
        at = epoch + batch / len(train_loader)
        scale = 1.0 / hvd.size() * (at * (hvd.size() - 1) / WARM_UP_EPOCHS + 1)
    else:
        scale = 1.0 if epoch < 30 else 1e-1
    for group in optimizer.param_groups:
        group["lr"] = BASE_LR * hvd.size() * BATCHES_PER_ALLREDUCE * scale


def accuracy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return output.argmax(1).eq(target).float().mean()


def train(state: Any) -> None:
    model.train()
    train_loss, train_accuracy = Metric("train_loss"), Metric("train_accuracy")
    offset = state.batch
    for index, (data, target) in enumerate(train_loader):
        state.batch = batch = offset + index
        if state.batch % BATCHES_PER_COMMIT == 0:
            state.commit()
        elif state.batch % BATCHES_PER_CHECK == 0:
            state.check_host_updates()
        adjust_learning_rate(state.epoch, batch)
        if CUDA:
            data, target = data.cuda(), target.cuda()
        optimizer.zero_grad()
        for first in range(0, len(data), BATCH):
            part, wanted = data[first : first + BATCH], target[first : first + BATCH]
            output = model(part)
            train_accuracy.update(accuracy(output, wanted))
            loss: Any = functional.cross_entropy(output, wanted)
            train_loss.update(loss)
            loss.div_(math.ceil(len(data) / BATCH))
            loss.backward()
        optimizer.step()
        state.train_sampler.record_batch(index, ALLREDUCE_BATCH)
        time.sleep(0.05)  # the test ends it: leave the processor to processes that start
    if hvd.rank() == 0:
        print(f"epoch {state.epoch}: loss {train_loss.avg:.3f}, accuracy {train_accuracy.avg:.2f}", flush=True)


def validate(epoch: int) -> None:
    model.eval()
    val_loss, val_accuracy = Metric("val_loss"), Metric("val_accuracy")
    with torch.no_grad():
        for data, target in val_loader:
            if CUDA:
                data, target = data.cuda(), target.cuda()
            output = model(data)
            val_loss.update(functional.cross_entropy(output, target))
            val_accuracy.update(accuracy(output, target))
    own = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()
    assert len(set(hvd.allgather_object(own))) == 1, "the ranks have different parameters"
    print(f"rank {hvd.rank()} of {hvd.size()} pid {os.getpid()} validated epoch {epoch}", flush=True)


def save_checkpoint(epoch: int) -> None:
    if hvd.rank() == 0:
        new = Path("new.pt")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, new)
        new.replace(CHECKPOINT.format(epoch=epoch + 1))


def stopped() -> bool:
    """Whether the test says so: all ranks end after the same epoch."""
    seen: torch.Tensor = hvd.allreduce(torch.tensor(float(Path("stop").exists())), op=hvd.Max)
    return bool(seen)


def end_epoch(state: Any) -> None:
    state.epoch += 1
    state.batch = 0
    state.train_sampler.set_epoch(state.epoch)
    state.commit()


@hvd.elastic.run
def full_train(state: Any) -> None:
    if CUDA:
        gpu = f"GPU {os.environ['CUDA_VISIBLE_DEVICES']} as {torch.cuda.current_device()}"
        print(f"pid {os.getpid()} has {gpu}, local rank {os.environ['HOROVOD_LOCAL_RANK']}", flush=True)
    print(
        f"rank {hvd.rank()} of {hvd.size()} pid {os.getpid()} at epoch {state.epoch}, batch {state.batch}", flush=True
    )
    while state.epoch < EPOCHS and not stopped():
        train(state)
        validate(state.epoch)
        save_checkpoint(state.epoch)
        end_epoch(state)


state = hvd.elastic.TorchState(model, optimizer, train_sampler=train_sampler, epoch=resume_from_epoch, batch=0)
full_train(state)
print(f"rank {hvd.rank()} is done", flush=True)
end_quickly()
