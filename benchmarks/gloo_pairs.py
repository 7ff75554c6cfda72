"""Which pairs of a Gloo group carry data in which collective, by the kernel's counters of each rank's connections.

    python -m benchmarks.gloo_pairs [--size 16]

A group of processes of this machine makes each collective. Printed are, for each, how many pairs each rank has used at
least and at most, and how far the two ranks of such a pair are apart. docs/benchmarks/proof.md has the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import struct
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]  # torch/distributed/__init__.py has it
from torch.distributed.distributed_c10d import Store

from tests.torch.forks import FORKS

BOUND: Final = 300.0
"""Seconds that anything may take."""

_COUNTERS: Final = struct.Struct("=128xQ64xQ")
"""Bytes received and sent, as struct tcp_info has them (linux/tcp.h, Linux 4.19)."""


def collectives(rank: int, size: int) -> dict[str, Callable[[], object]]:
    """What is made, by name."""
    parts = [torch.ones(1000) for _ in range(size)]
    return {
        "all_reduce, 4 bytes": lambda: dist.all_reduce(torch.ones(1)),
        "all_reduce, 4 MB": lambda: dist.all_reduce(torch.ones(1_000_000)),
        "all_gather": lambda: dist.all_gather(parts, torch.ones(1000)),
        "reduce_scatter": lambda: dist.reduce_scatter(torch.empty(1000), parts),
        "barrier": dist.barrier,
        "broadcast from rank 0": lambda: dist.broadcast(torch.ones(1000), 0),
        "broadcast from each rank": lambda: [dist.broadcast(torch.ones(1000), root) for root in range(size)],
        "reduce to rank 0": lambda: dist.reduce(torch.ones(1000), 0),
        "gather to rank 0": lambda: dist.gather(torch.ones(1000), parts if rank == 0 else None),
        "all_to_all": lambda: dist.all_to_all_single(torch.ones(size), torch.ones(size)),
    }


def be_rank(rank: int, size: int, file: str, answer: Connection) -> None:
    """Make them all; answers with the ranks with which data was exchanged, by collective."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = FileStore(file, size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    store.set(f"ends/{rank}", json.dumps([ends[::-1] for ends in connections()]))
    rank_at = {
        (tuple(near), tuple(far)): peer for peer in range(size) for near, far in json.loads(store.get(f"ends/{peer}"))
    }
    used = {}
    for name, make in collectives(rank, size).items():
        before = connections()
        _meet(store, f"before {name}", size)
        make()
        _meet(store, f"after {name}", size)
        used[name] = sorted({rank_at[ends] for ends, count in connections().items() if count != before[ends]})
    answer.send(used)
    answer.recv()  # a rank that ends cuts its connections


def connections() -> dict[tuple[tuple[str, int], tuple[str, int]], tuple[int, ...]]:
    """The bytes that this process's TCP connections have carried, by their two ends; the other one is the second."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # of what is closed by now, or not connected
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                information = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTERS.size)
                found[copy.getsockname(), copy.getpeername()] = _COUNTERS.unpack(information)
    return found


def _meet(store: Store, where: str, size: int) -> None:
    if store.add(where, 1) == size:
        store.set(f"{where}, all", "")
    store.wait([f"{where}, all"])


def main() -> None:
    """Measure, and print a line for each collective."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=16, help="ranks")
    size = parser.parse_args().size
    with tempfile.TemporaryDirectory() as folder:
        ranks: list[tuple[Any, Connection]] = []
        try:
            for rank in range(size):
                ours, theirs = FORKS.Pipe()
                process = FORKS.Process(target=be_rank, args=(rank, size, str(Path(folder, "store")), theirs))
                process.start()
                ranks.append((process, ours))
            answers = []
            for _, answer in ranks:
                assert answer.poll(BOUND), "a rank does not answer"
                answers.append(answer.recv())
        finally:
            for process, _ in ranks:
                process.kill()
                process.join()
    for name in answers[0]:
        used = sorted(len(answer[name]) for answer in answers)
        apart = {
            min((peer - rank) % size, (rank - peer) % size)
            for rank, answer in enumerate(answers)
            for peer in answer[name]
        }
        print(f"{name}: {used[0]} to {used[-1]} of {size - 1} pairs, of ranks that are {sorted(apart)} apart")


if __name__ == "__main__":
    main()
