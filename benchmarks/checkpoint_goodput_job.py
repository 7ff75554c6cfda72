"""The script that checkpoint_goodput.py disturbs: four ranks with a sharded state, which wait as if for a GPU.

Under edriver it keeps a checkpoint in memory every ten steps; under torchrun it has torch.distributed.checkpoint write
one to disk every minute, behind training. It writes down each step.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

EVERY_STEPS = 10
EVERY_SECONDS = 60.0
TENSORS = 10


class DiskCheckpoints:
    """What a careful script does with torch alone: async_save, a name at the end, the newest at the start. The minute
    counts from the newest checkpoint, or from the beginning of the run, whichever process it was.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last = max(path.stat().st_mtime for path in (folder / "begun", *folder.glob("*/.metadata")))
        self._saving: tuple[int, Any] | None = None
        self._group = dist.new_group(backend="gloo")

    def load(self, state: dict[str, Any]) -> int:
        """Load the newest that is complete; returns its step."""
        steps = sorted(int(path.name) for path in self._folder.glob("*[0-9]") if (path / ".metadata").exists())
        if steps:
            load(state, checkpoint_id=self._folder / str(steps[-1]))
        return steps[-1] if steps else 0

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Begin to write, once it is time; rank 0 says when that is."""
        due = torch.tensor([int(time.time() - self._last >= EVERY_SECONDS)])
        if step % EVERY_STEPS:
            return
        dist.broadcast(due, 0)
        if not due.item():
            return
        self._last = time.time()
        if self._saving is not None:
            self._saving[1].result()
        saved = async_save(state, checkpoint_id=self._folder / str(step), process_group=self._group)
        self._saving = step, saved


def main() -> None:
    """Make steps until it is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("system", choices=["edriver", "torchrun"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    length = options.megabytes * 1_000_000 // 4 // TENSORS
    parts = [torch.zeros(length) for _ in range(TENSORS)]
    state = {f"part{n}": DTensor.from_local(part, mesh, [Shard(0)], run_check=False) for n, part in enumerate(parts)}
    checkpoints: Any
    if options.system == "edriver":
        import edriver

        checkpoints = edriver.checkpoints.Checkpoints(options.folder / "checkpoints", every_memory=EVERY_STEPS)
    else:
        checkpoints = DiskCheckpoints(options.folder / "checkpoints")
    step = checkpoints.load(state) or 0
    assert parts[0][0] == step, "the state is of another step"
    log = (options.folder / "log" / f"{rank}-{os.getpid()}").open("w", buffering=1)
    print(f"{time.monotonic():.3f} begin {step}", file=log)
    gradient = torch.zeros(1000)
    while True:
        time.sleep(options.step_seconds)
        dist.all_reduce(gradient)
        step += 1
        for part in parts:
            part.fill_(step)
        checkpoints.save(step, state)
        print(f"{time.monotonic():.3f} step {step}", file=log)


if __name__ == "__main__":
    main()
