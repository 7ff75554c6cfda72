"""A small script for torchrun that keeps its checkpoints by edriver.checkpoints, and reduces its gradients by hand."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import edriver

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Linear(6, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
state = {"model": model, "optimizer": optimizer}
checkpoints = edriver.checkpoints.Checkpoints("checkpoints", every_memory=5, every_disk=1_000_000)
begins = checkpoints.load(state) or 0
print(f"rank {rank} of {size} pid {os.getpid()} begins at step {begins}", flush=True)
for step in range(begins + 1, int(sys.argv[1]) + 1):
    batch = torch.randn(6, 6, generator=torch.Generator().manual_seed(step)).tensor_split(size)[rank]
    optimizer.zero_grad()
    (model(batch) - batch).pow(2).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    if rank == 0:
        print(f"made step {step}", flush=True)
    checkpoints.save(step, state)
    while Path("pause").exists() and step == int(sys.argv[2]):
        time.sleep(0.01)
weights = [parameter.sum().item() for parameter in model.parameters()]
print(f"rank {rank} ends at step {step} with {weights}", flush=True)
dist.destroy_process_group()
