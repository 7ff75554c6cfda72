"""A training loop of one's own with Accelerate, which saves its state every few steps and goes on from the newest."""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from dies import after_step

STEPS = 12

accelerator = Accelerator(cpu=True)
set_seed(1)
x = torch.arange(256.0).reshape(64, 4) / 256
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1)), batch_size=2)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

saved = sorted(Path("saved").glob("step_*"), key=lambda folder: int(folder.name.removeprefix("step_")))
step = 0
if saved:
    accelerator.load_state(str(saved[-1]))
    step = int(saved[-1].name.removeprefix("step_"))
print(f"rank {accelerator.process_index} begins at step {step}", flush=True)
for inputs, targets in accelerator.skip_first_batches(loader, step):
    loss = torch.nn.functional.mse_loss(model(inputs).squeeze(-1), targets)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step % 4 == 0:
        accelerator.save_state(f"saved/step_{step}")
    after_step(step)
    if step == STEPS:
        break
accelerator.end_training()
print(f"rank {accelerator.process_index} is done at step {step}", flush=True)
