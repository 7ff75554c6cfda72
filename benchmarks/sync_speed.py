"""The speed of a sync of 400 MB beside a flat broadcast of as many bytes: `python -m benchmarks.sync_speed`.

Four ranks over Gloo on loopback, in processes like those of workers. What is timed is `TorchState.sync()`, from the
source's live tensors to the receivers' live tensors, which have a commit of them besides. Receivers are as newcomers:
they have a model and an optimizer that has not stepped.
Prints one JSON object, bytes a second by name: medians of REPEATS, all of them in one process group and in turns.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import spawn

from edriver.agent.workers.worker_environment import MALLOC_DEFAULTS
from edriver.model.plan import SINGLE_WORKER, Assignment
from edriver.worker import context
from edriver.worker.state.torch_state import TorchState

RANKS = 4
REPEATS = 7
NBYTES = 400_000_000
TENSORS = 5000


class Parameters(torch.nn.Module):
    """A model of equal parameters, float32."""

    def __init__(self, count: int, nbytes: int) -> None:
        super().__init__()
        parameters = (torch.nn.Parameter(torch.ones(nbytes // count // 4)) for _ in range(count))
        self.parameter_list = torch.nn.ParameterList(parameters)


def main() -> None:
    """Run the ranks and print what rank 0 found."""
    os.environ |= MALLOC_DEFAULTS  # which a process reads when it begins
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (folder,), nprocs=RANKS)  # type: ignore[no-untyped-call]
        print((Path(folder) / "result").read_text())


def _rank(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=FileStore(f"{folder}/store", RANKS), rank=rank, world_size=RANKS)
    flat = torch.ones(NBYTES // 4)
    many, one = _state_of_many(rank), TorchState(flat=torch.ones(NBYTES // 4))
    subjects: dict[str, tuple[TorchState | None, tuple[int, ...]]] = {
        "broadcast speed": (None, ()),
        "sync speed": (many, (1,)),
        "one tensor: sync speed": (one, (1,)),
        "three receivers: sync speed": (many, (1, 2, 3)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(1 + REPEATS):
        for name, (state, receivers) in subjects.items():
            if state is None:
                took = _timed(lambda: dist.broadcast(flat, 0))
            else:
                if rank in receivers and state is many:
                    state.optimizer.state.clear()
                context.current.place.enter(_place(rank, receivers))
                took = _timed(state.sync)
            seconds[name].append(took)
    dist.barrier()
    if rank == 0:
        (Path(folder) / "result").write_text(json.dumps(_report(seconds)))


def _state_of_many(rank: int) -> TorchState:
    """Half of the tensors are parameters, the other half the optimizer's momentum."""
    model = Parameters(TENSORS // 2, NBYTES // 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if rank == 0:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    return TorchState(model, optimizer)


def _place(rank: int, receivers: tuple[int, ...]) -> Assignment:
    return replace(SINGLE_WORKER, rank=rank, size=RANKS, sources=(0,), receivers=receivers)


def _timed(action: Callable[[], object]) -> float:
    dist.barrier()
    start = time.perf_counter()
    action()
    dist.barrier()
    return time.perf_counter() - start


def _report(seconds: dict[str, list[float]]) -> dict[str, float]:
    # The first touches all memory.
    return {name: NBYTES / statistics.median(values[1:]) for name, values in seconds.items()}


if __name__ == "__main__":
    main()
