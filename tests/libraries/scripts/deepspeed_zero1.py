"""A training loop with DeepSpeed's ZeRO stage 1; edriver keeps its checkpoints."""

from __future__ import annotations

import sys

import deepspeed
import recipe
import torch
import torch.distributed as dist

import edriver

STEPS = int(sys.argv[1])

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.Tanh(), torch.nn.Linear(24, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}}
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=scheduler, config=config)
rank, size = dist.get_rank(), dist.get_world_size()

checkpoints = edriver.checkpoints.Checkpoints("checkpoints", every_memory=5)
state = {"model": engine}
step = checkpoints.load(state) or 0
recipe.begins(step)
assert engine.global_steps == step
while step < STEPS:
    x = torch.randn(2 * size, 12, generator=torch.Generator().manual_seed(step)).tensor_split(size)[rank]
    engine.backward(torch.nn.functional.mse_loss(engine(x).squeeze(-1), x.sum(1)))
    engine.step()
    step += 1
    checkpoints.save(step, state)
    recipe.made(step)
own = [moment for of_one in engine.optimizer.optimizer.state.values() for moment in of_one.values()]
moments = [torch.zeros_like(moment) for moment in own for _ in range(size)]
for number, moment in enumerate(own):
    dist.all_gather(moments[number * size : (number + 1) * size], moment)
recipe.ends(step, [*model.parameters(), *moments])
dist.destroy_process_group()
