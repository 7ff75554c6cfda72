"""A script for torchrun that shards its model, and keeps its checkpoints by edriver.checkpoints: two lines of it."""

import hashlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import edriver

STEPS, EVERY = int(os.environ["STEPS"]), int(os.environ.get("EVERY", "10"))
EVERY_DISK = int(os.environ.get("EVERY_DISK", "1000000"))
STOP = os.environ.get("STOP")
PAUSE = float(os.environ.get("PAUSE", "0"))

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
width = int(os.environ.get("WIDTH", "64"))
model = torch.nn.Sequential(torch.nn.Linear(12, width), torch.nn.Tanh(), torch.nn.Linear(width, 12))
fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

state = {"model": model, "optimizer": optimizer}
checkpoints = edriver.checkpoints.Checkpoints(sys.argv[1], every_memory=EVERY, every_disk=EVERY_DISK)
begins = checkpoints.load(state) or 0
print(f"rank {rank} of {size} pid {os.getpid()} begins at step {begins}", flush=True)


def digest() -> str:
    """Of all parameters and of all that the optimizer keeps of them."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        for tensor in (parameter, *optimizer.state[parameter].values()):
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            found.update(whole.detach().numpy().tobytes())
    return found.hexdigest()[:16]


for step in range(begins + 1, STEPS + 1):
    batch = torch.randn(12, 12, generator=torch.Generator().manual_seed(step)).tensor_split(size)[rank]
    loss = (model(batch) - batch).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(PAUSE)
    if rank == 0:
        print(f"rank 0 made step {step}", flush=True)
    if not ("ODD" in os.environ and rank == size - 1 and begins == 0 and step > 15 and step % 7):
        checkpoints.save(step, state)
    if step % 10 == 0 and (found := digest()) and rank == 0:
        print(f"the state of step {step} is {found}", flush=True)
    if STOP:
        stops = torch.tensor(float(Path(STOP).exists()))
        dist.all_reduce(stops, dist.ReduceOp.MAX)  # on all ranks after the same step
        if stops:
            break
print(f"rank {rank} ends at step {step} with {digest()}", flush=True)
dist.destroy_process_group()
