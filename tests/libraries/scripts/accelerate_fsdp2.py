"""A training loop with Accelerate, which shards the model by FSDP2; edriver keeps its checkpoints."""

from __future__ import annotations

import sys

import recipe
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import DistributedType, set_seed
from torch.distributed.tensor import DTensor

import edriver

STEPS = int(sys.argv[1])

accelerator = Accelerator(cpu=True)
# On CPUs an Accelerator ignores the plugin that it is given. Once its state says so, it shards there as on GPUs.
accelerator.state.distributed_type = DistributedType.FSDP
accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False)
set_seed(1)
x = torch.randn(360, 12)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1)), batch_size=2)
model = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.Tanh(), torch.nn.Linear(24, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
assert all(isinstance(parameter, DTensor) for parameter in model.parameters())

checkpoints = edriver.checkpoints.Checkpoints("checkpoints", every_memory=5)
state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
step = checkpoints.load(state) or 0
recipe.begins(step)
for inputs, targets in accelerator.skip_first_batches(loader, step):
    loss = torch.nn.functional.mse_loss(model(inputs).squeeze(-1), targets)
    accelerator.backward(loss)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    step += 1
    checkpoints.save(step, state)
    recipe.made(step)
    if step == STEPS:
        break
moments = [moment for of_one in optimizer.state.values() for moment in of_one.values()]
recipe.ends(step, [*model.parameters(), *moments])
accelerator.end_training()
