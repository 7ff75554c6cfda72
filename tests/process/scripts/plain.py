"""A script as torchrun runs it, which knows nothing of edriver: it loads its newest checkpoint, and trains on."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = Path("checkpoint.pt")
STEPS = int(os.environ.get("STEPS", "20"))
PAUSE = 0.05 if STEPS > 1000 else 0.01  # the test ends it: leave the processor to processes that start
EVERY = int(os.environ.get("EVERY", "1"))
BY_SIGNAL = "SIGUSR1" in os.environ
signalled: list[int] = []


def checkpoint_wanted() -> bool:
    """Whether to save now, besides every so many steps: on all ranks once one of them has received the signal."""
    if not BY_SIGNAL:
        return False
    seen = torch.tensor(float(bool(signalled)))
    dist.all_reduce(seen, dist.ReduceOp.MAX)
    return bool(seen)


@record
def main() -> None:
    dist.init_process_group("gloo")
    if BY_SIGNAL:
        signal.signal(signal.SIGUSR1, lambda number, _: signalled.append(number))
    rank, size = dist.get_rank(), dist.get_world_size()
    assert (str(rank), str(size)) == (os.environ["RANK"], os.environ["WORLD_SIZE"])
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    step = 0
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    wrapped = DistributedDataParallel(model)
    restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
    print(f"rank {rank} of {size} pid {os.getpid()} at step {step} after {restarts} failures", flush=True)
    while step < STEPS and not stops(step):
        if (os.environ.get("FAIL"), rank) == (str(step), size - 1):
            sys.exit(3) if "EXIT" in os.environ else raise_something()
        optimizer.zero_grad()
        wrapped(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        step += 1
        if wanted := checkpoint_wanted():
            print(f"rank {rank} saves at step {step}", flush=True)
        if rank == 0 and (wanted or step % EVERY == 0):
            new = CHECKPOINT.with_suffix(".new")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, new)
            new.replace(CHECKPOINT)
        if wanted and BY_SIGNAL:
            sys.exit(0)
        print(f"rank {rank} passed step {step}", flush=True)
        time.sleep(PAUSE)
    dist.destroy_process_group()
    print(f"rank {rank} is done with {' '.join(sys.argv)}", flush=True)


def stops(step: int) -> bool:
    """Whether a file says so: all ranks look at the same steps, and see the same."""
    seen = torch.tensor(float(step % 10 == 0 and Path("stop").exists()))
    dist.broadcast(seen, 0)
    return bool(seen)


def raise_something() -> None:
    raise ValueError("the script's own fault")


if __name__ == "__main__":
    main()
