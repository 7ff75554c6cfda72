"""Handwritten digits (scikit-learn's bundled 8 x 8 images) with an elastic run: the script to copy.

python train.py                                                                        on its own, or
edriver -np 4 --min-np 2 --host-discovery-script ./discover_hosts.sh python train.py   on hosts that come and go
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import edriver


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """1,437 images to train on, 360 to test with; the same split on every worker, as ElasticSampler needs it."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16  # (1797, 1, 8, 8), 0 to 1
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:360], order[360:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def build_model() -> nn.Module:
    """A small convolutional network, 10 k parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 4 * 4, 10)),
    )


@edriver.run
def train(state: edriver.TorchState, dataset: TensorDataset, options: argparse.Namespace) -> None:
    """Called once in each round, in the same process. What must outlast a round is in the state."""
    rank, size = edriver.rank(), edriver.size()
    workers = "1 worker" if size == 1 else f"{size} workers"
    print(f"rank {rank} of {size} is process {os.getpid()}", flush=True)
    if rank == 0:
        log(options, event="round", workers=size)
    model = DistributedDataParallel(state.model, init_sync=False)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(dataset, options.batch_size, sampler=state.sampler, num_workers=options.num_workers)
    while state.epoch < options.epochs:
        state.sampler.set_epoch(state.epoch)
        losses = []
        for batch_idx, (images, labels) in enumerate(loader):
            state.optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            state.optimizer.step()
            time.sleep(options.step_seconds)
            losses.append(loss.item())
            state.report(loss=losses[-1])
            if rank == 0:
                log(options, workers=size, epoch=state.epoch, step=state.step, loss=losses[-1])
            state.step += 1
            state.sampler.record_batch(batch_idx, options.batch_size)
            state.commit()  # the step is complete: a lost worker costs nothing before this line
        if rank == 0 and losses:
            print(f"epoch {state.epoch} loss {sum(losses) / len(losses):.3f} ({workers})", flush=True)
        state.scheduler.step()
        state.epoch += 1
        state.commit()


def accuracy(model: nn.Module, dataset: TensorDataset) -> float:
    """The share of images whose digit the model recognises, in per cent."""
    images, labels = dataset.tensors
    model.eval()
    with torch.no_grad():
        return 100 * float((model(images).argmax(1) == labels).float().mean())


def log(options: argparse.Namespace, **record: object) -> None:
    """Append a record to the log that plot_rounds.py draws."""
    if options.log:
        with options.log.open("a") as file:
            file.write(json.dumps({"time": time.time(), **record}) + "\n")


def parse_options() -> argparse.Namespace:
    """The flags; every worker has the same."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--num-workers", type=int, default=0, help="of each data loader (default: %(default)s)")
    parser.add_argument("--log", type=Path, help="append JSON lines for plot_rounds.py to this file")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="pause in each step, for demonstrations")
    return parser.parse_args()


def main() -> None:
    """Train, then test on rank 0."""
    options = parse_options()
    torch.manual_seed(0)
    train_set, test_set = load_data()
    model = build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    state = edriver.TorchState(
        model,
        optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs),
        sampler=edriver.ElasticSampler(train_set),
        epoch=0,
        step=0,
    )
    train(state, train_set, options)
    if edriver.rank() == 0:
        print(f"test accuracy: {accuracy(model, test_set):.1f} %", flush=True)


if __name__ == "__main__":
    main()
