"""A script for Horovod that is not elastic; one line of it is edriver's."""

from __future__ import annotations

from tests.quick_start import end_quickly, start_quickly

# isort: split
import os

import torch

import edriver.horovod as hvd

start_quickly()

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for step in range(int(os.environ["STEPS"])):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    if step == 20:
        print(f"rank {hvd.rank()} of {hvd.size()} pid {os.getpid()} passed step 20", flush=True)
weights = hvd.allgather(model.weight.detach())
assert torch.equal(weights[:1].expand_as(weights), weights)
print(f"rank {hvd.rank()} is done", flush=True)
end_quickly()
