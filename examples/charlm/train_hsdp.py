"""The same GPT with its parameters and optimizer state sharded over the workers of a replica: HSDP, with FSDP2.

python train_hsdp.py                                             on its own, or
edriver -np 4 --min-np 2 --replica-size 2 python train_hsdp.py   as 2 replicas of 2 shards each
"""

import argparse
import os

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from train import GPT, Windows, log, parse_options, read_text, written  # type: ignore[import-not-found]  # beside it

import edriver


@edriver.run
def train(state: edriver.ShardedState, dataset: Windows, options: argparse.Namespace) -> None:
    """As in train.py, without DistributedDataParallel: the model's mesh has replicas, which average gradients."""
    rank, size = edriver.rank(), edriver.size()
    workers = "1 worker" if size == 1 else f"{size} workers"
    print(f"rank {rank} of {size} is process {os.getpid()}", flush=True)
    if rank == 0:
        log(options, event="round", workers=size)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(dataset, options.batch_size, sampler=state.sampler)
    while state.step < options.steps:
        state.sampler.set_epoch(state.epoch)
        for batch_idx, windows in enumerate(loader):
            if state.step == options.steps:
                break
            scores = state.model(windows[:, :-1]).flatten(0, 1)
            loss = criterion(scores, windows[:, 1:].flatten())
            state.optimizer.zero_grad()
            loss.backward()
            state.optimizer.step()
            state.report(loss=loss.item())
            if rank == 0:
                log(options, workers=size, epoch=state.epoch, step=state.step, loss=loss.item())
                if state.step % 20 == 0:
                    print(f"step {state.step} loss {loss.item():.2f} ({workers})", flush=True)
            state.step += 1
            state.sampler.record_batch(batch_idx, options.batch_size)
            state.check_host_updates()
        else:
            state.epoch += 1
    text = written(state.model, "def ", 100)  # on all workers: each needs the shards of the others
    if rank == 0:
        print(text, flush=True)


def build(mesh: DeviceMesh) -> GPT:
    """The model, each block of it sharded by itself, over this round's mesh. Called once in each process."""
    torch.manual_seed(0)
    model = GPT()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def main() -> None:
    """Train, and write something."""
    options = parse_options()
    dataset = Windows(read_text())
    state = edriver.ShardedState(
        build=build,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=options.lr),
        sampler=edriver.ElasticSampler(dataset),
        epoch=0,
        step=0,
    )
    train(state, dataset, options)


if __name__ == "__main__":
    main()
