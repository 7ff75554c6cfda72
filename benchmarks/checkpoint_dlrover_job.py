"""The script that checkpoint_dlrover.py measures: two ranks, each with a part of the state, which wait as if for a GPU.

With `dlrover` it runs in a Python that has dlrover[torch] and no edriver.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TENSORS = 50
COLUMNS = 1000
"""Matrices, as parameters are: DTensor counts up to the length of the dimension that is sharded each time it is asked
for a part, which takes milliseconds for a vector of millions (torch 2.13, torch/distributed/tensor/_utils.py)."""

EVERY_STEPS = 10


class DlroverCheckpoints:
    """Flash Checkpoint, with a shard of each rank."""

    def __init__(self, folder: Path) -> None:
        from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

        size = dist.get_world_size()
        self._memory = StorageType.MEMORY
        self._checkpointer = DdpCheckpointer(str(folder), local_shard_num=size, global_shard_num=size)

    def load(self, state: dict[str, Any]) -> int:
        """Load the newest; returns its step."""
        found = self._checkpointer.load_checkpoint()
        if not found:
            return 0
        for name, tensor in state.items():
            tensor.copy_(found[name])
        return int(found["step"])

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save into memory, if it is time."""
        if step % EVERY_STEPS == 0:
            self._checkpointer.save_checkpoint(step, {**state, "step": step}, storage_type=self._memory)


class EdriverCheckpoints:
    """Those of edriver, of the same tensors as parts of DTensors: else they would be the same on all ranks."""

    def __init__(self, folder: Path) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        import edriver

        self._checkpoints = edriver.checkpoints.Checkpoints(folder, every_memory=EVERY_STEPS)
        self._mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self._sharded: dict[str, Any] = {}

    def load(self, state: dict[str, Any]) -> int:
        """Load the newest; returns its step."""
        from torch.distributed.tensor import DTensor, Shard

        self._sharded = {
            name: DTensor.from_local(tensor, self._mesh, [Shard(0)], run_check=False) for name, tensor in state.items()
        }
        return self._checkpoints.load(self._sharded) or 0

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save, if it is time."""
        del state  # of the same tensors
        self._checkpoints.save(step, self._sharded)


def main() -> None:
    """Make steps until it is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("system", choices=["edriver", "dlrover"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rows = options.megabytes * 1_000_000 // 4 // TENSORS // COLUMNS
    state = {f"part{n}": torch.zeros(rows, COLUMNS) for n in range(TENSORS)}
    checkpoints = (EdriverCheckpoints if options.system == "edriver" else DlroverCheckpoints)(
        options.folder / "checkpoints"
    )
    step = checkpoints.load(state)
    assert state["part0"][0, 0] == step, "the state is of another step"
    log = (options.folder / "log" / f"{rank}-{os.getpid()}").open("w", buffering=1)
    gradient = torch.zeros(1000)
    while True:
        time.sleep(options.step_seconds)
        dist.all_reduce(gradient)
        step += 1
        state["part0"].fill_(step)
        dist.barrier()
        began = time.perf_counter()
        checkpoints.save(step, state)
        took = time.perf_counter() - began
        print(f"{time.monotonic():.4f} {step} {took:.6f}", file=log)


if __name__ == "__main__":
    main()
