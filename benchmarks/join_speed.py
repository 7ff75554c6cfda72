"""What it costs that a newcomer has its memory ready before its first round: `python -m benchmarks.join_speed`.

Two ranks over Gloo on loopback: one holds a model of 25.7 million parameters with Adam's moments, the other one joins,
in turns with and without `TorchState.prepare()` before. Prints one JSON object a turn, in seconds: what the newcomer
takes before the join, the sync on both, and the newcomer's first step. Processor times mean something on a machine that
is busy, too.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import spawn

from benchmarks.workload import FEATURES, make_model
from edriver.agent.workers.worker_environment import MALLOC_DEFAULTS
from edriver.model.plan import SINGLE_WORKER
from edriver.worker import context
from edriver.worker.backend.heap import grow_heap
from edriver.worker.state.torch_state import TorchState

HIDDEN, LAYERS = 2048, 6
HOLDER, NEWCOMER = range(2)


def main() -> None:
    """Measure in turns and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.join_speed")
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    os.environ |= MALLOC_DEFAULTS  # which a process reads when it begins
    for _ in range(repeats):
        for prepares in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                spawn(_rank, (folder, prepares), nprocs=2)  # type: ignore[no-untyped-call]
                of_holder, of_newcomer = (json.loads((Path(folder) / f"{rank}").read_text()) for rank in range(2))
            found = {"memory is ready": prepares, "holder": of_holder, "newcomer": of_newcomer}
            print(json.dumps({**found, "load": round(os.getloadavg()[0], 1)}), flush=True)


def _rank(rank: int, folder: str, prepares: bool) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    grow_heap()
    model = make_model(HIDDEN, LAYERS)
    optimizer = torch.optim.Adam(model.parameters())
    state = TorchState(model, optimizer)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(model(torch.ones(8, FEATURES)).sum())
        optimizer.step()

    found: dict[str, float] = {}
    if rank == HOLDER:
        for _ in range(3):
            step()
        state.save()
    else:
        os.environ |= {"EDRIVER_POSITION": "0", "EDRIVER_REPLICA_SIZE": "1"}
        if prepares:
            found |= _timed("before", state.prepare)
    dist.barrier()
    context.current.place.enter(replace(SINGLE_WORKER, rank=rank, size=2, receivers=(NEWCOMER,)))
    found |= _timed("sync", state.sync)
    if rank == NEWCOMER:
        found |= _timed("first step", step)
    (Path(folder) / f"{rank}").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _timed(name: str, action: Callable[[], object]) -> dict[str, float]:
    """What it takes, by the clock and of the processor."""
    began, used = time.perf_counter(), time.process_time()
    action()
    took = {name: time.perf_counter() - began, f"{name}, processor": time.process_time() - used}
    return {name: round(seconds, 3) for name, seconds in took.items()}


if __name__ == "__main__":
    main()
