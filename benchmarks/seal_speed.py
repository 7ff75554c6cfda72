"""SEAL: what the seal of a step costs at 4 ranks, and the transfer of a shard: `python -m benchmarks.seal_speed`.

Four ranks over Gloo on loopback, in processes like those of workers. `seal` is the collective in front of an
optimizer's step: the median over series of SERIES seals in a row, each the longest of its ranks, for one of them.
`shard over one link` is a bare send of what a replica's member holds of 25 M parameters and Adam's state, to one
receiver; `shards over both links` is the same by both members of a replica of 2 at once, on the cores that they share.
Prints one JSON object, seconds by name.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import spawn

from edriver.agent.workers.worker_environment import MALLOC_DEFAULTS
from edriver.worker.state.seals import sealed
from edriver.worker.state.wishes import Wishes

RANKS = 4
SEALS, SERIES, TRANSFERS = 2000, 20, 7
PARAMETERS = 25_700_000
SHARD_BYTES = PARAMETERS * 3 * 4 // 2
"""float32 parameters and Adam's two moments of each, over the two members of a replica."""


def main() -> None:
    """Run the ranks and print what they found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.seal_speed")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the work")
    part = 20 if parser.parse_args().quick else 1
    os.environ |= MALLOC_DEFAULTS  # which a process reads when it begins
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (folder, part), nprocs=RANKS)  # type: ignore[no-untyped-call]
        print((Path(folder) / "result").read_text())


def _rank(rank: int, folder: str, part: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=FileStore(f"{folder}/store", RANKS), rank=rank, world_size=RANKS)
    shard = torch.ones(SHARD_BYTES // 4 // part)
    found: dict[str, float] = {
        "seal": _longest(SEALS // SERIES // part, _seals) / SERIES,
        "shard over one link": _longest(TRANSFERS, lambda: _sent(rank, shard, links=1)),
        "shards over both links": _longest(TRANSFERS, lambda: _sent(rank, shard, links=2)),
    }
    found["shard over one link, + 60 ms"] = found["shard over one link"] + 0.060
    if rank == 0:
        (Path(folder) / "result").write_text(json.dumps(found))


def _seals() -> None:
    for _ in range(SERIES):
        sealed(Wishes())


def _sent(rank: int, shard: torch.Tensor, links: int) -> None:
    """Send this rank's shard to its receiver, or receive it: ranks 0 and 1 hold shards, 2 and 3 are to receive them."""
    if rank < links:
        dist.send(shard, rank + 2)
    elif 0 <= rank - 2 < links:
        dist.recv(shard, rank - 2)


def _longest(count: int, action: Callable[[], object]) -> float:
    """How long an action takes: the median over so many, each the longest that any rank took."""
    seconds = []
    for _ in range(count):
        dist.barrier()
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    longest = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return float(statistics.median(longest.tolist()))


if __name__ == "__main__":
    main()
