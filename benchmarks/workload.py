"""What all systems train: the model, the data, and one step. The jobs differ in what is around it."""

from __future__ import annotations

import argparse
import hashlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

FEATURES = 256
CLASSES = 10
SHARED_GPU = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1"}


class Numbered(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """Random points with random labels; an item begins with its own index.

    Args:
        length: how many points.
    """

    def __init__(self, length: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self._inputs = torch.randn(length, FEATURES, generator=generator)
        self._labels = torch.randint(CLASSES, (length,), generator=generator)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, self._inputs[index], self._labels[index]


def options() -> argparse.Namespace:
    """The workload's flags, from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--folder", type=Path, required=True, help="records go to its records/, a file stop ends the job"
    )
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--hidden", type=int, required=True, help="width of the hidden layers; 512: 0.4 M parameters")
    parser.add_argument("--layers", type=int, default=1, help="layers from one such width to the next")
    parser.add_argument("--step-seconds", type=float, required=True, help="stand-in compute of a step: a sleep")
    parser.add_argument(
        "--commit-steps", type=int, required=True, help="every which step edriver commits; 0: it never does"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the model lies")
    parser.add_argument("--digest", action="store_true", help="record a hash of the state with every step")
    parser.add_argument("--boot-seconds", type=float, default=0.0, help="stand-in for long imports: a sleep")
    flags = parser.parse_args()
    if flags.device == "cuda":
        share_the_gpu()
    return flags


def share_the_gpu() -> None:
    """Let NCCL have several ranks on one GPU: this process is a host of its own to it, and talks over loopback.

    NCCL takes two ranks on one device of one host for a mistake, and knows a host by NCCL_HOSTID
    (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html). Slow, and right.
    """
    os.environ.setdefault("NCCL_HOSTID", f"{socket.gethostname()}-{os.getpid()}")
    for name, value in SHARED_GPU.items():
        os.environ.setdefault(name, value)


def make_model(hidden: int, layers: int = 1) -> nn.Sequential:
    """A multilayer perceptron; the same parameters in every process.

    Args:
        hidden: its width.
        layers: how many layers lead from this width to the same width.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU())
    for _ in range(layers):
        model.extend([nn.Linear(hidden, hidden), nn.ReLU()])
    return model.append(nn.Linear(hidden, CLASSES))


Loaded = DataLoader[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def make_loader(data: Numbered, sampler: Sampler[int], batch_size: int) -> Loaded:
    """A loader of (indices, inputs, labels)."""
    return DataLoader(data, batch_size=batch_size, sampler=sampler)  # type: ignore[arg-type]  # collated batches


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, labels: torch.Tensor, seconds: float
) -> None:
    """One step, with a sleep in the place of most of its compute; torchft begins its own work in zero_grad."""
    optimizer.zero_grad()
    time.sleep(seconds)
    device = next(model.parameters()).device
    torch.autograd.backward(nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device)))
    optimizer.step()


def stop_requested(folder: Path) -> bool:
    """Whether rank 0 sees the file named stop; the same answer on all ranks. A collective, at the end of an epoch."""
    flag = torch.tensor([(folder / "stop").exists()], dtype=torch.int32)  # of the host: over Gloo
    dist.broadcast(flag, 0)
    return bool(flag.item())


def digest_of(model: nn.Module, optimizer: torch.optim.Optimizer, rest: Any) -> str:
    """A short hash of parameters and optimizer state, to the last bit, and of what else there is.

    Of what is sharded it takes this worker's own shards.
    """
    digest = hashlib.blake2b(repr(rest).encode(), digest_size=8)
    for value in [*model.parameters(), *_leaves(optimizer.state_dict())]:
        if isinstance(value, torch.Tensor):
            own = value.to_local() if hasattr(value, "to_local") else value
            digest.update(own.detach().cpu().numpy().tobytes())
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield key
            yield from _leaves(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _leaves(value)
    else:
        yield tree
