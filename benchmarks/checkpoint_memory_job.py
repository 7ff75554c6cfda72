"""The script that checkpoint_memory.py measures: ranks with a state of a given size, which sleep as if for a GPU; or
ranks that train with FSDP2.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

import edriver
from edriver.checkpoint_folder.folder import CheckpointFolder

TENSORS = 50
LAYERS, WIDTH = 8, 1768
"""Of the model: 25 million parameters."""
STEP_SECONDS = 0.02
SAVES = 8
STEPS = 150

what, megabytes, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (size,))


# That of all ranks stays the same when a host is lost.
everything = torch.ones(2 * megabytes * 1_000_000 // 4 // size // TENSORS * TENSORS)
parts = everything.tensor_split(TENSORS)
state = {f"part{n}": DTensor.from_local(part, mesh, [Shard(0)], run_check=False) for n, part in enumerate(parts)}


def seconds(do: Callable[[], object]) -> float:
    """How long it takes on the slowest rank, begun by all together."""
    dist.barrier()
    began = time.perf_counter()
    do()
    took = torch.tensor([time.perf_counter() - began])
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)


def step_rate(steps: int) -> float:
    """Steps a second of a loop that waits."""
    began = time.perf_counter()
    for _ in range(steps):
        time.sleep(STEP_SECONDS)
    return steps / (time.perf_counter() - began)


def measure() -> None:
    """A save against one memcpy of the same bytes, and the step rate while copies are made behind it."""
    checkpoints = edriver.checkpoints.Checkpoints(folder, every_memory=1)
    there = torch.zeros_like(everything)

    def copy() -> None:
        ctypes.memmove(there.data_ptr(), everything.data_ptr(), everything.nbytes)

    copy()
    first = seconds(lambda: checkpoints.save(1, state))
    copies, saves, rates, quiet = [], [], [], []
    for number in range(2, SAVES + 2):
        step_rate(STEPS)  # until the copies of the save before are made
        quiet.append(step_rate(STEPS))
        copies.append(seconds(copy))
        saves.append(seconds(partial(checkpoints.save, number, state)))
        rates.append(step_rate(STEPS))
    figures = {
        "MB a rank": megabytes,
        "memcpy s": median(copies),
        "first save s": first,
        "second save s": saves[0],
        "save s": median(saves),
        "save over memcpy": median(saves) / median(copies),
        "step rate behind a save": median(rates) / median(quiet),
    }
    say(figures)


def measure_disk() -> None:
    """The step rate while a checkpoint is copied and written to disk."""
    checkpoints = edriver.checkpoints.Checkpoints(folder, every_memory=1, every_disk=1)
    rates, quiet, took = [], [], []
    for number in range(1, 4):
        quiet.append(step_rate(STEPS))
        checkpoints.save(number, state)
        began, made = time.perf_counter(), 0
        while (newest := CheckpointFolder(folder).newest()) is None or newest.steps < number:
            step_rate(10)
            made += 10
        rates.append(made / (time.perf_counter() - began))
        took.append(time.perf_counter() - began)
    say({"to disk s": median(took), "step rate while it is copied and written": median(rates) / median(quiet)})


def say(figures: dict[str, float]) -> None:
    """Print them, on rank 0."""
    if rank == 0:
        print("figures", json.dumps({name: round(value, 3) for name, value in figures.items()}), flush=True)


def wait() -> None:
    """A step that waits."""
    time.sleep(STEP_SECONDS)
    dist.barrier()


def sharded() -> tuple[dict[str, object], Callable[[], None]]:
    """A model under FSDP2 with its optimizer, and a step."""
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters())
    inputs = torch.ones(1, WIDTH)

    def step() -> None:
        model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return {"model": model, "optimizer": optimizer}, step


def train() -> None:
    """Steps, with a save at each tenth or with none, until this is killed."""
    saved, make_step = sharded() if what.startswith("fsdp") else (state, wait)
    checkpoints = edriver.checkpoints.Checkpoints(folder, every_memory=10) if what.endswith("saves") else None
    step = (checkpoints.load(saved) or 0) if checkpoints else 0
    while True:
        make_step()
        step += 1
        if checkpoints:
            checkpoints.save(step, saved)
        print(f"rank {rank} pid {os.getpid()} step {step}", flush=True)


{"measure": measure, "disk": measure_disk}.get(what, train)()
