"""A plain torch.distributed script: it adds up ones until a file appears, and says who it is."""

from __future__ import annotations

from tests.quick_start import end_quickly, start_quickly

# isort: split
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

start_quickly()
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
rank, size, restarts = dist.get_rank(), dist.get_world_size(), os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"rank {rank} of {size} sum {int(ones)} restart {restarts} node {os.environ['NODE']}", flush=True)
done = torch.zeros(1)
while not done:
    done.fill_(float(Path(sys.argv[1]).exists()))
    dist.all_reduce(done)
    time.sleep(0.02)  # steps
print(f"rank {rank} of {size} is done", flush=True)
dist.destroy_process_group()
end_quickly()
