"""How fast hvd.DistributedOptimizer is against DistributedDataParallel: the same steps, taken in turn in one run.

python -m benchmarks.horovod_speed [--workers 2 4] [--millions 25] [--rounds 12]
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import edriver.horovod as hvd

LAYERS = 24
BATCH = 32
STEPS_PER_ROUND = 3

SMALL_CALLS = 200
"""How many all-reduces of a few elements are timed, with an agreement before each and without."""


def model_of(parameters: int) -> torch.nn.Module:
    """A perceptron of so many parameters, in LAYERS equal layers."""
    width = int((parameters / LAYERS) ** 0.5)
    torch.manual_seed(0)
    return torch.nn.Sequential(
        *(layer for _ in range(LAYERS) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU()))
    )


def stepper(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> Callable[[], None]:
    """One step."""

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(model(batch).square().mean())
        optimizer.step()

    return step


def worker(rank: int, size: int, port: int, parameters: int, rounds: int, results: Connection) -> None:
    """One rank: alternate between the two, and send the seconds that each round of each took."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    hvd.init()
    ours, theirs = model_of(parameters), model_of(parameters)
    batch = torch.randn(BATCH, ours[0].in_features, generator=torch.Generator().manual_seed(rank))  # type: ignore[index]
    distributed = hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.01), ours.named_parameters())
    steps = {
        "DistributedOptimizer": stepper(ours, distributed, batch),
        "DistributedDataParallel": stepper(
            DistributedDataParallel(theirs), torch.optim.SGD(theirs.parameters(), lr=0.01), batch
        ),
    }
    for step in steps.values():
        for _ in range(3):
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds):
        for name in sorted(steps, reverse=bool(turn % 2)):
            dist.barrier()
            began = time.perf_counter()
            for _ in range(STEPS_PER_ROUND):
                steps[name]()
            times[name].append((time.perf_counter() - began) / STEPS_PER_ROUND)
    assert all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
    )
    small = torch.ones(8)
    for name, call in (
        ("hvd.allreduce of 8 elements", lambda: hvd.allreduce_(small, op=hvd.Max)),
        ("all_reduce", lambda: dist.all_reduce(small, op=dist.ReduceOp.MAX)),
    ):
        dist.barrier()
        times[name] = []
        for _ in range(SMALL_CALLS):
            began = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - began)
    if rank == 0:
        results.send(times)
    dist.barrier()
    os._exit(0)


def measure(size: int, parameters: int, rounds: int) -> dict[str, list[float]]:
    """The seconds that rank 0's steps took, by what was measured."""
    context = get_context("spawn")
    here, there = context.Pipe()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = [context.Process(target=worker, args=(rank, size, port, parameters, rounds, there)) for rank in range(size)]
    for process in ranks:
        process.start()
    there.close()
    try:
        times: dict[str, list[float]] = here.recv()
    finally:
        for process in ranks:
            process.join()
    return times


def main() -> None:
    """Print a line for each number of workers."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    arguments.add_argument("--millions", type=float, default=25.0, help="of parameters")
    arguments.add_argument("--rounds", type=int, default=12)
    given = arguments.parse_args()
    for size in given.workers:
        times = measure(size, int(given.millions * 1e6), given.rounds)
        ours, theirs = times["DistributedOptimizer"], times["DistributedDataParallel"]
        ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
        print(
            f"{size} workers: DistributedOptimizer {statistics.median(ours) * 1e3:.0f} ms per step, "
            f"DistributedDataParallel {statistics.median(theirs) * 1e3:.0f} ms: throughput {ratio:.3f} of its; "
            f"hvd.allreduce of 8 elements {statistics.median(times['hvd.allreduce of 8 elements']) * 1e6:.0f} us, "
            f"torch's {statistics.median(times['all_reduce']) * 1e6:.0f} us"
        )


if __name__ == "__main__":
    main()
