"""The script that checkpoint_chaos.py has killed: what it saves and what it loads, it writes down.

What it trains is a table of numbers, spread over the ranks. Each step mixes all rows with the step and with a number
that the round has drawn, so that two rounds never have the same table at the same step, and rows of two steps or rounds
do not go together. A checksum of rows is a sum over them: that of the whole table is the sum of those of the ranks.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import edriver

ROWS, COLUMNS = 3 * 1024, 256  # as a round of three divides them, too
PAUSE = 0.005

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
log = Path(sys.argv[1], f"{time.time():.6f}-{rank}.jsonl").open("a", buffering=1)  # noqa: SIM115  open until the end


def note(what: str, **more: object) -> None:
    """Write down what happens now."""
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    print(json.dumps({"what": what, "at": now, "rank": rank, "size": size, **more}), file=log)


mesh = init_device_mesh("cpu", (size,))
count = ROWS // size
numbers = torch.arange(rank * count, (rank + 1) * count, dtype=torch.int64).unsqueeze(1)
rows = (numbers * 2654435761 + torch.arange(COLUMNS, dtype=torch.int64)).contiguous()
state = {"rows": DTensor.from_local(rows, mesh, [Shard(0)], run_check=False), "drawn": 0}
weights = numbers * 0x1E3779B97F4A7C15 | 1


def checksum() -> int:
    """Of this rank's rows; sums over ranks, like all of this, wrap around at 64 bits."""
    return int((rows * weights).sum())


def whole_checksum() -> int:
    """Of all rows."""
    found = torch.tensor([checksum()])
    dist.all_reduce(found)
    return int(found)


checkpoints = edriver.checkpoints.Checkpoints(sys.argv[2], every_memory=1)
begins = checkpoints.load(state) or 0
note("begins", pid=os.getpid(), step=begins, drawn=state["drawn"], checksum=whole_checksum())
drawn = [random.SystemRandom().getrandbits(31) | 1]
dist.broadcast_object_list(drawn)
state["drawn"] = drawn[0]

kept = False
memory: Any = checkpoints._memory  # `save` says nothing of what it has skipped
save_to_memory = memory.save


def save_and_note(*arguments: Any) -> bool:
    """Save, and remember whether the checkpoint server has it now."""
    global kept
    kept = bool(save_to_memory(*arguments))
    return kept


memory.save = save_and_note
step = begins
while True:
    step += 1
    rows.mul_(6364136223846793005).add_(step * drawn[0])
    dist.barrier()
    time.sleep(PAUSE)
    note("saves", step=step, drawn=drawn[0], checksum=checksum())
    checkpoints.save(step, state)
    note("saved", step=step, drawn=drawn[0], kept=kept)
