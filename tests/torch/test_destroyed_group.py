"""Scripts that destroy their process group before they let go of their DistributedDataParallel."""

from __future__ import annotations

import subprocess
import sys

import pytest

BOUND = 120.0

SCRIPT = """
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from edriver.worker.restart import destroyed_group

destroyed_group.keep()
sys.setswitchinterval(100)  # the thread of a group that has just been destroyed gets the interpreter's lock last

def main():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    model(torch.ones(2, 4)).sum().backward()
    dist.broadcast(torch.ones(1), 0)
    dist.destroy_process_group()

for _ in range(100):
    main()
"""


@pytest.mark.long
def test_a_group_that_a_model_outlives_does_not_keep_the_process() -> None:
    """Without the reference that is kept, it hangs within some twenty rounds."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], timeout=BOUND, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
